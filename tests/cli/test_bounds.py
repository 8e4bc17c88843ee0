"""``dpfed bounds``: what is printed is released, what is released is charged once, and what is useless is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from dpfed import events as ev
from dpfed.analytics.queries import Histogram
from dpfed.analytics.releases import ColumnRelease
from dpfed.cli.main import main
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from studies import committed

ASK = "bounds ward.csv --column age --column pay --account ward-{id} --epsilon 0.5"
SITES = "--site-column ward --sites north,south"


def write_table(count: int) -> None:
    draws = np.random.default_rng(0)
    ages, pays = draws.integers(20, 90, count), draws.integers(900, 1900, count)
    ill = 10 * ages + pays + draws.normal(0, 100, count) > 1950
    rows = [
        f"{age},{pay},{('north', 'south')[number % 2]},p{number // 2},{'yes' if is_ill else 'no'}"
        for number, (age, pay, is_ill) in enumerate(zip(ages, pays, ill, strict=True))
    ]
    Path("ward.csv").write_text("age,pay,ward,patient,ill\n" + "\n".join(rows) + "\n")


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """A folder with a ledger, and a table of 4,000 records."""
    monkeypatch.chdir(tmp_path)
    write_table(4000)
    with Ledger("sqlite:///ledger.db") as book:
        book.open("ward-owner", epsilon=4.0, delta=1e-6)
        yield book


def invoke(line: str):
    return CliRunner().invoke(main, line.split())


def test_the_release_is_charged_by_the_event_of_its_noise_once(ledger):
    found = json.loads(invoke(f"{ASK} --json").output)
    event = ColumnRelease(Histogram.fixed(2), Guarantee(0.5, 1e-6)).event
    assert committed(ledger) == {"ward-owner": {event: 1}}
    assert ev.loads(json.dumps(found["event"])) == event
    low, high = found["feature_bounds"]["age"]
    assert low <= 20  # but for noise of seven deviations
    assert high >= 89
    assert not ledger.reservations()


def test_a_dry_run_says_what_it_takes_and_charges_nothing(ledger):
    result = invoke(f"{ASK} --dry-run")
    assert "fewer than about 898 values gets no range" in result.output
    assert "feature_bounds" not in result.output
    assert committed(ledger) == {}


def test_the_same_release_again_is_refused_and_not_charged(ledger):
    assert invoke(ASK).exit_code == 0
    before = ledger.head()
    again = invoke(ASK)
    assert again.exit_code == 2
    assert "costs nothing" in again.output
    assert ledger.head() == before
    assert invoke(f"{ASK} --name other").exit_code == 0
    assert sum(committed(ledger)["ward-owner"].values()) == 2


def test_few_records_get_no_range_and_it_is_said_that_the_release_was_useless(ledger):
    write_table(60)
    result = invoke(ASK)
    assert "USELESS for age, pay" in result.output
    assert '"age": null' in result.output
    assert sum(committed(ledger)["ward-owner"].values()) == 1


def test_a_declared_grid_needs_fewer_records(ledger):
    wide = json.loads(invoke(f"{ASK} --json --dry-run").output)
    narrow = json.loads(invoke(f"{ASK} --grid age=0:128:8 --grid pay=0:4000:8 --json --dry-run").output)
    assert narrow["least"] < wide["least"] / 2
    assert narrow["noise"] == wide["noise"]


def test_every_site_pays_from_its_own_account(ledger):
    for site in ("north", "south"):
        ledger.open(f"ward-{site}", epsilon=4.0, delta=1e-6)
    result = invoke(f"{ASK} {SITES}")
    assert result.exit_code == 0, result.output
    assert {account: sum(found.values()) for account, found in committed(ledger).items()} == {
        "ward-north": 1,
        "ward-south": 1,
    }


def test_a_person_at_two_sites_has_noise_for_both(ledger):
    for site in ("north", "south"):
        ledger.open(f"p-{site}", epsilon=4.0, delta=1e-6, unit="person")
    line = f"{ASK} {SITES} --person-column patient".replace("ward-{id}", "p-{id}")
    refused = invoke(line)
    assert refused.exit_code != 0
    assert "max_sites_per_person" in refused.output
    assert invoke(f"{line} --max-sites-per-person 2").exit_code == 0
    event = ColumnRelease(Histogram.fixed(2), Guarantee(0.5, 1e-6, "person"), 2).event
    assert committed(ledger) == {"p-north": {event: 1}, "p-south": {event: 1}}


@pytest.mark.parametrize(
    ("unit", "more", "says"),
    [
        ("person", "", "--person-column"),
        ("record", "--person-column patient", "leave --person-column out"),
        ("client", "", "one client"),
    ],
)
def test_an_account_for_another_unit_is_refused_and_not_charged(ledger, unit, more, says):
    ledger.open("other", epsilon=4.0, delta=1e-6, unit=unit)
    result = invoke(f"{ASK} {more}".replace("ward-{id}", "other"))
    assert result.exit_code == 2
    assert says in result.output
    assert committed(ledger) == {}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--grid age=0:9", "COLUMN=LOW:HIGH:CELLS"),
        ("--grid ward=0:9:3", "--column ward"),
        ("--sites a,b", "go together"),
        ("--column gae", "no column"),
        ("--epsilon 9", "ward-owner"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_not_charged(ledger, more, says):
    result = invoke(f"{ASK} {more}")
    assert result.exit_code != 0
    assert says in result.output
    assert committed(ledger) == {}


def test_sites_need_accounts_of_their_own(ledger):
    result = invoke(f"{ASK} {SITES}".replace("ward-{id}", "ward-owner"))
    assert "ward-{id}" in result.output
    assert committed(ledger) == {}


def test_an_address_that_may_hold_a_password_is_not_printed(ledger):
    with Ledger(Path("me:secret@host.db")) as book:
        book.open("ward-owner", epsilon=4.0, delta=1e-6)
    result = invoke(f"{ASK} --ledger me:secret@host.db")
    assert result.exit_code == 0, result.output
    assert "secret" not in result.output


def test_a_run_with_released_ranges_is_charged_to_the_same_account_and_learns(ledger):
    shown = invoke(f"{ASK} --grid age=0:128:8 --grid pay=0:4000:8").output.splitlines()
    ranges, place = (next(line for line in shown if line.strip().startswith(key)) for key in ("feature_b", "ledger"))
    pairs = yaml.safe_load(ranges)["feature_bounds"]
    given = " ".join(f"--bounds {name}={low:g}:{high:g}" for name, (low, high) in pairs.items())
    init = "init ward.csv --label ill --classes no,yes --ignore ward --ignore patient --size 3200 --epsilon 3 --yes"
    assert invoke(f"{init} {given}").exit_code == 0
    Path("ward.yaml").write_text(Path("ward.yaml").read_text() + place + "\n")
    result = invoke("run ward.yaml")
    assert result.exit_code == 0, result.output
    assert "is better than guessing" in invoke("evaluate runs/ward-1").output
    assert len(committed(ledger)["ward-owner"]) == 2
    assert ledger.balance("ward-owner").spent <= 4.0

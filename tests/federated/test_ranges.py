"""Ranges that a run releases before its first round: charged first, part of the promise, used again after a crash."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpfed.accounting.queries import epsilon
from dpfed.config import RunConfig
from dpfed.errors import BudgetExceeded, InvalidArgument, PrivacyError
from dpfed.federated import launch as launches
from dpfed.federated import network_launch
from dpfed.federated import ranges as released
from dpfed.federated.runners.charging import SharedLedger
from dpfed.ledger.ledger import Ledger
from dpfed.plan.by_round import compose
from dpfed.plan.plan import Plan
from dpfed.plan.ranges import find_range_release, list_range_charges
from dpfed.runs.directory import RANGES, RunDirectory

FILE = """
name: wards
data: {{source: wards.csv, label: ill, classes: ["0", "1"], partition: {partition}, sizes: {sizes}, names: {names},
       feature_bounds: {{age: [0, 120]}}{more}}}
model: {{kind: logistic}}
rounds: 2
local: {{steps: 2, batch_size: 100, learning_rate: 0.5}}
privacy: {{style: sample, {unit}: {{epsilon: 4, delta: 1e-5, clip_norm: 1}}}}
bounds: {{release: [pay], epsilon: 1, grid: {{pay: [0, 1000, 10]}}}}
"""
ONE = {"partition": "{kind: iid, clients: 1}", "sizes": 1500, "names": "[owner]", "more": "", "unit": "record"}
SITES = {**ONE, "partition": "{kind: column, column: site}", "sizes": 700, "names": "[a, b]"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(3)
    rows = [
        f"{draws.integers(20, 90)},{draws.uniform(210, 690):.1f},{'ab'[number % 2]},p{number // 2},{number % 3 // 2}"
        for number in range(2000)
    ]
    Path("wards.csv").write_text("age,pay,site,patient,ill\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return tmp_path


def write(of=ONE, **changed):
    text = FILE.format(**{**of, **changed})
    unused = [name for name in ("site", "patient") if f": {name}" not in text]
    Path("wards.yaml").write_text(text.replace("label: ill", f"label: ill, ignore: [{', '.join(unused)}]"))
    return "wards.yaml"


def begin(file):
    launch = launches.create_run(file, "run")
    with launch.ledger("run") as ledger:
        made = launch.with_ranges("run", ledger)
        return made, [result.spent[0].epsilon for result in made.federation("run", ledger)]


def test_ranges_are_a_part_of_the_promise_and_charged_to_the_same_account(here):
    made, spent = begin(write())
    assert made.config.data.feature_bounds == {"age": (0.0, 120.0), "pay": (200.0, 700.0)}
    release = find_range_release(made.plan)
    assert epsilon(release.event, 1e-5) == pytest.approx(1, rel=1e-3)
    charges = made.plan.local_charges("owner")
    assert charges[release.event] == 1
    assert 3.9 < epsilon(compose(charges), 1e-5) <= 4
    assert spent[0] > epsilon(compose({made.plan.local_event("owner"): 1}), 1e-5)  # ranges are counted from round 1 on
    assert spent[1] == pytest.approx(epsilon(compose(charges), 1e-5))
    with Ledger(Path("run/ledger.db"), create=False) as ledger:
        entries = ledger.resume("wards", plan={"client-owner": charges}).committed_of_each("client-owner")
    assert entries == charges


def test_training_has_more_noise_for_it_and_the_plan_says_what_is_released(here):
    config = RunConfig.read(write())
    facts = launches.prepare(config).plan
    alone = launches.prepare(config.model_copy(update={"bounds": None})).plan
    assert facts.local["owner"].noise_multiplier > alone.local["owner"].noise_multiplier
    assert "before round 1: ranges of pay" in facts.explain()
    assert Plan.from_json(facts.to_json()) == facts


def test_counts_are_charged_before_noise_is_drawn_and_noise_is_what_is_charged(here, monkeypatch):
    made = launches.create_run(write(SITES), "run")
    drawn = []
    release = find_range_release(made.plan)

    def watch(self, total, source=None):
        with Ledger(Path("run/ledger.db"), create=False) as other:
            drawn.append([other.balance(f"client-{name}").spent for name in "ab"])
        return total

    monkeypatch.setattr(type(release), "release", watch)
    with made.ledger("run") as ledger:
        found = made.with_ranges("run", ledger).config.data.feature_bounds
    assert len(drawn) == 2
    assert all(spent > 0 for each in drawn for spent in each)
    assert found["pay"] == (200.0, 700.0)
    assert release.noise == pytest.approx(release.event.noise_multiplier)  # one column: a record moves a count by 1


@pytest.mark.parametrize("sizes", [1500, "public"])
def test_one_unit_moves_the_counts_by_what_the_noise_is_made_for(here, sizes, monkeypatch):
    totals = []
    made = launches.create_run(write(sizes=sizes), "run")
    release = find_range_release(made.plan)
    monkeypatch.setattr(type(release), "release", lambda self, total, source=None: totals.append(total) or total)
    for place, lines in enumerate((2001, 2000)):
        text = Path("wards.csv").read_text().splitlines()
        Path("wards.csv").write_text("\n".join(text[:lines]) + "\n")
        with Ledger(Path(f"{place}.db")) as ledger:
            ledger.open("x", epsilon=9, delta=1e-4, adjacency=made.plan.record_adjacency)
            released.release_ranges(
                made.config, made.plan, here, RunDirectory(f"r{place}"), SharedLedger(ledger, {"owner": "x"}), None
            )
    assert np.linalg.norm(totals[0] - totals[1]) == 1 <= release.query.norm
    shift = 1 if sizes == 1500 else 2
    assert release.noise_multiplier == pytest.approx(shift * find_range_release(begin_plan()).noise_multiplier)


def begin_plan():
    return launches.prepare(RunConfig.read(write())).plan


def test_persons_share_one_weight_at_all_their_sites(here):
    unit = {"more": ", person_column: patient, rows_per_person: 3", "unit": "person"}
    with pytest.raises(InvalidArgument, match="max_sites_per_person"):
        launches.create_run(write(SITES, sizes=600, **unit), "run")
    file = write(SITES, sizes=600, **unit)
    Path(file).write_text(Path(file).read_text() + "max_sites_per_person: 2\n")
    made, _ = begin(file)
    (event,) = list_range_charges(made.plan)
    assert epsilon(compose({event: 2}), 1e-5) == pytest.approx(1, rel=1e-3)  # both sites together cost the share


def test_a_resumed_run_uses_what_was_released_and_pays_nothing_again(here):
    first = launches.create_run(write(), "run")
    with first.ledger("run") as ledger:
        found = first.with_ranges("run", ledger).config
        spent = ledger.balance("client-owner").spent
    again = launches.resume_run("run")
    assert again.config.data.feature_bounds == found.data.feature_bounds
    with again.ledger("run") as ledger:
        assert again.with_ranges("run", ledger) is again
        federation = again.federation("run", ledger)
        assert ledger.balance("client-owner").spent == spent
        assert len(list(federation)) == 2


def test_a_launch_made_before_ranges_were_stored_goes_on_with_them_and_ends_nothing(here):
    launch = launches.create_run(write(), "run")
    with launch.ledger("run") as ledger:
        found = launch.with_ranges("run", ledger).config
        spent = ledger.balance("client-owner").spent
        again = launch.with_ranges("run", ledger)
        assert (again.config, ledger.balance("client-owner").spent) == (found, spent)
        assert len(list(again.federation("run", ledger))) == 2


def test_a_record_with_a_huge_value_does_not_stop_a_run_that_will_release_the_range(here):
    """With a declared range it is cut; that it cannot be a float32 must not show before ranges are released."""
    with Path("wards.csv").open("a") as stream:
        stream.write("50,1e308,a,p1,1\n")
    made, results = begin(write())
    assert made.config.data.feature_bounds["pay"] == (200.0, 700.0)
    assert len(results) == 2


def test_what_cannot_be_released_is_refused_with_what_to_do_instead(here):
    file = write(more=", ignore: [site, patient, pay]")
    Path(file).write_text(Path(file).read_text().replace("label: ill, ignore: [site, patient]", "label: ill", 1))
    with pytest.raises(InvalidArgument, match=r"no feature of numbers: leave it out, or take it out of data\.ignore"):
        launches.create_run(file, "run")


@pytest.mark.parametrize("spare", [0, 1])
def test_ranges_that_a_crash_lost_are_paid_again_from_spare_rounds_only(here, spare, monkeypatch):
    file = write()
    Path(file).write_text(Path(file).read_text() + f"spare_rounds: {spare}\n")
    launch = launches.create_run(file, "run")
    with monkeypatch.context() as patch, launch.ledger("run") as ledger:
        patch.setattr(released, "find_bounds", lambda answer: 1 / 0)  # killed after the commit
        with pytest.raises(ZeroDivisionError):
            launch.with_ranges("run", ledger)
    again = launches.resume_run("run")
    with again.ledger("run") as ledger:
        if spare:
            assert again.with_ranges("run", ledger).config.has_ranges
            assert (
                ledger.resume("wards").left_of_each()["client-owner"][next(iter(list_range_charges(again.plan)))] == 0
            )
        else:
            with pytest.raises(BudgetExceeded, match="begin another run"):
                again.with_ranges("run", ledger)


def test_changed_ranges_are_refused_once_a_round_is_done(here):
    begin(write())
    Path("run", RANGES).write_text(json.dumps({"pay": [0, 9]}))
    with pytest.raises(PrivacyError, match=r"config\.yaml or ranges\.json is not what the run was begun with"):
        launches.resume_run("run")


def test_no_round_begins_before_ranges_are_released(here):
    launch = launches.create_run(write(), "run")
    with launch.ledger("run") as ledger:
        with pytest.raises(InvalidArgument, match="with_ranges"):
            launch.federation("run", ledger)
        charging = SharedLedger(ledger, {"owner": "client-owner"})
        charging.reserve(launch.plan)
        with pytest.raises(InvalidArgument, match="not released"):
            charging.commit_local(["owner"], number=1)


def test_ranges_of_which_noise_would_leave_nothing_are_refused_before_anything_is_paid(here):
    file = write()
    Path(file).write_text(Path(file).read_text().replace("epsilon: 1,", "epsilon: 0.02,"))
    with pytest.raises(InvalidArgument, match="noise would leave nothing"):
        launches.create_run(file, "run")
    assert not Path("run").exists()


def test_a_range_that_noise_left_open_ends_the_run_and_releases_its_reservation(here, monkeypatch):
    launch = launches.create_run(write(), "run")
    monkeypatch.setattr(released, "find_bounds", lambda answer: (None,))
    with launch.ledger("run") as ledger:
        for made in (launch, launches.resume_run("run")):
            with pytest.raises(PrivacyError, match="USELESS"):
                made.with_ranges("run", ledger)
        assert not list(ledger.reservations())


def test_a_run_over_a_network_releases_no_ranges(here):
    text = (
        Path(write(SITES)).read_text()
        + "network: {key: study.key, sites: {a: {key: ssh-ed25519 AA}, b: {key: ssh-ed25519 BB}}}\n"
    )
    with pytest.raises(InvalidArgument, match="on one machine alone"):
        network_launch._prepare(RunConfig.parse(text), here, here / "run")

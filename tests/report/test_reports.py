"""The two reports of a run: what each may hold, what it says first, and that its numbers are those of the ledger."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections import Counter
from io import StringIO

import pytest

from dpfed import events as ev
from dpfed.accounting import queries
from dpfed.accounting.tradeoff import detection_rate
from dpfed.errors import InvalidArgument
from dpfed.ledger.ledger import Ledger
from dpfed.plan.plan import LocalPlan, Plan, PoissonCohort
from dpfed.randomness import SeededSource
from dpfed.report import documents
from dpfed.report.documents import render_html, render_markdown
from dpfed.report.reports import owner_facts, owner_page, shareable_facts, shareable_page, write
from dpfed.runs.directory import OWN_LEDGER, RunDirectory
from pages import Document, rendered_markdown
from run_directories import LOSS, RECORD, SIZES, made, plan_of

SECRET = PoissonCohort(rate=0.5, secret=True)
HOSTILE = '<script>alert(1)</script> [red] & "q" *x* {{ 7 * 7 }} | `y` ![i](http://a.b/c) ' + "long-name-" * 8
PLANS = {
    "none": plan_of("none"),
    "sample": plan_of("sample"),
    "user": plan_of("user"),
    "hybrid": plan_of("hybrid"),
    "secret": plan_of("hybrid", cohort=SECRET, rounds=4),
}
# Whatever may be in a report that is shared; a name that is not here is a leak until somebody says why it is none.
RUN = {
    *("name", "status", "style", "is_private", "rounds_done", "rounds", "model", "algorithm", "summary", "protection"),
    *("units", "by_round", "sites", "not_covered", "simulation", "head", "versions"),
}
UNIT = {"unit", "adjacency", "delta", "asked", "promised", "so_far", "sentence", "arithmetic", "event"}
SITE = {"name", "unit", "size", "batch_size", "steps", "clip_norm", "noise_multiplier", "epsilon", "clients"}
ROUND = {"round", "epsilon", "scores", "record", "client"}
SCORE = {"name", "value", "mark"}
EVENT = {"version", "event_type", "event", "count", "noise_multiplier", "sample_rate"}
VERSIONS = {"dpfed", "accountant", "python", "numpy", "torch"}


def names(value) -> set[str]:
    """Every name in plain values, however deep."""
    if isinstance(value, dict):
        return set(value) | {name for item in value.values() for name in names(item)}
    return {name for item in value for name in names(item)} if isinstance(value, list | tuple) else set()


def texts(page: documents.Document) -> list[str]:
    """Everything a page says."""
    found = [page.title, page.subtitle, page.footer, *(alarm.text for alarm in page.alarms)]
    for section in page.sections:
        found += [section.title, *section.texts, *section.bullets, *(part for pair in section.pairs for part in pair)]
        for table in section.tables:
            found += [table.note, *table.head, *(cell for row in table.rows for cell in row)]
    return [text for text in found if text]


def section(page: documents.Document, title: str) -> documents.Section:
    return next(part for part in page.sections if part.title == title)


def shown(directory) -> str:
    """All looks of the report that is shared, one after the other."""
    page = shareable_page(directory)
    return render_html(page) + render_markdown(page) + json.dumps(shareable_facts(directory))


def charged(directory) -> dict[str, Counter[ev.Event]]:
    """What the ledger's rows say was committed, by account."""
    found: dict[str, Counter[ev.Event]] = {}
    lines = StringIO()
    with Ledger(directory / OWN_LEDGER) as ledger:
        ledger.export(lines)
    for row in map(json.loads, lines.getvalue().splitlines()):
        if row["kind"] == "committed":
            found.setdefault(row["account"], Counter())[ev.loads(row["event"])] += row["times"]
    return found


@pytest.mark.parametrize("style", PLANS)
def test_what_is_shared_has_no_name_but_those_that_may_be(style, tmp_path):
    facts = shareable_facts(made(tmp_path / "run", PLANS[style], ill="south"))
    assert set(facts) == RUN
    assert all(names(unit) <= UNIT | EVENT and set(unit) == UNIT for unit in facts["units"])
    assert all(names(site) == SITE for site in facts["sites"])
    assert all(names(each) <= ROUND | SCORE for each in facts["by_round"])
    assert set(facts["versions"]) == VERSIONS


def test_nothing_that_the_owner_knows_of_clients_is_shared(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"], ill="south")
    seconds = RunDirectory(directory).owner_rounds()[0]["seconds"]
    shared = shown(directory)
    assert "not_finite" in json.dumps(owner_facts(directory))
    for secret in ("not_finite", str(seconds), "contributed", '"refused', "Refused", "account-", OWN_LEDGER):
        assert secret not in shared


def test_with_a_secret_cohort_two_runs_with_other_cohorts_have_the_same_report(tmp_path):
    first, second = (made(tmp_path / str(seed), PLANS["secret"], source=SeededSource(seed)) for seed in (1, 2))
    attended = [[each["contributed"] for each in owner_facts(run)["attendance"]] for run in (first, second)]
    assert attended[0] != attended[1]
    assert shareable_facts(first) == shareable_facts(second)
    assert render_html(shareable_page(first)) == render_html(shareable_page(second))


def test_scores_on_private_records_stay_with_the_owner_where_each_is_marked(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"])
    assert str(LOSS) not in shown(directory)
    assert "accuracy" not in shown(directory)
    assert "accuracy" not in (directory / "rounds.jsonl").read_text()
    assert shareable_facts(directory)["by_round"][0]["scores"] == ()
    facts = owner_facts(directory)
    assert {score["name"]: score["mark"] for score in facts["by_round"][0]["scores"]} == {
        "accuracy": "not covered",
        "loss": "not covered",
    }
    assert any(text.startswith("accuracy: measured without noise") for text in facts["not_covered"])
    assert "accuracy (not covered)" in render_html(owner_page(directory))


def test_scores_on_public_records_are_shared_without_a_mark(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"], is_public=True)
    assert {score["name"] for score in shareable_facts(directory)["by_round"][0]["scores"]} == {"accuracy", "loss"}
    assert "not covered)" not in render_html(shareable_page(directory))


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_epsilon_is_that_of_the_rounds_and_of_the_ledgers_rows(style, tmp_path):
    directory = made(tmp_path / "run", PLANS[style], most=2)
    facts = shareable_facts(directory)
    rows, last = charged(directory), RunDirectory(directory).rounds()[-1]
    for unit in facts["units"]:
        recorded = [each["epsilon"] for each in last["spent"] if each["unit"] == unit["unit"]]
        accounts = [rows["study"]] if unit["unit"] == "client" else [rows[f"account-{n}"] for n in range(len(SIZES))]
        events = [ev.Composed([ev.Repeated(event, times) for event, times in bag.items()]) for bag in accounts]
        anew = max(queries.epsilon(event, unit["delta"], adjacency=unit["adjacency"]) for event in events)
        assert [unit["so_far"]] == recorded == [facts["by_round"][-1]["epsilon"][unit["unit"]]]
        assert unit["so_far"] == pytest.approx(anew, rel=1e-9)
        assert unit["so_far"] < unit["promised"] <= unit["asked"]


@pytest.mark.parametrize("style", ["sample", "user", "hybrid", "secret"])
def test_the_promise_can_be_computed_anew_from_the_event_in_the_report(style, tmp_path):
    for unit in shareable_facts(made(tmp_path / "run", PLANS[style], most=1))["units"]:
        event = ev.from_dict(unit["event"])
        assert queries.epsilon(event, unit["delta"], adjacency=unit["adjacency"]) == unit["promised"]


def test_the_head_is_that_of_the_ledger_and_not_shown_where_it_counts_a_secret_cohort(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"], most=3)
    with Ledger(directory / OWN_LEDGER) as ledger:
        ledger.require(shareable_facts(directory)["head"])
    secret = made(tmp_path / "secret", PLANS["secret"])
    assert shareable_facts(secret)["head"] == ""
    assert "Its head is not given" in render_html(shareable_page(secret))


def test_no_site_has_a_larger_detection_rate_than_the_sentence_says(tmp_path):
    """Both have ε = 4, and the sentence of one of them would be too good for the other."""
    sites = {name: LocalPlan(size=size, batch_size=16, steps=1, clip_norm=1.0) for name, size in SIZES.items()}
    plan = Plan("wards", 1, sites).calibrated(RECORD)
    (unit,) = shareable_facts(made(tmp_path / "run", plan))["units"]
    said = float(unit["sentence"].split()[-2])
    rates = [100 * detection_rate(ev.Repeated(part.event, plan.record_charges), 0.01) for part in plan.local.values()]
    assert max(rates) - min(rates) > 0.3
    assert max(rates) <= said <= 1.5 * max(rates)


def first_words(directory) -> list[str]:
    alarms = shareable_page(directory).alarms
    assert owner_page(directory).alarms[: len(alarms)] == alarms
    return [alarm.text.partition(":")[0] for alarm in alarms]


def test_a_finished_run_has_nothing_to_say_first(tmp_path):
    assert first_words(made(tmp_path / "run", PLANS["sample"])) == []


def test_an_unfinished_run_says_so_first(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"], most=2)
    assert first_words(directory) == ["Not finished"]
    assert "2 of 3 rounds" in shareable_page(directory).alarms[0].text


def test_a_run_that_has_not_begun_has_a_report(tmp_path):
    RunDirectory(tmp_path / "run").begin(PLANS["hybrid"])
    assert first_words(tmp_path / "run") == ["Not finished"]
    assert [unit["so_far"] for unit in shareable_facts(tmp_path / "run")["units"]] == [0.0, 0.0]
    write(tmp_path / "run")


def test_an_exhausted_run_says_so_first(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"], crashes=(2,))
    assert RunDirectory(directory).status == "budget_exhausted"
    assert first_words(directory) == ["Budget exhausted"]


def test_a_seeded_run_says_so_first_and_promises_nothing(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"], source=SeededSource(1))
    assert first_words(directory) == ["NOT PRIVATE"]
    assert shareable_page(directory).alarms[0].is_grave
    assert "an attacker" not in render_html(shareable_page(directory))


def test_a_run_that_protects_nobody_says_so_first(tmp_path):
    directory = made(tmp_path / "run", PLANS["none"])
    assert first_words(directory) == ["NOT PRIVATE"]
    assert "may be shared." not in render_html(shareable_page(directory))


@pytest.mark.parametrize("style", PLANS)
def test_html_and_markdown_say_everything_on_the_page(style, tmp_path):
    directory = made(tmp_path / "run", PLANS[style], ill="south")
    for page in (shareable_page(directory), owner_page(directory)):
        for look in (Document(render_html(page)), rendered_markdown(render_markdown(page))):
            assert [text for text in texts(page) if " ".join(text.split()) not in look.text] == []


def test_html_needs_nothing_else_and_runs_nothing(tmp_path):
    directory = made(tmp_path / "run", PLANS["hybrid"])
    for page in (shareable_page(directory), owner_page(directory)):
        text = render_html(page)
        document = Document(text)
        assert not set(document.tags) & {"script", "link", "img", "iframe", "object", "form", "a", "image"}
        assert not {name for name, _ in document.attributes if name.startswith("on") or name in ("src", "href")}
        assert all(value.startswith("#") for name, value in document.attributes if name == "xlink:href")
        assert "default-src 'none'" in text
        assert "@import" not in text
        assert document.tags.count("svg") == len(section(page, "Rounds").charts) >= 2


def test_names_of_users_are_shown_literally(tmp_path):
    sizes = {f"{number} {HOSTILE}": 100 + number for number in range(3)}
    plan = plan_of("sample", sizes)
    directory = made(tmp_path / "run", plan, ill=f"1 {HOSTILE}")
    for page in (shareable_page(directory), owner_page(directory)):
        for look in (Document(render_html(page)), rendered_markdown(render_markdown(page))):
            assert all(" ".join(name.split()) in look.text for name in sizes)
            assert not set(look.tags) & {"a", "img", "script", "em", "b", "del"}


def test_a_thousand_equal_sites_are_one_line_and_two_hundred_unequal_ones_thirty(tmp_path):
    for name, sizes, lines in (
        ("equal", {f"phone-{number:04d}": 100 for number in range(1000)}, 1),
        ("unequal", {f"phone-{number:04d}": 100 + number for number in range(200)}, 30),
    ):
        RunDirectory(tmp_path / name).begin(plan_of("sample", sizes))
        (table,) = section(shareable_page(tmp_path / name), "Sites, as they were declared").tables
        assert len(table.rows) == lines
        assert len(shareable_facts(tmp_path / name)["sites"]) == len(sizes)
    assert table.note.startswith("170 more sites, none with a larger ε")


def test_many_rounds_are_thirty_lines_with_the_first_and_the_last(tmp_path):
    directory = made(tmp_path / "run", plan_of("none", rounds=100))
    (table,) = section(shareable_page(directory), "Rounds").tables
    assert (len(table.rows), table.rows[0][0], table.rows[-1][0]) == (30, "1", "100")
    assert len(shareable_facts(directory)["by_round"]) == 100


def test_the_owner_sees_who_took_part_who_was_turned_away_and_every_account(tmp_path):
    directory = made(tmp_path / "run", PLANS["hybrid"], ill="south")
    facts = owner_facts(directory)
    assert [each["contributed"] for each in facts["attendance"]] == [("north", "harbour")] * 3
    assert all(each["refused"] == {"south": "not_finite"} and each["seconds"] > 0 for each in facts["attendance"])
    assert [each["account"] for each in facts["accounts"]] == ["account-0", "account-1", "account-2", "study"]
    tables = {part.title: part.tables for part in owner_page(directory).sections}
    assert ("south", "0", "0", "0", "3") in tables["Clients"][0].rows
    assert ("1", "south", "not_finite") in tables["Refused updates"][0].rows
    assert tables["Budgets"][0].rows[-1][:4] == ("study", "client", "8", "8.0000")


def test_an_owners_report_without_its_ledger_says_why(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"])
    for path in directory.glob("ledger.db*"):
        path.unlink()
    assert owner_facts(directory)["accounts"] == []
    assert owner_page(directory).alarms[-1].text.startswith("The accounts cannot be shown: ")
    assert not (directory / OWN_LEDGER).exists()
    write(directory)


def test_the_owners_file_is_for_the_owner_alone_even_over_an_open_one(tmp_path):
    directory = made(tmp_path / "run", PLANS["sample"])
    (directory / "report-owner.html").write_text("old")
    shared, kept = write(directory)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert kept.read_text() != "old"
    assert "Who took part" in kept.read_text()
    assert "Who took part" not in shared.read_text()


def test_a_directory_without_a_run_is_refused_and_not_made(tmp_path):
    with pytest.raises(InvalidArgument, match="holds no run"):
        write(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_report_needs_no_torch(tmp_path):
    directory = made(tmp_path / "run", PLANS["hybrid"])
    code = "import sys; from dpfed.report.reports import write; write(sys.argv[1]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(directory)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

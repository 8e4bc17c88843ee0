"""The two reports of a run: what each may hold, what it says first, and that its numbers are those of the ledger."""

from __future__ import annotations

import json
import stat
import subprocess
import sys

import pytest

from dpfed.errors import InvalidArgument
from dpfed.randomness import SeededSource
from dpfed.report import documents
from dpfed.report.documents import render_html, render_markdown
from dpfed.report.reports import owner_facts, owner_page, shareable_facts, shareable_page, write
from dpfed.runs.directory import OWN_LEDGER, RunDirectory
from pages import Document, rendered_markdown
from report_plans import PLANS, section
from run_directories import LOSS, made, plan_of

HOSTILE = '<script>alert(1)</script> [red] & "q" *x* {{ 7 * 7 }} | `y` ![i](http://a.b/c) ' + "long-name-" * 8
# Whatever may be in a report that is shared; a name that is not here is a leak until somebody says why it is none.
RUN = {
    *("name", "status", "style", "is_private", "rounds_done", "rounds", "model", "algorithm", "summary", "protection"),
    *("units", "by_round", "sites", "not_covered", "simulation", "head", "versions", "audits", "shuffled"),
    "measured",
}
UNIT = {"unit", "adjacency", "delta", "asked", "promised", "so_far", "sentence", "arithmetic", "event"}
SITE = {"name", "unit", "size", "batch_size", "steps", "clip_norm", "noise_multiplier", "epsilon", "clients"}
ROUND = {"round", "epsilon", "scores", "record", "client", "released"}
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
    for part in page.sections:
        found += [part.title, *part.texts, *part.bullets, *(each for pair in part.pairs for each in pair)]
        for table in part.tables:
            found += [table.note, *table.head, *(cell for row in table.rows for cell in row)]
    return [text for text in found if text]


def shown(directory) -> str:
    """All looks of the report that is shared, one after the other."""
    page = shareable_page(directory)
    return render_html(page) + render_markdown(page) + json.dumps(shareable_facts(directory))


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

from __future__ import annotations

import json

import pytest

from dpfed import events as ev
from dpfed.accounting import epsilon
from dpfed.accounting.notions import compare
from dpfed.cli.compare import MEANING, describe_event

EVENT = ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.0), 0.01), 10_000)


def test_the_demo_shows_every_notion_with_its_meaning_and_the_guarantee(dpfed):
    result = dpfed("compare")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for row in compare(EVENT, 1e-5):
        assert row.title in result.stdout
        assert MEANING[row.notion] in text
    assert "10,000 steps" in text
    assert "ε ≤ 6.18772 at δ = 1e-05 for one record, add-remove" in text
    assert "at 1 % false alarms an attacker catches at most" in text


def test_the_table_fits_eighty_columns_without_cut_words(dpfed):
    lines = dpfed("compare").stdout.splitlines()
    table = [line for line in lines if not line.startswith(("Whoever", "This"))]
    assert max(map(len, table)) <= 80
    assert "…" not in "".join(table)


def test_a_notion_without_a_statement_says_why_and_gives_no_number(dpfed):
    result = dpfed("compare --json")
    rows = {row["notion"]: row for row in json.loads(result.stdout)["notions"]}
    assert rows["zcdp"]["epsilon"] is None
    assert "sampling" in rows["zcdp"]["remark"]
    assert rows["pure"]["epsilon"] is None


def test_json_holds_the_numbers_of_the_library(dpfed):
    shown = json.loads(dpfed("compare -z 2 -q 0.1 -t 50 --delta 1e-6 --json").stdout)
    event = ev.Repeated(ev.PoissonSampled(ev.Gaussian(2.0), 0.1), 50)
    assert ev.from_dict(shown["event"]) == event
    assert [(row["notion"], row["epsilon"]) for row in shown["notions"]] == [
        (row.notion, row.epsilon) for row in compare(event, 1e-6)
    ]
    assert shown["notions"][0]["epsilon"] == epsilon(event, 1e-6)


def test_any_event_can_be_compared(dpfed):
    event = ev.Repeated(ev.Laplace(5.0), 3)
    result = dpfed("compare --event -", stdin=ev.dumps(event))
    assert result.exit_code == 0, result.output
    assert repr(event) in result.stdout


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (EVENT, "10,000 steps, Gaussian noise of 1 × the clip norm, each on a random 1\u00a0% of the records"),
        (ev.Gaussian(2.5), "one step, Gaussian noise of 2.5 × the clip norm"),
        (ev.Repeated(ev.Gaussian(2.5), 7), "7 steps, Gaussian noise of 2.5 × the clip norm"),
        (ev.Laplace(1.0), "Laplace(noise_multiplier=1.0)"),
    ],
)
def test_a_run_is_said_describe_event(event, words):
    assert describe_event(event, "record") == words


def test_every_notion_has_a_meaning():
    assert set(MEANING) == {row.notion for row in compare(ev.Gaussian(1.0), 1e-5)}


SURVEY = ev.Repeated(ev.RandomizedResponse(1.0, 4), 10)


def test_the_shuffle_model_has_a_number_once_the_users_are_said(dpfed):
    for options, expected in (("", None), (" --users 1000", ev.Repeated(ev.Shuffled(SURVEY.event, 1000), 10))):
        result = dpfed(f"compare --event - --adjacency replace_one --json{options}", stdin=ev.dumps(SURVEY))
        row = next(row for row in json.loads(result.stdout)["notions"] if row["notion"] == "shuffle")
        assert row["epsilon"] == (expected and epsilon(expected, 1e-5, adjacency="replace_one"))


def test_local_privacy_is_that_of_the_reports_without_their_shuffler(dpfed):
    shuffled = ev.Repeated(ev.Shuffled(SURVEY.event, 1000), 10)
    result = dpfed("compare --event - --adjacency replace_one --json", stdin=ev.dumps(shuffled))
    rows = {row["notion"]: row["epsilon"] for row in json.loads(result.stdout)["notions"]}
    assert rows["local"] == epsilon(SURVEY, 1e-5, adjacency="replace_one")
    assert rows["shuffle"] == rows["exact"] == epsilon(shuffled, 1e-5, adjacency="replace_one")
    assert rows["pure"] == pytest.approx(10.0)


def test_distances_give_the_owners_diagnostic_which_is_marked(dpfed, tmp_path):
    path = tmp_path / "distances.txt"
    path.write_text("0.1\n0.2\n0.15\n0.05\n")
    result = dpfed(f"compare --distances {path}")
    assert result.exit_code == 0, result.output
    assert "the owner's diagnostic" in " ".join(result.stdout.split())
    path.write_text("0.1 near\n")
    assert "file of numbers" in dpfed(f"compare --distances {path}").output


@pytest.mark.parametrize("name", ["loss.png", "loss.svg"])
def test_the_loss_is_drawn_to_a_file(dpfed, tmp_path, name):
    path = tmp_path / name
    result = dpfed(f"compare -z 2 -q 0.1 -t 50 --plot {path}")
    assert result.exit_code == 0, result.output
    assert path.stat().st_size > 1000
    assert str(path) in result.stdout.replace("\n", "")


@pytest.mark.parametrize("options", ["--plot loss.txt", "-z 1 --delta 0 --plot loss.png"])
def test_a_plot_that_cannot_be_drawn_is_refused(dpfed, options):
    result = dpfed(f"compare {options}")
    assert result.exit_code == 2
    assert "--plot" in result.output

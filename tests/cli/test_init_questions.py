from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from dpfed.cli import init_questions as questions
from dpfed.config.drafts import TableDraft
from dpfed.data.survey import survey
from dpfed.data.tables import TextTable

CELLS = {
    "patient": tuple(f"P{n:03}" for n in range(8)),
    "age": ("61", "47", "", "30", "20", "25", "26", "27"),
    "sex": ("f", "m") * 4,
    "seen": tuple(f"2024-01-0{n + 1}" for n in range(8)),
    "site": ("n", "s") * 4,
    "y": ("0", "1") * 4,
}
TABLE = TextTable("my.csv", CELLS, range(2, 10))
COLUMNS = {each.name: each for each in survey(TABLE)}


def ask(answers):
    made = []

    @click.command()
    def command():
        label = questions.ask_label(TABLE)
        draft = TableDraft("my.csv", tuple(CELLS), label, site_column=questions.ask_site_column(TABLE))
        draft = questions.ask_columns(questions.ask_person_column(draft, COLUMNS), COLUMNS)
        made.append(questions.ask_facts(draft, TABLE))

    result = CliRunner().invoke(command, input="\n".join(answers) + "\n")
    return result, made[0] if made else None


def test_answers_declare_and_found_publishes():
    answers = ["y", "site", "y", "0:110", "found", "", "found", "n,s", "40"]
    result, draft = ask(answers)
    assert result.exit_code == 0, result.output
    assert (draft.person_column, draft.bounds, draft.categories) == ("patient", {"age": (0, 110)}, {"sex": ("f", "m")})
    assert (draft.indicator, draft.ignore, draft.classes) == (("age",), ("seen",), ("0", "1"))
    assert (draft.sites, draft.sizes) == (("n", "s"), 40)
    assert draft.is_complete
    assert "seen is ignored: a date" in result.output


def test_a_range_that_nobody_knows_is_left_to_the_run():
    result, draft = ask(["y", "site", "y", "private", "found", "", "found", "n,s", "40"])
    assert result.exit_code == 0, result.output
    assert (draft.private, draft.bounds, draft.is_complete) == (("age",), {}, True)
    assert draft.to_config().bounds.release == ("age",)


def test_an_answer_that_cannot_be_read_is_asked_again():
    answers = ["z", "y", "", "n", "ignore", "maybe:not", "f,m", "found", "0"]
    result, _ = ask(answers)
    assert "it must be one of patient" in result.output


@pytest.mark.parametrize("answer", ["0-110", "110:0", "0", "a:b"])
def test_a_range_that_cannot_be_read_is_answered_with_the_form(answer):
    result, _ = ask(["y", "", "y", answer, "0:110"])
    assert "two numbers with a colon, the lower one first, such as 0:110" in " ".join(result.output.split())
    assert "could not convert" not in result.output


def test_a_list_that_cannot_be_read_is_answered_with_the_form():
    result, _ = ask(["y", "", "y", "0:110", "f,,m", "f,m"])
    assert "texts with commas, each one once" in result.output


def test_the_columns_are_listed_before_one_is_asked_for():
    result, _ = ask(["y"])
    assert "(patient, age, sex, seen, site, y)" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("answers", "question"),
    [
        (
            ["y", "", "y", "0:110", "found", "ignore", "", "found"],
            "How many persons do you declare for training? There are 8; 20 % are held out",
        ),
        (
            ["y", "site", "y", "0:110", "found", "", "found", "found"],
            "How many persons does each site declare for training? There are 4 in n, 4 in s; 20 % are held out",
        ),
    ],
)
def test_the_question_for_sizes_says_how_many_there_are_and_that_some_are_held_out(answers, question):
    result, draft = ask([*answers, "6"])
    assert question in " ".join(result.output.split())
    assert draft.sizes == 6


@pytest.mark.parametrize(("answer", "sizes"), [("found", "public"), ("25", 25)])
def test_true_sizes_are_published_only_if_asked(answer, sizes):
    _, draft = ask(["y", "", "n", "found", "ignore", "ignore", "50", "number", answer])
    assert draft is None or draft.sizes == sizes

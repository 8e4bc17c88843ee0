from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest

from dpfed.cli.init_report import InitReport
from dpfed.config.drafts import TableDraft
from dpfed.data.survey import survey
from dpfed.data.tables import TextTable

CELLS = {
    "a long name of a column": ("1,5", "2,5", "", "3,5"),
    "sex": ("f", "m", "f", "m"),
    "seen": ("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-03"),
    "y": ("0", "1", "0", "1"),
}
TABLE = TextTable("my.csv", CELLS, (2, 3, 4, 5), separator=";")
DRAFT = TableDraft("my.csv", tuple(CELLS), "y", classes=("0", "1"), sizes=30)


def report(**changed):
    columns = {each.name: each for each in survey(TABLE)}
    return InitReport(replace(DRAFT, **changed), TABLE, columns, "my.csv", "my.yaml")


def test_everything_open_is_listed_with_its_option():
    lines = " ".join(report().list_open())
    for option in ("--bounds 'a long name of a column'=LOW:HIGH", "--categories sex=A,B", "--ignore seen"):
        assert option in lines
    assert report().make_command().startswith("dpfed init my.csv --label y --classes 0,1 --size 30 ")


def test_a_column_of_which_the_run_releases_a_range_is_not_open_and_in_the_next_command():
    assert "--private-bounds 'a long name of a column'" in " ".join(report().list_open())
    done = {"categories": {"sex": ("f", "m")}, "ignore": ("seen",), "indicator": ("a long name of a column",)}
    wanted = report(**done, private=("a long name of a column",))
    assert wanted.is_ready
    assert "--private-bounds 'a long name of a column'" in wanted.make_command()
    block = wanted.draft.to_config().bounds
    assert (block.release, block.epsilon) == (("a long name of a column",), wanted.draft.epsilon / 8)


def test_persons_at_more_sites_than_are_declared_are_to_declare():
    cells = {"who": ("a", "a", "b"), "site": ("n", "s", "n"), "y": ("0", "1", "0")}
    table = TextTable("my.csv", cells, (2, 3, 4))
    columns = {each.name: each for each in survey(table)}
    draft = TableDraft("my.csv", tuple(cells), "y", site_column="site", person_column="who")
    lines = InitReport(draft, table, columns, "my.csv", "my.yaml").list_open()
    assert any("--max-sites-per-person N" in line for line in lines)
    allowed = InitReport(replace(draft, max_sites_per_person=2), table, columns, "my.csv", "my.yaml")
    assert not any("--max-sites-per-person" in line for line in allowed.list_open())
    assert "--max-sites-per-person 2" in allowed.make_command()


def test_the_next_command_takes_one_column_for_that_of_persons_and_says_why_a_column_is_asked_for():
    codes = tuple(f"c{number:03}" for number in range(200))
    table = TextTable("my.csv", {"id": codes, "town": codes, "y": ("0", "1") * 100}, tuple(range(2, 202)))
    columns = {each.name: each for each in survey(table)}
    shown = InitReport(TableDraft("my.csv", ("id", "town", "y"), "y"), table, columns, "my.csv", "my.yaml")
    command = shown.make_command()
    assert command.count("--person-column") == 1
    assert "--person-column id --ignore town" in command
    assert any("town" in line and "too many different texts" in line for line in shown.list_open())


def test_a_declared_column_of_numbers_that_a_run_would_refuse_is_not_ready():
    table = TextTable("my.csv", {"x": ("1", "inf", "3"), "y": ("0", "1", "0")}, (2, 3, 4))
    columns = {each.name: each for each in survey(table)}
    draft = TableDraft("my.csv", ("x", "y"), "y", classes=("0", "1"), sizes=30, bounds={"x": (0.0, 9.0)})
    (line,) = InitReport(draft, table, columns, "my.csv", "my.yaml").list_open()
    assert "infinite" in line
    assert "--ignore x" in line


def test_missing_cells_are_to_declare_too():
    done = {"bounds": {"a long name of a column": (0, 9)}, "categories": {"sex": ("f", "m")}, "ignore": ("seen",)}
    assert [line for line in report(**done).list_open() if "missing" in line]
    assert report(**done, indicator=("a long name of a column",)).is_ready


@pytest.mark.parametrize("is_terminal", [True, False])
def test_counts_and_ranges_are_on_a_terminal_only_and_80_columns_hold_them(is_terminal, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    report(bounds={"a long name of a column": (0, 9)}).show()
    shown = capsys.readouterr().out
    assert ("1.5 to 3.5" in shown) is is_terminal
    assert ("0 2, 1 2" in shown) is is_terminal
    assert ("all 4" in shown) is is_terminal
    if is_terminal:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
        assert max(map(len, plain.splitlines())) <= 80


def test_missing_cells_are_listed_with_the_first_command_already():
    lines = " ".join(report().list_open())
    assert "--fill 'a long name of a column'=VALUE" in lines
    assert "--fill 'a long name of a column'=VALUE" in report().make_command()
    assert "--fill seen" not in lines


def test_a_label_of_measured_numbers_is_asked_for_its_range_and_one_of_few_for_classes():
    measured = report(label="a long name of a column", classes=None)
    assert measured.make_command().split(" --force")[0].endswith("--bounds 'a long name of a column'=LOW:HIGH")
    assert "--classes A,B" in report(classes=None).make_command()


def test_ignoring_a_column_that_may_name_persons_says_whom_the_promise_is_for(capsys):
    table = TextTable("my.csv", {"patient_id": tuple("1223"), "y": tuple("0101")}, (2, 3, 4, 5))
    draft = TableDraft("my.csv", ("patient_id", "y"), "y", classes=("0", "1"), sizes=30, ignore=("patient_id",))
    InitReport(draft, table, {each.name: each for each in survey(table)}, "my.csv", "my.yaml").show()
    assert "the promise is for one row and not for all rows of a person" in " ".join(capsys.readouterr().out.split())


def test_a_label_of_many_texts_does_not_stop_the_report():
    table = TextTable("my.csv", {"x": ("1",) * 30, "y": tuple(f"t{n}" for n in range(30))}, tuple(range(2, 32)))
    draft = TableDraft("my.csv", ("x", "y"), "y", sizes=30)
    InitReport(draft, table, {each.name: each for each in survey(table)}, "my.csv", "my.yaml").show()

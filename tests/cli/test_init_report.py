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


def test_the_command_that_releases_open_ranges_is_shown_if_it_is_wanted(capsys):
    assert not report().make_release()
    wanted = replace(report(), has_private_bounds=True)
    command = "dpfed bounds my.csv --column 'a long name of a column' --account 'ACCOUNT-{id}' --epsilon EPSILON"
    assert wanted.make_release() == command
    wanted.show()
    assert command in capsys.readouterr().out
    assert not replace(report(bounds={"a long name of a column": (0, 9)}), has_private_bounds=True).make_release()


def test_the_release_of_ranges_names_sites_and_persons():
    draft = {"site_column": "sex", "sites": ("f", "m"), "person_column": "seen"}
    command = replace(report(**draft), has_private_bounds=True).make_release()
    assert " --person-column seen --site-column sex --sites f,m " in command


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

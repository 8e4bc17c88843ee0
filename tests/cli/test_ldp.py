"""``dpfed ldp``: from a table to estimates, with one report a person."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from dpfed.ldp.files import read_reports

WARDS = ["surgery"] * 600 + ["cardiology"] * 300 + ["paediatrics"] * 100
ASK = "ldp collect visits.csv --column ward --values surgery,cardiology,paediatrics --epsilon 3"
OF_PERSONS = f"{ASK} --person-column patient"


@pytest.fixture(autouse=True)
def visits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_visits([f"p{number},{ward}" for number, ward in enumerate(WARDS)] + ["p0,cardiology", "p1,cardiology"])


def write_visits(rows: list[str]) -> None:
    Path("visits.csv").write_text("\n".join(["patient,ward", *rows]) + "\n")


def test_one_report_a_person_is_collected_and_decoded(dpfed):
    printed = dpfed(OF_PERSONS).stdout
    assert "wrote 1,000 reports to ward.reports: randomized response among 3 values" in printed
    assert "2 further rows of the same persons left out" in printed
    assert "ε = 3 for one person in all, in the local model (replace-one)" in printed
    facts = json.loads(dpfed("ldp estimate ward.reports --json").stdout)
    assert facts["users"] == 1000
    found = {each["value"]: each for each in facts["estimates"]}
    for value, truth in {"surgery": 0.6, "cardiology": 0.3, "paediatrics": 0.1}.items():
        assert abs(found[value]["frequency"] - truth) < 5 * found[value]["standard_error"]  # 2e-6 in all
        assert found[value]["low"] < found[value]["frequency"] < found[value]["high"]


def test_without_a_person_column_the_epsilon_is_per_row(dpfed):
    printed = dpfed(ASK).stdout
    assert "wrote 1,002 reports" in printed
    assert "ε = 3 per row in all" in printed
    assert "name the --person-column" in printed
    assert "ε = 3 per row" in dpfed("ldp estimate ward.reports").stdout


def test_responses_are_kept_for_the_owner_alone_and_sent_again(dpfed):
    dpfed(OF_PERSONS)
    first = Path("ward.reports").read_bytes()
    assert stat.S_IMODE(Path("visits.csv.kept").stat().st_mode) == 0o600
    printed = dpfed(OF_PERSONS).stdout
    assert "these are the responses sent before, and nothing was spent" in printed
    assert Path("ward.reports").read_bytes() == first


def test_other_terms_are_refused_and_again_prints_what_adds_up(dpfed):
    dpfed(OF_PERSONS)
    refused = dpfed(OF_PERSONS.replace("--epsilon 3", "--epsilon 1"))
    assert refused.exit_code == 2
    assert "ε = 4 in all" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    printed = dpfed(f"{OF_PERSONS} --again").stdout
    assert "ε = 6 for one person in all" in printed
    assert "over 2 collections that add up" in printed
    assert "ε = 6 for one person in all" in dpfed("ldp estimate ward.reports").stdout


def test_a_row_that_came_in_above_others_spends_nothing_unseen(dpfed):
    write_visits(["p0,surgery", "p1,cardiology"])
    dpfed(ASK)
    write_visits(["p9,surgery", "p0,surgery", "p1,cardiology"])
    refused = dpfed(ASK)
    assert refused.exit_code == 2
    assert "ε = 6 in all" in refused.stderr
    assert "ε = 6 per row" in dpfed(f"{ASK} --again").stdout


def test_persons_named_by_another_column_do_not_report_for_nothing(dpfed):
    Path("visits.csv").write_text("patient,email,ward\np0,a@example.org,surgery\n")
    dpfed(OF_PERSONS)
    assert "ε = 6 in all" in dpfed(f"{ASK} --person-column email").stderr


def test_one_person_in_two_spellings_has_one_report(dpfed):
    write_visits(["Jos\u00e9,surgery", "Jose\u0301,cardiology", "17,surgery", "17.0,surgery"])
    assert "wrote 2 reports" in dpfed(OF_PERSONS).stdout
    write_visits(["Jose\u0301,cardiology", "17.0,cardiology"])
    assert "nothing was spent" in dpfed(OF_PERSONS).stdout


def test_data_named_by_a_link_have_the_same_kept_file(dpfed):
    dpfed(OF_PERSONS)
    Path("link.csv").symlink_to("visits.csv")
    assert "nothing was spent" in dpfed(OF_PERSONS.replace("visits.csv", "link.csv")).stdout


def test_kept_responses_beside_the_data_are_not_left_aside(dpfed):
    dpfed(OF_PERSONS)
    assert "they would report anew" in dpfed(f"{OF_PERSONS} --kept other").stderr
    assert "nothing was spent" in dpfed(f"{OF_PERSONS} --kept visits.csv.kept").stdout
    Path("visits.csv.kept").rename("other")
    assert "nothing was spent" in dpfed(f"{OF_PERSONS} --kept other").stdout


def test_responses_kept_elsewhere_are_found_again_whatever_is_named_next(dpfed):
    """In the reverse order too: a second kept file would draw everybody anew, at twice the ε that is printed."""
    dpfed(f"{OF_PERSONS} --kept other")
    assert "nothing was spent" in dpfed(OF_PERSONS).stdout
    assert not Path("visits.csv.kept").exists()
    for second in ("visits.csv.kept", "third"):
        refused = dpfed(f"{OF_PERSONS} --kept {second}")
        assert "they would report anew" in refused.stderr
        assert refused.exit_code
    assert "nothing was spent" in dpfed(f"{OF_PERSONS} --kept other").stdout


def test_kept_responses_that_are_lost_or_rolled_back_are_missed(dpfed):
    write_visits(["p0,surgery"])
    dpfed(OF_PERSONS)
    old = Path("visits.csv.kept").read_bytes()
    write_visits(["p0,surgery", "p1,surgery"])
    dpfed(OF_PERSONS)
    Path("visits.csv.kept").write_bytes(old)
    assert "an older copy" in dpfed(OF_PERSONS).stderr
    Path("visits.csv.kept").unlink()
    assert "is gone" in dpfed(OF_PERSONS).stderr


def test_a_text_that_reads_like_nobodys_is_found_where_nobody_is_absent(dpfed):
    write_visits([f"p{number},(none)" for number in range(300)])
    dpfed("ldp collect visits.csv --column ward --mechanism rappor --epsilon 20 --person-column patient")
    facts = json.loads(dpfed("ldp estimate ward.reports --candidates (none),b --json").stdout)
    assert abs(facts["estimates"][0]["frequency"] - 1.0) < 6 * facts["estimates"][0]["standard_error"]


def test_reports_are_never_sent_before_their_responses_are_kept(dpfed):
    """The reports cannot be written here; what was drawn is kept, and the next command sends it."""
    Path("ward.reports").write_text("notes of somebody\n")
    assert dpfed(OF_PERSONS).exit_code == 2
    assert "nothing was spent" in dpfed(f"{OF_PERSONS} --output other.reports").stdout


def test_who_has_no_value_takes_part_if_asked(dpfed):
    write_visits(["p0,surgery", "p1,", "p2,cardiology"])
    refused = dpfed(OF_PERSONS)
    assert "missing in ward (1, the first in line 3)" in refused.stderr
    assert dpfed(f"{OF_PERSONS} --absent").exit_code == 0
    assert "(none)" in dpfed("ldp estimate ward.reports").stdout
    assert len(read_reports(Path("ward.reports"))[1]) == 3


def test_a_cell_outside_the_declared_values_is_refused_without_showing_it(dpfed):
    write_visits(["p0,surgery", "p1,psychiatry"])
    refused = dpfed(OF_PERSONS)
    assert refused.exit_code == 2
    assert "line 3, column ward" in refused.stderr
    assert "psychiatry" not in refused.stderr + refused.stdout
    assert not Path("visits.csv.kept").exists()


@pytest.mark.parametrize(
    "mechanism", ["unary", "symmetric-unary", "hashing", "subset", "hadamard", "count-mean", "hadamard-sketch"]
)
def test_every_mechanism_may_be_named(dpfed, mechanism):
    assert f"{mechanism}, as asked for" in dpfed(f"{OF_PERSONS} --mechanism {mechanism}").stdout
    facts = json.loads(dpfed("ldp estimate ward.reports --json").stdout)
    assert facts["mechanism"]["kind"] == mechanism
    for each, truth in zip(facts["estimates"], (0.6, 0.3, 0.1), strict=True):
        assert abs(each["frequency"] - truth) < 6 * each["standard_error"]


def test_open_values_are_reported_by_rappor_and_looked_for_by_candidates(dpfed):
    ask = "ldp collect visits.csv --column ward --mechanism rappor --epsilon 6 --person-column patient"
    assert "RAPPOR" in dpfed(ask).stdout
    first = Path("ward.reports").read_bytes()
    assert "ε = 6 for one person in all" in dpfed(ask).stdout
    assert Path("ward.reports").read_bytes() != first
    assert "needs --candidates" in dpfed("ldp estimate ward.reports").stderr
    facts = json.loads(dpfed("ldp estimate ward.reports --candidates surgery,cardiology,paediatrics --json").stdout)
    assert abs(facts["estimates"][0]["frequency"] - 0.6) < 6 * facts["estimates"][0]["standard_error"]


def test_estimates_are_drawn(dpfed):
    dpfed(OF_PERSONS)
    assert "drew wards.png" in dpfed("ldp estimate ward.reports --plot wards.png").stdout
    assert Path("wards.png").read_bytes().startswith(b"\x89PNG")
    assert "--plot must be a file that ends in .png" in dpfed("ldp estimate ward.reports --plot wards.txt").stderr


def test_a_long_list_is_cut_and_says_so(dpfed):
    dpfed(OF_PERSONS)
    printed = dpfed("ldp estimate ward.reports --top 1").stdout
    assert "2 more values not listed: --top 3 lists all" in printed
    assert "paediatrics" not in printed


def test_json_says_what_was_collected(dpfed):
    facts = json.loads(dpfed(f"{OF_PERSONS} --json").stdout)
    assert {"reports": 1000, "drawn": 1000, "rows_left_out": 2, "unit": "person"}.items() <= facts.items()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("ldp collect visits.csv --column ward --epsilon 1", "are not declared"),
        (f"{ASK} --mechanism rappor", "give either --values or --mechanism rappor"),
        (f"{ASK} --mechanism magic", "--mechanism must be one of"),
        (ASK.replace("3", "0"), "--epsilon must be a positive finite number"),
        (ASK.replace("--column ward", "--column wrad"), "did you mean 'ward'?"),
        (f"{ASK} --person-column ward", "--person-column must be another one"),
        (f"{ASK} --person-column nobody", "has no column 'nobody'"),
        (ASK.replace("visits.csv", "visits.txt"), "DATA must end in .csv"),
        ("ldp estimate visits.csv", "is no file of reports"),
        (ASK.replace("surgery,", "None,") + " --absent", "--values must not have 'None'"),
        (ASK.replace("surgery,", "(none),") + " --absent", "--values must not have '(none)'"),
        (f"{ASK} --output visits.csv", "is not overwritten"),
    ],
)
def test_refusals_are_one_clear_line(dpfed, command, says):
    refused = dpfed(command)
    assert refused.exit_code == 2
    assert says in refused.stderr
    assert len(refused.stderr.splitlines()) == 1

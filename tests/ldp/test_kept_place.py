"""One data file has one kept file, whichever is named first, wherever it is moved to."""

from __future__ import annotations

import stat

import pytest

from dpfed.errors import InvalidArgument
from dpfed.ldp.files import Kept, locked, write_kept
from dpfed.ldp.kept_place import choose_place, hold_place, note_place


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text("patient,ward\n")
    return path


def keep(data, place):
    """A kept file at that place, noted beside the data."""
    kept = Kept.new()
    write_kept(place, kept)
    note_place(data, place, kept)
    return kept


def test_the_first_place_is_the_one_named_or_beside_the_data(data, tmp_path):
    assert choose_place(data, None) == tmp_path / "visits.csv.kept"
    assert choose_place(data, tmp_path / "other") == tmp_path / "other"


def test_a_place_that_is_noted_is_found_without_a_name_and_no_second_one_is_opened(data, tmp_path):
    keep(data, tmp_path / "other")
    assert choose_place(data, None) == tmp_path / "other"
    assert choose_place(data, tmp_path / "other") == tmp_path / "other"
    for second in ("third", "visits.csv.kept"):
        with pytest.raises(InvalidArgument, match="they would report anew"):
            choose_place(data, tmp_path / second)


def test_a_kept_file_beside_the_data_that_has_no_note_is_not_left_aside(data, tmp_path):
    """Earlier versions wrote none."""
    usual = tmp_path / "visits.csv.kept"
    write_kept(usual, Kept.new())
    with pytest.raises(InvalidArgument, match="they would report anew"):
        choose_place(data, tmp_path / "other")
    assert choose_place(data, usual) == choose_place(data, None) == usual


def test_a_file_that_was_moved_is_known_by_its_key_and_another_is_not(data, tmp_path):
    place = tmp_path / "other"
    keep(data, place)
    moved = place.rename(tmp_path / "moved")
    assert choose_place(data, moved) == moved
    write_kept(tmp_path / "strange", Kept.new())
    with pytest.raises(InvalidArgument, match="they would report anew"):
        choose_place(data, tmp_path / "strange")
    with pytest.raises(InvalidArgument, match="they would report anew"):
        choose_place(data, None)


def test_a_copy_is_refused_while_the_first_is_there(data, tmp_path):
    """Both would be extended, and neither would know of the other's persons."""
    place = tmp_path / "other"
    keep(data, place)
    (tmp_path / "copy").write_bytes(place.read_bytes())
    with pytest.raises(InvalidArgument, match="they would report anew"):
        choose_place(data, tmp_path / "copy")


def test_links_to_the_data_and_to_the_kept_file_are_followed(data, tmp_path):
    keep(data, tmp_path / "other")
    (tmp_path / "link.csv").symlink_to(data)
    (tmp_path / "link").symlink_to(tmp_path / "other")
    assert choose_place(tmp_path / "link.csv", None) == tmp_path / "other"
    assert choose_place(data, tmp_path / "link") == tmp_path / "link"


def test_a_damaged_note_is_refused_and_it_is_for_the_owner_alone(data, tmp_path):
    keep(data, tmp_path / "other")
    note = tmp_path / ".visits.csv.kept-at"
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    note.write_text("{")
    with pytest.raises(InvalidArgument, match="damaged"):
        choose_place(data, None)


def test_the_data_are_held_so_that_two_first_collections_cannot_name_two_files(data, tmp_path):
    with hold_place(data, tmp_path / "one") as place:
        assert place == tmp_path / "one"
        with pytest.raises(InvalidArgument, match="another collection"), hold_place(data, tmp_path / "two"):
            pass
    refused = pytest.raises(InvalidArgument, match="another collection")
    with locked(tmp_path / "one"), refused, hold_place(data, tmp_path / "one"):
        pass

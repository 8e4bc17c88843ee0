from __future__ import annotations

import stat

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.ldp import HadamardResponse, KaryResponse, LocalHashing, OptimizedUnary
from dpfed.ldp.files import Collection, Kept, locked, read_kept, read_reports, write_kept, write_reports


@pytest.mark.parametrize("kind", [KaryResponse, OptimizedUnary, LocalHashing, HadamardResponse])
def test_reports_come_back_as_they_were(tmp_path, kind):
    path, reports = tmp_path / "a.reports", kind(1.0, 30).randomize([1, 2, 3])
    write_reports(path, {"column": "ward ä"}, reports)
    settings, found = read_reports(path)
    assert settings == {"column": "ward ä"}
    assert isinstance(found, np.memmap)
    assert found.dtype == reports.dtype
    assert found.tobytes() == reports.tobytes()
    kind(1.0, 30).estimate(found)


def test_a_file_of_another_kind_is_neither_read_nor_overwritten(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("patient,ward\nann,a\n")
    with pytest.raises(InvalidArgument, match="no file of reports"):
        read_reports(path)
    with pytest.raises(InvalidArgument, match="not overwritten"):
        write_reports(path, {}, np.zeros(2, dtype=np.uint32))
    assert path.read_text().startswith("patient")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_reports(tmp_path / "nowhere")


@pytest.mark.parametrize("size", [25, 40, 60])
def test_a_file_cut_short_is_refused(tmp_path, size):
    path = tmp_path / "a.reports"
    write_reports(path, {"column": "ward"}, np.zeros(2, dtype=np.uint32))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InvalidArgument, match="no file of reports"):
        read_reports(path)


def test_what_is_kept_is_the_owners_alone_and_names_nobody(tmp_path):
    path, kept = tmp_path / "data.kept", Kept.new()
    persons = kept.digests(["ann", "ben"])
    write_kept(path, Kept(kept.key, (Collection({"unit": "person"}, persons, np.array([1, 0], dtype=np.uint32)),)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"ann" not in path.read_bytes()
    found = read_kept(path)
    assert found.key == kept.key
    assert found.digests(["ben"])[0] == found.collections[0].persons[1]
    assert found.collections[0].responses.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("Jos\u00e9", "Jose\u0301"),
        ("ann lee", "ann\u00a0 lee "),
        ("17", "17.0"),
        ("12", "\uff11\uff12"),
    ],
)
def test_a_person_is_the_same_however_a_program_writes_the_name(name, same):
    kept = Kept.new()
    assert kept.digests([name])[0] == kept.digests([same])[0]


def test_different_persons_stay_different_and_are_texts():
    found = Kept.new().digests(["17", "17.5", "170", "ann", "Ann", "anne", "1.0.0", "\ud800"])
    assert len(set(found.tolist())) == 8
    with pytest.raises(InvalidArgument, match="persons must be texts"):
        Kept.new().digests([17])


def test_an_old_copy_of_what_is_kept_and_a_lost_one_are_refused(tmp_path):
    path, kept = tmp_path / "data.kept", Kept.new()
    write_kept(path, Kept(kept.key, (), writes=1))
    old = path.read_bytes()
    with locked(path):
        write_kept(path, Kept(kept.key, (), writes=2))
    assert read_kept(path).writes == 2
    for spoil in (lambda: path.write_bytes(old), path.unlink):
        spoil()
        with pytest.raises(InvalidArgument, match="gone, or an older copy"):
            read_kept(path)
    (tmp_path / ".data.kept.lock").unlink()
    assert read_kept(path).collections == ()


def test_a_damaged_note_is_refused(tmp_path):
    (tmp_path / ".data.kept.lock").write_text("notes of somebody")
    with pytest.raises(InvalidArgument, match="is damaged"):
        read_kept(tmp_path / "data.kept")


def test_a_note_that_was_not_made_any_more_refuses_nothing(tmp_path):
    """A crash between the file and the note in its lock leaves the file ahead, which is right."""
    path, kept = tmp_path / "data.kept", Kept.new()
    write_kept(path, Kept(kept.key, (), writes=1))
    note = (tmp_path / ".data.kept.lock").read_bytes()
    write_kept(path, Kept(kept.key, (), writes=2))
    (tmp_path / ".data.kept.lock").write_bytes(note)
    assert read_kept(path).writes == 2


def test_a_link_to_what_is_kept_stays_one_and_is_locked_as_the_file(tmp_path):
    path, link = tmp_path / "data.kept", tmp_path / "link"
    write_kept(path, Kept(Kept.new().key, (), writes=1))
    link.symlink_to(path)
    write_kept(link, Kept(Kept.new().key, (), writes=2))
    assert link.is_symlink()
    assert read_kept(path).writes == read_kept(link).writes == 2
    with locked(path), pytest.raises(InvalidArgument, match="another collection"), locked(link):
        pass


def test_digests_of_two_files_do_not_tell_that_a_person_is_in_both():
    assert Kept.new().digests(["ann"])[0] != Kept.new().digests(["ann"])[0]


def test_a_damaged_kept_file_is_refused_and_not_taken_for_an_empty_one(tmp_path):
    path = tmp_path / "data.kept"
    assert read_kept(path).collections == ()
    write_kept(path, Kept.new())
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InvalidArgument, match="is damaged"):
        read_kept(path)


def test_two_collections_at_once_are_refused(tmp_path):
    path = tmp_path / "data.kept"
    with locked(path), pytest.raises(InvalidArgument, match="another collection"), locked(path):
        pass
    with locked(path):
        pass

from __future__ import annotations

import os

import pytest

from dpfed.ledger.store.watching import RENAMED, WRITTEN, FileWatch


@pytest.fixture
def place(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("before")
    return tmp_path / "folder" / "file"


@pytest.fixture
def watch(place):
    made = FileWatch.start()
    assert made is not None
    assert made.add([str(place)], str(place))
    return made


def test_a_write_is_noted_until_it_is_read(place, watch):
    assert watch.is_quiet()
    place.write_text("after")
    assert not watch.is_quiet()
    assert watch.read() & WRITTEN
    assert watch.is_quiet()
    assert watch.read() == 0


def test_a_folder_above_that_is_renamed_and_renamed_back_is_noted(place, watch):
    aside = place.parent.with_name("aside")
    place.parent.rename(aside)
    aside.rename(place.parent)
    assert watch.read() & RENAMED


def test_a_file_that_is_unlinked_by_another_name_is_noted_and_its_neighbours_are_not(place, watch):
    (place.parent / "neighbour").write_text("mine")
    assert watch.is_quiet()
    os.link(place, place.parent / "second")
    assert not watch.is_quiet()


def test_what_is_not_there_cannot_be_watched(place, tmp_path):
    assert not FileWatch.start().add([str(tmp_path / "nothing")], str(place))

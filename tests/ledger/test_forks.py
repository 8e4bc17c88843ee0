"""A fork waits for whoever is writing, and leaves the others able to write."""

from __future__ import annotations

import os
import threading
import time

import pytest

from dpfed.ledger import forks


class File:
    """One that notes when it is closed."""

    def __init__(self, notes: list[str]) -> None:
        self.lock = threading.RLock()
        self._notes = notes
        forks.close_before_fork(self)

    def close(self) -> None:
        self._notes.append("closed")


def end_of_a_child_that(work) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("held", ["the lock of the file", "the gate"])
def test_a_fork_waits_for_a_thread_that_is_writing(held):
    notes: list[str] = []
    file, has_begun = File(notes), threading.Event()

    def write() -> None:
        with file.lock if held == "the lock of the file" else forks.transaction:
            has_begun.set()
            time.sleep(0.2)
            notes.append("written")

    writer = threading.Thread(target=write)
    writer.start()
    has_begun.wait()
    assert end_of_a_child_that(lambda: None) == 0
    writer.join()
    assert notes == ["written", "closed"]


def test_after_a_fork_any_thread_writes_again_on_both_sides():
    file = File([])

    def write_in_a_thread() -> None:
        def write() -> None:
            with file.lock, forks.transaction:
                os.write(into, b"x")

        thread = threading.Thread(target=write)
        thread.start()
        thread.join(20.0)

    outof, into = os.pipe()
    assert end_of_a_child_that(write_in_a_thread) == 0
    write_in_a_thread()
    os.close(into)
    with os.fdopen(outof, "rb") as read:
        assert read.read() == b"xx"


def test_a_thread_that_is_writing_may_fork_itself():
    file = File([])
    with forks.transaction, file.lock:
        assert end_of_a_child_that(lambda: None) == 0
    with forks.transaction, file.lock:
        pass

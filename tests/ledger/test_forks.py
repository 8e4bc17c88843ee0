"""A fork waits for whoever is writing, and leaves the others able to write."""

from __future__ import annotations

import os
import threading
import time

from dpfed.ledger import forks

WITHIN = 20.0


class File:
    """One that notes when it is closed."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        forks.close_before_fork(self)

    def close(self) -> None:
        self.notes.append("closed")


def end_of_a_child_that(work) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_waits_for_a_thread_that_is_writing():
    file, has_begun = File(), threading.Event()

    def write() -> None:
        with forks.transaction():
            has_begun.set()
            time.sleep(0.2)
            file.notes.append("written")

    writer = threading.Thread(target=write)
    writer.start()
    has_begun.wait()
    assert end_of_a_child_that(lambda: None) == 0
    writer.join()
    assert file.notes == ["written", "closed"]


def test_a_thread_that_is_writing_may_begin_anew_while_a_fork_waits_for_it():
    # As a signal handler or a finalizer does that looks into a ledger in the middle of a commit.
    forker = threading.Thread(target=end_of_a_child_that, args=(lambda: None,), daemon=True)
    done = threading.Event()

    def write() -> None:
        with forks.transaction():
            forker.start()
            while not forks._gate.is_shut:
                time.sleep(0.001)
            with forks.transaction():
                done.set()

    threading.Thread(target=write, daemon=True).start()
    assert done.wait(WITHIN)
    forker.join(WITHIN)
    assert not forker.is_alive()


def test_after_a_fork_any_thread_writes_again_on_both_sides():
    def write_in_a_thread() -> None:
        def write() -> None:
            with forks.transaction():
                os.write(into, b"x")

        thread = threading.Thread(target=write)
        thread.start()
        thread.join(WITHIN)

    outof, into = os.pipe()
    assert end_of_a_child_that(write_in_a_thread) == 0
    write_in_a_thread()
    os.close(into)
    with os.fdopen(outof, "rb") as read:
        assert read.read() == b"xx"


def test_a_thread_that_is_writing_may_fork_itself():
    with forks.transaction():
        assert end_of_a_child_that(lambda: None) == 0
    with forks.transaction():
        pass

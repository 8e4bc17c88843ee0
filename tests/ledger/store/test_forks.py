"""A fork waits for whoever is writing, and leaves the others able to write."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time

import pytest

import dpfed
from dpfed.errors import LeaseLost
from dpfed.events import Gaussian
from dpfed.ledger.store import forks

WITHIN = 60.0


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
    assert file.notes[:2] == ["written", "closed"]


def test_a_thread_that_is_writing_may_begin_anew_while_a_fork_waits_for_it():
    # As a signal handler or a finalizer does that looks into a ledger in the middle of a commit.
    forker = threading.Thread(target=end_of_a_child_that, args=(lambda: None,), daemon=True)
    done = threading.Event()

    def write() -> None:
        with forks.transaction():
            forker.start()
            while not forks._gate._forking:
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


class Interrupting:
    """Interrupts this thread at the n-th line that it runs in the module of forks."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame, what, _):
        if frame.f_code.co_filename != forks.__file__:
            return None
        if what == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self

    def __enter__(self) -> None:
        sys.settrace(self)

    def __exit__(self, *_) -> None:
        sys.settrace(None)


def write() -> None:
    with forks.transaction():
        pass


def write_within() -> None:
    with forks.transaction(), forks.transaction():
        pass


def fork() -> None:
    end_of_a_child_that(lambda: None)


def others_can_write_and_fork() -> bool:
    done = []

    def work() -> None:
        write()
        fork()
        write()
        done.append(True)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(WITHIN)
    return bool(done)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("verb", [write, write_within, fork], ids=lambda verb: verb.__name__)
def test_no_lock_stays_held_after_an_interrupt_at_any_line(verb):
    file = File()
    for number in range(1, 500):
        interrupting = Interrupting(number)
        try:
            with interrupting:
                verb()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        gc.collect()
        assert others_can_write_and_fork(), f"interrupted at line no. {number}"
        write()
        fork()
        if interrupting.left > 0:
            break
    assert number > 5
    assert file.notes


def test_an_interrupted_mark_is_not_blamed_on_another_process(tmp_path, monkeypatch):
    with dpfed.Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        held = ledger.reserve({"icu": {Gaussian(40.0): 9}}, run="study")
        leave = forks.transaction.__exit__

        def interrupted(self, *why) -> None:
            leave(self, *why)
            raise KeyboardInterrupt

        monkeypatch.setattr(forks.transaction, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            held.mark("icu")
        monkeypatch.undo()
        with pytest.raises(LeaseLost, match="interrupted just after it was written down") as refusal:
            held.commit({"icu": Gaussian(40.0)})
        assert "another process" not in str(refusal.value)
        again = ledger.resume("study")
        again.commit({"icu": Gaussian(40.0)})
        assert again.marks() == 1

"""Who works on a run, and when somebody else may take it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

import dpfed
from dpfed import events as ev
from dpfed.errors import LeaseHeld, LeaseLost, UnknownRun
from dpfed.ledger import lease
from worlds import fork, rows_of, told

STEP = ev.Gaussian(8.0)


def test_this_process_is_itself_and_alive():
    assert lease.is_me(lease.this_process())
    assert lease.is_alive(lease.this_process(), age=1e9)
    assert str(os.getpid()) in lease.describe(lease.this_process())


def test_another_process_is_not_me_and_dead_once_it_is_gone():
    running = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = {**lease.this_process(), "pid": running.pid, "started": lease._read_start(running.pid)}
    assert not lease.is_me(holder)
    assert lease.is_alive(holder, age=1e9)
    running.communicate()
    assert not lease.is_alive(holder, age=0.0)


def test_what_is_left_of_an_ended_process_is_not_alive():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
    assert lease._read_start(pid) is None
    os.waitpid(pid, 0)


def test_a_number_that_was_given_to_another_process_is_not_the_holder():
    assert not lease.is_alive({**lease.this_process(), "started": "1"}, age=0.0)


def test_a_process_from_before_the_machine_was_started_again_is_dead():
    assert not lease.is_alive({**lease.this_process(), "boot": "another"}, age=0.0)


@pytest.mark.parametrize("where", ["host", "space"])
def test_on_another_machine_or_in_another_container_only_time_can_tell(where):
    away = {**lease.this_process(), where: "elsewhere", "started": "1"}
    assert lease.is_alive(away, age=lease.PATIENCE - 1)
    assert not lease.is_alive(away, age=lease.PATIENCE + 1)


def test_the_age_is_that_of_the_last_entry():
    assert lease.age(["2020-01-01T00:00:00.000000Z", "2021-01-01T00:00:00.000000Z"]) > 86_400 * 365
    assert lease.age(["2020-01-01T00:00:00.000000Z"]) > lease.age(["2021-01-01T00:00:00.000000Z"])


def test_a_run_held_by_a_living_process_can_be_taken_by_nobody_and_by_the_next_when_it_is_dead(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)

    def hold(say):
        with dpfed.Ledger(url) as mine:
            held = mine.reserve({"icu": {STEP: 5}}, run="r")
            held.commit({"icu": STEP})
            say("holding")
            time.sleep(600)

    child = fork(hold)
    child.hear()
    with ExitStack() as ends, dpfed.Ledger(url) as ledger:
        ends.callback(child.kill)  # also when the test fails
        head = ledger.head()
        for verb in (lambda: ledger.resume("r"), lambda: ledger.release("r", reason="impatient")):
            with pytest.raises(LeaseHeld, match=f"process {child.pid}"):
                verb()
        assert ledger.head() == head
        (shown,) = ledger.reservations()
        assert (shown.run, shown.committed, shown.left, shown.is_alive) == ("r", 1, 4, True)
        child.kill()
        child.end()
        ends.pop_all()
        assert not ledger.reservations()[0].is_alive
        held = ledger.resume("r")
        assert held.left("icu", STEP) == 4
        held.commit({"icu": STEP})


def test_a_process_that_lost_its_run_may_not_charge(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
    mine = dpfed.Ledger(url)
    told(lambda say: dpfed.Ledger(url).reserve({"icu": {STEP: 5}}, run="r") and None)
    first = mine.resume("r")  # its process has ended
    second = mine.resume("r")
    with pytest.raises(LeaseLost):
        first.commit({"icu": STEP})
    second.commit({"icu": STEP})
    assert [row["kind"] for row in rows_of(url)].count("leased") == 3
    mine.close()


def test_an_unknown_run_cannot_be_resumed_or_released(sqlite_url):
    with dpfed.Ledger(sqlite_url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        ledger.record({"icu": STEP}, run="noted", reason="x")
        for run in ("never", "noted"):
            with pytest.raises(UnknownRun):
                ledger.resume(run)
            with pytest.raises(UnknownRun):
                ledger.release(run, reason="x")
        assert ledger.head().sequence == 2

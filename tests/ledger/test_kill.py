"""A process that is killed with -9 in the middle of reserve, commit or release loses nothing and hides nothing.

Forty kills in all (two hundred in a campaign), half at a random moment and half at a chosen point: around each
statement, commit and rollback that the ledger sends to its database.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest

import dpfed
from worlds import EVENT, Say, count_points, counted, fork, killed_at, open_accounts, rows_of, spread

ACCOUNTS = ("icu", "ward")
PLANNED = 3  # of each event in a run


def studies(url: str, tag: str, runs: Iterator[int], say: Say) -> None:
    """Runs of no, one or two draws on both accounts; every second one is released."""
    ledger = dpfed.Ledger(url)
    for number in runs:
        run = f"{tag}-{number}"
        held = ledger.reserve({account: {EVENT: PLANNED} for account in ACCOUNTS}, run=run)
        say("reserved", run)
        for _ in range(number % 3):
            held.commit(dict.fromkeys(ACCOUNTS, EVENT))
            say("drawn", run)
        if number % 2:
            held.release(reason="done")
            say("released", run)


def require_nothing_lost(url: str, tag: str, facts: list[list[Any]]) -> int:
    """Check the ledger against what the dead had been told, then finish its runs; the number of draws."""
    said = {kind: Counter(run for what, run in facts if what == kind) for kind in ("reserved", "drawn", "released")}
    last = max((int(run.rpartition("-")[2]) for run in said["reserved"]), default=-1)
    in_flight = {f"{tag}-{last}", f"{tag}-{last + 1}"}
    with dpfed.Ledger(url) as ledger:
        ledger.verify()
        living = {held.run for held in ledger.reservations() if held.run.rpartition("-")[0] == tag}
        for run in living:
            ledger.resume(run)  # at once: its holder is dead
        committed, other = (counted(url, "committed", account) for account in ACCOUNTS)
        assert committed == other, "a commit on two accounts was torn apart"
        for run in said["reserved"]:
            assert run in living or run in said["released"] or run in in_flight, f"{run} was lost"
            assert 0 <= committed[run] - said["drawn"][run] <= (run in in_flight), run
        assert living - set(said["reserved"]) <= in_flight
        assert not living & set(said["released"]), "a release was undone"
        for run in living:
            finish(ledger, run, PLANNED - committed[run])
        for account in ACCOUNTS:
            balance = ledger.balance(account)
            total = balance.spent + balance.reserved + balance.remaining
            assert total == pytest.approx(balance.cap.epsilon, rel=1e-12)
        ledger.verify()
    return said["drawn"].total()


def finish(ledger: dpfed.Ledger, run: str, left: int) -> None:
    held = ledger.resume(run)
    assert [held.left(account, EVENT) for account in ACCOUNTS] == [left, left]
    held.commit(dict.fromkeys(ACCOUNTS, EVENT))
    held.release(reason="its process was killed")


def require_conserved(url: str, drawn: int, tmp_path) -> None:
    """What the ledger says is spent is what a ledger in peace says of as many events."""
    total = counted(url, "committed", "icu").total()
    assert total >= drawn
    peaceful = f"sqlite:///{tmp_path / 'peaceful.db'}"
    open_accounts(peaceful, *ACCOUNTS)
    with dpfed.Ledger(peaceful) as twin, dpfed.Ledger(url) as ledger:
        assert not ledger.reservations()
        for account in ACCOUNTS:
            twin.record({account: {EVENT: total}}, run=f"all-{account}", reason="the same in one")
            assert ledger.balance(account).spent == twin.balance(account).spent
            assert ledger.balance(account).reserved == 0
            assert ledger.balance(account).remaining == twin.balance(account).remaining


def kills(campaign_scale: int) -> int:
    """Of each of the two ways on each of the two databases: 40 in all, or 200."""
    return 10 * min(campaign_scale, 5)


def test_a_kill_at_a_random_moment_loses_nothing(url, tmp_path, campaign_scale):
    moments = np.random.default_rng(0 if campaign_scale == 1 else None)
    open_accounts(url, *ACCOUNTS)
    drawn = 0
    for number in range(kills(campaign_scale)):
        child = fork(partial(studies, url, f"random-{number}", count()))
        child.hear()
        start = time.monotonic()
        child.hear()
        time.sleep(moments.uniform(0, 4) * (time.monotonic() - start))
        child.kill()
        code, facts = child.end()
        assert code == -signal.SIGKILL, facts[-1]
        drawn += require_nothing_lost(url, f"random-{number}", facts)
    require_conserved(url, drawn, tmp_path)


def test_a_kill_at_any_point_of_a_transaction_loses_nothing(url, tmp_path, campaign_scale):
    open_accounts(url, *ACCOUNTS)
    total = count_points(partial(studies, url, "peace", iter(range(3))))
    with dpfed.Ledger(url) as ledger:
        for held in ledger.reservations():
            ledger.release(held.run, reason="its process has ended")
    drawn = 0
    for number in spread(total, kills(campaign_scale)):
        code, facts = killed_at(number, partial(studies, url, f"point-{number}", iter(range(3))))
        assert code == -signal.SIGKILL, facts[-1]
        drawn += require_nothing_lost(url, f"point-{number}", facts)
    require_conserved(url, drawn, tmp_path)


def test_a_kill_while_a_new_ledger_is_made_leaves_one_that_opens(new_url, campaign_scale):
    """Migrations are all or nothing: whoever opens it next finds no half of them."""

    def make(address: str, say: Say) -> None:
        dpfed.Ledger(address).open("icu", epsilon=8.0, delta=1e-5)

    total = count_points(partial(make, new_url()))
    for number in spread(total, 6 * campaign_scale):
        address = new_url()
        code, facts = killed_at(number, partial(make, address))
        assert code == -signal.SIGKILL, facts
        with dpfed.Ledger(address) as ledger:
            ledger.verify()
            names = {balance.account.name for balance in ledger.accounts()}
            if "icu" not in names:
                ledger.open("icu", epsilon=8.0, delta=1e-5)
            ledger.reserve({"icu": {EVENT: 2}}, run="after").commit({"icu": EVENT})
            assert ledger.verify().rows == len(rows_of(address))

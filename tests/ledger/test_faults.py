"""A full disk, a read-only file, a lost connection, a crashed server: a clear error, nothing half-written.

When the condition is lifted the ledger verifies, holds all that was acknowledged, and the next verb works.
"""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy
from psycopg.sql import SQL, Identifier
from sqlalchemy.engine import make_url

import dpfed
from dpfed.errors import InvalidArgument, LedgerUnavailable, PrivacyError
from worlds import (
    EVENT,
    WITHIN,
    Say,
    counted,
    fork,
    open_accounts,
    outcome,
    points,
    rows_of,
    spread,
    sqlite_path,
    told,
)

REFUSED = ("LedgerUnavailable", "LedgerCorrupted")


def limit_files(size: int) -> None:
    """No file of this process may grow beyond the size: how a full disk looks to one process."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


def fill(url: str, room: int, say: Say) -> None:
    """Spend until the disk is full, then make room and go on with the same ledger."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ledger = dpfed.Ledger(url)
    held = ledger.reserve({"icu": {EVENT: 500}}, run=f"room-{room}")
    log = Path(f"{sqlite_path(url)}-wal")
    limit_files(log.stat().st_size + room)
    try:
        for _ in range(400):
            held.commit({"icu": EVENT})
            say("drawn")
    except LedgerUnavailable as error:
        say("full", str(error))
    limit_files(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    held.commit({"icu": EVENT})
    say("drawn")
    held.release(reason="moving on")


@pytest.mark.parametrize("room", [0, 1, 4096, 20_001, 60_000])
def test_a_full_disk_is_an_error_in_words_and_tears_nothing(sqlite_url, room):
    open_accounts(sqlite_url, "icu")
    facts = told(partial(fill, sqlite_url, room))
    full = [fact for fact in facts if fact[0] == "full"]
    assert len(full) == 1
    assert "full" in full[0][1]
    assert "nothing was written" in full[0][1]
    with dpfed.Ledger(sqlite_url) as ledger:
        ledger.verify()
        assert counted(sqlite_url, "committed", "icu").total() == facts.count(["drawn"])
        ledger.reserve({"icu": {EVENT: 1}}, run="after").commit({"icu": EVENT})


@pytest.mark.parametrize("size", [0, 100, 4096, 9000, 33_000])
def test_a_disk_too_full_for_a_new_ledger_leaves_one_that_can_still_be_made(sqlite_url, size):
    def make(say: Say) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit_files(size)
        say(outcome(lambda: dpfed.Ledger(sqlite_url).open("icu", epsilon=8.0, delta=1e-5)))

    assert told(make) == [["LedgerUnavailable"]]
    open_accounts(sqlite_url, "icu")
    with dpfed.Ledger(sqlite_url) as ledger:
        ledger.verify()
        ledger.reserve({"icu": {EVENT: 1}}, run="after").commit({"icu": EVENT})


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that an unprivileged user can reach, which pytest's own are not; nor may Python's, so all is loaded."""
    folder = Path(tempfile.mkdtemp(prefix="dpfed-"))
    open_accounts(f"sqlite:///{folder / 'warm.db'}", "icu")
    with dpfed.Ledger(f"sqlite:///{folder / 'warm.db'}") as ledger:
        ledger.reserve({"icu": {EVENT: 1}}, run="warm").commit({"icu": EVENT})
    (folder / "warm.db").unlink()
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


def drop_privileges() -> None:
    """Become nobody: root may write what is read-only."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)


READ_ONLY = {
    "the file": (0o444, 0o777),
    "the folder": (0o666, 0o555),
    "both": (0o444, 0o555),
    "all, and unreadable": (0o000, 0o555),
}


@pytest.mark.parametrize(("file_mode", "folder_mode"), READ_ONLY.values(), ids=READ_ONLY.keys())
def test_a_read_only_ledger_refuses_to_spend_in_words(open_folder, file_mode, folder_mode):
    path = open_folder / "ledger.db"
    url = f"sqlite:///{path}"
    open_accounts(url, "icu")
    before = rows_of(url)

    def spend(say: Say) -> None:
        drop_privileges()
        try:
            dpfed.Ledger(url).reserve({"icu": {EVENT: 1}}, run="study-12")
        except LedgerUnavailable as error:
            say(str(error))

    if os.geteuid() == 0:
        os.chown(path, 0, 0)
    path.chmod(file_mode)
    open_folder.chmod(folder_mode)
    facts = told(spend)
    assert len(facts) == 1, "nothing refused to write into a read-only ledger"
    assert str(path) in facts[0][0]
    assert "writable" in facts[0][0] or "may this user write" in facts[0][0]

    open_folder.chmod(0o777)
    path.chmod(0o666)
    assert rows_of(url) == before
    with dpfed.Ledger(url) as ledger:
        ledger.reserve({"icu": {EVENT: 1}}, run="study-12").commit({"icu": EVENT})
        ledger.verify()


def test_a_ledger_that_becomes_read_only_under_a_run_refuses_its_next_commit(open_folder):
    url = f"sqlite:///{open_folder / 'ledger.db'}"

    def work(say: Say) -> None:
        drop_privileges()
        open_accounts(url, "icu")
        with dpfed.Ledger(url) as ledger:
            held = ledger.reserve({"icu": {EVENT: 3}}, run="study-12")
            held.commit({"icu": EVENT})
        for file in open_folder.iterdir():
            file.chmod(0o444)
        say(outcome(lambda: held.commit({"icu": EVENT})))
        for file in open_folder.iterdir():
            file.chmod(0o644)
        held.commit({"icu": EVENT})
        say(held.left("icu", EVENT))

    assert told(work) == [["LedgerUnavailable"], [1]]


UNUSABLE: dict[str, Callable[[Path], object]] = {
    "its folder does not exist": lambda path: path.parent.rmdir(),
    "it is a folder": lambda path: path.mkdir(),
    "it is some other file": lambda path: path.write_text("dear diary, " * 500),
    "it is a picture of noise": lambda path: path.write_bytes(os.urandom(8192)),
}


@pytest.mark.parametrize("spoil", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_what_is_no_ledger_is_refused_and_left_alone(tmp_path, spoil):
    path = tmp_path / "folder" / "ledger.db"
    path.parent.mkdir()
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    assert outcome(lambda: dpfed.Ledger(f"sqlite:///{path}")) in REFUSED
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file:ledger?mode=memory&cache=shared&uri=true",
        "sqlite:///file:?uri=true",
    ],
)
def test_a_ledger_that_would_be_forgotten_is_refused_however_it_is_spelt(url):
    with pytest.raises(InvalidArgument):
        dpfed.Ledger(url)


def test_the_database_of_another_program_is_not_taken_over(url):
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as link:
        link.execute(sqlalchemy.text("CREATE TABLE entries (seq INTEGER PRIMARY KEY, title TEXT)"))
        link.execute(sqlalchemy.text("INSERT INTO entries VALUES (1, 'mine')"))
    engine.dispose()
    assert outcome(lambda: dpfed.Ledger(url).open("icu", epsilon=8.0, delta=1e-5)) in REFUSED
    assert rows_of(url) == [{"seq": 1, "title": "mine"}]


# ---- PostgreSQL: connections and servers that go away


@pytest.fixture
def disconnect(postgres, postgres_url) -> Callable[[], None]:
    return partial(postgres.disconnect_all, make_url(postgres_url).database)


def test_a_connection_lost_between_two_verbs_costs_nothing(postgres_url, disconnect):
    open_accounts(postgres_url, "icu")
    with dpfed.Ledger(postgres_url) as ledger:
        held = ledger.reserve({"icu": {EVENT: 6}}, run="study-12")
        done = 0
        for _ in range(3):
            disconnect()
            done += outcome(lambda: held.commit({"icu": EVENT})) == "done"
            held.commit({"icu": EVENT})
            done += 1
            assert counted(postgres_url, "committed", "icu").total() == done
        ledger.verify()


def test_a_connection_lost_inside_a_verb_is_an_error_in_words_and_nothing_is_written(
    postgres_url, disconnect, campaign_scale
):
    """At points of reserve, commit and release; the same ledger goes on at once."""
    open_accounts(postgres_url, "icu")
    ledger = dpfed.Ledger(postgres_url)
    names = (f"study-{number}" for number in count())

    def verbs(said: list[str]) -> None:
        held = ledger.reserve({"icu": {EVENT: 2}}, run=next(names))
        said.append("reserved")
        held.commit({"icu": EVENT})
        said.append("committed")
        held.release(reason="done")
        said.append("released")

    passed: list[int] = []
    with points(passed.append):
        verbs([])
    for number in spread(len(passed), 8 * campaign_scale):
        before = rows_of(postgres_url)
        said: list[str] = []
        with points(lambda n, number=number: disconnect() if n == number else None):
            refused = outcome(lambda said=said: verbs(said))
        assert refused in ("LedgerUnavailable", "done")
        new = [row["kind"] for row in rows_of(postgres_url)[len(before) :] if row["kind"] != "leased"]
        done = [word for word in said if word in ("reserved", "committed", "released")]
        assert new[: len(done)] == done
        # A connection that dies around COMMIT may have been heard: the entry is there or not, never torn.
        assert len(new) - len(done) <= 1
        ledger.verify()
        verbs([])
    ledger.verify()
    ledger.close()


def require_commits_of_threads_to_last(url: str, disturb: Callable[[dpfed.Ledger], None]) -> None:
    """Two threads commit and two look, on one ledger, while something disturbs them; what returned must be there."""
    open_accounts(url, "icu")
    drawn: list[str] = []
    with dpfed.Ledger(url) as ledger:
        holds = [ledger.reserve({"icu": {EVENT: 900}}, run=f"thread-{number}") for number in range(2)]
        is_over = threading.Event()

        def go_on(verb: Callable[[], object], then: Callable[[], None]) -> None:
            while not is_over.is_set() and len(drawn) < 900:
                if outcome(verb) == "done":
                    then()

        works = [(partial(held.commit, {"icu": EVENT}), partial(drawn.append, held.run)) for held in holds]
        works += [(partial(ledger.balance, "icu"), lambda: None), (ledger.reservations, lambda: None)]
        threads = [threading.Thread(target=go_on, args=work) for work in works]
        for thread in threads:
            thread.start()
        for _ in range(12):
            disturb(ledger)
            time.sleep(0.02)
        deadline = time.monotonic() + WITHIN
        while not drawn and time.monotonic() < deadline:
            time.sleep(0.02)
        is_over.set()
        for thread in threads:
            thread.join()
        ledger.verify()
    assert drawn
    committed = counted(url, "committed", "icu")
    for run, times in Counter(drawn).items():
        assert committed[run] >= times, "a commit returned and is not in the ledger"


def test_commits_of_threads_last_though_their_connections_are_lost(postgres_url, disconnect):
    require_commits_of_threads_to_last(postgres_url, lambda ledger: disconnect())


def test_commits_of_threads_last_though_the_ledger_is_closed_under_them(url):
    require_commits_of_threads_to_last(url, lambda ledger: ledger.close())


def test_what_was_acknowledged_survives_a_crash_of_the_server(postgres, postgres_url, campaign_scale):
    open_accounts(postgres_url, "icu")

    def spend(tag: str, say: Say) -> None:
        held = dpfed.Ledger(postgres_url).reserve({"icu": {EVENT: 1000}}, run=tag)
        say("reserved")
        try:
            while True:
                held.commit({"icu": EVENT})
                say("drawn")
        except LedgerUnavailable as error:
            say("lost", str(error))

    for number in range(2 * campaign_scale):
        child = fork(partial(spend, f"crash-{number}"))
        for _ in range(5):
            child.hear()
        postgres.stop()
        try:
            code, facts = child.end()
        finally:
            postgres.start()
        assert code == 0, facts[-1]
        assert facts[-1][0] == "lost"
        with dpfed.Ledger(postgres_url) as ledger:
            ledger.verify()
            committed = counted(postgres_url, "committed", "icu")[f"crash-{number}"]
            assert 0 <= committed - facts.count(["drawn"]) <= 1
            ledger.resume(f"crash-{number}").release(reason="the server crashed")


def test_a_server_that_is_away_is_an_error_in_words_and_the_same_ledger_works_when_it_is_back(postgres, postgres_url):
    open_accounts(postgres_url, "icu")
    ledger = dpfed.Ledger(postgres_url)
    held = ledger.reserve({"icu": {EVENT: 2}}, run="study-12")
    postgres.stop()
    try:
        for verb in (lambda: held.commit({"icu": EVENT}), lambda: ledger.balance("icu"), ledger.verify):
            with pytest.raises(LedgerUnavailable, match="out of reach"):
                verb()
        with pytest.raises(LedgerUnavailable, match="out of reach"):
            dpfed.Ledger(postgres_url)
    finally:
        postgres.start()
    held.commit({"icu": EVENT})
    ledger.verify()
    assert counted(postgres_url, "committed", "icu") == {"study-12": 1}
    ledger.close()


def test_a_read_only_database_refuses_to_spend_in_words(postgres, postgres_url):
    open_accounts(postgres_url, "icu")
    name = make_url(postgres_url).database
    postgres.execute(SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(Identifier(name)))
    with dpfed.Ledger(postgres_url) as ledger:
        with pytest.raises(LedgerUnavailable, match="read-only"):
            ledger.reserve({"icu": {EVENT: 1}}, run="study-12")
        assert ledger.balance("icu").spent == 0
        ledger.verify()


def test_no_error_shows_a_password(postgres):
    url = postgres.url("nowhere").replace("dpfed@", "dpfed:hunter2@")
    with pytest.raises(PrivacyError) as refused:
        dpfed.Ledger(url, wait=0.5)
    assert "hunter2" not in str(refused.value)

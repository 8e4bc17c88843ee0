"""A damaged or rewritten ledger is found: verify names the first bad row, and no balance changes in silence."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

import dpfed
from dpfed import events as ev
from dpfed.errors import LedgerCorrupted, LedgerRolledBack, LedgerUnavailable
from dpfed.ledger.rows import Row
from dpfed.ledger.store.schema import REVISION
from worlds import EVENT, open_accounts, rows_of, settle, sqlite_path

DAMAGE = (LedgerCorrupted, LedgerUnavailable)
OTHER = ev.Laplace(noise_multiplier=300.0)


def live(url: str) -> None:
    """A ledger that has seen every verb."""
    open_accounts(url, "icu", "ward")
    with dpfed.Ledger(url) as ledger:
        ledger.open("region", epsilon=4.0, delta=1e-5, opening={EVENT: 2}, labels={"basis": "consent"})
        ledger.open("unit-7", epsilon=3.0, delta=1e-5, parent="region", owner="dpo", purpose="study 12")
        held = ledger.reserve({"icu": {EVENT: 10, OTHER: 2}, "ward": {EVENT: 10}}, run="study-12")
        for _ in range(4):
            held.commit({"icu": EVENT, "ward": EVENT})
        ledger.freeze("ward", reason="audit")
        ledger.unfreeze("ward", reason="audit is over")
        ledger.top_up("ward", epsilon=1.0, reason="second year")
        ledger.record({"unit-7": {OTHER: 3}}, run="forgotten", reason="found in the archive")
        ledger.reserve({"unit-7": {EVENT: 5}}, run="study-13").release(reason="not needed")
        held.commit({"icu": {OTHER: 2}})


def exported(ledger: dpfed.Ledger) -> str:
    stream = io.StringIO()
    ledger.export(stream)
    return stream.getvalue()


def facts(ledger: dpfed.Ledger) -> tuple[Any, ...]:
    """All that a reader can learn."""
    return exported(ledger), ledger.accounts(), ledger.reservations(), ledger.head()


def facts_if_sound(path: Path) -> tuple[Any, ...] | None:
    """What the ledger says if verify has nothing against it."""
    ledger = None
    try:
        ledger = dpfed.Ledger(f"sqlite:///{path}", wait=0.5)
        ledger.verify()
        return facts(ledger)
    except DAMAGE:
        return None
    finally:
        if ledger is not None:
            ledger.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> tuple[bytes, tuple[Any, ...]]:
    """The bytes of a lively ledger and what it says."""
    path = tmp_path_factory.mktemp("sound") / "ledger.db"
    live(f"sqlite:///{path}")
    content = settle(path)
    return content, facts_if_sound(path)


def test_a_flipped_bit_is_found_or_changes_nothing(sound, tmp_path, campaign_scale):
    content, said = sound
    found = 0
    positions = range(0, len(content), max(1, len(content) // (200 * campaign_scale)))
    moods = np.random.default_rng(0 if campaign_scale == 1 else None)
    for position in positions:
        at = min(len(content) - 1, position + int(moods.integers(positions.step)))
        bit = 1 << int(moods.integers(8))
        path = tmp_path / f"flipped-{at}.db"
        path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
        heard = facts_if_sound(path)
        assert heard in (None, said), f"byte {at}, bit {bit:#x} changed what the ledger says, and verify was silent"
        found += heard is None
    # Half of the pages are free space or pointers; had nothing been found, the test would flip nothing.
    assert found > len(positions) // 10


def entry_bytes(content: bytes, rows: list[dict[str, Any]]) -> list[int]:
    """Where the digests of the rows are in the file."""
    return [place for row in rows if (place := content.find(row["hash"].encode())) >= 0]


def test_a_flipped_bit_inside_an_entry_is_always_found(sound, tmp_path):
    content, _ = sound
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    places = entry_bytes(content, rows_of(f"sqlite:///{path}"))
    assert len(places) > 20
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert facts_if_sound(path) is None, f"byte {place}"


@pytest.mark.parametrize(
    "word", [b"entries_no_update", b"CREATE TABLE entries", b"alembic_version", b"\x15" + REVISION.encode()]
)
def test_a_flipped_bit_in_the_schema_is_found_or_changes_nothing(sound, tmp_path, word):
    """Every bit of the names that SQLite itself quotes in its complaints, and of the schema's version."""
    content, said = sound
    path = tmp_path / "ledger.db"
    start = content.index(word)
    for at in range(start, start + len(word), 1 if len(word) < 10 else 5):
        for bit in range(8):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
            assert facts_if_sound(path) in (None, said), f"byte {at}, bit {bit}"


def test_a_flipped_bit_in_an_index_is_found_or_changes_nothing(sound, tmp_path, campaign_scale):
    """An index that lost an account's last row would show an earlier balance, though no entry has changed."""
    content, said = sound
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    connection = sqlite3.connect(path)
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    roots = connection.execute("SELECT rootpage FROM sqlite_master WHERE type = 'index' AND tbl_name = 'entries'")
    pages = [(root - 1) * size for (root,) in roots.fetchall()]
    connection.close()
    places = [at for page in pages for at in range(page, page + size) if content[at]]
    assert len(places) > 200
    found = 0
    for at in places[:: max(1, len(places) // (40 * campaign_scale))]:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        heard = facts_if_sound(path)
        assert heard in (None, said), f"byte {at}"
        found += heard is None
    assert found


@pytest.mark.parametrize("share", [0.999, 0.9, 0.7, 0.5, 0.3, 0.1])
@pytest.mark.parametrize("whole_pages", [True, False])
def test_a_truncated_file_is_found(sound, tmp_path, share, whole_pages):
    content, _ = sound
    length = int(len(content) * share)
    length = length // 4096 * 4096 if whole_pages else length | 1
    path = tmp_path / "ledger.db"
    path.write_bytes(content[:length])
    assert facts_if_sound(path) is None


def test_a_file_truncated_to_nothing_is_a_ledger_rolled_back_to_its_beginning(sound, tmp_path):
    _, (*_, head) = sound
    path = tmp_path / "ledger.db"
    path.touch()
    with dpfed.Ledger(f"sqlite:///{path}") as ledger, pytest.raises(LedgerRolledBack):
        ledger.require(head)


def test_a_damaged_log_is_never_a_different_balance_for_whoever_kept_the_head(tmp_path, campaign_scale):
    """SQLite drops the tail of a damaged log without a word; the head kept elsewhere tells."""
    path = tmp_path / "ledger.db"
    ledger = dpfed.Ledger(f"sqlite:///{path}")
    live(f"sqlite:///{path}")
    content, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    said = facts(ledger)
    head = ledger.head()
    ledger.close()
    assert log
    lost = 0
    for position in range(0, len(log), max(1, len(log) // (30 * campaign_scale))):
        copy = tmp_path / f"damaged-{position}.db"
        copy.write_bytes(content)
        Path(f"{copy}-wal").write_bytes(log[:position] + bytes([log[position] ^ 4]) + log[position + 1 :])
        heard = facts_if_sound(copy)
        if heard not in (None, said):
            with dpfed.Ledger(f"sqlite:///{copy}") as damaged, pytest.raises(LedgerRolledBack):
                damaged.require(head)
            lost += 1
    assert lost, "no damage reached the log"


# ---- rewriting through SQL


@pytest.fixture
def rewritten(url) -> Callable[[Callable[[sa.Connection, sa.Table], None]], str]:
    """Lets somebody with all rights rewrite a lively ledger, its triggers dropped; gives its address."""
    live(url)

    def rewrite(change: Callable[[sa.Connection, sa.Table], None]) -> str:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.begin() as link:
            drop_triggers(link)
            change(link, sa.Table("entries", sa.MetaData(), autoload_with=link))
        return url

    return rewrite


def drop_triggers(link: sa.Connection) -> None:
    if link.dialect.name == "sqlite":
        names = link.execute(sa.text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all()
        for name in names:
            link.execute(sa.text(f'DROP TRIGGER "{name}"'))
    else:
        query = "SELECT tgname, tgrelid::regclass FROM pg_trigger WHERE NOT tgisinternal"
        for name, table in link.execute(sa.text(query)).all():
            link.execute(sa.text(f'DROP TRIGGER "{name}" ON {table}'))


def bad_row(url: str) -> int | None:
    """The row that verify names."""
    with pytest.raises(LedgerCorrupted) as found, dpfed.Ledger(url) as ledger:
        ledger.verify()
    return found.value.row


def middle_row(url: str, kind: str = "committed") -> dict[str, Any]:
    """A row in the middle: the second of its kind on icu."""
    return [row for row in rows_of(url) if row["kind"] == kind and row["account"] == "icu"][1]


COLUMNS = [name for name in Row._fields if name != "seq"]


@pytest.mark.parametrize("column", COLUMNS)
def test_any_change_of_a_row_is_named(url, rewritten, column):
    row = middle_row(url)
    old = row[column]
    new = (old or 0) + 1 if isinstance(old, int) or old is None else f"{old[:-1]}{'0' if old[-1] != '0' else '1'}"
    if old is None and column not in ("item", "times", "left"):
        new = "1"

    def change(link: sa.Connection, entries: sa.Table) -> None:
        link.execute(entries.update().where(entries.c.seq == row["seq"]).values({column: new}))

    assert bad_row(rewritten(change)) == row["seq"]


def test_a_row_missing_in_the_middle_is_named(url, rewritten):
    row = middle_row(url)["seq"]
    rewritten(lambda link, entries: link.execute(entries.delete().where(entries.c.seq == row)))
    assert bad_row(url) in (row, row + 1)


def test_a_missing_first_row_is_named(url, rewritten):
    rewritten(lambda link, entries: link.execute(entries.delete().where(entries.c.seq == 1)))
    assert bad_row(url) in (1, 2)


def test_a_missing_last_row_is_found(url, rewritten):
    last = rows_of(url)[-1]["seq"]
    rewritten(lambda link, entries: link.execute(entries.delete().where(entries.c.seq == last)))
    assert bad_row(url) in (last, last - 1)


def test_no_rows_at_all_are_found(url, rewritten):
    rewritten(lambda link, entries: link.execute(entries.delete()))
    bad_row(url)


def test_two_rows_that_changed_places_are_named(url, rewritten):
    first = middle_row(url)["seq"]

    def swap(link: sa.Connection, entries: sa.Table) -> None:
        for old, new in ((first, -1), (first + 1, first), (-1, first + 1)):
            link.execute(entries.update().where(entries.c.seq == old).values(seq=new))

    assert bad_row(rewritten(swap)) == first


def test_a_row_after_the_last_is_named(url, rewritten):
    last = Row(**rows_of(url)[-1])
    forged = last._replace(seq=last.seq + 1, previous=last.hash)
    forged = forged._replace(hash=forged.digest())
    rewritten(lambda link, entries: link.execute(entries.insert().values(forged._asdict())))
    assert bad_row(url) == forged.seq


def test_a_row_before_the_first_is_named(url, rewritten):
    first = Row(**rows_of(url)[0])
    rewritten(lambda link, entries: link.execute(entries.insert().values(first._replace(seq=0)._asdict())))
    assert bad_row(url) == 0


HEADS = {
    "another digest": {"hash": "0" * 64},
    "an earlier number": {"seq": 3},
    "a later number": {"seq": 10_000},
}


@pytest.mark.parametrize("values", HEADS.values(), ids=HEADS.keys())
def test_another_head_is_found(url, rewritten, values):
    def change(link: sa.Connection, _: sa.Table) -> None:
        link.execute(sa.Table("head", sa.MetaData(), autoload_with=link).update().values(values))

    bad_row(rewritten(change))


def test_no_head_is_found(url, rewritten):
    rewritten(lambda link, _: link.execute(sa.text("DELETE FROM head")))
    bad_row(url)


def rechain(link: sa.Connection, entries: sa.Table, changed: dict[int, dict[str, Any]]) -> None:
    """Change rows and give all that follow, and the head, digests that fit: a forger who knows the format."""
    previous = "0" * 64
    for found in link.execute(entries.select().order_by(entries.c.seq)).all():
        row = Row(*found)._replace(previous=previous, **changed.get(found.seq, {}))
        row = row._replace(hash=row.digest())
        link.execute(entries.update().where(entries.c.seq == row.seq).values(row._asdict()))
        previous = row.hash
    head = sa.Table("head", sa.MetaData(), autoload_with=link)
    link.execute(head.update().values(hash=previous))


def cheaper(row: dict[str, Any]) -> dict[str, Any]:
    """The row with what it says was spent set to nothing."""
    state = json.loads(row["state"])
    return {"state": json.dumps({**state, "spent": ["0"] * len(state["spent"])}, separators=(",", ":"))}


FORGERIES: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "a state": ("committed", cheaper),
    "a count": ("committed", lambda row: {"times": row["times"] + 1}),
    "a count below nothing": ("committed", lambda row: {"times": -row["times"]}),
    "an event": ("committed", lambda row: {"event": row["event"].replace("40.0", "41.0")}),
    "what is left": ("committed", lambda row: {"left": row["left"] + 1}),
    "a kind": ("committed", lambda row: {"kind": "refused"}),
    "a kind that returns it": ("committed", lambda row: {"kind": "released"}),
    "an account": ("committed", lambda row: {"account": "ward"}),
    "a reserved cost": ("reserved", lambda row: {"cost": '["1"]'}),
    "a reserved event": ("reserved", lambda row: {"event": row["event"].replace("300.0", "200.0")}),
    "a reserved count": ("reserved", lambda row: {"times": 1, "left": 1}),
}


@pytest.mark.parametrize(("kind", "forge"), FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forger_who_mends_the_chain_is_found_by_the_balances(url, rewritten, kind, forge):
    row = middle_row(url, kind)
    change = forge(row)
    assert change != {name: row[name] for name in change}
    rewritten(lambda link, entries: rechain(link, entries, {row["seq"]: change}))
    assert bad_row(url) == row["seq"]


def test_a_forger_who_mends_everything_is_found_by_whoever_kept_the_head(url, rewritten):
    with dpfed.Ledger(url) as ledger:
        head = ledger.head()
    row = middle_row(url)
    rewritten(lambda link, entries: rechain(link, entries, {row["seq"]: {"at": "2020-01-01T00:00:00.000000Z"}}))
    with dpfed.Ledger(url) as ledger, pytest.raises(LedgerRolledBack):
        ledger.require(head)


REWRITES = [
    "UPDATE entries SET times = 0 WHERE seq = 6",
    "UPDATE entries SET state = NULL",
    "UPDATE entries SET seq = seq + 1000",
    "DELETE FROM entries WHERE seq = 6",
    "DELETE FROM entries",
    "DELETE FROM head",
    "UPDATE head SET seq = 1",
    "INSERT INTO head VALUES (2, 1, '')",
    "UPDATE secret SET key = ''",
    "DELETE FROM secret",
]
UPSERTS = [
    "INSERT INTO entries SELECT * FROM entries WHERE seq = 6 ON CONFLICT (seq) DO UPDATE SET times = 0",
    "INSERT INTO head SELECT * FROM head WHERE true ON CONFLICT (id) DO UPDATE SET seq = 1",
]
POSTGRES_REWRITES = ["TRUNCATE entries", "TRUNCATE head", "TRUNCATE entries, head CASCADE"]
SQLITE_REWRITES = [
    "INSERT OR REPLACE INTO entries SELECT * FROM entries WHERE seq = 6",
    "REPLACE INTO head SELECT 1, 1, hash FROM entries WHERE seq = 1",
    "REPLACE INTO secret VALUES (1, '')",
]


def require_refused(url: str, statement: str) -> None:
    live(url)
    before = rows_of(url)
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with pytest.raises(sa.exc.DBAPIError, match=r"append-only|only grows|has moved"), engine.begin() as link:
        link.execute(sa.text(statement))
    assert rows_of(url) == before
    with dpfed.Ledger(url) as ledger:
        ledger.verify()


@pytest.mark.parametrize("statement", REWRITES + UPSERTS)
def test_the_database_refuses_to_rewrite_entries(url, statement):
    require_refused(url, statement)


@pytest.mark.parametrize("statement", POSTGRES_REWRITES)
def test_postgresql_refuses_to_empty_the_tables(postgres_url, statement):
    require_refused(postgres_url, statement)


@pytest.mark.parametrize("statement", SQLITE_REWRITES)
def test_sqlite_refuses_to_replace_entries(sqlite_url, statement):
    """REPLACE deletes without asking a trigger, unless it is told to."""
    require_refused(sqlite_url, statement)


# ---- an old copy in the place of the ledger


def test_an_old_copy_is_refused_by_whoever_kept_the_head(url, copy_of):
    live(url)
    old = copy_of(url)
    with dpfed.Ledger(url) as ledger:
        early = ledger.head()
        ledger.reserve({"ward": {EVENT: 1}}, run="later").commit({"ward": EVENT})
        late = ledger.head()
        ledger.require(early)
        ledger.require(late)
    with dpfed.Ledger(old) as ledger:
        ledger.verify()
        ledger.require(early)
        with pytest.raises(LedgerRolledBack, match=str(late.sequence)):
            ledger.require(late)


def test_an_old_copy_that_went_on_is_refused_too(url, copy_of):
    """As long as the one it replaced, or longer: the digest is another."""
    live(url)
    old = copy_of(url)
    with dpfed.Ledger(url) as ledger:
        ledger.freeze("ward", reason="one story")
        late = ledger.head()
    with dpfed.Ledger(old) as ledger:
        for number in range(3):
            ledger.reserve({"icu": {EVENT: 1}}, run=f"another-story-{number}")
        ledger.verify()
        with pytest.raises(LedgerRolledBack):
            ledger.require(late)


def test_an_old_file_put_back_under_an_open_ledger_is_noticed(sqlite_url, tmp_path):
    live(sqlite_url)
    path = sqlite_path(sqlite_url)
    content = settle(path)
    ledger = dpfed.Ledger(sqlite_url)
    ledger.freeze("ward", reason="later")
    late = ledger.head()
    ledger.close()
    settle(path)
    path.write_bytes(content)
    with pytest.raises(LedgerRolledBack):
        ledger.require(late)
    ledger.close()


def test_damage_that_verify_names_is_also_met_by_the_next_spend(sqlite_url):
    """A balance is read from the account's last row: nobody spends on top of a row that was rewritten."""
    live(sqlite_url)
    connection = sqlite3.connect(sqlite_path(sqlite_url))
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f'DROP TRIGGER "{name}"')
    last = [row for row in rows_of(sqlite_url) if row["account"] == "icu" and row["state"]][-1]
    connection.execute("UPDATE entries SET state = ? WHERE seq = ?", (cheaper(last)["state"], last["seq"]))
    connection.commit()
    connection.close()
    with dpfed.Ledger(sqlite_url) as ledger:
        with pytest.raises(LedgerCorrupted):
            ledger.balance("icu")
        with pytest.raises(LedgerCorrupted):
            ledger.reserve({"icu": {EVENT: 1}}, run="on-top")

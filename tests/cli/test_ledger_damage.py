"""Whatever is wrong with a ledger's file, every command that reads it says so in one sentence."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dpfed
from dpfed import events as ev
from dpfed.cli.main import main
from dpfed.ledger.rows import Row

READING = {
    "show": ["show"],
    "show one": ["show", "icu"],
    "show as JSON": ["show", "--json"],
    "statement": ["statement", "icu"],
    "statement as HTML": ["statement", "icu", "--format", "html"],
    "statement as JSON": ["statement", "icu", "--json"],
    "reservations": ["reservations"],
    "reservations as JSON": ["reservations", "--all", "--json"],
    "forecast": ["forecast", "icu", "-z", "4"],
    "verify": ["verify"],
    "head": ["head"],
    "export": ["export"],
    "backup": ["backup", "COPY"],
}
ODD = (
    None,
    "",
    0,
    -1,
    2**62,
    1.5,
    float("inf"),
    b"\xff\xfe",
    "{}",
    "[]",
    "null",
    '{"a":1}',
    "[1,2]",
    '"s"',
    "x",
    "NaN",
)
KINDS = ("opened", "leased", "committed", "reserved", "refused", "unfrozen", "restored", "clock", "sealed")
OTHERS = (("head", "seq"), ("head", "hash"), ("secret", "key"), ("sources", "name"), ("alembic_version", "version_num"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> bytes:
    """The bytes of a ledger in which much has happened."""
    path = tmp_path_factory.mktemp("sound") / "ledger.db"
    with dpfed.Ledger(path) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5, source=b"records", labels={"basis": "consent"})
        ledger.open("ward", epsilon=4.0, delta=1e-5, source=b"records", parent="icu")
        held = ledger.reserve({"ward": {ev.Gaussian(40.0): 10}, "icu": {ev.Gaussian(30.0): 5}}, run="study")
        held.commit({"ward": ev.Gaussian(40.0)})
        held.commit({"icu": {ev.Gaussian(30.0): 5}})
        ledger.freeze("ward", reason="audit")
        ledger.top_up("icu", epsilon=1.0, reason="vote")
        ledger.record({"icu": ev.Gaussian(50.0)}, reason="found later")
    return path.read_bytes()


def flip_bits(path: Path, luck: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(luck.choice([1, 1, 3, 50])):
        content[luck.randrange(len(content))] ^= 1 << luck.randrange(8)
    path.write_bytes(content)


def alter_row(path: Path, luck: random.Random) -> None:
    """Change one value of an entry; as often as not with a digest that fits it, and a chain that goes on from there."""
    with behind_its_back(path) as link:
        rows = [Row(*values) for values in link.execute("SELECT * FROM entries ORDER BY seq")]
        place, column = luck.randrange(len(rows)), luck.choice(Row._fields)
        rows[place] = rows[place]._replace(**{column: luck.choice(KINDS if column == "kind" else ODD)})
        if luck.random() < 0.5:
            rows = list(chained(rows))
            link.execute("UPDATE head SET hash = ?", [rows[-1].hash])
        link.execute("DELETE FROM entries")
        marks = ", ".join("?" * len(Row._fields))
        link.executemany(f"INSERT INTO entries VALUES ({marks})", rows)  # noqa: S608 - our own words


def alter_others(path: Path, luck: random.Random) -> None:
    table, column = luck.choice(OTHERS)
    with behind_its_back(path) as link:
        link.execute(f"UPDATE {table} SET {column} = ?", [luck.choice(ODD)])  # noqa: S608 - our own words


def drop_row(path: Path, luck: random.Random) -> None:
    with behind_its_back(path) as link:
        link.execute("DELETE FROM entries WHERE seq = ?", [luck.randrange(1, 14)])


def behind_its_back(path: Path) -> Any:
    link = sqlite3.connect(path, isolation_level=None)
    for (name,) in link.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        link.execute(f"DROP TRIGGER {name}")
    return closing(link)


def chained(rows: list[Row]) -> Iterator[Row]:
    before = rows[0].previous
    for row in rows:
        kept = row._replace(previous=before)
        yield (kept := kept._replace(hash=kept.digest()))
        before = kept.hash


@pytest.mark.parametrize("harm", [flip_bits, alter_row, alter_others, drop_row], ids=lambda harm: harm.__name__)
def test_every_command_that_reads_a_damaged_ledger_answers_in_one_sentence(sound, tmp_path, harm, campaign_scale):
    luck = random.Random(harm.__name__)  # noqa: S311 - what to damage
    tried = 0
    while tried < 25 * campaign_scale:
        folder = tmp_path / str(tried)
        folder.mkdir(exist_ok=True)
        path = folder / "ledger.db"
        path.write_bytes(sound)
        try:
            harm(path, luck)
        except sqlite3.Error:  # its tables do not take such a value
            continue
        tried += 1
        for name in luck.sample(sorted(READING), 5):
            words = READING[name]
            arguments = [str(folder / "copy") if word == "COPY" else word for word in words]
            said = CliRunner().invoke(main, ["ledger", *arguments, "--ledger", str(path)])
            assert said.exit_code in ((0, 1, 2) if name == "verify" else (0, 2)), (name, said.output)
            if said.exit_code:
                assert said.stderr.startswith("dpfed: "), (name, said.output)
                assert said.stderr.count("\n") == 1, (name, said.stderr)

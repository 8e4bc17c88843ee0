"""Entries and the hash chain that holds them together."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.errors import InvalidArgument, LedgerCorrupted
from dpfed.ledger.rows import GENESIS, Draft, Head, Row, Series, compact
from dpfed.ledger.store.schema import ENTRIES

AT = "2026-01-01T00:00:00.000000Z"
ROW = Draft("committed", "icu", "run", 3, "icu", '{"a":1}', 2, 7, None, '{"b":2}', '{"c":3}').row(5, AT, "ab" * 32)


def test_the_digest_can_be_computed_again_without_dpfed():
    values = [
        5,
        AT,
        "committed",
        "icu",
        "run",
        3,
        "icu",
        '{"a":1}',
        2,
        7,
        None,
        '{"b":2}',
        '{"c":3}',
        ROW.code,
        "ab" * 32,
    ]
    text = json.dumps(values, separators=(",", ":"))
    assert ROW.hash == hashlib.sha256(text.encode()).hexdigest()


class Name(str):
    """A text of another class, as numpy has one."""


@given(st.lists(st.none() | st.text() | st.integers() | st.text().map(Name), min_size=15, max_size=15))
def test_the_digest_is_that_of_the_entry_as_a_json_list(values):
    text = json.dumps(values, separators=(",", ":"))
    assert Row(*values, "").digest() == hashlib.sha256(text.encode()).hexdigest()


@given(
    st.tuples(st.text(), st.text(), st.text(), st.integers(), st.text(), st.text()),
    st.tuples(st.integers(), st.integers(), st.text()),
    st.tuples(st.integers(), st.text(), st.text()),
)
def test_a_series_gives_the_rows_that_drafts_give(what, moved, place):
    what = (f"x{what[0]}", *what[1:])  # not "reserved", whose items have numbers of their own
    times, left, state = moved
    row = Series(*what).row(*place, times, left, state)
    assert row == Draft(*what, times=times, left=left, state=state).row(*place)
    assert row.check() is row


def test_the_values_of_a_row_are_in_the_order_of_the_columns():
    assert Row._fields == tuple(ENTRIES.c.keys())


@pytest.mark.parametrize("column", [name for name in Row._fields if name != "hash"])
def test_the_digest_covers_every_column(column):
    value = getattr(ROW, column)
    other = ROW._replace(**{column: value + 1 if isinstance(value, int) else f"{value}x"})
    with pytest.raises(LedgerCorrupted) as found:
        other.check()
    assert found.value.row == other.seq
    assert ROW.check() is ROW


def test_a_digest_tells_nothing_from_an_empty_text_and_a_number_from_its_text():
    digests = {ROW._replace(run=run).digest() for run in (None, "", "None", "null")}
    assert len(digests) == 4
    assert ROW._replace(times="2").digest() != ROW.digest()


def test_texts_cannot_move_from_one_column_to_the_next():
    assert ROW._replace(account='icu","run', run="").digest() != ROW._replace(account="icu", run='run",""').digest()


def test_the_chain_makes_equal_entries_different():
    draft = Draft("leased", run="a")
    first = draft.row(1, AT, GENESIS)
    assert draft.row(1, AT, first.hash).hash != first.hash


def test_a_reserved_entry_is_an_item_of_its_own_number():
    assert Draft("reserved", "icu", "run").row(9, AT, GENESIS).item == 9
    assert Draft("committed", "icu", "run", item=4).row(9, AT, GENESIS).item == 4


@given(number=st.integers(0, 10**18 - 1), digest=st.text("0123456789abcdef", min_size=64, max_size=64))
def test_a_head_is_read_back_as_it_was_shown(number, digest):
    assert Head.parse(str(Head(number, digest))) == Head(number, digest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12",
        ":",
        "12:",
        "12:abc",
        "-1:" + "a" * 64,
        "１:" + "a" * 64,
        "9" * 5000 + ":" + "a" * 64,
        "9" * 30 + ":" + "a" * 64,
        None,
        5,
        b"1",
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_what_is_no_head_is_refused(text):
    with pytest.raises(InvalidArgument) as refusal:
        Head.parse(text)
    assert refusal.value.argument == "head"
    assert len(str(refusal.value)) < 300


def test_json_is_canonical_and_never_holds_what_json_does_not_know():
    assert compact({"b": 1, "a": "ε"}) == '{"a":"ε","b":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        compact({"a": float("nan")})

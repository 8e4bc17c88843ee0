"""What may enter a ledger; everything else is refused with the name of the argument."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed import events as ev
from dpfed.errors import InvalidArgument, UnknownEvent
from dpfed.ledger import inputs

STEP = ev.Gaussian(2.0)

HOSTILE_NAMES = [
    "",
    " icu",
    "icu ",
    "icu\n",
    "icu\0",
    "-icu",
    "../icu",
    "i cu",
    "ісu",  # Cyrillic і and с
    "ﬁcu",  # a ligature that NFKC would make two letters
    "icu\u202e",
    "icu\u200b",
    "\ud800",
    "é",
    "１２",
    "icu'; DROP TABLE entries; --",
    'icu"',
    "icu`",
    "icu%s",
    "icu?",
    "{icu}",
    "a" * 101,
    "a" * 10_000_000,
    b"icu",
    None,
    True,
    12,
    1.5,
    ["icu"],
    {"icu"},
    object(),
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: ascii(name)[:20])
def test_a_hostile_name_is_refused_and_the_argument_named(name):
    with pytest.raises(InvalidArgument) as refusal:
        inputs.name(account=name)
    assert refusal.value.argument == "account"
    assert len(str(refusal.value)) < 300


@given(name=st.text())
def test_a_name_is_plain_ascii_or_refused(name):
    letters = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
    if 1 <= len(name) <= 100 and name[0] in letters and set(name) <= letters | set("._:/@-"):
        assert inputs.name(run=name) == name
    else:
        with pytest.raises(InvalidArgument):
            inputs.name(run=name)


@pytest.mark.parametrize("name", ["icu", "hospital-3", "study:12/a@b.c_d", "0", "a" * 100, "A._:/@-"])
def test_an_ordinary_name_is_taken_as_it_is(name):
    assert inputs.name(account=name) == name


HOSTILE_TEXTS = [
    "a" * 2001,
    "a" * 10_000_000,
    "two\nlines",
    "tab\t",
    "\0",
    "\ud800",
    "abc\u202edef",
    "\u200b",
    "\x1b[31mred",
    "\u2028",
    None,
    5,
    b"bytes",
    ["text"],
]


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=lambda text: ascii(text)[:20])
def test_a_hostile_text_is_refused_and_the_argument_named(text):
    with pytest.raises(InvalidArgument) as refusal:
        inputs.text(purpose=text)
    assert refusal.value.argument == "purpose"
    assert len(str(refusal.value)) < 300


def test_a_text_may_be_in_any_language():
    assert inputs.text(purpose="Étude nº 12 — ICU, ε ≤ 8, 研究 'q\"<b>") == "Étude nº 12 — ICU, ε ≤ 8, 研究 'q\"<b>"


@pytest.mark.parametrize("reason", ["", "   ", None, 5])
def test_a_reason_must_say_something(reason):
    with pytest.raises(InvalidArgument) as refusal:
        inputs.reason(reason)
    assert refusal.value.argument == "reason"


@pytest.mark.parametrize(
    "labels", [None, [], "a", 5, {"a": 1}, {1: "a"}, {"": "a"}, {"a": "\0"}, {f"k{n}": "" for n in range(51)}]
)
def test_labels_that_are_not_names_and_texts_are_refused(labels):
    with pytest.raises(InvalidArgument) as refusal:
        inputs.labels(labels)
    assert refusal.value.argument == "labels"


def test_a_plain_date_lasts_until_its_end():
    assert datetime.fromisoformat(inputs.expiry(date(2030, 1, 31))) > datetime(2030, 1, 31, 23, 59, 59, tzinfo=UTC)


def test_an_expiry_keeps_its_moment_in_utc():
    local = datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=5)))
    assert datetime.fromisoformat(inputs.expiry(local)) == local
    assert inputs.expiry(None) is None


@pytest.mark.parametrize(
    "expires",
    [
        datetime(2030, 1, 1),
        "2030-01-01",
        1893456000,
        math.inf,
        True,
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=5))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
    ],
    ids=repr,
)
def test_an_expiry_that_is_not_one_moment_is_refused(expires):
    with pytest.raises(InvalidArgument) as refusal:
        inputs.expiry(expires)
    assert refusal.value.argument == "expires"


@pytest.mark.parametrize(
    "charges", [None, {}, [], "icu", 5, STEP, {"icu": {}}, {"icu": None}, {"icu": [STEP]}, {"icu": 5}, {"icu": "x"}]
)
def test_charges_that_are_not_accounts_with_events_are_refused(charges):
    with pytest.raises(InvalidArgument) as refusal:
        inputs.charges(charges)
    assert refusal.value.argument == "charges"


@pytest.mark.parametrize("count", [0, -1, 1.0, 0.5, math.nan, math.inf, "3", True, None, 2**40 + 1, 2**62, 10**400])
def test_a_count_that_is_no_ordinary_whole_number_is_refused(count):
    with pytest.raises(InvalidArgument) as refusal:
        inputs.charges({"icu": {STEP: count}})
    assert refusal.value.argument == "count"


@pytest.mark.parametrize("event", ["Gaussian", 5, None, ev.Gaussian, ev.Event(), ("Gaussian", 2.0)])
def test_what_is_no_event_is_refused(event):
    with pytest.raises(UnknownEvent):
        inputs.counts({event: 1})


def test_a_lone_event_counts_once_and_numpy_counts_are_numbers():
    assert inputs.charges({"icu": STEP, "ward": {STEP: np.int64(3)}}) == {"icu": {STEP: 1}, "ward": {STEP: 3}}


class MadeWhenAsked(Mapping):
    """Charges that nobody keeps: the next one may be made where the last one was."""

    def __init__(self, noises):
        self._noises = noises

    def __getitem__(self, account):
        return {ev.Gaussian(self._noises[account]): 3}

    def __iter__(self):
        return iter(self._noises)

    def __len__(self):
        return len(self._noises)


def test_every_account_is_charged_its_own_event_even_if_that_is_made_when_asked_for():
    noises = {f"ward-{number}": 1.0 + number for number in range(9)}
    assert inputs.charges(MadeWhenAsked(noises)) == {name: {ev.Gaussian(noise): 3} for name, noise in noises.items()}


def nested(depth: int) -> ev.Event:
    event: ev.Event = STEP
    for _ in range(depth):
        event = ev.Repeated(event, 1)
    return event


def test_an_event_that_others_could_not_read_back_is_refused():
    assert inputs.counts({nested(49): 1}) == {nested(49): 1}
    for event in (nested(50), nested(200)):
        with pytest.raises(InvalidArgument, match="nested"):
            inputs.counts(event)
    with pytest.raises(InvalidArgument, match="characters"):
        inputs.counts(ev.Composed([ev.Gaussian(1.0 + n) for n in range(3_000)]))


@pytest.mark.parametrize("claim", ["no", 1, 0, None, [], np.True_])
def test_a_claim_is_true_or_false_and_nothing_else(claim):
    with pytest.raises(InvalidArgument) as refusal:
        inputs.claim(fixed_plan=claim)
    assert refusal.value.argument == "fixed_plan"
    assert inputs.claim(fixed_plan=True) is True

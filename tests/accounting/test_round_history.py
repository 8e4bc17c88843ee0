from __future__ import annotations

import json

import pytest

from dpfed.accounting.queries import epsilon
from dpfed.accounting.round_history import RoundHistory, RoundRecord, read_history
from dpfed.errors import InvalidArgument
from dpfed.events import Composed, Gaussian, PoissonSampled, Repeated


def record(number: int, client: object = None, noise: float = 2.0) -> RoundRecord:
    return RoundRecord(number, client, noise_multiplier=noise, sample_rate=0.1, steps=5)


def event(noise: float, rounds: int = 1) -> Repeated:
    return Repeated(PoissonSampled(Gaussian(noise), 0.1), 5 * rounds)


def history(*records: RoundRecord) -> RoundHistory:
    made = RoundHistory(1e-5, "add_remove")
    for each in records:
        made.add(each)
    return made


def test_a_client_costs_its_own_rounds_and_those_of_everybody_before_and_after():
    found = history(record(1), record(2, "north", 1.0), record(3))
    assert found.epsilon("north") == pytest.approx(epsilon(Composed([event(2.0, 2), event(1.0)]), 1e-5), rel=1e-9)
    assert found.epsilon("a client never named") == pytest.approx(epsilon(event(2.0, 2), 1e-5), rel=1e-9)
    assert (found.names(), found.worst_name(), found.worst()) == (("north",), "north", found.epsilon("north"))


def test_the_table_by_round_is_that_of_the_rounds_in_their_order():
    found = history(record(3), record(1, "north", 1.0), record(2))
    assert list(found.by_round()) == [1, 2, 3]
    assert found.by_round()[1] == pytest.approx(epsilon(event(1.0), 1e-5), rel=1e-9)
    assert found.by_round()[3] == pytest.approx(found.worst(), rel=1e-9)


def test_a_round_counts_once_for_a_client_that_is_known_by_number_or_digits():
    found = history(record(1, 7))
    with pytest.raises(InvalidArgument, match="round 1 of 7 is already recorded at record level"):
        found.require_new(record(1, "7"), "record")
    found.require_new(record(1), "record")
    with pytest.raises(InvalidArgument, match="client must be a name"):
        record(1, True)


def test_a_history_goes_through_json_and_bare_triples_are_rounds_of_everybody():
    found = history(record(1), record(2, "north"))
    assert read_history(json.loads(json.dumps(found.history()))) == found.records
    assert read_history([(2.0, 0.1, 5)]) == [record(1)]
    with pytest.raises(InvalidArgument, match="row 2 of the history is no round record"):
        read_history([(2.0, 0.1, 5), "nonsense"])

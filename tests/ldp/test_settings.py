from __future__ import annotations

import json

import pytest

from dpfed.errors import InvalidArgument
from dpfed.ldp import KaryResponse, OptimizedUnary, Rappor
from dpfed.ldp.collecting import Terms
from dpfed.ldp.settings import KINDS, ORACLES, build, describe, make, read_header


@pytest.mark.parametrize("kind", KINDS)
def test_a_mechanism_comes_back_from_json_as_it_was(kind):
    mechanism, why = make(kind, 1.7, 12, absent=kind in ORACLES)
    assert build(json.loads(json.dumps(describe(mechanism)))) == mechanism
    assert kind.upper() in why.upper()


def test_without_a_kind_the_best_one_is_made():
    assert make(None, 1.0, 4)[0] == KaryResponse(1.0, 4)
    assert make(None, 1.0, 40, absent=True)[0] == OptimizedUnary(1.0, 40, absent=True)
    assert make("rappor", 2.0, 1)[0] == Rappor.from_epsilon(2.0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kind": "other"},
        {"kind": ["unary"]},
        {"kind": "unary"},
        {"kind": "unary", "epsilon": 1.0, "domain": 3, "more": 1},
    ],
)
def test_settings_of_no_mechanism_are_refused(settings):
    with pytest.raises(InvalidArgument, match="not those of a local mechanism"):
        build(settings)


HEADER = Terms("ward", "patient", ("a", "b", "c"), KaryResponse(1.0, 3)).settings | {"total_epsilon": 1.0}


def test_the_header_of_a_file_of_reports_names_its_mechanism():
    assert read_header(json.loads(json.dumps(HEADER))) == KaryResponse(1.0, 3)


@pytest.mark.parametrize(
    "header",
    [
        [],
        *(
            {key: HEADER[key] for key in HEADER if key != missing}
            for missing in ("column", "unit", "values", "mechanism")
        ),
        HEADER | {"values": ["a", "b"]},
        HEADER | {"values": ["a", "b", 3]},
        HEADER | {"total_epsilon": "1"},
        HEADER | {"total_epsilon": 0.5},
        HEADER | {"total_epsilon": float("nan")},
    ],
)
def test_a_header_that_lacks_something_or_names_too_small_an_epsilon_is_refused(header):
    with pytest.raises(InvalidArgument, match="not those of a local mechanism"):
        read_header(header)


def test_an_unknown_kind_is_answered_with_the_known_ones():
    with pytest.raises(InvalidArgument, match="randomized-response, unary"):
        make("oue", 1.0, 4)

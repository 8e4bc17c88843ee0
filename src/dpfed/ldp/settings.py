"""Mechanisms as plain JSON values and back, for files that outlive the process.

>>> from dpfed.ldp.kary import KaryResponse
>>> settings = describe(KaryResponse(epsilon=1.0, domain=3))
>>> settings
{'kind': 'randomized-response', 'epsilon': 0.9999999999999997, 'domain': 3, 'absent': False}
>>> build(settings) == KaryResponse(epsilon=1.0, domain=3)
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dpfed.errors import InvalidArgument
from dpfed.ldp.choosing import choose
from dpfed.ldp.hadamard import HadamardResponse
from dpfed.ldp.hashing import LocalHashing
from dpfed.ldp.kary import KaryResponse
from dpfed.ldp.oracle import FrequencyOracle
from dpfed.ldp.rappor import Rappor
from dpfed.ldp.sketch import CountMeanSketch, HadamardSketch
from dpfed.ldp.subset import SubsetSelection
from dpfed.ldp.unary import OptimizedUnary, SymmetricUnary

Mechanism = FrequencyOracle | Rappor

RAPPOR = "rappor"
ORACLES: dict[str, type[FrequencyOracle]] = {
    "randomized-response": KaryResponse,
    "unary": OptimizedUnary,
    "symmetric-unary": SymmetricUnary,
    "hashing": LocalHashing,
    "subset": SubsetSelection,
    "hadamard": HadamardResponse,
    "count-mean": CountMeanSketch,
    "hadamard-sketch": HadamardSketch,
}
KINDS: dict[str, type[Mechanism]] = {**ORACLES, RAPPOR: Rappor}


def describe(mechanism: Mechanism) -> dict[str, Any]:
    """Return a mechanism as its kind and its settings."""
    (kind,) = (name for name, each in KINDS.items() if each is type(mechanism))
    return {"kind": kind, **{each.name: getattr(mechanism, each.name) for each in fields(mechanism) if each.init}}


def build(settings: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism that was described."""
    values = dict(settings)
    kind = values.pop("kind", None)
    known = {each.name for each in fields(KINDS[kind]) if each.init} if kind in KINDS else None
    if known is None or not known >= set(values):
        raise InvalidArgument(
            "settings",
            "settings are not those of a local mechanism of this version of dpfed: update dpfed, or check the file",
        )
    return KINDS[kind](**values)


def make(kind: str | None, epsilon: float, domain: int, *, absent: bool = False) -> tuple[Mechanism, str]:
    """Return the mechanism of that kind, or for None the best one, and why; RAPPOR has no domain."""
    if kind is None:
        choice = choose(epsilon, domain, absent=absent)
        return choice.mechanism, choice.reason
    if kind == RAPPOR:
        return Rappor.from_epsilon(epsilon), "RAPPOR, as asked for"
    if kind not in ORACLES:
        raise InvalidArgument("mechanism", f"mechanism must be one of {', '.join(KINDS)}, got {kind!r}")
    return ORACLES[kind](epsilon, domain, absent), f"{kind}, as asked for"

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
_HEADER: dict[str, Any] = {"column": str, "unit": str, "values": list, "mechanism": dict, "total_epsilon": (int, float)}


def describe(mechanism: Mechanism) -> dict[str, Any]:
    """Return a mechanism as its kind and its settings."""
    (kind,) = (name for name, each in KINDS.items() if each is type(mechanism))
    return {"kind": kind, **{each.name: getattr(mechanism, each.name) for each in fields(mechanism) if each.init}}


def build(settings: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism that was described."""
    values = dict(settings)
    kind = values.pop("kind", None)
    known = (
        {each.name for each in fields(KINDS[kind]) if each.init} if isinstance(kind, str) and kind in KINDS else None
    )
    if known is None or not known >= set(values):
        raise _make_refusal()
    try:
        return KINDS[kind](**values)
    except TypeError:  # a setting is missing, or not of its type
        raise _make_refusal() from None


def read_header(settings: Any) -> Mechanism:
    """Return the mechanism that a file of reports names, if the file says all that decoding needs, and it fits."""
    if not isinstance(settings, dict) or not all(isinstance(settings.get(key), kind) for key, kind in _HEADER.items()):
        raise _make_refusal()
    mechanism, names = build(settings["mechanism"]), settings["values"]
    is_complete = isinstance(mechanism, Rappor) or len(names) == mechanism.size
    is_charged = settings["total_epsilon"] >= mechanism.epsilon  # an ε below that of one report is never right
    if not (is_complete and is_charged and all(isinstance(name, str) for name in names)):
        raise _make_refusal()
    return mechanism


def _make_refusal() -> InvalidArgument:
    return InvalidArgument(
        "settings",
        "settings are not those of a local mechanism of this version of dpfed: update dpfed, or check the file",
    )


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

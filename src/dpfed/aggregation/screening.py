"""What an update must be before it may touch the model: checked at the door, one update at a time.

A single NaN makes a model NaN, a wrong shape ends a server, and a client that answers twice counts twice. Nothing that
a client sends stops the round: what does not fit becomes a `Refusal`, a value, and the client contributes zero.

>>> check = UpdateCheck(round=3, shapes={"weight": (2,)}, clients={"north", "south"}, max_norm=1e6)
>>> good = Arrival("north", 3, np.array([0.5, 0.0]))
>>> poison = Arrival("south", 3, np.array([np.nan, 0.0]))
>>> screened = check.screen([good, poison, good])
>>> screened.accepted
{'north': array([0.5, 0. ])}
>>> screened.refused
(Refusal(client='south', reason='not_finite'), Refusal(client='north', reason='duplicate'))
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.clipping import total_norm
from dpfed.errors import InvalidArgument, UpdateRejected

UNKNOWN_CLIENT = "unknown_client"
DUPLICATE = "duplicate"
WRONG_ROUND = "wrong_round"
NAMES = "names"
DTYPE = "dtype"
SHAPE = "shape"
NOT_FINITE = "not_finite"
NORM = "norm"
REASONS = (UNKNOWN_CLIENT, DUPLICATE, WRONG_ROUND, NAMES, DTYPE, SHAPE, NOT_FINITE, NORM)


@dataclass(frozen=True, eq=False)
class Arrival:
    """A client's message: one vector, or arrays by the names of parameters; nothing of it is trusted."""

    client: str
    round: int
    value: Any = field(repr=False)


@dataclass(frozen=True)
class Refusal:
    """An update that was refused. Reason and detail may follow from private data: for the owner's view only."""

    client: str
    reason: str
    detail: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class Screened:
    """The updates that passed, as float64 vectors by client, and those that did not."""

    accepted: dict[str, Floats]
    refused: tuple[Refusal, ...]


@dataclass(frozen=True)
class UpdateCheck:
    """What an update of this round must look like: public constants, fixed before anything arrives.

    `shapes` are those of the model's parameters in their order. `max_norm` refuses what is longer: a bound on
    nonsense, such as 1e308, which would be the model, or be no number in a sum; and no replacement for a clip norm.

    Privacy: whether an update is accepted, and what is made of it, depends on that update alone, never on those
    of other clients, and each client gets in at most once. So a client's influence on what follows is still that of
    one accepted update, or none, and screening changes no sensitivity. Refusals are not noised.
    """

    round: int
    shapes: Mapping[str, tuple[int, ...]]
    clients: Collection[str]
    max_norm: float
    dtype: str = "float64"

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", frozenset(self.clients))
        if self.dtype not in ("float32", "float64"):
            raise InvalidArgument("dtype", f"dtype must be float32 or float64, got {self.dtype!r}")
        object.__setattr__(self, "max_norm", checks.positive(max_norm=self.max_norm))

    @cached_property
    def size(self) -> int:
        """How many numbers an update has."""
        return sum(map(math.prod, self.shapes.values()))

    def screen(self, arrivals: Iterable[Arrival]) -> Screened:
        """Sort all arrivals of the round into accepted and refused."""
        accepted: dict[str, Floats] = {}
        refused = []
        for arrival in arrivals:
            outcome = self.check(arrival, accepted)
            if isinstance(outcome, Refusal):
                refused.append(outcome)
            else:
                accepted[arrival.client] = outcome
        return Screened(accepted, tuple(refused))

    def check(self, arrival: Arrival, seen: Collection[str] = ()) -> Floats | Refusal:
        """Return the update as a float64 vector of its own, or why it is refused; `seen` were accepted before."""
        form = self.check_form(arrival, seen)
        return form if isinstance(form, Refusal) else self.check_content(form, arrival.client)

    def check_form(self, arrival: Arrival, seen: Collection[str] = ()) -> NDArray[Any] | Refusal:
        """Return the update as a vector, or why sender or form is refused; no number in it is looked at."""
        reason, detail = self._check_sender(arrival, seen)
        if not reason:
            vector, reason, detail = self._read_vector(arrival.value)
        return Refusal(_text(arrival.client), reason, detail) if reason else vector

    def check_content(self, vector: NDArray[Any], name: str) -> Floats | Refusal:
        """Return the vector as float64 of its own, or why its numbers are refused, under that name."""
        reason, detail = self._check_content(vector)
        return Refusal(_text(name), reason, detail) if reason else vector.astype(np.float64)

    def require(self, arrival: Arrival, seen: Collection[str] = ()) -> Floats:
        """Return the update as `check` does, or raise why it is refused: for loops of your own."""
        outcome = self.check(arrival, seen)
        if isinstance(outcome, Refusal):
            raise UpdateRejected(f"the update of {outcome.client} is refused ({outcome.reason}): {outcome.detail}")
        return outcome

    def _check_sender(self, arrival: Arrival, seen: Collection[str]) -> tuple[str, str]:
        if not isinstance(arrival.client, str) or arrival.client not in self.clients:
            return UNKNOWN_CLIENT, "this client was not asked in this round"
        if arrival.client in seen:
            return DUPLICATE, "an update of this client was accepted already; the first one counts"
        if type(arrival.round) is not int or arrival.round != self.round:
            return WRONG_ROUND, f"this is round {self.round}, the update is for round {_text(arrival.round)}"
        return "", ""

    def _read_vector(self, value: Any) -> tuple[NDArray[Any], str, str]:
        nothing: NDArray[Any] = np.empty(0)
        if type(value) is not dict:
            reason, detail = self._check_form(value, (self.size,), "the update")
            return (nothing, reason, detail) if reason else (value, "", "")
        if set(value) != set(self.shapes):
            strange = sorted(map(_text, set(value) ^ set(self.shapes)))
            return nothing, NAMES, f"only parameters may be sent, and all of them; {strange[0]} is not right"
        for name, shape in self.shapes.items():
            reason, detail = self._check_form(value[name], tuple(shape), name)
            if reason:
                return nothing, reason, detail
        return np.concatenate([value[name].ravel() for name in self.shapes]), "", ""

    def _check_form(self, value: Any, shape: tuple[int, ...], name: str) -> tuple[str, str]:
        # Exactly ndarray: a subclass (a masked array, say) may answer the checks below as it likes.
        if type(value) is not np.ndarray or value.dtype != self.dtype:
            kind = value.dtype if type(value) is np.ndarray else type(value).__name__
            return DTYPE, f"{name} must be an array of {self.dtype}, got {kind}"
        if value.shape != shape:
            return SHAPE, f"{name} must have the shape {shape}, got {value.shape}"
        return "", ""

    def _check_content(self, vector: NDArray[Any]) -> tuple[str, str]:
        if not np.isfinite(vector).all():
            return NOT_FINITE, f"{np.count_nonzero(~np.isfinite(vector))} of {vector.size} numbers are not finite"
        if (norm := total_norm(vector)) > self.max_norm:
            return NORM, f"the update has norm {norm:g}, above {self.max_norm:g}"
        return "", ""


def _text(value: Any) -> str:
    """Return a short text of something a client sent; the repr of another class would be the client's own code."""
    if isinstance(value, str):
        return value[:80]
    is_plain = type(value) in (int, float, bool, bytes, type(None))
    return repr(value)[:80] if is_plain else type(value).__name__

"""What touched private data, as immutable values with a stable JSON form.

An event describes one interaction with private data, no more: who ran it, when and on which account is said
elsewhere. The meaning of an event never changes once released; a new meaning gets a new name.

``noise_multiplier`` is the noise (standard deviation, or Laplace's b) divided by the largest change that
*adding or removing* one unit can make: the clip norm. Under replace-one the same release moves by twice that,
and the accountant doubles the shift; no caller doubles anything. Events with an ``adjacency`` field are
statements that hold under that relation only.

All releases computed from one random draw of records are **one** sampled event,
``PoissonSampled(Composed([...]), q)``: two sampled events mean two independent draws.

>>> step = PoissonSampled(Gaussian(noise_multiplier=1.0), sample_rate=0.01)
>>> run = Repeated(step, 10_000)
>>> run
Repeated(PoissonSampled(Gaussian(noise_multiplier=1.0), sample_rate=0.01), count=10000)
>>> loads(dumps(run)) == run
True
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, fields
from itertools import pairwise
from typing import Any

from dpfed import checks
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.errors import AdjacencyMismatch, InvalidArgument, UnknownEvent, UnsupportedEvent

VERSION = 1

_KINDS: dict[str, type[Event]] = {}


@dataclass(frozen=True, repr=False)
class Event:
    """The root of all events; a new kind is a class below and a pair or curve in accounting/exact/pairs.py."""

    def __init_subclass__(cls) -> None:
        _KINDS[cls.__name__] = cls

    def __repr__(self) -> str:
        shown = [
            _show(field, getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain JSON values, with the version of this vocabulary."""
        return {"version": VERSION, **_to_plain(self)}

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, repr=False)
class Gaussian(Event):
    """Gaussian noise of standard deviation noise_multiplier × the L2 sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        self._set(noise_multiplier=checks.positive(noise_multiplier=self.noise_multiplier))


@dataclass(frozen=True, repr=False)
class Laplace(Event):
    """Laplace noise of scale b = noise_multiplier × the L1 sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        self._set(noise_multiplier=checks.positive(noise_multiplier=self.noise_multiplier))


@dataclass(frozen=True, repr=False)
class DiscreteGaussian(Event):
    """Noise on the integers, P[k] ∝ exp(−k²/(2 scale²)), for an integer query of the given L2 sensitivity.

    In one dimension the loss is known exactly; in more only its zCDP bound sensitivity²/(2 scale²) is.
    """

    scale: float
    sensitivity: int = 1
    dimension: int = 1

    def __post_init__(self) -> None:
        self._set(
            scale=checks.positive(scale=self.scale),
            sensitivity=checks.count(sensitivity=self.sensitivity),
            dimension=checks.count(dimension=self.dimension),
        )


@dataclass(frozen=True, repr=False)
class DiscreteLaplace(Event):
    """Noise on the integers, P[k] ∝ exp(−|k|/scale), for an integer query of the given L1 sensitivity."""

    scale: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        self._set(scale=checks.positive(scale=self.scale), sensitivity=checks.count(sensitivity=self.sensitivity))


@dataclass(frozen=True, repr=False)
class RandomizedResponse(Event):
    """One of num_buckets values: the true one e^ε times as likely as each other (Warner's for two)."""

    epsilon: float
    num_buckets: int = 2
    adjacency: str = REPLACE_ONE

    def __post_init__(self) -> None:
        self._set(
            epsilon=checks.non_negative(epsilon=self.epsilon),
            num_buckets=checks.count(num_buckets=self.num_buckets),
        )
        if self.num_buckets < 2:
            raise InvalidArgument("num_buckets", f"num_buckets must be at least 2, got {self.num_buckets}")
        checks.adjacency(self.adjacency)


@dataclass(frozen=True, repr=False)
class PureDP(Event):
    """Any ε-differentially private release; charged as the worst of them."""

    epsilon: float
    adjacency: str = ADD_REMOVE

    def __post_init__(self) -> None:
        self._set(epsilon=checks.non_negative(epsilon=self.epsilon))
        checks.adjacency(self.adjacency)


@dataclass(frozen=True, repr=False)
class Exponential(Event):
    """The exponential mechanism at ε: ε-DP and of ε-bounded range, hence ε²/8-zCDP."""

    epsilon: float
    adjacency: str = ADD_REMOVE

    def __post_init__(self) -> None:
        self._set(epsilon=checks.non_negative(epsilon=self.epsilon))
        checks.adjacency(self.adjacency)


@dataclass(frozen=True, repr=False)
class ApproximateDP(Event):
    """Any (ε, δ)-differentially private release; charged as the worst of them."""

    epsilon: float
    delta: float
    adjacency: str = ADD_REMOVE

    def __post_init__(self) -> None:
        self._set(epsilon=checks.non_negative(epsilon=self.epsilon), delta=checks.probability(delta=self.delta))
        checks.adjacency(self.adjacency)


@dataclass(frozen=True, repr=False)
class ZeroConcentratedDP(Event):
    """Any ρ-zCDP release: Rényi divergence at most ρα at every order α."""

    rho: float
    adjacency: str = ADD_REMOVE

    def __post_init__(self) -> None:
        self._set(rho=checks.non_negative(rho=self.rho))
        checks.adjacency(self.adjacency)


@dataclass(frozen=True, repr=False)
class RenyiDP(Event):
    """Any release whose Rényi divergence is at most epsilons[i] at orders[i] > 1 (orders rising)."""

    orders: tuple[float, ...]
    epsilons: tuple[float, ...]
    adjacency: str = ADD_REMOVE

    def __post_init__(self) -> None:
        for name in ("orders", "epsilons"):
            if not isinstance(getattr(self, name), Iterable):
                raise InvalidArgument(name, f"{name} must be a sequence of numbers, got {getattr(self, name)!r}")
        orders = tuple(checks.positive(orders=order) for order in self.orders)
        epsilons = tuple(checks.non_negative(epsilons=value) for value in self.epsilons)
        if not orders or orders[0] <= 1 or any(b <= a for a, b in pairwise(orders)):
            raise InvalidArgument("orders", f"orders must be one or more rising numbers above 1, got {self.orders!r}")
        if len(orders) != len(epsilons):
            raise InvalidArgument(
                "epsilons", f"epsilons must have one value per order ({len(orders)}), got {len(epsilons)}"
            )
        self._set(orders=orders, epsilons=epsilons)
        checks.adjacency(self.adjacency)


@dataclass(frozen=True, repr=False)
class TreeAggregation(Event):
    """Partial sums over `steps` steps, from a binary tree whose every node has Gaussian noise of its own.

    The noise of a node is noise_multiplier × the largest contribution to one step. One unit contributes to at most
    max_participations steps, any two of them at least min_separation apart (1: neighbours), whatever was released
    before; which steps others contribute to does not depend on it. The tree is started anew `restarts` times, after
    equally many steps or one less: tree i of k has steps ⌊i·steps/k⌋ to ⌊(i+1)·steps/k⌋. Sampling amplifies nothing.
    """

    noise_multiplier: float
    steps: int
    max_participations: int = 1
    min_separation: int = 1
    restarts: int = 0

    def __post_init__(self) -> None:
        self._set(noise_multiplier=checks.positive(noise_multiplier=self.noise_multiplier))
        for name in ("steps", "max_participations", "min_separation"):
            self._set(**{name: checks.count(**{name: getattr(self, name)})})
        self._set(restarts=checks.whole(restarts=self.restarts))
        if self.restarts >= self.steps:
            raise InvalidArgument("restarts", f"restarts must be below the {self.steps} steps, got {self.restarts}")


@dataclass(frozen=True, repr=False)
class Unprotected(Event):
    """A release without any noise; every composition that holds one has ε = ∞."""


@dataclass(frozen=True, repr=False)
class PoissonSampled(Event):
    """The event on a random subset that takes each unit independently with probability sample_rate."""

    event: Event
    sample_rate: float

    def __post_init__(self) -> None:
        require_event(self.event)
        self._set(sample_rate=checks.rate(sample_rate=self.sample_rate))


@dataclass(frozen=True, repr=False)
class SampledWithoutReplacement(Event):
    """The event on a uniformly random subset of sample_size out of population units; replace-one only."""

    event: Event
    sample_size: int
    population: int

    def __post_init__(self) -> None:
        require_event(self.event)
        self._set(
            sample_size=checks.count(sample_size=self.sample_size),
            population=checks.count(population=self.population),
        )
        if self.sample_size > self.population:
            raise InvalidArgument(
                "sample_size",
                f"sample_size must be at most population ({self.population}), got {self.sample_size}",
            )


@dataclass(frozen=True, repr=False)
class Shuffled(Event):
    """The event as each user's own report, and all reports in uniformly random order, without names; replace-one only.

    `users` is a minimum of honest reports that is declared beforehand: with fewer of them nothing is handed on. Whether
    a user reports must not depend on the user's value. The event must be ε₀-DP for that value: RandomizedResponse,
    PureDP or Exponential stated under replace_one, Laplace noise (of b clip norms: ε₀ = 2/b), or several of them.
    """

    event: Event
    users: int

    def __post_init__(self) -> None:
        _require_local(require_event(self.event))
        self._set(users=checks.count(users=self.users))


@dataclass(frozen=True, repr=False)
class Repeated(Event):
    """The event count times over, each time with fresh randomness."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        require_event(self.event)
        self._set(count=checks.count(count=self.count))


@dataclass(frozen=True, repr=False)
class Composed(Event):
    """Several events on the same data, each with fresh randomness."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        if isinstance(self.events, Event) or not isinstance(self.events, Iterable):
            raise InvalidArgument("events", f"events must be one or more events, got {self.events!r}")
        events = tuple(require_event(event) for event in self.events)
        if not events:
            raise InvalidArgument("events", "events must hold at least one event, got none")
        self._set(events=events)


def require_event(value: object) -> Event:
    """Return the value, if it is an event."""
    if isinstance(value, Event) and type(value) is not Event:
        return value
    raise UnknownEvent(f"expected an event of dpfed.events ({', '.join(_KINDS)}), got {value!r}")


def _require_local(event: Event) -> None:
    """Refuse what is not known to be ε₀-DP when one user's value is replaced by another."""
    match event:
        case Repeated():
            _require_local(event.event)
        case Composed():
            for part in event.events:
                _require_local(part)
        case RandomizedResponse() | PureDP() | Exponential():
            if event.adjacency != REPLACE_ONE:
                raise AdjacencyMismatch(
                    f"{event!r} is stated under {event.adjacency}, and shuffling hides which value a user has, not "
                    "whether there is one: state it with adjacency='replace_one'"
                )
        case Laplace() | DiscreteLaplace():
            pass
        case _:
            raise UnsupportedEvent(
                f"shuffling is proved for reports that are ε₀-DP each, got {event!r}: use randomized response or "
                "Laplace noise, or charge the reports without Shuffled"
            )


def dumps(event: Event) -> str:
    """Return the canonical JSON text of an event: the same event always gives the same bytes."""
    return json.dumps(require_event(event).to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes) -> Event:
    """Return the event that ``dumps`` wrote."""
    try:
        return from_dict(json.loads(text))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument("text", f"text must be the JSON form of an event: {error}") from None
    except RecursionError:
        raise InvalidArgument("text", "text must be the JSON form of an event, got one nested too deep") from None


def from_dict(plain: Mapping[str, Any]) -> Event:
    """Return the event that ``to_dict`` described."""
    if not isinstance(plain, Mapping) or plain.get("version") != VERSION:
        raise InvalidArgument("version", f"an event's JSON must be an object of version {VERSION}, got {plain!r:.80}")
    return require_event(_from_plain({key: value for key, value in plain.items() if key != "version"}))


def _to_plain(value: Any) -> Any:
    if isinstance(value, Event):
        return {
            "event_type": type(value).__name__,
            **{f.name: _to_plain(getattr(value, f.name)) for f in fields(value)},
        }
    return [_to_plain(item) for item in value] if isinstance(value, tuple) else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_plain(item) for item in value)
    if not isinstance(value, Mapping):
        return value
    kind = _KINDS.get(str(value.get("event_type")))
    if kind is None:
        raise UnknownEvent(f"unknown event type {value.get('event_type')!r}; known are {', '.join(_KINDS)}")
    arguments = {key: _from_plain(item) for key, item in value.items() if key != "event_type"}
    if set(arguments) != {field.name for field in fields(kind)}:
        raise InvalidArgument("event", f"{kind.__name__} has other fields than {sorted(arguments)}")
    return kind(**arguments)


def _show(field: Field[Any], value: Any) -> str:
    if field.name == "events":
        return f"[{', '.join(map(repr, value))}]"
    return repr(value) if field.name == "event" else f"{field.name}={value!r}"

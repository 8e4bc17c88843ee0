"""The same run in the words of each notion of privacy: how much the choice of notion costs.

Every figure is a valid ε of the same run at the same δ; they differ in how much of the mechanism the notion
remembers while it composes. Where a notion has no statement for a run, it says why and gives no number.

>>> from dpfed.events import Gaussian, Repeated
>>> for row in compare(Repeated(Gaussian(noise_multiplier=10.0), 100), delta=1e-6)[:3]:
...     print(row.notion, f"{row.epsilon:.3f}")
exact 4.887
rdp 5.222
zcdp 5.222
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dpfed import checks
from dpfed.accounting.atoms import atoms
from dpfed.accounting.bayesian import diagnose
from dpfed.accounting.composed import Composition
from dpfed.accounting.composition import advanced_composition_epsilon
from dpfed.accounting.conversions import (
    bounded_range_to_zcdp,
    gaussian_to_zcdp,
    pure_to_zcdp,
    zcdp_to_epsilon,
)
from dpfed.accounting.renyi import DEFAULT_ORDERS, epsilon_from_rdp, rdp
from dpfed.accounting.shuffling import local_epsilon
from dpfed.accounting.tree_sensitivity import sensitivity
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.errors import AdjacencyMismatch, InvalidArgument, UnsupportedEvent
from dpfed.events import (
    ApproximateDP,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Exponential,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomizedResponse,
    Repeated,
    SampledWithoutReplacement,
    Shuffled,
    TreeAggregation,
    Unprotected,
    ZeroConcentratedDP,
)

Way = Callable[[Event, float, str], float]

_SLACK = 1 + 2.0**-48


def epsilon_by_notion(event: Event, delta: float, notion: str, adjacency: str = ADD_REMOVE) -> float:
    """Return the ε of the event at δ as one notion composes it; UnsupportedEvent where it has no statement."""
    if notion not in _EPSILON:
        known = ", ".join(_EPSILON)
        raise InvalidArgument("notion", f"notion must be one of {known}, got {notion!r}")
    delta, adjacency = checks.probability(delta=delta), checks.adjacency(adjacency)
    return _EPSILON[notion](event, delta, adjacency)


@dataclass(frozen=True)
class NotionRow:
    """One notion's view of a run: its ε (None where it has no statement), and what the notion is good for."""

    notion: str
    epsilon: float | None
    remark: str
    title: str
    composition: str
    tightness: str
    trust: str
    use: str


def compare(
    event: Event,
    delta: float,
    adjacency: str = ADD_REMOVE,
    *,
    users: int | None = None,
    distances: Sequence[float] | None = None,
) -> tuple[NotionRow, ...]:
    """Return a row for every notion, from the tightest to those that promise something else.

    With `users` the shuffle model has a number: each report of the run is shuffled among those of so many users; a run
    that is shuffled already says so itself. With `distances` (`accounting.bayesian.diagnose`) Bayesian DP has one, for
    the owner of the data alone.
    """
    _require_own_users(event, users)
    ways: dict[str, Way] = {
        **_EPSILON,
        "shuffle": partial(_shuffle, users=users),
        "bayesian": partial(_bayesian, distances=distances),
    }
    return tuple(_row(profile, ways[profile[0]], event, delta, adjacency) for profile in _PROFILES)


def _require_own_users(event: Event, users: int | None) -> None:
    """Refuse another number of users than that of a run which is shuffled already."""
    own = _list_users(event)
    if users is not None and own - {users}:
        message = f"the run is shuffled among {max(own)} users already, and users={users} would change nothing of it"
        raise InvalidArgument("users", f"{message}: leave users out, or write it into the run")


def _list_users(event: Event) -> set[int]:
    """Return the numbers of users of all that is shuffled in the event."""
    match event:
        case Shuffled():
            return {event.users}
        case PoissonSampled() | SampledWithoutReplacement() | Repeated():
            return _list_users(event.event)
        case Composed():
            return {users for part in event.events for users in _list_users(part)}
        case _:
            return set()


def zcdp_rho(event: Event, adjacency: str = ADD_REMOVE) -> float:
    """Return the ρ of the event under zCDP, summed over its parts; UnsupportedEvent where a part has none."""
    return _total(event, lambda atom: _atom_rho(atom, checks.adjacency(adjacency)))


def pure_epsilon(event: Event, adjacency: str = ADD_REMOVE) -> float:
    """Return the ε of the event under pure DP, summed over its parts; UnsupportedEvent where a part has none."""
    return _total(event, lambda atom: _atom_pure(atom, checks.adjacency(adjacency)))


def _total(event: Event, cost: Callable[[Event], float]) -> float:
    return math.fsum(count * cost(atom) for atom, count in atoms(event).items()) * _SLACK


def _atom_pure(atom: Event, adjacency: str) -> float:
    shift = 1 if adjacency == ADD_REMOVE else 2
    match atom:
        case Unprotected():
            return math.inf
        case Laplace():
            return shift / atom.noise_multiplier
        case DiscreteLaplace():
            return shift * atom.sensitivity / atom.scale
        case PureDP() | Exponential() | RandomizedResponse():
            _require_adjacency(atom, atom.adjacency, adjacency)
            return atom.epsilon
        case ApproximateDP(delta=0.0):
            _require_adjacency(atom, atom.adjacency, adjacency)
            return atom.epsilon
        case Shuffled():
            _require_adjacency(atom, REPLACE_ONE, adjacency)
            return local_epsilon(atom.event)
        case PoissonSampled() if adjacency == ADD_REMOVE:
            # Amplification by sampling (Balle, Barthe and Gaboardi 2018, Theorem 8).
            inner = pure_epsilon(atom.event, adjacency)
            return math.log1p(atom.sample_rate * math.expm1(inner)) if inner < 500 else inner
        case _:
            raise UnsupportedEvent(
                f"{atom} has no pure ε: its privacy loss is unbounded or not known to be bounded; use notion='rdp' "
                "or 'exact'"
            )


def _atom_rho(atom: Event, adjacency: str) -> float:
    shift = 1 if adjacency == ADD_REMOVE else 2
    match atom:
        case Gaussian():
            return gaussian_to_zcdp(shift / atom.noise_multiplier)
        case TreeAggregation():
            return gaussian_to_zcdp(shift * sensitivity(atom) / atom.noise_multiplier)
        case DiscreteGaussian():
            # Canonne, Kamath and Steinke (2020), Theorem 4 and Corollary 16, in any dimension.
            return gaussian_to_zcdp(shift * atom.sensitivity / atom.scale)
        case ZeroConcentratedDP():
            _require_adjacency(atom, atom.adjacency, adjacency)
            return atom.rho
        case Exponential():
            _require_adjacency(atom, atom.adjacency, adjacency)
            return bounded_range_to_zcdp(atom.epsilon)
        case Unprotected():
            return math.inf
        case PoissonSampled() | SampledWithoutReplacement():
            raise UnsupportedEvent(
                f"zCDP has no statement for {atom}: sampling amplifies the small Rényi orders only, "
                "and zCDP must hold at all of them; use notion='rdp' or 'exact'"
            )
        case _:
            return _rho_of_pure(atom, adjacency)


def _rho_of_pure(atom: Event, adjacency: str) -> float:
    try:
        return pure_to_zcdp(_atom_pure(atom, adjacency))
    except UnsupportedEvent:
        raise UnsupportedEvent(f"zCDP has no statement for {atom}; use notion='rdp' or 'exact'") from None


def _require_adjacency(atom: Event, stated: str, asked: str) -> None:
    if stated != asked:
        raise AdjacencyMismatch(
            f"{atom} is stated for adjacency {stated!r}; it says nothing under {asked!r}: ask under {stated!r}"
        )


def _exact(event: Event, delta: float, adjacency: str) -> float:
    composition = Composition(adjacency=adjacency)
    composition.add(event)
    return composition.epsilon(delta)


def _by_rdp(event: Event, delta: float, adjacency: str) -> float:
    return epsilon_from_rdp(DEFAULT_ORDERS, rdp(event, DEFAULT_ORDERS, adjacency=adjacency), delta)


def _by_zcdp(event: Event, delta: float, adjacency: str) -> float:
    rho = zcdp_rho(event, adjacency)
    return zcdp_to_epsilon(rho, delta) if rho < math.inf else math.inf


def _by_basic(event: Event, delta: float, adjacency: str) -> float:
    """Add up T releases that are (ε₀, δ/T)-DP each (Dwork et al. 2006)."""
    bag = atoms(event)
    single = _single_epsilons(bag, delta / sum(bag.values()), adjacency)
    return math.fsum(count * single[atom] for atom, count in bag.items()) * _SLACK


def _by_advanced(event: Event, delta: float, adjacency: str) -> float:
    """Compose releases that are (ε₀, δ/2T)-DP each, with a slack of δ/2 (Kairouz, Oh and Viswanath 2015)."""
    if delta == 0:
        return _by_basic(event, delta, adjacency)
    bag = atoms(event)
    single = _single_epsilons(bag, delta / (2 * sum(bag.values())), adjacency)
    if math.inf in single.values():
        return math.inf
    if len(bag) == 1:
        ((atom, count),) = bag.items()
        return advanced_composition_epsilon(single[atom], count, delta / 2)
    spread = math.fsum(count * single[atom] ** 2 for atom, count in bag.items())
    drift = math.fsum(count * single[atom] * math.tanh(single[atom] / 2) for atom, count in bag.items())
    basic = math.fsum(count * single[atom] for atom, count in bag.items())
    return min(basic, drift + math.sqrt(-2 * math.log(delta / 2) * spread)) * _SLACK


def _single_epsilons(bag: Mapping[Event, int], delta: float, adjacency: str) -> dict[Event, float]:
    return {atom: _exact(atom, delta, adjacency) for atom in bag}


def _by_pure(event: Event, _delta: float, adjacency: str) -> float:
    return pure_epsilon(event, adjacency)


def _local(event: Event, delta: float, _adjacency: str) -> float:
    try:
        return _exact(_without_sampling(event), delta, REPLACE_ONE)
    except AdjacencyMismatch as error:
        raise UnsupportedEvent(f"local privacy is about replacing a person's value: {error}") from None


def _without_sampling(event: Event) -> Event:
    """Return the event without sampling and shuffling, as for somebody who knows who was sampled and who sent what."""
    match event:
        case PoissonSampled() | SampledWithoutReplacement() | Shuffled():
            return _without_sampling(event.event)
        case Repeated():
            return Repeated(_without_sampling(event.event), event.count)
        case Composed():
            return Composed(tuple(_without_sampling(part) for part in event.events))
        case _:
            return event


def _shuffle(event: Event, delta: float, _adjacency: str, users: int | None) -> float:
    try:
        return _exact(_shuffle_reports(event, users), delta, REPLACE_ONE)
    except AdjacencyMismatch as error:
        raise UnsupportedEvent(f"a shuffler hides which value somebody has: {error}") from None


def _shuffle_reports(event: Event, users: int | None) -> Event:
    """Return the event with each report shuffled among those of so many users, and no other sampling."""
    match event:
        case Shuffled() | SampledWithoutReplacement(event=Shuffled()):
            return event
        case PoissonSampled() | SampledWithoutReplacement():
            return _shuffle_reports(event.event, users)
        case Repeated():
            return Repeated(_shuffle_reports(event.event, users), event.count)
        case Composed():
            return Composed(tuple(_shuffle_reports(part, users) for part in event.events))
        case _ if users is None:
            raise UnsupportedEvent("needs the number of users whose reports are shuffled: give users")
        case _:
            return Shuffled(event, users)


def _bayesian(event: Event, delta: float, _adjacency: str, distances: Sequence[float] | None) -> float:
    if distances is None:
        raise UnsupportedEvent("depends on the data, so it is a diagnostic beside a guarantee and never one itself")
    step, steps = (event.event, event.count) if isinstance(event, Repeated) else (event, 1)
    noise, rate = (step.event, step.sample_rate) if isinstance(step, PoissonSampled) else (step, 1.0)
    if not isinstance(noise, Gaussian) or delta == 0:
        raise UnsupportedEvent("is estimated for steps of DP-SGD with Gaussian noise, at a δ above 0")
    confidence = 1 - min(1e-6, delta / 10)
    return diagnose(
        distances,
        noise_multiplier=noise.noise_multiplier,
        sample_rate=rate,
        steps=steps,
        delta=delta,
        confidence=confidence,
    ).epsilon


_EPSILON: dict[str, Way] = {
    "exact": _exact,
    "rdp": _by_rdp,
    "zcdp": _by_zcdp,
    "advanced": _by_advanced,
    "basic": _by_basic,
    "pure": _by_pure,
    "local": _local,
}

# notion, title, composition, tightness, trust, use, remark
_PROFILES = (
    ("exact", "(ε, δ)-DP, exact", "the loss distribution", "exact", "central", "reports and calibration",
     "for a plan fixed in advance"),
    ("rdp", "Rényi DP", "adds at each order", "tight", "central", "filters over adaptive studies",
     "converted at its best order"),
    ("zcdp", "Concentrated DP (zCDP)", "ρ adds", "tight for Gaussians", "central", "Gaussian mechanisms",
     "converted at its best order"),
    ("advanced", "(ε, δ)-DP, advanced", "about √T", "moderate", "central", "releases known by ε and δ only",
     "half of δ on the releases, half on composing"),
    ("basic", "(ε, δ)-DP, basic", "ε and δ add", "loose", "central", "a few releases", "δ split evenly"),
    ("pure", "Pure ε-DP", "ε adds", "loose", "central", "theory, Laplace noise", "holds at δ = 0"),
    ("local", "Local DP", "ε adds", "very loose", "none needed", "telemetry, surveys",
     "if each person added this noise to their own report; sampling hides nothing from who collects"),
    ("shuffle", "Shuffle model", "the loss distribution", "upper bound", "a shuffler", "telemetry, surveys",
     "if these reports were shuffled, without names, among those of so many honest users"),
    ("bayesian", "Bayesian DP", "depends on the data", "varies", "central", "diagnosis",
     "the owner's diagnostic for typical records: not a guarantee, and private itself"),
)  # fmt: skip


def _row(profile: tuple[str, ...], way: Way, event: Event, delta: float, adjacency: str) -> NotionRow:
    notion, title, composition, tightness, trust, use, remark = profile
    epsilon = None
    try:
        epsilon = way(event, delta, adjacency)
    except UnsupportedEvent as error:
        remark = str(error)
    return NotionRow(notion, epsilon, remark, title, composition, tightness, trust, use)

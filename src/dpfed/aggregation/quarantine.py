"""Who sends what nobody else would: robust scores, strikes, and clients that no longer count until they behave.

A plain z-score cannot find a lone attacker among few clients: it is at most √(n−1). Here length, direction and
distance of an update are measured against the median, in units of the median absolute deviation, which works from four
clients on. One bad round is no proof: a client is put aside after several strikes and comes back after a number of
clean rounds, on its last strike. No more than the plan's `max_faulty` are ever aside, so that faulty clients
cannot have the honest ones put aside; and whoever is aside trains and is scored on.

Clients that stay among the honest on purpose (ALIE, mimic) have no score that tells them apart: a robust rule bears
them, and quarantine does not find them.

Privacy: whether a client counts depends on other clients' updates. That is post-processing where each client noises
what it sends (`sample`, `local`); in `user` and `hybrid` it would change the sensitivity, and a plan refuses it.

>>> updates = {name: np.array([1.0, value]) for name, value in zip("abcd", (0.1, 0.0, -0.1, 0.05))}
>>> updates["d"] = np.array([-50.0, 0.0])
>>> watch, standings = Quarantine(), {}
>>> for number in (1, 2, 3):
...     standings, decisions = watch.judge(number, standings, updates, {}, np.array([1.0, 0.0]), most=1)
>>> standings["d"].is_aside, decisions[0].kind
(True, 'quarantined')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dpfed import checks
from dpfed.aggregation.krum import krum_scores
from dpfed.aggregation.rows import Rows
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument

LEAST = 4  # updates from which on scores are computed
NORMAL = 1.4826  # standard deviations in a median absolute deviation of normal numbers
FEATURES = {"length": 0.25, "direction": 0.15, "distance": 0.5}  # with what no honest spread is below
QUARANTINED, READMITTED, STRUCK, CAPPED = "quarantined", "readmitted", "strike", "kept"


@dataclass(frozen=True)
class Standing:
    """What is remembered of a client: its strikes, whether it is aside, and its clean rounds since."""

    strikes: int = 0
    is_aside: bool = False
    clean: int = 0


@dataclass(frozen=True)
class Decision:
    """What was decided of a client in a round, and why: for the owner."""

    round: int
    client: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Score:
    """How unusual an update is, and in what most."""

    value: float
    reason: str


Standings = Mapping[str, Standing]


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """When clients are put aside: scores above `high` are strikes, below `low` clean, and in between neither.

    A clean round takes a strike back. `strikes` of them put a client aside, `clean_rounds` clean ones bring it back.
    """

    strikes: int = 3
    clean_rounds: int = 10
    high: float = 9.0
    low: float = 5.0

    def __post_init__(self) -> None:
        for name in ("strikes", "clean_rounds"):
            object.__setattr__(self, name, checks.count(**{name: getattr(self, name)}))
        for name in ("high", "low"):
            object.__setattr__(self, name, checks.positive(**{name: getattr(self, name)}))
        if self.low > self.high:
            message = f"low must be at most high ({self.high:g}), got {self.low:g}"
            raise InvalidArgument("low", f"{message}: between them is neither a strike nor clean")

    def judge(
        self,
        number: int,
        standings: Standings,
        updates: Mapping[str, Floats],
        refused: Mapping[str, str],
        aggregate: Floats,
        most: int,
    ) -> tuple[dict[str, Standing], tuple[Decision, ...]]:
        """Return the clients' standings after a round, and every decision with its reason.

        `refused` are clients whose update was malformed, by reason: a strike each. At most `most` are aside.
        """
        aside = {name for name, standing in standings.items() if standing.is_aside}
        scores = {name: Score(np.inf, f"a malformed update ({reason})") for name, reason in refused.items()}
        scores |= score_updates(updates, aside, aggregate)
        after, decisions = dict(standings), []
        for name, score in sorted(scores.items(), key=lambda each: (-each[1].value, each[0])):
            count = sum(standing.is_aside for standing in after.values())
            after[name], kind = self._move(after.get(name, Standing()), score.value, has_room=count < most)
            if kind:
                decisions.append(Decision(number, name, kind, self._explain(kind, score, after[name], most)))
        return after, tuple(decisions)

    def _move(self, standing: Standing, score: float, *, has_room: bool) -> tuple[Standing, str]:
        """Return a client's standing after a score, and what was decided, if anything was."""
        if standing.is_aside:
            return self._move_aside(standing, score)
        if score < self.low:
            return replace(standing, strikes=max(standing.strikes - 1, 0)), ""
        if score < self.high:
            return standing, ""
        strikes = min(standing.strikes + 1, self.strikes)
        if strikes < self.strikes:
            return replace(standing, strikes=strikes), STRUCK
        return Standing(strikes, has_room), QUARANTINED if has_room else CAPPED

    def _move_aside(self, standing: Standing, score: float) -> tuple[Standing, str]:
        if score >= self.low:
            return replace(standing, clean=0), ""
        if standing.clean + 1 < self.clean_rounds:
            return replace(standing, clean=standing.clean + 1), ""
        return Standing(strikes=self.strikes - 1), READMITTED

    def _explain(self, kind: str, score: Score, standing: Standing, most: int) -> str:
        if kind == READMITTED:
            return f"{self.clean_rounds} clean rounds; the next strike puts it aside again"
        what = f"{score.reason}, strike {standing.strikes} of {self.strikes}"
        return f"{what}, but {most} are aside already" if kind == CAPPED else what


def score_updates(updates: Mapping[str, Floats], aside: set[str], aggregate: Floats) -> dict[str, Score]:
    """Return how unusual each update is, measured against those of clients that are not aside; none if too few."""
    names = list(updates)
    counted = np.array([name not in aside for name in names], dtype=bool)
    has_direction = np.linalg.norm(aggregate) >= np.finfo(float).tiny  # squares of less vanish, and it has none
    if len(names) < LEAST or counted.sum() < LEAST - 1 or not has_direction:
        return {}
    rows = Rows.read(np.stack([updates[name] for name in names]))
    found = {name: _unusual(values, counted, FEATURES[name]) for name, values in _measure(rows, counted, aggregate)}
    total = np.sum(list(found.values()), axis=0)
    return {name: Score(float(total[place]), _name_worst(found, place)) for place, name in enumerate(names)}


def _measure(rows: Rows, counted: Any, aggregate: Floats) -> list[tuple[str, Floats]]:
    """Return the features of all updates, larger for the more suspicious: log length, −cosine, log Krum score."""
    tiny = np.finfo(float).tiny
    lengths = np.maximum(rows.lengths_from(np.zeros(rows.size)), tiny)
    along = np.asarray(sum((block @ aggregate[part] for part, block in rows.blocks()), np.zeros(rows.count)))
    neighbours = max(int(counted.sum()) // 2, 1)
    apart = krum_scores(np.where(counted[None, :], rows.squared_distances, np.inf), neighbours)
    return [
        ("length", np.log(lengths)),
        ("direction", -along / lengths / np.linalg.norm(aggregate)),
        ("distance", np.log(np.maximum(apart, tiny)) / 2),
    ]


def _unusual(values: Floats, counted: Any, least: float) -> Floats:
    """Return by how many robust standard deviations each value is above the median of those that count."""
    middle = np.median(values[counted])
    spread = NORMAL * np.median(np.abs(values[counted] - middle)) + least
    return np.asarray(np.maximum(values - middle, 0.0) / spread)


def _name_worst(found: Mapping[str, Floats], place: int) -> str:
    by_name = {name: float(values[place]) for name, values in found.items()}
    worst = max(by_name, key=by_name.__getitem__)
    return f"unusual {worst} ({by_name[worst]:.1f} deviations, {sum(by_name.values()):.1f} in all)"


def to_plain(standings: Standings) -> dict[str, dict[str, Any]]:
    """Return the standings as plain JSON values."""
    return {name: asdict(standing) for name, standing in standings.items()}


def from_plain(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Standing]:
    """Return the standings that `to_plain` described."""
    return {name: _read_standing(values) for name, values in plain.items()}


def _read_standing(values: Mapping[str, Any]) -> Standing:
    standing = Standing(**values)
    if type(standing.is_aside) is not bool:
        raise ValueError("is_aside must be true or false")
    return replace(standing, strikes=checks.whole(strikes=standing.strikes), clean=checks.whole(clean=standing.clean))

"""Attacks by clients that know all honest updates, for tests and simulations: what a rule must bear.

An attack takes the honest updates of a round and returns what each faulty client sends. Some are crude and easily
found; ALIE, MinMax and mimic stay among the honest updates on purpose, so that no score finds them.

>>> from dpfed.randomness import SeededSource
>>> honest = np.array([[1.0, 1.0], [1.1, 0.9], [0.9, 1.1]])
>>> sent = ATTACKS["sign_flip"](honest, 1, SeededSource(1))
>>> sent[0].round(6)
array([-1., -1.])
>>> parse_attacks("sign_flip:2,nan:1")
{'sign_flip': 2, 'nan': 1}
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor
from statistics import NormalDist
from typing import Any

import numpy as np

from dpfed.aggregation.rows import Rows
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument
from dpfed.randomness import RandomSource

Attack = Callable[[Floats, int, RandomSource], list[Any]]
POISONS = ("label_flip", "backdoor")  # of a client's records, in data.poison: it then trains as any other
HALVINGS = 40  # of the search for the longest deviation


def sign_flip(honest: Floats) -> Floats:
    """Return the mean of the honest updates, reversed."""
    return np.asarray(-honest.mean(axis=0))


def strong_sign_flip(honest: Floats) -> Floats:
    """Return ten times the mean of the honest updates, reversed."""
    return np.asarray(-10 * honest.mean(axis=0))


def scaling(honest: Floats) -> Floats:
    """Return the mean of the honest updates times −100."""
    return np.asarray(-100 * honest.mean(axis=0))


def gaussian(honest: Floats, count: int, source: RandomSource) -> list[Any]:
    """Return noise of standard deviation 10 in each number."""
    return list(10 * source.normal((count, honest.shape[1])))


def alie(honest: Floats, strength: float) -> Floats:
    """Return mean + strength standard deviations of the honest updates (Baruch, Baruch and Goldberg 2019)."""
    spread = honest.std(axis=0, ddof=1) if len(honest) > 1 else np.zeros(honest.shape[1])
    return np.asarray(honest.mean(axis=0) + strength * spread)


def alie_strength(clients: int, faulty: int) -> float:
    """Return how many standard deviations off still have a majority of updates farther out (their algorithm 3)."""
    supporters = floor(clients / 2 + 1) - faulty
    share = (clients - faulty - supporters) / (clients - faulty)
    return NormalDist().inv_cdf(min(max(share, 1e-9), 1 - 1e-9))


def little_is_enough(honest: Floats, count: int, _source: RandomSource) -> list[Any]:
    """Return an ALIE update 1.5 standard deviations against the mean, or farther where that hides among many."""
    strength = max(1.5, alie_strength(len(honest) + count, count))
    return [alie(honest, -strength)] * count


def inner_product(honest: Floats) -> Floats:
    """Return minus half of the mean, so that the aggregate loses its direction (IPM; Xie et al. 2020)."""
    return np.asarray(-0.5 * honest.mean(axis=0))


def min_max(honest: Floats) -> Floats:
    """Return the farthest point against the spread that is no farther from any honest update than these are apart."""
    return _push(honest, np.max)


def min_sum(honest: Floats) -> Floats:
    """Return the same with sums of squared distances in place of the largest (Shejwalkar and Houmansadr 2021)."""
    return _push(honest, np.sum)


def mimic(honest: Floats) -> Floats:
    """Return copies of the first honest update, so that one client counts several times (Karimireddy 2022)."""
    return np.asarray(honest[0].copy())


def nan(honest: Floats) -> Floats:
    """Return an honest mean with one NaN in it."""
    return _put(honest, np.nan)


def infinity(honest: Floats) -> Floats:
    """Return an honest mean with one infinity in it."""
    return _put(honest, np.inf)


def huge(honest: Floats) -> Floats:
    """Return finite numbers whose squares are not."""
    return np.asarray(np.full(honest.shape[1], 1e200))


def wrong_shape(honest: Floats) -> Floats:
    """Return one number more than the model has."""
    return np.asarray(np.zeros(honest.shape[1] + 1))


def all_send(make: Callable[[Floats], Floats]) -> Attack:
    """Return the attack in which every faulty client sends the same."""
    return lambda honest, count, _source: [make(honest)] * count


MALFORMED: dict[str, Attack] = {
    "nan": all_send(nan),
    "inf": all_send(infinity),
    "huge": all_send(huge),
    "wrong_shape": all_send(wrong_shape),
}
ATTACKS: dict[str, Attack] = {
    "sign_flip": all_send(sign_flip),
    "strong_sign_flip": all_send(strong_sign_flip),
    "scaling": all_send(scaling),
    "gaussian": gaussian,
    "alie": little_is_enough,
    "ipm": all_send(inner_product),
    "min_max": all_send(min_max),
    "min_sum": all_send(min_sum),
    "mimic": all_send(mimic),
    **MALFORMED,
}


def parse_attacks(text: str) -> dict[str, int]:
    """Return how many clients do what, from a text such as "sign_flip:2,nan:1"."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        if name not in {*ATTACKS, *POISONS} or name in found or not count.isascii() or not count.isdigit():
            known = ", ".join([*ATTACKS, *POISONS])
            message = f"attacks must be names with numbers of clients, such as sign_flip:2,nan:1, got {text[:40]!r}"
            raise InvalidArgument("attack_sim", f"{message}; each name once, of {known}")
        found[name] = int(count)
    if not any(found.values()):
        raise InvalidArgument("attack_sim", "attacks must be of at least one client: leave attack_sim out for none")
    return {name: count for name, count in found.items() if count}


def describe_attack(attack_sim: str | None) -> str:
    """Return the mark of a run in which clients attack; an empty text for others."""
    return "" if attack_sim is None else f"SIMULATION: some clients were made to attack ({attack_sim})."


def _put(honest: Floats, value: float) -> Floats:
    sent = honest.mean(axis=0)
    sent[0] = value
    return np.asarray(sent)


def _push(honest: Floats, measure: Callable[..., Any]) -> Floats:
    """Return mean − γ·spread with the largest γ at which the measure of squared distances is that of honest ones."""
    middle, spread = honest.mean(axis=0), honest.std(axis=0)
    allowed = max(measure(row) for row in Rows.read(honest).squared_distances)

    def is_hidden(gamma: float) -> bool:
        apart = honest - (middle - gamma * spread)
        return bool(measure(np.einsum("ij,ij->i", apart, apart)) <= allowed)

    low, high = 0.0, 1.0
    while is_hidden(high) and high < 1e6:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle_gamma = (low + high) / 2
        low, high = (middle_gamma, high) if is_hidden(middle_gamma) else (low, middle_gamma)
    return np.asarray(middle - low * spread)

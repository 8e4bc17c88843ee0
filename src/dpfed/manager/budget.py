"""A budget of rounds: how much noise each needs, how many are left, and the refusal of one too many.

The budget is (ε, δ) for `num_rounds` Gaussian releases fixed in advance. k Gaussians at noise multiplier z
are one at μ = √k/z, so z = √num_rounds/μ(ε, δ) spends the budget exactly: no composition theorem is given
away.

>>> budget = PrivacyBudget(epsilon=1.0, delta=1e-5, num_rounds=10)
>>> budget.use_round()
>>> budget.rounds_remaining, round(budget.epsilon_remaining(), 4)
(9, 0.7155)
"""

from __future__ import annotations

import html
import inspect
import math
import warnings
from dataclasses import dataclass
from typing import Any, NoReturn

from dpfed import checks
from dpfed import events as ev
from dpfed.accounting.closed_forms import gaussian_delta, gaussian_epsilon, gaussian_mu
from dpfed.errors import InfeasibleTarget
from dpfed.guarantee import Account
from dpfed.prepaid import PaidSteps, find_mark, reserve

_ROUNDING = 2.0**-50


class PrivacyBudgetWarning(UserWarning):
    """Warns that 50, 80 or 95 percent of a budget's rounds are spent."""


@dataclass(frozen=True)
class PrivacyParams:
    """The promise asked for, and the largest L2 norm one contribution may have."""

    epsilon: float = 1.0
    delta: float = 1e-5
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.positive(epsilon=self.epsilon))
        object.__setattr__(self, "delta", checks.positive_probability(delta=self.delta))
        object.__setattr__(self, "clip_norm", checks.positive(clip_norm=self.clip_norm))


class PrivacyBudget:
    """An (ε, δ) budget for `num_rounds` rounds of Gaussian noise, spent one round at a time and never twice.

    Privacy: what is promised is (ε, δ) for the whole plan, ``Repeated(event, num_rounds)``. The ε of the
    rounds used so far is shown "ex post": it becomes a promise only if the number of rounds is not chosen
    by looking at what they released.

    A budget counts in one process: it refuses to be copied, pickled or spent after a fork, where the copy
    would be spent a second time. With an `account` all rounds are reserved there when the budget is made and
    each is committed before it is used; after a restart the same `run` goes on where it stopped.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        num_rounds: int = 10,
        *,
        account: Account | None = None,
        run: str | None = None,
    ) -> None:
        self._epsilon = checks.positive(epsilon=epsilon)
        self._delta = checks.positive_probability(delta=delta)
        self._num_rounds = checks.count(num_rounds=num_rounds)
        self._event = ev.Gaussian(_noise_multiplier(self._epsilon, self._delta, self._num_rounds))
        held = reserve({self._event: self._num_rounds}, account, run, checks.ADD_REMOVE)
        self._rounds = PaidSteps(
            self._event,
            self._num_rounds if held is None else held.left(self._event),
            held=held,
            owner="the PrivacyBudget",
            refusal=f"round {self._num_rounds + 1} was asked for, but ε = {self._epsilon:g} was planned for "
            f"{self._num_rounds} rounds and all are spent: plan a longer run with more num_rounds",
        )

    @property
    def epsilon(self) -> float:
        """The ε of the whole plan."""
        return self._epsilon

    @property
    def delta(self) -> float:
        """The δ of the whole plan."""
        return self._delta

    @property
    def num_rounds(self) -> int:
        """How many rounds the plan has."""
        return self._num_rounds

    @property
    def event(self) -> ev.Gaussian:
        """The event of one round."""
        return self._event

    @property
    def plan(self) -> ev.Repeated:
        """The event of all rounds together: what the budget pays for."""
        return ev.Repeated(self._event, self._num_rounds)

    @property
    def rounds_used(self) -> int:
        """How many rounds are charged."""
        return self._num_rounds - self._rounds.left

    @property
    def rounds_remaining(self) -> int:
        """How many rounds can still be charged."""
        return self._rounds.left

    @property
    def is_exhausted(self) -> bool:
        """Whether no round is left."""
        return self.rounds_remaining == 0

    def use_round(self) -> None:
        """Charge one round; raise BudgetExceeded and charge nothing when none is left."""
        used = self._num_rounds - self._rounds.take()
        if find_mark(used, self._num_rounds) != find_mark(used - 1, self._num_rounds):
            self._warn()

    def release(self) -> None:
        """Return the rounds that were never used to the account, if there is one."""
        self._rounds.release()

    def epsilon_spent(self) -> float:
        """Return the ε of the rounds used so far at the budget's δ (ex post), from the exact curve."""
        if self.is_exhausted:
            return self._epsilon
        if self.rounds_used == 0:
            return 0.0
        return min(self._epsilon, gaussian_epsilon(_mu(self._event, self.rounds_used), self._delta))

    def epsilon_remaining(self) -> float:
        """Return the total ε minus the ε of the rounds used so far: falls from ε to exactly 0 and is never negative.

        The curve is steep at first (ten rounds do not cost ten times one), so this is not a share that
        later rounds could spend at another noise; `rounds_remaining` is what can still be done.
        """
        return self._epsilon - self.epsilon_spent()

    def get_status(self) -> dict[str, Any]:
        """Return the state of the budget; none of it derives from data."""
        return {
            "epsilon_total": self._epsilon,
            "epsilon_spent": self.epsilon_spent(),
            "epsilon_remaining": self.epsilon_remaining(),
            "delta": self._delta,
            "num_rounds": self._num_rounds,
            "rounds_used": self.rounds_used,
            "rounds_remaining": self.rounds_remaining,
            "noise_multiplier": self._event.noise_multiplier,
            "is_exhausted": self.is_exhausted,
            "warning": self._describe_mark(),
        }

    def __repr__(self) -> str:
        return (
            f"<PrivacyBudget: ε = {self._epsilon:g} at δ = {self._delta:g}, "
            f"{self.rounds_used} of {self._num_rounds} rounds used>"
        )

    def _repr_html_(self) -> str:
        return status_table(self.get_status())

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self._rounds.__reduce_ex__(protocol)

    def _warn(self) -> None:
        warnings.warn(self._describe_mark(), PrivacyBudgetWarning, stacklevel=_first_frame_outside())

    def _describe_mark(self) -> str:
        """Return a warning once 50, 80 or 95 percent of the rounds are spent; before, an empty text."""
        mark = find_mark(self.rounds_used, self._num_rounds)
        if mark is None:
            return ""
        used = f"{self.rounds_used} of {self._num_rounds} rounds of ε = {self._epsilon:g}"
        return f"{mark} % of the budget is passed: {used} are spent, {self.rounds_remaining} are left"


def compute_epsilon_from_delta(delta: float, noise_multiplier: float, num_rounds: int = 1) -> float:
    """Return the smallest ε of `num_rounds` Gaussian releases at that δ, rounded up."""
    delta, rounds = checks.positive_probability(delta=delta), checks.count(num_rounds=num_rounds)
    return gaussian_epsilon(_mu(ev.Gaussian(noise_multiplier), rounds), delta)


def compute_delta_from_epsilon(epsilon: float, noise_multiplier: float, num_rounds: int = 1) -> float:
    """Return the smallest δ of `num_rounds` Gaussian releases at that ε, rounded up."""
    epsilon, rounds = checks.non_negative(epsilon=epsilon), checks.count(num_rounds=num_rounds)
    return gaussian_delta(_mu(ev.Gaussian(noise_multiplier), rounds), epsilon)


def estimate_noise_scale(epsilon: float, delta: float, clip_norm: float = 1.0, num_rounds: int = 1) -> float:
    """Return the standard deviation of noise with which `num_rounds` clipped contributions cost (ε, δ) together.

    The analytic Gaussian of Balle and Wang (2018), right for every ε; the classical √(2 ln(1.25/δ))/ε is not
    proved above ε = 1 and false from 8.42 at δ = 1e-5.
    """
    params = PrivacyParams(epsilon, delta, clip_norm)
    return PrivacyBudget(params.epsilon, params.delta, num_rounds).event.noise_multiplier * params.clip_norm


def status_table(status: dict[str, Any]) -> str:
    """Render a status as an HTML table of two columns."""
    shown = {key: f"{value:.6g}" if isinstance(value, float) else str(value) for key, value in status.items()}
    rows = "".join(f"<tr><th>{html.escape(key)}</th><td>{html.escape(text)}</td></tr>" for key, text in shown.items())
    return f"<table>{rows}</table>"


def _mu(event: ev.Gaussian, rounds: int) -> float:
    return math.sqrt(rounds) / event.noise_multiplier * (1 + _ROUNDING)


def _noise_multiplier(epsilon: float, delta: float, num_rounds: int) -> float:
    """Return the smallest noise multiplier, up to rounding, at which the plan's own event costs no more than ε."""
    mu = gaussian_mu(epsilon, delta)
    if not mu > 0 or not math.isfinite(math.sqrt(num_rounds) / mu):
        raise InfeasibleTarget("epsilon", f"no finite noise gives ε = {epsilon:g} at δ = {delta:g}", ["raise δ"])
    noise_multiplier, step = math.sqrt(num_rounds) / mu, _ROUNDING
    # The accountant, not the inverse, has the last word: what is executed is what it was asked about.
    while gaussian_epsilon(_mu(ev.Gaussian(noise_multiplier), num_rounds), delta) > epsilon:
        noise_multiplier, step = noise_multiplier * (1 + step), 2 * step
    return noise_multiplier


def _first_frame_outside() -> int:
    """Return the stacklevel, seen from `warnings.warn` in the caller, of the first frame that is not dpfed's own."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "dpfed":
        frame, level = frame.f_back, level + 1
    return level

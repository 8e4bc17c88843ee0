"""Lower bounds on ε from an attack: what guesses about canaries prove against a claim of privacy.

An accountant says ε ≤ U. An audit puts in canaries by fair coins, guesses from what was released which of them were
in, and says ε ≥ L with a stated confidence. A bound far below U is no evidence of a fault, and none of privacy: each
method has a ceiling that a perfect attacker cannot pass, and it is given beside every bound.

`one_run` holds for all canaries of a single run (Steinke, Nasr and Jagielski 2023). `one_run_fdp` (Mahloujifar, Melis
and Chaudhuri 2024) refutes more, but a narrower claim: that the run is as private as the *Gaussian mechanism* with that
ε and δ. `clopper_pearson` and `bayesian_interval` need trials that are independent: one canary in each of many runs.

>>> round(one_run(m=1000, guesses=100, correct=90, delta=1e-5, significance=0.05), 3)
1.626
>>> round(one_run(m=1000, guesses=1000, correct=1000, delta=1e-5, significance=0.05), 2)  # nobody can prove more
5.78
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, expit, gammaln, ndtr, ndtri
from scipy.stats import beta as beta_law

from dpfed import checks
from dpfed.accounting.closed_forms import gaussian_mu
from dpfed.audit import guessing
from dpfed.audit.guessing import Guesses
from dpfed.audit.proportions import find_limits
from dpfed.errors import InvalidArgument
from dpfed.randomness import RandomSource, or_system

ONE_RUN, ONE_RUN_FDP = "one_run", "one_run_fdp"
MOST = 1e3  # an ε beyond which no search goes
_LOOKS = 16  # at which a test must refute below its root, should it not be monotone
_TOLERANCE = 1e-7
_NODES = 4096

Refutes = Callable[[float], bool]
Test = Callable[[int, int, int, float, float], Refutes]


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε at δ: how it was found, with which confidence, and what a perfect attacker would have shown.

    `corrections` is how many thresholds were tried, each at that fraction of the significance.
    """

    epsilon: float
    delta: float
    method: str
    significance: float
    canaries: int
    ceiling: float
    guesses: int
    correct: int
    corrections: int = 1

    @property
    def confidence(self) -> float:
        """The probability with which such a bound holds."""
        return 1 - self.significance


def one_run_p_value(m: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return how probable so many correct guesses are, at most, if one run with m canaries is (ε, δ)-private.

    Steinke, Nasr and Jagielski (2023), theorem 5.2: each canary is in by a fair coin of its own.
    """
    m, guesses, correct = _require_counts(m, guesses, correct)
    epsilon, delta = checks.non_negative(epsilon=epsilon), checks.probability(delta=delta)
    if correct == 0:
        return 1.0
    tail = float(betainc(correct, guesses - correct + 1, expit(epsilon)))  # of the binomial law, from `correct` on
    if delta == 0:
        return tail
    below = np.cumsum(_binomial_law(guesses, np.arange(correct - 1, -1, -1), epsilon))
    return min(1.0, tail + 2 * m * delta * float(np.max(below / np.arange(1, correct + 1))))


def one_run(m: int, guesses: int, correct: int, delta: float, significance: float) -> float:
    """Return the ε below which the guesses about m canaries of one run refute (ε, δ)-privacy; 0 if they refute none.

    Neither the number of guesses nor a threshold may be chosen after looking: `from_scores` pays for that.
    """
    return _last_refuted(_test_one_run(m, guesses, correct, delta, significance))


def one_run_fdp(m: int, guesses: int, correct: int, delta: float, significance: float) -> float:
    """Return the ε below which the guesses refute that one run is as private as a Gaussian with that ε and δ.

    The claim refuted is a Gaussian trade-off curve, not (ε, δ) alone: a sampled or any other mechanism may keep
    (ε, δ) and break the curve. Mahloujifar, Melis and Chaudhuri (2024), with a fixed number of guesses.
    """
    return _last_refuted(_test_one_run_fdp(m, guesses, correct, delta, significance))


def clopper_pearson(tp: int, fp: int, n_in: int, n_out: int, delta: float, significance: float) -> float:
    """Return the ε that (ε, δ)-privacy needs at least, from hits and false alarms in independent runs.

    ln((TPR − δ)/FPR) at the exact limits of Clopper and Pearson (1934), half of the significance each. The canaries of
    one training run are not independent: from them this is an estimate and no bound.
    """
    _require_rates(tp, fp, n_in, n_out)
    half, delta = _require_significance(significance) / 2, checks.probability(delta=delta)
    hits, alarms = float(find_limits(tp, n_in, tail=half)[0]), float(find_limits(fp, n_out, tail=half)[1])
    return max(0.0, math.log((hits - delta) / alarms)) if hits > delta else 0.0


def bayesian_interval(
    tp: int, fp: int, n_in: int, n_out: int, delta: float, significance: float
) -> tuple[float, float]:
    """Return the credible interval of ε from hits and false alarms in independent runs (Zanella-Béguelin et al. 2023).

    Both error rates have Jeffreys' prior, and ε is the least that allows them. It says what to believe, not how often
    one errs: no gate, and no bound.
    """
    _require_rates(tp, fp, n_in, n_out)
    level, delta = _require_significance(significance), checks.probability(delta=delta)
    alarms = beta_law.ppf((np.arange(_NODES) + 0.5) / _NODES, 0.5 + fp, 0.5 + n_out - fp)
    misses = beta_law(0.5 + n_in - tp, 0.5 + tp)

    def believe(epsilon: float) -> float:
        """Return how probable it is that ε is at most so large."""
        factor = math.exp(min(epsilon, 700.0))
        least = np.maximum((1 - delta - alarms) / factor, 1 - delta - alarms * factor)
        return float(np.mean(misses.sf(least)))

    low = _last_refuted(lambda epsilon: believe(epsilon) < level / 2)
    return low, _last_refuted(lambda epsilon: believe(epsilon) < 1 - level / 2, low)


def from_scores(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    delta: float,
    significance: float,
    *,
    method: str = ONE_RUN,
    threshold: str | float = guessing.GRID,
    source: RandomSource | None = None,
) -> Bound:
    """Return the bound that the scores of canaries prove, where a higher score says "in"; choices are paid for.

    With ``threshold="grid"`` the surest guesses are made, half of them "in" and half "out", in numbers that are fixed
    beforehand (`guessing.SHARES`), each tested at its part of the significance. ``"split"`` chooses the number on a
    random half of the canaries and tests it on the other. ``"frontier"`` tries each corner of the ROC curve's hull, as
    jax_privacy does: how many there are depends on who was in, so that its confidence is not proved. A number is a
    threshold that was chosen beforehand; how many reach it follows from the scores, which is proved for δ = 0 alone.
    """
    members, others = guessing.require_scores(in_scores, out_scores)
    test, level = _find_test(method), _require_significance(significance)
    if threshold == guessing.SPLIT:
        chosen, kept = guessing.split(members, others, or_system(source))
        _, best = _find_best(test, list(guessing.list_guesses(*chosen, guessing.GRID)), delta, level)
        (members, others), made = kept, [guessing.guess_surest(*kept, best.share)]
    else:
        made = list(guessing.list_guesses(members, others, threshold))
    epsilon, found = _find_best(test, made, delta, level / len(made))
    most = len(members) if threshold == guessing.FRONTIER else found.canaries
    ceiling = _last_refuted(test(found.canaries, most, most, delta, level / len(made)))
    guessed = (found.made, found.correct, len(made))
    return Bound(epsilon, delta, method, significance, found.canaries, ceiling, *guessed)


def _binomial_law(trials: int, counts: NDArray[np.int64], epsilon: float) -> NDArray[np.float64]:
    """Return the probability of each count where one trial succeeds with probability 1/(1 + e^−ε)."""
    ways = gammaln(trials + 1) - gammaln(counts + 1) - gammaln(trials - counts + 1)
    return np.asarray(np.exp(ways - counts * np.logaddexp(0, -epsilon) - (trials - counts) * np.logaddexp(0, epsilon)))


def _find_best(test: Test, made: Iterable[Guesses], delta: float, level: float) -> tuple[float, Guesses]:
    """Return the largest ε that one of the guesses refutes at that level, and these guesses."""
    # The likely best first: most of the others are then refuted by one look.
    ranked = sorted(made, key=lambda each: -float(beta_law.ppf(level, each.correct or 1e-9, each.wrong + 1)))
    best, found = 0.0, ranked[0]
    for each in ranked:
        refutes = test(each.canaries, each.made, each.correct, delta, level)
        if each.precision > expit(best) and refutes(best):
            best, found = _last_refuted(refutes, best), each
    return best, found


def _test_one_run(m: int, guesses: int, correct: int, delta: float, significance: float) -> Refutes:
    level = _require_significance(significance)
    return lambda epsilon: one_run_p_value(m, guesses, correct, epsilon, delta) < level


def _test_one_run_fdp(m: int, guesses: int, correct: int, delta: float, significance: float) -> Refutes:
    m, guesses, correct = _require_counts(m, guesses, correct)
    level, delta = _require_significance(significance), checks.positive_probability(delta=delta)
    return lambda epsilon: _breaks_curve(m, guesses, correct, gaussian_mu(epsilon, delta), level)


def _breaks_curve(m: int, guesses: int, correct: int, mu: float, level: float) -> bool:
    """Return whether so many correct guesses are rarer than `level` under the trade-off curve of N(0, 1) and N(μ, 1).

    Were they that frequent, the recursion would find a total of right (r) and wrong (h) guesses per canary beyond the
    `guesses` that there are.
    """
    right, wrong = level * correct / m, level * (guesses - correct) / m
    for count in range(correct - 1, -1, -1):
        least = float(ndtr(ndtri(right) - mu))
        if not least > wrong:
            break
        right, wrong = min(1.0, right + count / (guesses - count) * (least - wrong)), least
    return right + wrong > guesses / m


def _last_refuted(refutes: Refutes, start: float = 0.0) -> float:
    """Return the largest ε up to which every test looked at refutes; `start` if not even that one does.

    Where a test refutes some ε and not a smaller one, the smaller one counts: the truth may be there.
    """
    if not refutes(start):
        return start
    low, high = start, max(1.0, 2 * start)
    while refutes(high):
        if high > MOST:
            return math.inf
        low, high = high, 2 * high
    for place in np.linspace(start, low, _LOOKS)[1:-1].tolist():
        if not refutes(place):
            low, high = start, place
            break
    while high - low > _TOLERANCE * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low


def _find_test(method: str) -> Test:
    found = {ONE_RUN: _test_one_run, ONE_RUN_FDP: _test_one_run_fdp}.get(method)
    if found is None:
        raise InvalidArgument("method", f"method must be {ONE_RUN!r} or {ONE_RUN_FDP!r}, got {method!r}")
    return found


def _require_counts(m: int, guesses: int, correct: int) -> tuple[int, int, int]:
    m, guesses, correct = checks.count(m=m), checks.count(guesses=guesses), checks.whole(correct=correct)
    if not correct <= guesses <= m:
        message = f"there cannot be more guesses than canaries, or more correct ones than guesses: got {correct} of"
        raise InvalidArgument("guesses", f"{message} {guesses} for {m}: count each canary once")
    return m, guesses, correct


def _require_rates(tp: int, fp: int, n_in: int, n_out: int) -> None:
    n_in, n_out = checks.count(n_in=n_in), checks.count(n_out=n_out)
    if checks.whole(tp=tp) > n_in or checks.whole(fp=fp) > n_out:
        message = f"hits and false alarms must be counted among the trials, got {tp} of {n_in} and {fp} of {n_out}"
        raise InvalidArgument("tp", f"{message}: count each run once")


def _require_significance(significance: float) -> float:
    level = checks.positive_probability(significance=significance)
    if level >= 0.5:
        message = f"significance must be below 0.5, or a bound would be wrong more often than right, got {level}"
        raise InvalidArgument("significance", f"{message}: use 0.05, or 0.001 for a gate")
    return level

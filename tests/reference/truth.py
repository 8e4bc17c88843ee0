"""The exact ε of an event, by closed forms and 34-digit contour inversion; shares no code with dpfed.

An event becomes a list of (probability under Q, log P/Q) nodes, so F(t) = E_Q[(P/Q)^t] is a plain sum;
the remove direction has M(s) = F(s + 1), the add direction M(s) = F(−s). Composition multiplies, and

    δ(ε) = (1/2π) ∫ M(θ+iw) e^{−(θ+iw)ε} / ((θ+iw)(θ+iw+1)) dw

is summed at steps of 2π/W with W wide enough that both alias terms are below e⁻³⁵ of δ. Every value is
computed twice, with other θ, W and nodes; if the two differ by more than 1e-10 the answer is None, never
a guess.

>>> from dpfed import events as ev
>>> round(epsilon(ev.Repeated(ev.Gaussian(50.0), 10_000), 1e-5), 9)
9.997256146
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import numpy as np
from mpmath import mp, mpc, mpf

from dpfed import events as ev

MOST_FREQUENCIES = 2500
AGREEMENT = 1e-10
Nodes = tuple[tuple[mpf, ...], tuple[mpf, ...]]


def atoms(event: ev.Event, count: int = 1) -> Counter[ev.Event]:
    """How often each unrepeated event occurs in the tree."""
    if isinstance(event, ev.Repeated):
        return atoms(event.event, count * event.count)
    if isinstance(event, ev.Composed):
        return sum((atoms(part, count) for part in event.events), Counter())
    return Counter({event: count})


@mp.workdps(34)
def epsilon(event: ev.Event, delta: float, adjacency: str = "add_remove") -> float | None:
    """The exact ε at δ of the event's worst-case pair, or None where this oracle cannot be sure."""
    parts = atoms(event)
    kinds = {type(part) for part in parts}
    if kinds == {ev.Gaussian}:
        mu = mp.sqrt(sum(count / mpf(part.noise_multiplier) ** 2 for part, count in parts.items()))
        return _solve(lambda e: _gaussian_delta(mu * (1 if adjacency == "add_remove" else 2), e), delta)
    if kinds == {ev.RandomizedResponse} and len(parts) == 1:
        ((part, count),) = parts.items()
        return _solve(_randomized_response_delta(part, count), delta)
    if sum(parts.values()) == 1 and adjacency == "add_remove":
        return _solve(_single_step_delta(next(iter(parts))), delta)
    return _contour(parts, delta, adjacency) if sum(parts.values()) >= 20 else None


# --- closed forms ---


def _gaussian_delta(mu: mpf, e: mpf) -> mpf:
    return mp.ncdf(mu / 2 - e / mu) - mp.exp(e) * mp.ncdf(-mu / 2 - e / mu)


def _laplace_delta(scale: mpf, e: mpf) -> mpf:
    return mp.mpf(0) if e >= 1 / scale else -mp.expm1((e - 1 / scale) / 2)


def _single_step_delta(event: ev.Event):
    """δ(ε) of one step; sampled, in the remove direction, it is q·δ₀(log(1 + (e^ε − 1)/q)) of the inner."""
    inner, q = (event.event, mpf(event.sample_rate)) if isinstance(event, ev.PoissonSampled) else (event, mpf(1))
    z = mpf(inner.noise_multiplier)
    if isinstance(inner, ev.Gaussian):
        return lambda e: q * _gaussian_delta(1 / z, mp.log1p(mp.expm1(e) / q))
    return lambda e: q * _laplace_delta(z, mp.log1p(mp.expm1(e) / q))


def _randomized_response_delta(event: ev.RandomizedResponse, count: int):
    """δ(ε) of count answers: the loss is ε times a walk with steps +1, 0, −1."""
    e0, k = mpf(event.epsilon), event.num_buckets
    total = mp.exp(e0) + k - 1
    step = {1: mp.exp(e0) / total, 0: (k - 2) / total, -1: 1 / total}
    walk = {0: mpf(1)}
    for _ in range(count):
        longer: dict[int, mpf] = {}
        for place, mass in walk.items():
            for move, chance in step.items():
                if chance:
                    longer[place + move] = longer.get(place + move, mpf(0)) + mass * chance
        walk = longer
    return lambda e: sum(mass * -mp.expm1(e - n * e0) for n, mass in walk.items() if n * e0 > e)


def _solve(delta_at, delta: float) -> float:
    """The root of δ(ε) = δ by bisection; 0 when even δ(0) is at most δ."""
    delta = mpf(delta)
    if delta_at(mpf(0)) <= delta:
        return 0.0
    low, high = mpf(0), mpf(1)
    while delta_at(high) > delta:
        low, high = high, 2 * high
    for _ in range(70):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return float(high)


# --- nodes ---


def _nodes(event: ev.Event, adjacency: str, top: float, fineness: float) -> Nodes:
    """(probabilities under Q, log P/Q) of one event, good for F(t) with |Re t| ≤ top."""
    inner, q = (event.event, event.sample_rate) if isinstance(event, ev.PoissonSampled) else (event, 1.0)
    if isinstance(inner, ev.Gaussian):
        return _gaussian_nodes(inner.noise_multiplier, q, adjacency, top, fineness)
    if isinstance(inner, ev.Laplace) and adjacency == "add_remove":
        return _laplace_nodes(inner.noise_multiplier, q, int(60 * fineness))
    raise NotImplementedError(f"no nodes for {event!r} under {adjacency}")


def _gaussian_nodes(sigma: float, q: float, adjacency: str, top: float, fineness: float) -> Nodes:
    """Trapezoid nodes; branch points of log r at Im x = πσ² limit the step, its decay the range."""
    h = min(0.4 * sigma, 0.2 * sigma**2) / fineness
    reach = (top + 15 * sigma) if q < 1 else (top + 1 + 15 * sigma)
    x = h * np.arange(-math.ceil(reach / h), math.ceil((reach + 1) / h) + 1)
    log_r = np.logaddexp(np.log1p(-q) if q < 1 else -np.inf, np.log(q) + (2 * x - 1) / (2 * sigma**2))
    gauss = -(x**2) / (2 * sigma**2)
    exponents = np.maximum(gauss + top * log_r, gauss - top * log_r)
    exponents = np.maximum(exponents, gauss)
    if adjacency == "replace_one":
        exponents = np.maximum(exponents, exponents[::-1])
    kept = x[exponents > _peaks(gauss, log_r, top) - 90]
    sigma, q, h = mpf(sigma), mpf(q), mpf(h)
    scale = h / (sigma * mp.sqrt(2 * mp.pi))
    points = [mpf(float(v)) for v in kept]
    density = [scale * mp.exp(-(v**2) / (2 * sigma**2)) for v in points]
    ratio = [1 - q + q * mp.exp((2 * v - 1) / (2 * sigma**2)) for v in points]
    if adjacency == "add_remove":
        return tuple(density), tuple(map(mp.log, ratio))
    mirrored = [1 - q + q * mp.exp((-2 * v - 1) / (2 * sigma**2)) for v in points]
    weights = tuple(d * m for d, m in zip(density, mirrored, strict=True))
    return weights, tuple(mp.log(r / m) for r, m in zip(ratio, mirrored, strict=True))


def _peaks(gauss: np.ndarray, log_r: np.ndarray, top: float) -> np.ndarray:
    """Per node the smaller (log) of the tilted and the plain peak, so that trimming hurts neither."""
    return np.where(log_r > 0, min((gauss + top * log_r).max(), 0.0), min((gauss - top * log_r).max(), 0.0))


@cache
def _legendre(count: int) -> tuple[tuple[mpf, ...], tuple[mpf, ...]]:
    """Gauss–Legendre nodes and weights on [0, 1], polished to full precision from numpy's."""
    places, weights = [], []
    for start in np.polynomial.legendre.leggauss(count)[0]:
        x = mpf(float(start))
        for _ in range(3):
            value, slope = _legendre_value(count, x)
            x -= value / slope
        _, slope = _legendre_value(count, x)
        places.append((1 + x) / 2)
        weights.append(1 / ((1 - x**2) * slope**2))
    return tuple(places), tuple(weights)


def _legendre_value(count: int, x: mpf) -> tuple[mpf, mpf]:
    before, value = mpf(1), x
    for n in range(1, count):
        before, value = value, ((2 * n + 1) * x * value - n * before) / (n + 1)
    return value, count * (x * value - before) / (x**2 - 1)


def _laplace_nodes(scale: float, q: float, count: int) -> Nodes:
    """Two atoms and Gauss–Legendre nodes for the stretch between the two peaks."""
    b, q = mpf(scale), mpf(q)
    places, weights = _legendre(count)
    masses = [
        mpf(1) / 2,
        *(w * mp.exp(-x / b) / (2 * b) for x, w in zip(places, weights, strict=True)),
        mp.exp(-1 / b) / 2,
    ]
    losses = [-1 / b, *((2 * x - 1) / b for x in places), 1 / b]
    return tuple(masses), tuple(mp.log1p(q * mp.expm1(loss)) for loss in losses)


# --- contour ---


def _contour(parts: Counter[ev.Event], delta: float, adjacency: str) -> float | None:
    directions = (1, -1) if adjacency == "add_remove" else (1,)
    best = 0.0
    for direction in directions:
        answer = _one_direction(parts, delta, adjacency, direction)
        if answer is None:
            return None
        best = max(best, answer)
    return best


def _one_direction(parts: Counter[ev.Event], delta: float, adjacency: str, direction: int) -> float | None:
    coarse = [(_rough(part, adjacency), count) for part, count in parts.items()]
    theta = _best_theta(coarse, delta, direction)
    if theta is None:
        return None
    previous = None
    for tilt, window, fineness in ((0.75, 1.0, 1.0), (0.65, 1.1, 1.4), (0.7, 1.2, 2.0), (0.8, 1.1, 3.0)):
        answer = _invert(parts, delta, adjacency, direction, tilt * theta, window, fineness, coarse)
        if answer is not None and previous is not None and abs(answer - previous) <= AGREEMENT * max(1, answer):
            return answer
        if answer is None:
            return None
        previous = answer
    return None


def _invert(parts, delta, adjacency, direction, theta, window, fineness, coarse) -> float | None:
    """ε at δ from one contour, or None when the transform has not died out within MOST_FREQUENCIES."""
    guess = (_log_moment(coarse, theta, direction) - math.log(delta)) / theta
    width = window * _window(coarse, theta, guess, delta, direction)
    step = 2 * mp.pi / width
    top = theta + 1
    walkers = [_walker(part, adjacency, direction, theta, step, top, fineness) for part in parts]
    terms: list[mpc] = []
    quiet = 0
    while quiet < 25:
        if len(terms) > MOST_FREQUENCIES:
            return None
        s = mpc(theta, step * len(terms))
        log_value = sum(count * mp.log(next(w)) for w, count in zip(walkers, parts.values(), strict=True))
        terms.append(mp.exp(log_value - theta * mpf(guess)) / (s * (s + 1)))
        quiet = quiet + 1 if abs(terms[-1]) < mpf(10) ** -19 * abs(terms[0]) else 0
    if _recurrence(parts, direction, theta, float(step * len(terms))) > 1e-18:
        return None
    return _root(terms, mpf(theta), step, mpf(guess), mpf(delta))


def _recurrence(parts: Counter[ev.Event], direction: int, theta: float, cut: float) -> float:
    """How large |M|/M(θ) may become again beyond the cut: the atoms of Laplace losses come back into step."""
    if not any("Laplace" in repr(part) for part in parts):
        return 0.0
    log_share = 0.0  # sampled Gaussians help too, but by how much is not counted
    for part, count in parts.items():
        inner, q = (part.event, part.sample_rate) if isinstance(part, ev.PoissonSampled) else (part, 1.0)
        if isinstance(inner, ev.Laplace):
            masses, losses = _laplace_nodes(inner.noise_multiplier, q, 60)
            tilted = [
                float(m * mp.exp((theta + 1 if direction > 0 else -theta) * x))
                for m, x in zip(masses, losses, strict=True)
            ]
            log_share += count * math.log((tilted[0] + tilted[-1]) / sum(tilted))
        elif q == 1.0:
            log_share -= count * cut**2 / (2 * inner.noise_multiplier**2)
    return math.exp(log_share)


def _walker(part, adjacency, direction, theta, step, top, fineness):
    """M(θ), M(θ + i·step), M(θ + 2i·step), …"""
    if isinstance(part, ev.Gaussian):
        variance = mpf(part.noise_multiplier) ** 2 / (1 if adjacency == "add_remove" else 4)
        k = 0
        while True:
            s = mpc(theta, k * step)
            yield mp.exp(s * (s + 1) / (2 * variance))
            k += 1
    masses, losses = _nodes(part, adjacency, top, fineness)
    power = mpf(theta) + 1 if direction > 0 else -mpf(theta)
    values = [mpc(mass * mp.exp(power * loss)) for mass, loss in zip(masses, losses, strict=True)]
    turns = [mp.expjpi(direction * step * loss / mp.pi) for loss in losses]
    while True:
        yield mp.fsum(values)
        values = [value * turn for value, turn in zip(values, turns, strict=True)]


def _root(terms: list[mpc], theta: mpf, step: mpf, guess: mpf, delta: mpf) -> float | None:
    def log_delta(e: mpf) -> mpf:
        turn, phase, total = mp.expj(-step * e), mpc(1), terms[0].real / 2
        for term in terms[1:]:
            phase *= turn
            total += (term * phase).real
        value = step / mp.pi * total * mp.exp(-theta * (e - guess))
        return mp.log(value) if value > 0 else mpf(-(10**6))

    target = mp.log(delta)
    high = guess
    low = guess - 1 / theta
    while log_delta(low) < target:
        low -= 2 * (guess - low)
        if low < 0 and log_delta(mpf(0)) <= target:
            return 0.0
    for _ in range(200):
        fl, fh = log_delta(low) - target, log_delta(high) - target
        if fh > 0 or fl < 0:
            return None
        new = low + (high - low) * min(max(fl / (fl - fh), mpf("0.05")), mpf("0.95"))
        low, high = (new, high) if log_delta(new) > target else (low, new)
        if high - low < mpf(10) ** -13 * max(1, high):
            return float(high)
    return None


# --- choosing θ and W in double precision ---


def _rough(part: ev.Event, adjacency: str):
    """log F(t) of one event in double precision, t real; only θ and W depend on it."""
    inner, q = (part.event, part.sample_rate) if isinstance(part, ev.PoissonSampled) else (part, 1.0)
    z = inner.noise_multiplier
    if isinstance(inner, ev.Laplace):
        masses, losses = (np.array([float(v) for v in values]) for values in _laplace_nodes(z, q, 60))
        return lambda t: np.logaddexp.reduce(np.log(masses) + t * losses)
    if q == 1.0:
        variance = z**2 / (1 if adjacency == "add_remove" else 4)
        return lambda t: t * (t - 1) / (2 * variance)
    return lambda t: _rough_gaussian(z, q, adjacency, t)


def _rough_gaussian(z: float, q: float, adjacency: str, t: float) -> float:
    x = np.linspace(-abs(t) - 12 * z - 1, abs(t) + 12 * z + 1, 4001)
    log_r = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / (2 * z**2))
    exponents = -(x**2) / (2 * z**2) - math.log(z * math.sqrt(2 * math.pi)) + math.log(x[1] - x[0])
    if adjacency == "replace_one":
        return float(np.logaddexp.reduce(exponents + t * log_r + (1 - t) * log_r[::-1]))
    return float(np.logaddexp.reduce(exponents + t * log_r))


def _log_moment(coarse, theta: float, direction: int) -> float:
    return sum(count * log_f(theta + 1 if direction > 0 else -theta) for log_f, count in coarse)


def chernoff(event: ev.Event, delta: float) -> float:
    """An upper estimate of ε from the best moment of the remove direction, in double precision."""
    coarse = [(_rough(part, "add_remove"), count) for part, count in atoms(event).items()]
    return min((_log_moment(coarse, theta, 1) - math.log(delta)) / theta for theta in np.geomspace(0.1, 3e4, 40))


def _best_theta(coarse, delta: float, direction: int) -> float | None:
    """The θ of the best Chernoff bound on ε."""
    grid = np.geomspace(1e-2, 1e5, 120)
    bounds = []
    for theta in grid:
        bounds.append((_log_moment(coarse, theta, direction) - math.log(delta)) / theta)
        if len(bounds) > 8 and bounds[-1] > 4 * min(bounds) + 1:
            break
    best = int(np.argmin(bounds))
    return float(grid[best]) if 0 < best < len(grid) - 1 else None


def _window(coarse, theta: float, guess: float, delta: float, direction: int) -> float:
    """W for which the aliases δ(ε ± W)e^{±θW} are below e⁻³⁵ δ by their Chernoff bounds."""
    below = (35 - math.log(delta)) / theta
    above = min(
        (_log_moment(coarse, steep, direction) - steep * (guess - 2 / theta) - math.log(delta) + 35) / (steep - theta)
        for steep in theta * np.geomspace(1.04, 2.5, 12)
    )
    return max(below, above, 0.0) + guess

"""Writes peers.json: 300 random configurations with peers' bounds and, where it can be had, the exact ε.

    python tests/reference/make_peers.py            # goes on where it stopped; about 25 minutes on one core

Each configuration comes from its own seed, so a case never changes when others are added. Target ε is
log-uniform in [0.01, 100] and δ in [1e-9, 1e-3]; the noise is found by a Chernoff bound (exactly for
single steps), so the exact ε lies somewhat below the target. Known faults of the peers are worked around
here and named in tests/accounting/test_peers.py: repeated randomized response is composed by hand, and no
peer is asked below δ = 1e-9.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import truth
from dp_accounting.pld import privacy_loss_distribution as pld
from opacus.accountants import PRVAccountant, RDPAccountant

from dpfed import events as ev

FILE = Path(__file__).with_name("peers.json")
SEED = 20_240_607
PATIENCE = 15  # seconds for one peer on one case
KINDS = (
    ["sampled_gaussian"] * 140
    + ["sampled_gaussian_replace_one"] * 10
    + ["gaussian"] * 20
    + ["single_step"] * 20
    + ["heterogeneous"] * 40
    + ["laplace"] * 15
    + ["sampled_laplace"] * 15
    + ["randomized_response"] * 15
    + ["mixed"] * 25
)
TINY = [  # (σ, q, T, δ) beyond the reach of the peers
    (1.0, 0.01, 10_000, 1e-12),
    (1.0, 0.01, 10_000, 1e-15),
    (0.7, 0.001, 100_000, 1e-10),
    (0.8, 0.001, 1_000_000, 1e-12),
    (2.0, 0.001, 10_000_000, 1e-15),
    (1.0, 0.0001, 10_000_000, 1e-10),
    (4.0, 0.01, 10_000_000, 1e-12),
    (30.0, 0.1, 10_000_000, 1e-15),
    (5.0, 0.2, 1_000, 1e-14),
    (0.5, 0.01, 2_000, 1e-11),
    (1.5, 0.5, 300, 1e-13),
    (2000.0, 1.0, 10_000_000, 1e-15),
    (10.0, 1.0, 1, 1e-15),
]


def main() -> None:
    """Fill in whatever peers.json still lacks, saving after every case."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # dp-accounting remarks on orders it leaves out
    stored = json.loads(FILE.read_text()) if FILE.exists() else {"cases": [], "tiny_delta": []}
    cases = {case["id"]: case for case in stored["cases"]}
    for index, kind in enumerate(KINDS):
        if f"{kind}-{index:03d}" not in cases:
            case = measure(kind, index)
            cases[case["id"]] = case
            print(case["id"], case["truth"], case["peers"], case["seconds"], flush=True)
            save(list(cases.values()), stored["tiny_delta"])
    if len(stored["tiny_delta"]) < len(TINY):
        save(list(cases.values()), [tiny(*row) for row in TINY])


def save(cases: list[dict[str, Any]], tiny_delta: list[dict[str, Any]]) -> None:
    """Write one case per line, so that a diff shows what changed."""
    lines = [",\n".join("  " + json.dumps(row) for row in rows) for rows in (cases, tiny_delta)]
    FILE.write_text(f'{{"cases": [\n{lines[0]}\n ],\n "tiny_delta": [\n{lines[1]}\n ]}}\n')


def measure(kind: str, index: int) -> dict[str, Any]:
    """One case: the first draw of this index whose ε is neither 0 nor out of the peers' reach."""
    rng = np.random.default_rng([SEED, index])
    target, delta = math.exp(rng.uniform(math.log(0.01), math.log(100))), 10 ** rng.uniform(-9, -3)
    adjacency = "replace_one" if kind in ("randomized_response", "sampled_gaussian_replace_one") else "add_remove"
    while True:
        event = calibrated(kind, rng, target, delta)
        if event is None:
            continue
        started = time.process_time()
        peers = ask_peers(event, delta, adjacency, target)
        seconds = time.process_time() - started
        upper = tightest(peers)
        if upper is not None and upper > 0.1 * target:
            break
    return {
        "id": f"{kind}-{index:03d}",
        "event": event.to_dict(),
        "adjacency": adjacency,
        "delta": delta,
        "truth": within(PATIENCE, lambda: truth.epsilon(event, delta, adjacency)),
        "peers": peers,
        "seconds": round(seconds, 2),
    }


def tiny(sigma: float, q: float, steps: int, delta: float) -> dict[str, Any]:
    """A sampled Gaussian at a δ where only closed forms and 34 digits can be trusted."""
    step = ev.PoissonSampled(ev.Gaussian(sigma), q) if q < 1 else ev.Gaussian(sigma)
    event = ev.Repeated(step, steps)
    exact = truth.epsilon(event, delta)
    print("tiny", event, delta, exact, flush=True)
    return {"event": event.to_dict(), "delta": delta, "truth": exact}


# --- configurations ---


def calibrated(kind: str, rng: np.random.Generator, target: float, delta: float) -> ev.Event | None:
    """A random event of the kind whose cost is about the target; None if no sensible noise does."""
    event_at = shape(kind, rng)
    if kind == "randomized_response":
        return event_at(target)
    cost = truth.epsilon if kind == "single_step" else truth.chernoff
    low, high = (0.005 if kind == "single_step" else 0.2), 1e5
    if cost(event_at(low), delta) < target or cost(event_at(high), delta) > target:
        return None
    for _ in range(25):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(event_at(middle), delta) > target else (low, middle)
    return event_at(float(f"{high:.6g}"))


def shape(kind: str, rng: np.random.Generator) -> Callable[[float], ev.Event]:
    """The event of this kind as a function of one noise scale (of the target ε for randomized response)."""
    q, steps = rate(rng), whole(rng, 1, 1e5)
    if kind.startswith("sampled_gaussian"):
        return lambda z: ev.Repeated(ev.PoissonSampled(ev.Gaussian(z), q), steps)
    if kind == "gaussian":
        return lambda z: ev.Repeated(ev.Gaussian(z), steps)
    if kind == "single_step":
        inner = ev.Gaussian if rng.random() < 0.7 else ev.Laplace
        return lambda z: ev.PoissonSampled(inner(z), q)
    if kind == "laplace":
        count = whole(rng, 1, 2000)
        return lambda z: ev.Repeated(ev.Laplace(z), count)
    if kind == "sampled_laplace":
        count = whole(rng, 1, 2e4)
        return lambda z: ev.Repeated(ev.PoissonSampled(ev.Laplace(z), q), count)
    if kind == "randomized_response":
        buckets, count = int(rng.integers(2, 20)), whole(rng, 1, 300)
        spread = math.sqrt(count) * rng.uniform(1, 4)
        return lambda target: ev.Repeated(ev.RandomizedResponse(target / min(count, spread), buckets), count)
    return parts(kind, rng)


def parts(kind: str, rng: np.random.Generator) -> Callable[[float], ev.Event]:
    """Two to four kinds of steps whose noise keeps fixed proportions."""
    makers: list[tuple[Callable[[float], ev.Event], float, int]] = []
    inner = (
        [ev.Gaussian, ev.Gaussian, ev.Gaussian, ev.Gaussian] if kind == "heterogeneous" else [ev.Laplace, ev.Gaussian]
    )
    for number in range(int(rng.integers(2, 5))):
        mechanism, q = inner[number % len(inner)], rate(rng)
        is_sampled = kind == "heterogeneous" or rng.random() < 0.4
        make = (lambda z, m=mechanism, q=q: ev.PoissonSampled(m(z), q)) if is_sampled else mechanism
        makers.append((make, float(f"{rng.uniform(0.7, 2):.4g}"), whole(rng, 1, 3000)))
    return lambda z: ev.Composed([ev.Repeated(make(z * factor), count) for make, factor, count in makers])


def rate(rng: np.random.Generator) -> float:
    """A sampling rate, log-uniform in [1e-4, 1); 0.5 and above often enough."""
    return float(f"{10 ** rng.uniform(-4, 0):.4g}")


def whole(rng: np.random.Generator, low: float, high: float) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


# --- peers ---


def ask_peers(event: ev.Event, delta: float, adjacency: str, target: float) -> dict[str, float | None]:
    """Every peer's bounds; None where a peer has no answer or takes too long."""
    step = interval(event, target)
    answers: dict[str, float | None] = {
        "interval": step,
        "dp_accounting_pld": within(PATIENCE, lambda: google_pld(event, delta, adjacency, step)),
        "dp_accounting_pld_lower": within(PATIENCE, lambda: google_pld(event, delta, adjacency, step, False)),
    }
    if adjacency == "add_remove" and (history := opacus_history(event)):
        lower, upper = within(PATIENCE, lambda: opacus_prv(history, delta)) or (None, None)
        rdp = within(PATIENCE, lambda: opacus_rdp(history, delta))
        answers |= {"opacus_prv": upper, "opacus_prv_lower": lower, "opacus_rdp": rdp}
    return answers


def tightest(peers: dict[str, float | None]) -> float | None:
    """The smallest of the peers' upper bounds."""
    uppers = [peers.get(name) for name in ("dp_accounting_pld", "opacus_prv", "opacus_rdp")]
    return min((value for value in uppers if value is not None), default=None)


def interval(event: ev.Event, target: float) -> float:
    """A discretisation that suits the target, with at most half a million cells for one step."""
    widest = max(_reach(part) for part in truth.atoms(event))
    return float(f"{max(1e-5 * target, widest / 5e5):.3g}")


def _reach(part: ev.Event) -> float:
    if isinstance(part, ev.RandomizedResponse):
        return part.epsilon
    inner, q = (part.event, part.sample_rate) if isinstance(part, ev.PoissonSampled) else (part, 1.0)
    z = inner.noise_multiplier
    far = 1 / z if isinstance(inner, ev.Laplace) else 10 / z + 1 / (2 * z**2)
    return 2 * float(np.logaddexp(np.log1p(-q) if q < 1 else -np.inf, math.log(q) + far))


def google_pld(event: ev.Event, delta: float, adjacency: str, step: float, pessimistic: bool = True) -> float:
    """dp-accounting's privacy loss distribution, composed part by part."""
    composed = None
    for part, count in truth.atoms(event).items():
        one = _google_part(part, adjacency, step, pessimistic).self_compose(count)
        composed = one if composed is None else composed.compose(one)
    return float(composed.get_epsilon_for_delta(delta))


def _google_part(part: ev.Event, adjacency: str, step: float, pessimistic: bool) -> pld.PrivacyLossDistribution:
    options: dict[str, Any] = {"pessimistic_estimate": pessimistic, "value_discretization_interval": step}
    if isinstance(part, ev.RandomizedResponse):
        noise = part.num_buckets / (math.expm1(part.epsilon) + part.num_buckets)
        return pld.from_randomized_response(noise, part.num_buckets, **options)
    options["use_connect_dots"] = pessimistic  # its tight discretisation has no optimistic form
    inner, q = (part.event, part.sample_rate) if isinstance(part, ev.PoissonSampled) else (part, 1.0)
    if isinstance(inner, ev.Laplace):
        return pld.from_laplace_mechanism(inner.noise_multiplier, sampling_prob=q, **options)
    relation = dp_accounting.NeighboringRelation["ADD_OR_REMOVE_ONE" if adjacency == "add_remove" else "REPLACE_ONE"]
    return pld.from_gaussian_mechanism(
        inner.noise_multiplier, sampling_prob=q, neighboring_relation=relation, **options
    )


def opacus_history(event: ev.Event) -> list[tuple[float, float, int]]:
    """Opacus's (σ, q, steps) rows, or none if the event holds anything but Gaussians."""
    rows = []
    for part, count in truth.atoms(event).items():
        inner, q = (part.event, part.sample_rate) if isinstance(part, ev.PoissonSampled) else (part, 1.0)
        if not isinstance(inner, ev.Gaussian):
            return []
        rows.append((inner.noise_multiplier, q, count))
    return rows


def opacus_prv(history: list[tuple[float, float, int]], delta: float) -> tuple[float, float] | None:
    """(lower, upper) of Opacus's PRV accountant with an ε error of 0.01, unless its mesh is too large."""
    total = sum(row[2] for row in history)
    if opacus_rdp(history, delta) + 3 > 2e6 * 0.01 / math.sqrt(total * math.log(12_000 / delta) / 2):
        return None
    accountant = PRVAccountant()
    accountant.history = list(history)
    lower, _, upper = accountant._get_dprv(eps_error=0.01, delta_error=delta / 1000).compute_epsilon(
        delta, delta / 1000, 0.01
    )
    return float(lower), float(upper)


def opacus_rdp(history: list[tuple[float, float, int]], delta: float) -> float:
    """Opacus's RDP bound at its default orders."""
    accountant = RDPAccountant()
    accountant.history = list(history)
    return float(accountant.get_epsilon(delta))


def within(seconds: int, ask: Callable[[], Any]) -> Any:
    """The answer, or None if it fails or takes longer."""
    try:
        with deadline(seconds):
            answer = ask()
    except (ArithmeticError, ValueError, RuntimeError, MemoryError, IndexError, TimeoutError):
        return None
    return None if isinstance(answer, float) and not math.isfinite(answer) else answer


@contextmanager
def deadline(seconds: int):
    def ring(*_: object) -> None:
        raise TimeoutError

    # In processor time, so that a busy machine does not change which values are stored.
    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


if __name__ == "__main__":
    sys.exit(main())

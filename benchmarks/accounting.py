"""Our accountant against dp-accounting, Opacus and Microsoft's prv-accountant on six workloads.

    python benchmarks/accounting.py [--json] [--quick]

Speed rows give seconds; the goals are 1000 times dp-accounting's PLD on W1, W3 and W4, 500 times on W6,
and simply faster elsewhere. Tightness rows give ε (σ for W3): ours must not be above any peer's upper
bound. Peers run with their default settings. W2 asks for ε after every round; a peer does as many rounds
as its name says.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import bench
from bench import Contestant, Row, Task

WORKLOADS = {
    "W1": "W1 σ=1 q=0.01 T=10⁴ δ=1e-5",
    "W3": "W3 σ for ε=8, q=0.1 T=1000 δ=1e-5",
    "W4": "W4 σ=0.6 q=1e-4 T=10⁶ δ=1e-8",
    "W5": "W5 σ=50 q=1 T=10⁴ δ=1e-5",
    "W6": "W6 50×(Laplace, Gaussian, randomized response) δ=1e-5",
    "W2/3": "W2 first 3 rounds",
    "W2/16": "W2 first 16 rounds",
    "W2/1000": "W2 1000 rounds, ε after each",
}
GOALS = {("W1", "dp-accounting PLD"): 1000.0, ("W3", "dp-accounting PLD"): 1000.0}
GOALS |= {("W4", "dp-accounting PLD"): 1000.0, ("W6", "dp-accounting PLD"): 500.0}
SECONDS_FOR_1000_ROUNDS = 1.0
RESPONSE = math.log(0.55 / 0.45)


def rounds() -> list[tuple[float, float]]:
    """The (σ, q) of each of W2's rounds of 100 steps."""
    import numpy as np

    rng = np.random.default_rng(0)
    return list(zip(rng.uniform(0.8, 1.5, 1000).tolist(), rng.uniform(0.05, 0.15, 1000).tolist(), strict=True))


def load_dpfed() -> dict[str, Task]:
    from dpfed import events as ev
    from dpfed.accounting import epsilon
    from dpfed.accounting.accountant import PrivacyAccountant
    from dpfed.accounting.calibrate import compute_noise_multiplier

    plan = rounds()

    def sampled(sigma: float, q: float, steps: int, delta: float) -> Task:
        step = lambda z: ev.PoissonSampled(ev.Gaussian(z), q) if q < 1 else ev.Gaussian(z)  # noqa: E731
        return lambda nudge: epsilon(ev.Repeated(step(sigma * (1 + nudge)), steps), delta)

    def mixed(nudge: float) -> float:
        parts = (
            ev.Laplace(10 * (1 + nudge)),
            ev.Gaussian(10.0),
            ev.RandomizedResponse(RESPONSE, adjacency="add_remove"),
        )
        return epsilon(ev.Repeated(ev.Composed(parts), 50), 1e-5)

    def each_round(count: int) -> Task:
        def play(nudge: float) -> float:
            accountant = PrivacyAccountant(delta=1e-5)
            for sigma, q in plan[:count]:
                accountant.compose(ev.PoissonSampled(ev.Gaussian(sigma * (1 + nudge)), q), 100)
                spent = accountant.get_epsilon()
            return spent

        return play

    return {
        "W1": sampled(1.0, 0.01, 10_000, 1e-5),
        "W3": lambda nudge: compute_noise_multiplier(8 * (1 + nudge), 1e-5, 0.1, 100, 10),
        "W4": sampled(0.6, 1e-4, 1_000_000, 1e-8),
        "W5": sampled(50.0, 1.0, 10_000, 1e-5),
        "W6": mixed,
        **{f"W2/{count}": each_round(count) for count in (3, 16, 1000)},
    }


def load_dp_accounting() -> dict[str, Task]:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.pld import privacy_loss_distribution as pld

    plan = rounds()

    def step(sigma: float, q: float, count: int) -> dp_accounting.DpEvent:
        inner = dp_accounting.GaussianDpEvent(sigma)
        one = dp_accounting.PoissonSampledDpEvent(q, inner) if q < 1 else inner
        return dp_accounting.SelfComposedDpEvent(one, count)

    def sampled(sigma: float, q: float, count: int, delta: float) -> Task:
        return lambda nudge: PLDAccountant().compose(step(sigma * (1 + nudge), q, count)).get_epsilon(delta)

    def calibrate(nudge: float) -> float:
        bracket = dp_accounting.ExplicitBracketInterval(0.5, 10.0)
        return dp_accounting.calibrate_dp_mechanism(
            PLDAccountant, lambda z: step(z, 0.1, 1000), 8 * (1 + nudge), 1e-5, bracket, tol=1e-4
        )

    # Part by part: its accountant refuses this mix and ignores how often randomized response is repeated.
    def mixed(nudge: float) -> float:
        laplace, gaussian = (
            pld.from_laplace_mechanism(10 * (1 + nudge)),
            pld.from_gaussian_mechanism(10 / math.sqrt(50)),
        )
        response = pld.from_randomized_response(0.9, 2).self_compose(50)
        return laplace.self_compose(50).compose(gaussian).compose(response).get_epsilon_for_delta(1e-5)

    def each_round(count: int) -> Task:
        def play(nudge: float) -> float:
            accountant = PLDAccountant()
            for sigma, q in plan[:count]:
                spent = accountant.compose(step(sigma * (1 + nudge), q, 100)).get_epsilon(1e-5)
            return spent

        return play

    return {
        "W1": sampled(1.0, 0.01, 10_000, 1e-5),
        "W3": calibrate,
        "W4": sampled(0.6, 1e-4, 1_000_000, 1e-8),
        "W5": sampled(50.0, 1.0, 10_000, 1e-5),
        "W6": mixed,
        "W2/3": each_round(3),
        "W2/16": each_round(16),
    }


def load_opacus(mechanism: str, longest: int) -> dict[str, Task]:
    import warnings

    from opacus.accountants import create_accountant
    from opacus.accountants.utils import get_noise_multiplier

    warnings.simplefilter("ignore")
    plan = rounds()

    def sampled(sigma: float, q: float, count: int, delta: float) -> Task:
        def spent(nudge: float) -> float:
            accountant = create_accountant(mechanism)
            accountant.history = [(sigma * (1 + nudge), q, count)]
            return accountant.get_epsilon(delta)

        return spent

    def calibrate(nudge: float) -> float:
        return get_noise_multiplier(
            target_epsilon=8 * (1 + nudge),
            target_delta=1e-5,
            sample_rate=0.1,
            steps=1000,
            accountant=mechanism,
        )

    def each_round(count: int) -> Task:
        def play(nudge: float) -> float:
            accountant = create_accountant(mechanism)
            for sigma, q in plan[:count]:
                accountant.history.append((sigma * (1 + nudge), q, 100))
                spent = accountant.get_epsilon(1e-5)
            return spent

        return play

    return {
        "W1": sampled(1.0, 0.01, 10_000, 1e-5),
        "W3": calibrate,
        "W4": sampled(0.6, 1e-4, 1_000_000, 1e-8),
        "W5": sampled(50.0, 1.0, 10_000, 1e-5),
        **{f"W2/{count}": each_round(count) for count in (3, 16) if count <= longest},
    }


def load_prv_accountant() -> dict[str, Task]:
    from prv_accountant import GaussianMechanism, PoissonSubsampledGaussianMechanism, PRVAccountant

    def sampled(sigma: float, q: float, count: int, delta: float) -> Task:
        def spent(nudge: float) -> float:
            z = sigma * (1 + nudge)
            prv = PoissonSubsampledGaussianMechanism(q, noise_multiplier=z) if q < 1 else GaussianMechanism(z)
            accountant = PRVAccountant([prv], 0.01, delta / 1000, max_self_compositions=[count])
            return accountant.compute_epsilon(delta, [count])[2]

        return spent

    return {"W1": sampled(1.0, 0.01, 10_000, 1e-5), "W5": sampled(50.0, 1.0, 10_000, 1e-5)}


OURS = Contestant("dpfed", load_dpfed)
PEERS = (
    Contestant("dp-accounting PLD", load_dp_accounting, slow=frozenset({"W2/16"})),
    Contestant("Opacus PRV", lambda: load_opacus("prv", longest=3), slow=frozenset({"W4", "W2/3"})),
    Contestant("Opacus RDP", lambda: load_opacus("rdp", longest=16), slow=frozenset({"W2/16"})),
    Contestant("prv-accountant", load_prv_accountant, venv="prv_accountant"),
)
ENTRIES = {
    "dp-accounting PLD": ("W1", "W3", "W4", "W5", "W6", "W2/3", "W2/16"),
    "Opacus PRV": ("W1", "W3", "W4", "W5", "W2/3"),
    "Opacus RDP": ("W1", "W3", "W4", "W5", "W2/3", "W2/16"),
    "prv-accountant": ("W1", "W5"),
}


def rows(quick: bool = False) -> list[Row]:
    """Measure everything and compare."""
    results = bench.measure(Path(__file__), (OURS, *PEERS), WORKLOADS, quick=quick)
    compared: list[Row] = []
    for task, title in WORKLOADS.items():
        ours = results.get((OURS.name, task))
        for peer in (peer.name for peer in PEERS if task in ENTRIES[peer.name]):
            theirs = results.get((peer, task))
            unit = "σ" if task == "W3" else "ε"
            compared.append(bench.faster(f"{title}: seconds, {peer}", ours, theirs, GOALS.get((task, peer), 1.0)))
            compared.append(bench.tighter(f"{title}: {unit}, {peer}", ours, theirs))
    every_round = results.get((OURS.name, "W2/1000"))
    return [
        *compared,
        bench.within(f"{WORKLOADS['W2/1000']}: seconds, limit", every_round, SECONDS_FOR_1000_ROUNDS),
    ]


if __name__ == "__main__":
    sys.exit(bench.run(__file__, (OURS, *PEERS), rows))

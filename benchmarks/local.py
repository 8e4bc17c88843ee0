"""Our frequency oracles against pure-ldp and multi-freq-ldpy: clients and one server, domain 1000, ε = 1.

    python benchmarks/local.py [--json] [--quick]

Rows give seconds of CPU time for 10⁶ users. We do all of them; the peers, which handle one user at a time, do as many
as their row says, and are scaled up. Goals: clients 30 times as fast on k-ary randomized response and local hashing,
4 times on optimised unary encoding, the server of local hashing 30 times. A peer's coins come from a statistical
generator; ours from a cipher.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bench
from bench import Contestant, Result, Row, Task

EPSILON, DOMAIN, MILLION = 1.0, 1000, 1_000_000
OURS = "dpfed"
GOALS = {
    "k-ary response, clients": 30.0,
    "unary encoding, clients": 4.0,
    "local hashing, clients": 30.0,
    "local hashing, server": 30.0,
}
USERS = {"k-ary response, clients": 20_000, "unary encoding, clients": 1_000}
USERS |= {"local hashing, clients": 10_000, "local hashing, server": 100}


@dataclass(frozen=True)
class Scaled:
    """A task for some users, whose time is that of a million."""

    work: Callable[[], object]
    users: int

    def measure(self) -> Result:
        started = time.process_time()
        self.work()
        return Result(float(self.users), (time.process_time() - started) * MILLION / self.users)


def values_for(task: str) -> list[int]:
    """The values of a peer's users."""
    return [7919 * user % DOMAIN for user in range(USERS[task])]


def load_dpfed() -> dict[str, Task]:
    import numpy as np

    from dpfed.ldp import KaryResponse, LocalHashing, OptimizedUnary

    values = np.random.default_rng(1).integers(0, DOMAIN, MILLION)
    kinds = {"k-ary response": KaryResponse, "unary encoding": OptimizedUnary, "local hashing": LocalHashing}
    oracles = {name: kind(EPSILON, DOMAIN) for name, kind in kinds.items()}
    tasks = {
        f"{name}, clients": Scaled(lambda oracle=oracle: oracle.randomize(values), MILLION)
        for name, oracle in oracles.items()
    }
    hashing = oracles["local hashing"]
    reports = hashing.randomize(values)
    return tasks | {"local hashing, server": Scaled(lambda: hashing.estimate(reports), MILLION)}


def load_pure_ldp() -> dict[str, Task]:
    from pure_ldp.frequency_oracles.direct_encoding import DEClient
    from pure_ldp.frequency_oracles.local_hashing import LHClient, LHServer
    from pure_ldp.frequency_oracles.unary_encoding import UEClient

    same = {"index_mapper": lambda value: value}
    clients = {
        "k-ary response, clients": DEClient(EPSILON, DOMAIN, **same),
        "unary encoding, clients": UEClient(EPSILON, DOMAIN, use_oue=True, **same),
        "local hashing, clients": LHClient(EPSILON, DOMAIN, use_olh=True, **same),
    }
    tasks = {task: each_user(task, client.privatise) for task, client in clients.items()}
    server = LHServer(EPSILON, DOMAIN, use_olh=True, **same)
    reports = [clients["local hashing, clients"].privatise(value) for value in values_for("local hashing, server")]
    return tasks | {"local hashing, server": Scaled(lambda: [server.aggregate(each) for each in reports], len(reports))}


def load_multi_freq() -> dict[str, Task]:
    from multi_freq_ldpy.pure_frequency_oracles.GRR import GRR_Client
    from multi_freq_ldpy.pure_frequency_oracles.LH import LH_Aggregator_MI, LH_Client
    from multi_freq_ldpy.pure_frequency_oracles.UE import UE_Client

    clients = {
        "k-ary response, clients": GRR_Client,
        "unary encoding, clients": UE_Client,
        "local hashing, clients": LH_Client,
    }
    for client in clients.values():  # what is compiled at the first call is not counted
        client(1, DOMAIN, EPSILON)
    tasks = {
        task: each_user(task, lambda value, client=client: client(value, DOMAIN, EPSILON))
        for task, client in clients.items()
    }
    reports = [LH_Client(value, DOMAIN, EPSILON) for value in values_for("local hashing, server")]
    return tasks | {"local hashing, server": Scaled(lambda: LH_Aggregator_MI(reports, DOMAIN, EPSILON), len(reports))}


def each_user(task: str, client: Callable[[int], object]) -> Scaled:
    """A peer's client for one user after the other."""
    values = values_for(task)
    return Scaled(lambda: [client(value) for value in values], len(values))


PEERS = (
    Contestant("pure-ldp", load_pure_ldp, venv="pure_ldp"),
    Contestant("multi-freq-ldpy", load_multi_freq, venv="multi_freq_ldpy"),
)
CONTESTANTS = (Contestant(OURS, load_dpfed), *PEERS)


def rows(quick: bool = False) -> list[Row]:
    """Every task against each peer."""
    found = bench.measure(Path(__file__), CONTESTANTS, GOALS, quick=quick, repeats=7)
    return [row_of(found, task, peer.name) for task in GOALS for peer in PEERS]


def row_of(found: dict[tuple[str, str], Result], task: str, peer: str) -> Row:
    """One comparison: seconds for a million users, the peer's from as many as it did."""
    name = f"{task}: seconds for 10⁶ users, {peer} (rate of {USERS[task]:,})"
    return bench.faster(name, found.get((OURS, task)), found.get((peer, task)), GOALS[task])


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))

"""Who noises the counts of a plan's measurement, with which noise, and which accounts pay.

In `sample` and `hybrid` every client noises its own counts, of which a record or person adds at most 1, and its account
pays. In `user` and `hybrid` every client's counts (in `hybrid` the noised ones) are scaled to a weight of 1, the server
noises their sum, and the study's account pays: un-sampled, since all take part. In `local` every client scales and
noises its own. All of it is composed with training on the same accounts: a unit is trained on or held out, but neither
the account nor anybody else knows which, and where counts are public one replaced may be both.

>>> from dpfed.plan.plan import LocalPlan, Plan
>>> ward = LocalPlan(size=100, batch_size=10, steps=5, clip_norm=1.0, noise_multiplier=2.0)
>>> measurement = Measurement(("accuracy",), epsilon=0.5, rounds=(2,), classes=2)
>>> plan = Plan("study", rounds=2, local={"ward": ward}, measurement=measurement)
>>> find_client_noise(plan), find_server_noise(plan)
(NoisyCounts(scale=2.0, grid=1), None)
>>> list_client_charges(plan)
{DiscreteLaplace(scale=2.0): 1}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.guarantee import PERSON
from dpfed.mechanisms.counts import Counts, NoisyCounts, add_persons, add_records, scale_to_one
from dpfed.plan.measure import Measurement
from dpfed.plan.population import Population
from dpfed.plan.ranges import list_range_charges

if TYPE_CHECKING:
    from dpfed.plan.plan import Plan


def require_measurable(plan: Plan) -> None:
    """Refuse a measurement that the plan's style, rounds or clients do not allow."""
    measurement: Any = plan.measurement
    if measurement is None:
        return
    if not isinstance(measurement, Measurement):
        raise InvalidArgument("measurement", f"measurement must be a Measurement or None, got {measurement!r:.60}")
    if not plan.units:
        message = f"style {plan.style!r} protects nobody, so figures need no noise"
        raise InvalidArgument("measurement", f"{message}: leave metrics out; `dpfed evaluate` has exact ones")
    if isinstance(plan.local, Population):
        message = "clients of a population are made when they are drawn, and a measurement asks all of them"
        raise InvalidArgument("measurement", f"{message}: leave it out, or give local as a dict of clients")
    if measurement.rounds[-1] > plan.rounds:
        message = f"rounds to measure after must be at most {plan.rounds}, got {measurement.rounds[-1]}"
        raise InvalidArgument("rounds", f"{message}: name rounds of the plan")


def require_counting(plan: Plan, clients: Mapping[str, Any]) -> None:
    """Refuse clients that cannot say how a model does on what they hold out, where the plan measures that."""
    lacking = [name for name, client in clients.items() if not hasattr(client, "find_cells")]
    if plan.measurement is not None and lacking:
        message = f"{lacking[0]} has no find_cells, by which the plan's measurement counts what it holds out"
        raise InvalidArgument("clients", f"{message}: give it one, or leave the measurement out of the plan")


def count_releases(plan: Plan) -> int:
    """Return how often a measurement may be charged: at each of its rounds, and once more for each spare round."""
    return 0 if plan.measurement is None else len(plan.measurement.rounds) + plan.spare_rounds


def find_client_noise(plan: Plan) -> NoisyCounts | None:
    """Return the noise that each client adds to its own counts; None where it adds none.

    Privacy: for a record or person in the worst `max_sites_per_person` sites together, or for a client in style
    `local`, all releases cost at most ``measurement.epsilon``.
    """
    measurement = plan.measurement
    if measurement is None or not plan.charges_clients:
        return None
    times = count_releases(plan)
    if plan.noises_updates:
        return NoisyCounts.from_epsilon(
            measurement.epsilon, measurement.grid, adjacency=plan.client_adjacency, releases=times
        )
    return NoisyCounts.from_epsilon(
        measurement.epsilon,
        find_local_grid(plan),
        adjacency=plan.record_adjacency,
        releases=times * plan.max_sites_per_person,
    )


def find_server_noise(plan: Plan) -> NoisyCounts | None:
    """Return the noise that the server adds to the sum of all clients' counts; None where it adds none.

    Privacy: for one client, all releases cost at most ``measurement.epsilon``.
    """
    measurement = plan.measurement
    if measurement is None or not plan.server_noises:
        return None
    return NoisyCounts.from_epsilon(
        measurement.epsilon, measurement.grid, adjacency=plan.client_adjacency, releases=count_releases(plan)
    )


def find_local_grid(plan: Plan) -> int:
    """Return the steps of the weight 1 of a record, which is in one cell, or of a person, whose rows share it."""
    return plan.measurement.grid if plan.measurement is not None and plan.local_unit == PERSON else 1


def count_client(plan: Plan, cells: Any, rows: Any) -> Counts:
    """Return a client's counts from the cells of its rows, and how many `rows` each person has; None for records."""
    size = plan.measurement.size if plan.measurement is not None else 0
    if rows is None and plan.local_unit == PERSON:
        message = "the plan is for one person, and it is not said whose rows were counted"
        raise InvalidArgument("rows", f"{message}: give how many rows each person has")
    if rows is None:
        return find_local_grid(plan) * add_records(cells, size)
    return add_persons(cells, rows, size, find_local_grid(plan))


def release_client(plan: Plan, counts: Any, source: Any) -> Counts:
    """Return what leaves a client: its counts with its own noise, in style `local` scaled before; without in `user`.

    Counts that are no whole numbers of the right number are taken for zeros, which are noised as any others.

    Privacy: the event of `find_client_noise`, which must be charged before. Without noise of its own it must go nowhere
    but to a server that scales it and adds noise.
    """
    noise, known = find_client_noise(plan), _read_counts(plan, counts)
    if plan.noises_updates and plan.measurement is not None:
        known = scale_to_one(known, find_local_grid(plan), plan.measurement.grid)
    return known if noise is None else noise.release(known, source)


def release_server(plan: Plan, counts: Any, source: Any) -> Counts:
    """Return the sum of all clients' counts, each scaled to a weight of 1, with the server's noise.

    Privacy: the event of `find_server_noise`, which must be charged before. A client more or less moves the sum by at
    most the grid's steps of 1 in L1, whatever it sends.
    """
    noise, measurement = find_server_noise(plan), plan.measurement
    if noise is None or measurement is None:
        raise InvalidArgument("style", f"style {plan.style!r} adds no noise at the server: sum what clients released")
    scaled = [scale_to_one(_read_counts(plan, each), find_local_grid(plan), measurement.grid) for each in counts]
    return noise.release(np.sum([np.zeros(measurement.size, dtype=np.int64), *scaled], axis=0), source)


def list_client_charges(plan: Plan) -> dict[ev.Event, int]:
    """Return what the measurement takes from each client's account at most."""
    noise = find_client_noise(plan)
    return {} if noise is None else {noise.event: count_releases(plan)}


def list_server_charges(plan: Plan) -> dict[ev.Event, int]:
    """Return what the measurement takes from the study's account at most."""
    noise = find_server_noise(plan)
    return {} if noise is None else {noise.event: count_releases(plan)}


def find_beside(plan: Plan, unit: str) -> ev.Event | None:
    """Return the event of all releases beside training, figures and ranges, for one unit in one site; None without."""
    is_client = unit == "client" and not plan.noises_updates
    charges = list_server_charges(plan) if is_client else {**list_client_charges(plan), **list_range_charges(plan)}
    if len(charges) > 1:
        return ev.Composed(tuple(ev.Repeated(event, times) for event, times in charges.items()))
    return next((ev.Repeated(event, times) for event, times in charges.items()), None)


def find_sum_noise(plan: Plan, clients: Collection[str]) -> tuple[int, float]:
    """Return the steps of the weight 1 in the sum over these clients, and the variance of one number's noise in it.

    In `hybrid` a client's own noise is made smaller as its counts are scaled: by as many records as it has held out, of
    which only what it declares is public.
    """
    own, server = find_client_noise(plan), find_server_noise(plan)
    if server is None and own is not None:
        return own.grid, own.variance * len(clients)
    if server is None or plan.measurement is None:
        raise InvalidArgument("measurement", "the plan has no measurement: give Plan(measurement=...)")
    rate = plan.measurement.fraction / (1 - plan.measurement.fraction)
    sizes = [max(plan.local[name].size * rate, 1.0) for name in clients]
    return server.grid, server.variance + sum((0.0 if own is None else own.variance) / size**2 for size in sizes)


def _read_counts(plan: Plan, counts: Any) -> Counts:
    """Return counts as whole numbers; zeros for anything else."""
    size = plan.measurement.size if plan.measurement is not None else 0
    found = np.asarray(counts)
    if found.shape != (size,) or found.dtype.kind not in "iuf":
        return np.zeros(size, dtype=np.int64)
    is_whole = np.isfinite(found) & (np.abs(found) < 2.0**52)
    if not is_whole.all() or not np.array_equal(found, np.rint(found)):
        return np.zeros(size, dtype=np.int64)
    return found.astype(np.int64)

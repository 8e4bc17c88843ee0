"""The plan that a configuration describes: no torch, and of the data nothing but the names and the public sizes.

>>> from dpfed.config.run import RunConfig
>>> from dpfed.federated.data import prepare
>>> config = RunConfig.parse('''
... name: wards
... data: {source: "sklearn:digits", partition: {kind: iid, clients: 10}, sizes: 140}
... model: {kind: logistic}
... rounds: 5
... local: {steps: 10, batch_size: 14, learning_rate: 0.5}
... privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
... ''')
>>> plan = make_plan(config, prepare(config.data))
>>> len(plan.local), plan.guarantee
(10, Guarantee(epsilon=4.0, delta=1e-05, unit='record', adjacency='add_remove'))
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpfed.config.privacy import Adaptive, ClientPrivacy, GeometricSchedule
from dpfed.config.run import RunConfig
from dpfed.config.training import OwnAlgorithmBlock
from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms import registry
from dpfed.federated.algorithms.protocol import ModelChange
from dpfed.federated.data import DataFacts, FederatedData
from dpfed.guarantee import LOCAL, Guarantee
from dpfed.plan import cohort
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.algorithm import Algorithm, server_rate
from dpfed.plan.client import ClientPlan
from dpfed.plan.local import LocalPlan
from dpfed.plan.measure import Measurement
from dpfed.plan.plan import Mean, Plan
from dpfed.plan.ranges import Ranges, require_enough
from dpfed.plan.schedule import make_geometric
from dpfed.plan.tree import RoundTree, TreeNoise


def make_plan(config: RunConfig, data: FederatedData | DataFacts) -> Plan:
    """Return the plan with the least noise that keeps the promises; where noise is given, with the promise it keeps."""
    facts = data if isinstance(data, DataFacts) else data.facts
    _require_few_sites(config, facts)
    plan = Plan(
        config.name,
        config.rounds,
        {name: _make_local(config, size) for name, size in facts.sizes.items()},
        style=config.privacy.style,
        cohort=cohort.from_plain(config.cohort.model_dump()),
        client=_make_client(config.privacy.client),
        weighting=config.weighting,
        algorithm=_make_algorithm(config),
        max_participations=config.max_participations,
        spare_rounds=config.spare_rounds,
        max_sites_per_person=config.max_sites_per_person,
        minimum_cohort=config.minimum_cohort,
        client_timeout=config.client_timeout,
        max_update_norm=config.max_update_norm,
        dealing=facts.dealing,
        noise_schedule=_make_schedule(config),
        aggregation=Mean() if config.aggregation is None else config.aggregation.make_rule(config.privacy.style),
        quarantine=None if config.quarantine is None else config.quarantine.make(),
        measurement=_make_measurement(config, facts),
        ranges=_make_ranges(config),
    )
    _require_fitting_algorithm(plan, config)
    require_enough(plan, config.data.test_fraction)
    record = config.privacy.local
    noise = "own" if record is None else record.noise
    if config.guarantees:
        plan = plan.calibrated(*config.guarantees, noise=noise)
    if config.round_guarantees:
        plan = plan.calibrated_per_round(*config.round_guarantees, noise=noise)
    return _add_kept_guarantees(plan, config)


def read_declared(config: RunConfig) -> DataFacts:
    """Return what a plan and a model need to know of the data, from the file alone: nothing is read, no code is run."""
    data = config.data
    sizes = data.declared_sizes
    if sizes is None or data.clients is None:
        message = "only the records know the clients or their sizes: declare data.sizes for each client by name"
        raise InvalidArgument("no_code", f"{message}, or leave --no-code out")
    by_name = sizes if isinstance(sizes, dict) else dict.fromkeys(data.clients, sizes)
    sizes = {name: by_name[name] for name in data.clients}
    return DataFacts(sizes, data.shape, tuple(data.classes), dealing=data.dealing)


def _make_ranges(config: RunConfig) -> Ranges | None:
    block, record = config.bounds, config.privacy.local
    if block is None or record is None:
        return None
    return Ranges(block.release, block.find_edges(), block.epsilon, record.delta)


def _make_measurement(config: RunConfig, facts: DataFacts) -> Measurement | None:
    block = config.metrics
    if block is None:
        return None
    classes = len(facts.classes or config.data.classes) or config.model.options.get("classes", 0)
    if not isinstance(classes, int) or classes < 2:
        message = "metrics.release counts records by class, and no classes are declared"
        raise InvalidArgument("metrics", f"{message}: declare data.classes, or leave metrics out")
    rounds = block.find_rounds(config.rounds)
    made = Measurement(block.release, block.epsilon, rounds, classes, config.data.test_fraction)
    return made if config.stop is None else replace(made, stop=config.stop.metric, patience=config.stop.patience)


def _add_kept_guarantees(plan: Plan, config: RunConfig) -> Plan:
    """Return the plan with the guarantee that a given, uncalibrated noise provides at the δ asked for."""
    record, client, unit = config.privacy.local, config.privacy.client, config.local_unit
    if record is not None and plan.guarantee is None:
        epsilon = plan.record_epsilon(record.delta)
        kept = Guarantee(epsilon, record.delta, unit, config.adjacency(unit))
        plan = replace(plan, guarantee=kept)
    if client is not None and plan.client_guarantee is None:
        epsilon = plan.client_epsilon(client.delta)
        kept = Guarantee(epsilon, client.delta, "client", config.adjacency("client"))
        plan = replace(plan, client_guarantee=kept)
    return plan


def _require_fitting_algorithm(plan: Plan, config: RunConfig) -> None:
    """Refuse what one of our own algorithms is not for; one of somebody's own is code, and is asked when it runs."""
    if isinstance(config.algorithm, OwnAlgorithmBlock):
        return
    algorithm, local = registry.of_plan(plan), config.local
    is_plain = (local.optimizer, local.momentum, local.weight_decay, local.schedule.kind) == ("sgd", 0, 0, "constant")
    if algorithm.needs_plain_sgd and not is_plain:
        raise registry.optimizer_refusal(config.algorithm.kind)


def describe_algorithm(plan: Plan) -> str:
    """Return what one of our own algorithms makes of the plan, in a sentence; no code of somebody's own is run."""
    made = registry.of_plan(plan) if plan.algorithm.name in registry.KINDS else None
    return made.describe() if isinstance(made, ModelChange) else ""


def _require_few_sites(config: RunConfig, facts: DataFacts) -> None:
    is_promised = config.privacy.person is not None or config.privacy.style == LOCAL
    if facts.sites_per_person > config.max_sites_per_person and is_promised:
        message = f"a person has rows at more sites than max_sites_per_person ({config.max_sites_per_person})"
        raise InvalidArgument("max_sites_per_person", f"{message}: raise it, or give different persons different names")


def _make_local(config: RunConfig, size: int) -> LocalPlan:
    local = config.local
    # Only style none has no declared sizes to check the batch against, and promises nothing.
    batch_size = min(local.batch_size, size) if config.privacy.style == "none" else local.batch_size
    return LocalPlan(
        size=size,
        batch_size=batch_size,
        steps=local.steps or 0,
        epochs=local.epochs,
        learning_rate=local.learning_rate,
        unit=config.local_unit,
        **_local_privacy(config),
    )


def _local_privacy(config: RunConfig) -> dict[str, Any]:
    block = config.privacy.local
    if block is None:
        return {}
    same = block.model_dump(include={"clip_norm", "noise_multiplier", "delta", "norm", "layers"})
    tree = None if block.tree is None else TreeNoise(**block.tree.model_dump())
    adjacency = config.adjacency(config.local_unit)
    return {**same, "adaptive": _make_adaptive(block.adaptive), "tree": tree, "adjacency": adjacency}


def _make_client(block: ClientPrivacy | None) -> ClientPlan | None:
    if block is None:
        return None
    tree = None if block.tree is None else RoundTree(**block.tree.model_dump())
    adaptive = _make_adaptive(block.adaptive)
    same = block.model_dump(include={"clip_norm", "noise_multiplier", "norm"})
    users = None if block.shuffle is None else block.shuffle.users
    return ClientPlan(**same, adaptive=adaptive, tree=tree, shuffle_users=users)


def _make_schedule(config: RunConfig) -> tuple[float, ...] | None:
    given = config.privacy.noise_schedule
    return make_geometric(given.first, given.last, config.rounds) if isinstance(given, GeometricSchedule) else given


def _make_adaptive(block: Adaptive | None) -> AdaptiveClip | None:
    return None if block is None else AdaptiveClip(**block.model_dump())


def _make_algorithm(config: RunConfig) -> Algorithm:
    block = config.algorithm
    if not isinstance(block, OwnAlgorithmBlock):
        return Algorithm(block.kind, block.model_dump(exclude={"kind"}))
    return Algorithm(block.kind, {**block.options, **server_rate(block.server_learning_rate)})

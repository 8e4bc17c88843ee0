"""A model for one site alone: the released model, of which some layers are trained on that site's own records.

>>> from dpfed.config.run import RunConfig
>>> from dpfed.federated.launch import prepare
>>> prepared = prepare(RunConfig.parse('''
... name: flowers
... data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: quantity, sizes: [80, 40]}}
... model: {kind: logistic}
... rounds: 2
... local: {steps: 5, batch_size: 20, learning_rate: 0.5}
... privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
... '''))
>>> personalise_site(prepared, prepared.weights, "1", steps=10).layers
('linear',)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfed.errors import InvalidArgument
from dpfed.federated.state.layout import Vector
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import SystemSource

if TYPE_CHECKING:
    from dpfed.federated.launch import Launch


@dataclass(frozen=True, eq=False)
class PersonalModel:
    """Weights that are for their site alone, and which layers were trained there."""

    weights: Vector
    layers: tuple[str, ...]


def personalise_site(
    launch: Launch,
    weights: Vector,
    site: str,
    layers: tuple[str, ...] | None = None,
    steps: int = 100,
    learning_rate: float | None = None,
) -> PersonalModel:
    """Return the weights with these layers, or the last one, trained further on the records of that site.

    Privacy: nothing is charged and nothing is noised. The result is made of the site's records, and must not leave it.
    """
    clients = {client.name: client for client in launch.clients}
    if site not in clients:
        raise InvalidArgument("site", f"the run has no site {site!r}: choose among {', '.join(sorted(clients))}")
    part = launch.plan.local[site]
    rate = part.learning_rate if learning_rate is None else learning_rate
    local = LocalPlan(size=part.size, batch_size=part.batch_size, steps=steps, learning_rate=rate, unit=part.unit)
    chosen = layers or (launch.model.layout.names[-1].rpartition(".")[0] or launch.model.layout.names[-1],)
    return PersonalModel(clients[site].personalise(local, weights, chosen, SystemSource()), chosen)

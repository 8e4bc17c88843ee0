"""What dpfed claims of its own algorithms: the release of a client without noise, and how far one unit moves it.

The release runs the algorithm's own `objective` and `leaves` and the product's own clipping, on a made-up loss that is
hard on purpose: a record (a, b) has the gradient a·w + b, so that a negative a gives a loss that is not convex. The
checks of `dpfed.mechanisms.claims` then look for records that break the formula of `dpfed.mechanisms.sensitivity`.

>>> from dpfed.mechanisms.claims import check_sensitivity
>>> claim = build("fedavg", steps=3)
>>> claim.sensitivity, check_sensitivity(claim, trials=50).is_refuted
(Sensitivity(2.25, norm='l1', adjacency='replace_one'), False)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.arrays import Floats
from dpfed.checks import REPLACE_ONE
from dpfed.clipping import clip_gradients, clip_per_example, sum_examples
from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.admm import Admm
from dpfed.federated.algorithms.constants import with_constants
from dpfed.federated.algorithms.exact_admm import ExactAdmm
from dpfed.federated.algorithms.fedavg import FedAvg
from dpfed.federated.algorithms.feddyn import FedDyn
from dpfed.federated.algorithms.fedprox import FedProx
from dpfed.federated.algorithms.iadmm import Iadmm
from dpfed.federated.algorithms.iceadmm import Iceadmm
from dpfed.federated.algorithms.iiadmm import Iiadmm
from dpfed.federated.algorithms.protocol import FederatedAlgorithm, State
from dpfed.federated.algorithms.scaffold import Scaffold
from dpfed.federated.messages import Task
from dpfed.guarantee import CLIENT, RECORD
from dpfed.mechanisms import sensitivity as formulas
from dpfed.mechanisms.claims import Box, Neighbours, SensitivityClaim
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.references import explain_failure, is_reference, resolve
from dpfed.training.objective import LocalObjective

DIMENSION = 2
ROWS = 2  # of a person or a client
NONE = "none"


@dataclass(frozen=True)
class LocalSteps:
    """Full-batch steps of a client: the sum of its clipped gradients over the public constant `records`.

    With clipping="batch" the whole gradient of a step is clipped, and divided by nothing; with "none" nothing is.
    """

    clip_norm: float = 1.0
    learning_rate: float = 0.5
    records: int = 4
    steps: int = 1
    norm: str = "l1"
    clipping: str = "example"

    def run(self, objective: LocalObjective, records: Floats) -> Floats:
        """Return the change of the weights from the objective's start."""
        weights, shift = np.array(objective.start, dtype=float), 0.0 if objective.shift is None else objective.shift
        for _ in range(self.steps):
            added = objective.pull * (weights - objective.anchor) + shift
            weights = weights - self.learning_rate * (self._gradient(records, weights) + added)
        return np.asarray(weights - objective.start)

    def _gradient(self, records: Floats, weights: Floats) -> Floats:
        each = records[:, :1] * weights + records[:, 1:]
        if not len(each):
            return np.zeros(DIMENSION)
        if self.clipping == "batch":
            return np.asarray(clip_gradients(each.sum(axis=0), self.clip_norm, self.norm))
        if self.clipping == NONE:
            return np.asarray(each.sum(axis=0) / self.records)
        return sum_examples(clip_per_example(each, self.clip_norm, self.norm), self.clip_norm) / self.records

    @property
    def slope(self) -> float:
        """The steepest a: the first step of one record then decides the sign of every later gradient."""
        return 20 * self.records / self.learning_rate

    @property
    def offset(self) -> float:
        """The largest b: some clip norms, so that gradients are clipped."""
        return 5 * self.clip_norm

    @property
    def box(self) -> Box:
        """The records of the made-up loss."""
        high = np.array([self.slope, *[self.offset] * DIMENSION])
        return Box((1 + DIMENSION,), low=-high, high=high)

    def sizes(self, adjacency: str) -> tuple[int, ...]:
        """Return data sets of the public size and smaller; under add/remove the smaller neighbour may be empty."""
        least = 1 if adjacency == REPLACE_ONE else 0
        return tuple(sorted({least, max(1, self.records // 2), self.records}))

    def witness(self, adjacency: str, pull: float) -> tuple[Floats, Floats]:
        """Return a data set and a newcomer that attain the bound, from weights and public values of zero.

        In the first step the two records pull in opposite directions. From then on all gradients have the sign that
        drives the two models further apart: that of −w, or of w where ημ > 1 and steps change sides.
        """
        turn = self.slope if self.learning_rate * pull > 1 else -self.slope
        rest = np.zeros((self.records - (adjacency == REPLACE_ONE), 1 + DIMENSION))
        rest[:, 0] = turn if self.steps > 1 else 0.0
        far = np.array([turn, self.offset, *[0.0] * (DIMENSION - 1)])
        if adjacency == REPLACE_ONE:
            return np.vstack([far, rest]), far * [1, *[-1] * DIMENSION]
        if self.clipping == "batch":  # the newcomer turns the sum around
            rest[0] = far * [1, *[-0.4] * DIMENSION]
        return rest, far


def claim_steps(algorithm: FederatedAlgorithm, sensitivity: Sensitivity, local: LocalSteps) -> SensitivityClaim:
    """Return the claim that one record moves what leaves a client of the algorithm by at most that much, before noise.

    All that the algorithm sends and keeps counts as public: it must be made of released values. An algorithm of your
    own is claimed in the same way.
    """
    sent = algorithm.task(algorithm.start(np.zeros(DIMENSION)))
    kept = algorithm.keeps(np.zeros(DIMENSION), Task(1, sent), {})
    pull = algorithm.objective(Task(1, sent), {}).pull

    def release(records: Floats, public: Floats) -> Floats:
        task = Task(1, dict(zip(sent, public, strict=False)))
        state: State = dict(zip(kept, public[len(sent) :], strict=True))
        change = local.run(algorithm.objective(task, state), records)
        return algorithm.leaves(change, task, state)

    return _claim(release, sensitivity, local, len(sent) + len(kept), pull)


def _claim(
    release: Callable[[Floats, Floats], Floats], sensitivity: Sensitivity, local: LocalSteps, vectors: int, pull: float
) -> SensitivityClaim:
    public = Box((vectors, DIMENSION), low=-2.0, high=2.0)
    adjacency = sensitivity.adjacency
    pair = Neighbours(*local.witness(adjacency, pull), 0, np.zeros(public.shape))
    return SensitivityClaim(release, sensitivity, local.box, public, local.sizes(adjacency), witness=pair)


def fedavg(adjacency: str = REPLACE_ONE, **settings: Any) -> SensitivityClaim:
    """Claim the bound of FedAvg's local steps; settings are those of `LocalSteps`."""
    return fedprox(0.0, adjacency, **settings)


def fedprox(proximal: float = 0.5, adjacency: str = REPLACE_ONE, **settings: Any) -> SensitivityClaim:
    """Claim the bound of FedProx's local steps; without a pull it is FedAvg."""
    local = LocalSteps(**settings)
    bound = formulas.fedavg_step(
        local.clip_norm,
        local.learning_rate,
        local.records,
        local.steps,
        pull=proximal,
        adjacency=adjacency,
        norm=local.norm,
        clipping=local.clipping,
    )
    return claim_steps(FedProx(proximal) if proximal else FedAvg(), bound, local)


def scaffold(adjacency: str = REPLACE_ONE, **settings: Any) -> SensitivityClaim:
    """Claim the bound of SCAFFOLD's local steps, with control variates that are public."""
    local = LocalSteps(**settings)
    numbers = (local.clip_norm, local.learning_rate, local.records)
    bound = formulas.scaffold_step(*numbers, local.steps, adjacency=adjacency, norm=local.norm)
    return claim_steps(Scaffold(), bound, local)


def feddyn(alpha: float = 0.5, adjacency: str = REPLACE_ONE, **settings: Any) -> SensitivityClaim:
    """Claim the bound of FedDyn's local steps, with a gradient of earlier rounds that is public."""
    local = LocalSteps(**settings)
    numbers = (local.clip_norm, local.learning_rate, local.records)
    bound = formulas.feddyn_step(*numbers, alpha, local.steps, adjacency=adjacency, norm=local.norm)
    return claim_steps(FedDyn(alpha), bound, local)


def admm(
    kind: type[Admm],
    clip_norm: float = 1.0,
    penalty: float = 2.0,
    total_records: int = 4,
    proximity: float = 1.0,
    adjacency: str = REPLACE_ONE,
    norm: str = "l1",
    next_penalty: float | None = None,
) -> SensitivityClaim:
    """Claim the bound of the primal of an inexact ADMM, with w, λ and z_prev public.

    The step is one of length 1/(ρ + ζ) from z_prev, with a pull of ρ towards w and a shift of −λ. With a next penalty
    ρ′ the dual after the step leaves in the same vector, z − λ′/ρ′.
    """
    numbers = (clip_norm, penalty, total_records, proximity)
    bound = formulas.iadmm_step(*numbers, adjacency=adjacency, norm=norm, next_penalty=next_penalty)
    combines, after = next_penalty is not None, penalty if next_penalty is None else next_penalty
    algorithm = with_constants(kind(rho=penalty), rhos=(penalty, after), combines=combines)
    return claim_steps(algorithm, bound, LocalSteps(clip_norm, 1 / (penalty + proximity), total_records, norm=norm))


def update(
    clip_norm: float = 1.0, unit: str = RECORD, adjacency: str = REPLACE_ONE, norm: str = "l1", steps: int = 2
) -> SensitivityClaim:
    """Claim the bound of a client's whole update, clipped after steps that clip nothing; of their sum for a client."""
    bound = formulas.clipped_update(clip_norm, unit=unit, adjacency=adjacency, norm=norm)
    local = LocalSteps(clip_norm, records=1, steps=steps, clipping=NONE)

    def send(records: Floats) -> Floats:
        change = local.run(LocalObjective(np.zeros(DIMENSION)), records.reshape(-1, 1 + DIMENSION))
        return np.asarray(clip_gradients(FedAvg().leaves(change, Task(1, {}), {}), clip_norm, norm))

    def release(records: Floats, _public: Floats) -> Floats:
        return sum((send(client) for client in records), np.zeros(DIMENSION)) if unit == CLIENT else send(records)

    return _claim_units(release, bound, local, unit)


def _claim_units(
    release: Callable[[Floats, Floats], Floats], sensitivity: Sensitivity, local: LocalSteps, unit: str
) -> SensitivityClaim:
    """Return the claim for units of one row or several; the witness turns an update of one sign into the other."""
    shape = (1 + DIMENSION,) if unit == RECORD else (ROWS, 1 + DIMENSION)
    box = Box(shape, local.box.low, local.box.high)
    far = np.zeros(shape)
    far[..., 1] = local.offset
    pair = Neighbours(-far[None] if sensitivity.adjacency == REPLACE_ONE else -0.4 * far[None], far)
    sizes = (1, 2, 3) if sensitivity.adjacency == REPLACE_ONE else (0, 1, 2, 3)
    return SensitivityClaim(release, sensitivity, box, sizes=sizes, unit=unit, witness=pair)


CLAIMS: dict[str, Callable[..., SensitivityClaim]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "iadmm": partial(admm, Iadmm),
    "iceadmm": partial(admm, Iceadmm),
    "iiadmm": partial(admm, Iiadmm),
    "update": update,
}
LIKE = {"fedopt": "fedavg"}  # whose clients do the same: what a server makes of releases is post-processing


def build(name: str, *, directory: str | Path | None = None, **options: Any) -> SensitivityClaim:
    """Return the claim of that name, or your own by package.module:name: a claim, or a function that makes one.

    Modules of your own are looked for in `directory` first.
    """
    name = LIKE.get(name, name)
    _require_claim(name)
    made = CLAIMS[name] if name in CLAIMS else resolve(name, directory)
    if name in CLAIMS:
        _require_known(name, options)
    if callable(made):
        made = _make(name, made, options)
    elif options:
        raise InvalidArgument("options", f"{name} is a claim already and takes no options: name a function that does")
    if not isinstance(made, SensitivityClaim):
        message = f"{name} gives no SensitivityClaim, but {type(made).__name__}"
        raise InvalidArgument("name", f"{message}: see dpfed.mechanisms.claims")
    return made


def _require_claim(name: str) -> None:
    """Refuse a name that no claim has."""
    if name == ExactAdmm.kind:
        message = "admm has no sensitivity, as nothing bounds how far one record moves the exact minimum"
        raise InvalidArgument("name", f"{message} of a local problem: check iadmm, iceadmm or iiadmm")
    if name not in CLAIMS and not is_reference(name):
        names = ", ".join([*CLAIMS, *LIKE])
        raise InvalidArgument("name", f"name must be one of {names} or package.module:name, got {name!r}")


def _require_known(name: str, options: Iterable[str]) -> None:
    """Refuse options that one of our claims does not have, and list those that it has."""
    parameters = inspect.signature(CLAIMS[name]).parameters.values()
    known = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    if len(known) < len(parameters):
        known += [each.name for each in fields(LocalSteps)]
    if unknown := [option for option in options if option not in known]:
        raise InvalidArgument("options", f"{name} has no option {unknown[0]}: choose among {', '.join(known)}")


def _make(name: str, make: Callable[..., Any], options: dict[str, Any]) -> Any:
    try:
        return make(**options)
    except InvalidArgument:
        raise
    except Exception as error:
        message = f"{name} cannot be made ({explain_failure(error)})"
        raise InvalidArgument("options", f"{message}: give it the options that it needs, and no others") from error

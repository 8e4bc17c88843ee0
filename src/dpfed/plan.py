"""What a federated run will do, as frozen values: the object that is executed is the object that is charged.

A `LocalPlan` is one client's part of a round: so many steps of DP-SGD, each on its own Poisson sample. Its rate
and its denominator come from a `size` that the owner declares public and never from the data, so a record more
or less changes neither. A `Plan` is all clients and rounds together; `calibrated` finds the least noise for each
client, `charges` says what a ledger must reserve before the first round.

>>> from dpfed.guarantee import Guarantee
>>> ward = LocalPlan(size=100, batch_size=10, steps=5, learning_rate=0.5, clip_norm=1.0)
>>> plan = Plan("study", rounds=10, local={"ward": ward}).calibrated(Guarantee(epsilon=4.0, delta=1e-5))
>>> round(plan.local["ward"].noise_multiplier, 3)
1.145
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, asdict, dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed import events as ev
from dpfed.accounting.calibrate import calibrate_noise, dp_sgd_event
from dpfed.accounting.questions import epsilon as epsilon_of
from dpfed.checks import ADD_REMOVE
from dpfed.clipping import clip_per_example, sum_examples
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.mechanisms.gaussian import GaussianMechanism
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.randomness import RandomSource
from dpfed.rounding import decimal_up
from dpfed.structure import Floats

VERSION = 1
MOST_RECORDS = 1 << 20  # more are not added up exactly


class Participant(Protocol):
    """Whoever takes part: a name in the plan and the account that pays for it."""

    @property
    def name(self) -> str:
        """The name in the plan."""

    @property
    def account(self) -> str:
        """The ledger's account of this participant's data."""


@dataclass(frozen=True, kw_only=True)
class LocalPlan:
    """What one client does in one round: `steps` steps of DP-SGD on Poisson samples of its records.

    `epochs` may be given in place of steps: so many passes over the declared size, rounded up to whole steps.
    `delta` is that of the guarantee for which the noise was calibrated.

    Privacy: each step releases the sum of per-record gradients, each clipped to L2 norm `clip_norm`, plus
    Gaussian noise of noise_multiplier × clip_norm, divided by the public `batch_size`. Adding or removing one
    record moves the sum by at most clip_norm; each record is in a step's sample with probability
    `sample_rate`, independently, whatever the number of records. A round is therefore ``event`` (Abadi et al.
    2016; add/remove, unit record). The gradient of a record must depend on that record and released values only.
    """

    size: int
    batch_size: int
    clip_norm: float
    steps: int = 0
    learning_rate: float = 1.0
    noise_multiplier: float | None = None
    delta: float | None = None
    epochs: InitVar[float | None] = None

    def __post_init__(self, epochs: float | None) -> None:
        for name in ("size", "batch_size"):
            object.__setattr__(self, name, checks.count(**{name: getattr(self, name)}))
        object.__setattr__(self, "steps", _steps(self.steps, epochs, Fraction(self.size, self.batch_size)))
        for name in ("learning_rate", "clip_norm"):
            object.__setattr__(self, name, checks.positive(**{name: getattr(self, name)}))
        if self.noise_multiplier is not None:
            object.__setattr__(self, "noise_multiplier", checks.positive(noise_multiplier=self.noise_multiplier))
        if self.delta is not None:
            object.__setattr__(self, "delta", checks.positive_probability(delta=self.delta))
        if self.batch_size > self.size:
            message = f"batch_size must be at most the declared size ({self.size}), got {self.batch_size}"
            raise InvalidArgument("batch_size", message)

    @property
    def sample_rate(self) -> float:
        """batch_size/size, rounded up to the multiple of 2⁻⁵³ that a uniform draw falls below exactly so often."""
        return math.ldexp(math.ceil(Fraction(self.batch_size, self.size) * 2**53), -53)

    @property
    def sensitivity(self) -> Sensitivity:
        """How far one record more or less moves, at most, the sum that noise is added to."""
        return Sensitivity(self.clip_norm, "l2", ADD_REMOVE)

    @property
    def step_event(self) -> ev.Event:
        """What one step does to this client's records."""
        return dp_sgd_event(self.noise, self.sample_rate)

    @property
    def event(self) -> ev.Event:
        """What one round does to this client's records: the event that its account is charged for."""
        return dp_sgd_event(self.noise, self.sample_rate, self.steps)

    def epsilon(self, delta: float, rounds: int = 1) -> float:
        """The exact ε of so many rounds for one record, rounded up."""
        return epsilon_of(ev.Repeated(self.event, checks.count(rounds=rounds)), delta)

    def calibrated(self, guarantee: Guarantee, rounds: int = 1) -> LocalPlan:
        """The plan with the least noise at which so many rounds together keep the guarantee."""
        _require_record(guarantee)

        def whole_run(noise_multiplier: float) -> ev.Event:
            return ev.Repeated(replace(self, noise_multiplier=noise_multiplier).event, checks.count(rounds=rounds))

        noise_multiplier = calibrate_noise(guarantee.epsilon, guarantee.delta, whole_run)
        return replace(self, noise_multiplier=noise_multiplier, delta=guarantee.delta)

    def sample(self, records: int, source: RandomSource) -> NDArray[np.bool_]:
        """Which of the records are in this step: each with probability `sample_rate`, on its own."""
        return np.asarray(source.uniform(records) < self.sample_rate)

    def query(self, gradients: Floats) -> Floats:
        """The sum of the clipped gradients, one row per record; a row that is not finite counts as zero.

        Refusing such a row would tell that its record took part.
        """
        if not len(gradients):
            return np.zeros(gradients.shape[1:])
        finite = np.isfinite(gradients).all(axis=1, keepdims=True)
        return sum_examples(clip_per_example(np.where(finite, gradients, 0.0), self.clip_norm), self.clip_norm)

    def release(self, gradients: Floats, source: RandomSource) -> Floats:
        """The mean gradient of a step with noise; ``event`` must be charged before."""
        mechanism = GaussianMechanism.from_noise_multiplier(self.noise, self.sensitivity, source=source)
        noisy: Floats = mechanism.add_noise(self.query(gradients))
        return noisy / self.batch_size

    @property
    def noise(self) -> float:
        """The noise multiplier, once there is one."""
        if self.noise_multiplier is None:
            message = "this plan has no noise yet: give noise_multiplier, or use Plan.calibrated(guarantee)"
            raise InvalidArgument("noise_multiplier", message)
        return self.noise_multiplier


@dataclass(frozen=True)
class Plan:
    """All rounds of a run, fixed before its first release; `name` is the run's name in the ledger.

    Every client is asked in every round. Updates are averaged by declared size over *all* clients, so who
    fails or is exhausted contributes zero and the denominator stays public.
    """

    name: str
    rounds: int
    local: Mapping[str, LocalPlan]
    server_learning_rate: float = 1.0
    guarantee: Guarantee | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise InvalidArgument("name", f"name must be a text that names the run, got {self.name!r}")
        if not isinstance(self.local, Mapping) or not self.local:
            raise InvalidArgument("local", "local must map the name of each client to its LocalPlan, got none")
        for name, check in (("rounds", checks.count), ("server_learning_rate", checks.positive)):
            object.__setattr__(self, name, check(**{name: getattr(self, name)}))
        object.__setattr__(self, "local", MappingProxyType(dict(self.local)))
        if self.guarantee is not None:
            self._require_kept(self.guarantee)

    @property
    def weights(self) -> dict[str, float]:
        """Each client's share of the average: its declared size over the sum of all."""
        total = sum(local.size for local in self.local.values())
        return {name: local.size / total for name, local in self.local.items()}

    def charges(self, clients: Iterable[Participant]) -> dict[str, dict[ev.Event, int]]:
        """What the whole run takes from each account: the client's event, once per round."""
        accounts = {client.name: client.account for client in clients}
        if set(accounts) != set(self.local) or len(set(accounts.values())) != len(self.local):
            given = ", ".join(f"{name} on {account}" for name, account in sorted(accounts.items())) or "nobody"
            message = f"the plan is for {', '.join(sorted(self.local))}, each with an account of its own; got {given}"
            raise InvalidArgument("clients", message)
        return {account: {self.local[name].event: self.rounds} for name, account in accounts.items()}

    def calibrated(self, guarantee: Guarantee) -> Plan:
        """The plan with the least noise for each client at which all its rounds together keep the guarantee."""
        local = {name: part.calibrated(guarantee, self.rounds) for name, part in self.local.items()}
        return replace(self, local=local, guarantee=guarantee)

    def epsilon(self, client: str, delta: float) -> float:
        """The exact ε of all rounds for one record of that client, rounded up."""
        return self.local[client].epsilon(delta, self.rounds)

    def explain(self) -> str:
        """The plan in words (a Markdown list), every number of it public."""
        lines = [f"{self.name}: {self.rounds} rounds, all clients in each, averaged by declared size", ""]
        lines += [f"- {name}: {self._explained(name)}" for name in self.local]
        if self.guarantee:
            lines += ["", self.guarantee.sentence()]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The plan as JSON text."""
        plain: dict[str, Any] = {"version": VERSION, **vars(self)}
        plain["local"] = {name: asdict(local) for name, local in self.local.items()}
        plain["guarantee"] = asdict(self.guarantee) if self.guarantee else None
        return json.dumps(plain, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote."""
        try:
            plain: dict[str, Any] = json.loads(text)
            if plain.pop("version") != VERSION:
                raise ValueError(f"it is not of version {VERSION}")
            guarantee = plain.pop("guarantee")
            local = {name: LocalPlan(**part) for name, part in plain.pop("local").items()}
            return cls(**plain, local=local, guarantee=guarantee and Guarantee(**guarantee))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidArgument("text", f"text must be the JSON form of a plan: {error}") from None

    def _require_kept(self, guarantee: Guarantee) -> None:
        _require_record(guarantee)
        for name in self.local:
            epsilon = self.epsilon(name, guarantee.delta)
            if not epsilon <= guarantee.epsilon:
                message = f"all rounds cost {name} ε = {decimal_up(epsilon)}, more than {guarantee}: use calibrated()"
                raise InvalidArgument("guarantee", message)

    def _explained(self, name: str) -> str:
        local = self.local[name]
        step = f"{local.steps} steps a round on about {local.batch_size} of {local.size} declared records"
        noise = f"clip norm {local.clip_norm:g}"
        if local.noise_multiplier is not None:
            noise += f", noise multiplier {decimal_up(local.noise_multiplier)}"
        if self.guarantee:
            noise += f", ε ≤ {decimal_up(self.epsilon(name, self.guarantee.delta))} at δ = {self.guarantee.delta:g}"
        return f"{step}, {noise}"


def _steps(steps: int, epochs: float | None, steps_per_epoch: Fraction) -> int:
    if epochs is None:
        return checks.count(steps=steps)
    if steps:
        raise InvalidArgument(
            "epochs", f"steps and epochs are two ways to say one thing: give one, not {steps} and {epochs}"
        )
    return math.ceil(Fraction(checks.positive(epochs=epochs)) * steps_per_epoch)


def _require_record(guarantee: Guarantee) -> None:
    if (guarantee.unit, guarantee.adjacency) != ("record", ADD_REMOVE):
        message = f"clipping each record protects one record under add_remove, not what was asked: {guarantee}"
        raise InvalidArgument("guarantee", message)

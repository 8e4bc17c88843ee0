"""Differential privacy for any training loop whose gradients are arrays: clip, charge, add noise.

The noise is the exact amount that spends (ε, δ) over the planned rounds, no theorem's slack in between,
and a round is charged before its noise is drawn. What a gradient stands for is declared, because the noise
depends on it:

- a gradient without an example axis is **one client's contribution** (unit client, sensitivity C);
- ``per_example=True``: a leading axis of examples, each clipped on its own and then summed (unit record, C);
  for another ``unit`` each index of that axis must be all that one such unit contributes;
- ``unit="record"`` without it: a batch's gradient clipped as a whole, which one record can turn around (2C).

>>> import numpy as np
>>> manager = PrivacyManager(epsilon=1.0, delta=1e-5, clip_norm=1.0, num_rounds=10)
>>> manager.apply_privacy(np.array([10.0, 20.0, 30.0])).shape
(3,)
>>> round(manager.get_noise_scale(), 4), manager.get_privacy_status()["rounds_remaining"]
(11.7973, 9)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpfed import arrays, checks
from dpfed import events as ev
from dpfed.accounting.composition import advanced_composition_epsilon, basic_composition_epsilon
from dpfed.arrays import Floats
from dpfed.checks import ADD_REMOVE
from dpfed.clipping import clip_gradients, clip_per_example, sum_examples
from dpfed.errors import InvalidArgument
from dpfed.guarantee import UNITS, Account, Guarantee
from dpfed.manager.block import read_privacy_block
from dpfed.manager.budget import (
    PrivacyBudget,
    PrivacyBudgetWarning,
    PrivacyParams,
    compute_delta_from_epsilon,
    compute_epsilon_from_delta,
    estimate_noise_scale,
    status_table,
)
from dpfed.mechanisms.gaussian import GaussianMechanism
from dpfed.prepaid import require_fitting
from dpfed.randomness import RandomSource, or_system

__all__ = [
    "DPSGDTrainer",
    "PrivacyBudget",
    "PrivacyBudgetWarning",
    "PrivacyManager",
    "PrivacyParams",
    "advanced_composition_epsilon",
    "basic_composition_epsilon",
    "compute_delta_from_epsilon",
    "compute_epsilon_from_delta",
    "estimate_noise_scale",
]

# What an own clipping in single precision may be too long by; it is clipped again, so nothing rests on it.
_CLIPPING_ERROR = 1e-6


class PrivacyManager:
    """A manager that clips gradients, charges the budget and adds the noise that spends it over `num_rounds` releases.

    Privacy: each release is a Gaussian mechanism on a value whose L2 sensitivity is `sensitivity` when one
    `unit` is added or removed; all of them together are ``plan``, at the ε and δ asked for (Balle and Wang
    2018; Dong, Roth and Su 2022). No amplification by sampling is assumed. The sum over examples, or their
    mean by `expected_batch_size`, a number fixed in public before looking at data, is released; the
    realised number of examples is never used. With an `account` (of a `dpfed.Ledger`) all rounds are reserved
    there under the name `run`, and each is on disk before its noise is drawn; the same run goes on after a
    restart.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        clip_norm: float = 1.0,
        num_rounds: int = 10,
        *,
        per_example: bool = False,
        unit: str | None = None,
        expected_batch_size: int | None = None,
        source: RandomSource | None = None,
        account: Account | None = None,
        run: str | None = None,
    ) -> None:
        self._params = PrivacyParams(epsilon, delta, clip_norm)
        self._per_example = _check_flag(per_example)
        self._unit = _choose_unit(unit, self._per_example)
        self._denominator = _check_denominator(expected_batch_size, self._per_example)
        self._source = or_system(source)
        if account is not None:
            require_fitting(account, ADD_REMOVE, self._unit)
        self._budget = PrivacyBudget(self._params.epsilon, self._params.delta, num_rounds, account=account, run=run)
        self._mechanism = GaussianMechanism.from_noise_multiplier(
            self._budget.event.noise_multiplier, self.sensitivity, source=self._source
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | Path, **others: Any) -> PrivacyManager:
        """Return the manager that a `privacy` block describes: a mapping, or the path of a YAML file.

        What the block leaves open, such as num_rounds or source, may be given as an argument.
        """
        block = read_privacy_block(config)
        for name in others:
            if name in block:
                raise InvalidArgument(
                    name, f"{name} is given twice: in the privacy block and as an argument; leave one out"
                )
        return cls(**block, **others)

    @property
    def params(self) -> PrivacyParams:
        """ε, δ and the clip norm."""
        return self._params

    @property
    def privacy_budget(self) -> PrivacyBudget:
        """The budget that is charged, one round per release."""
        return self._budget

    @property
    def unit(self) -> str:
        """The unit of privacy: whom one contribution belongs to."""
        return self._unit

    @property
    def sensitivity(self) -> float:
        """The largest change, in L2 norm, of what noise is added to when one unit is added or removed."""
        is_whole_contribution = self._per_example or self._unit == "client"
        return self._params.clip_norm * (1.0 if is_whole_contribution else 2.0)

    @property
    def event(self) -> ev.Gaussian:
        """The event of one release, which the budget is charged for."""
        return self._budget.event

    @property
    def plan(self) -> ev.Repeated:
        """The event of all planned releases."""
        return self._budget.plan

    @property
    def guarantee(self) -> Guarantee:
        """The promise of the whole plan."""
        return Guarantee(self._params.epsilon, self._params.delta, self._unit, ADD_REMOVE)

    def clip_gradients(self, gradients: Any) -> Any:
        """Scale the gradients down to the clip norm where longer; each example alone if `per_example`."""
        return self._clip(gradients, self._params.clip_norm)

    def add_gaussian_noise(self, gradients: Any) -> Any:
        """Charge one round, then add noise to the clipped gradients, summed over examples if `per_example`.

        Gradients that were not clipped are refused: noise for a clip norm protects nothing larger.
        """
        if not self._fits(gradients):
            raise InvalidArgument(
                "gradients",
                f"gradients must be clipped to L2 norm {self._params.clip_norm:g} before noise is added, and "
                "these are longer: call clip_gradients first, or apply_privacy for both",
            )
        return self._release(self.clip_gradients(gradients))

    def apply_privacy(self, gradients: Any) -> Any:
        """Clip the gradients, charge one round and add noise: ready for an optimiser step."""
        return self._release(self.clip_gradients(gradients))

    def release(self) -> None:
        """Return the rounds that were never used to the account, if there is one."""
        self._budget.release()

    def get_noise_scale(self) -> float:
        """Return the standard deviation of the noise in each released number."""
        return self._mechanism.scale / self._denominator

    def get_privacy_status(self) -> dict[str, Any]:
        """Return the promise, what is spent of it and how noise is made; none of it derives from data."""
        return {
            **self._budget.get_status(),
            "clip_norm": self._params.clip_norm,
            "sensitivity": self.sensitivity,
            "noise_scale": self.get_noise_scale(),
            "unit": self._unit,
            "adjacency": ADD_REMOVE,
            "is_private": self._source.is_private,
        }

    def __repr__(self) -> str:
        used = f"{self._budget.rounds_used} of {self._budget.num_rounds} rounds used"
        stamp = "" if self._source.is_private else " [NOT PRIVATE]"
        return f"<PrivacyManager: {self.guarantee}, {used}>{stamp}"

    def _repr_html_(self) -> str:
        return self.guarantee._repr_html_() + status_table(self.get_privacy_status())

    def _clip(self, gradients: Any, clip_norm: float) -> Any:
        if not self._per_example:
            return clip_gradients(gradients, clip_norm)
        # An empty sample is as possible as any other: if it were refused, its refusal would reveal it.
        return gradients if _is_empty_sample(gradients) else clip_per_example(gradients, clip_norm)

    def _fits(self, gradients: Any) -> bool:
        if self._per_example and _is_empty_sample(gradients):
            return True
        slightly_longer = self._clip(gradients, self._params.clip_norm * (1 + _CLIPPING_ERROR))
        before, after = (arrays.leaves(tree, "gradients") for tree in (gradients, slightly_longer))
        return all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))

    def _release(self, clipped: Any) -> Any:
        values = self._query(clipped)
        self._budget.use_round()
        noisy = self._mechanism.add_noise(values)
        return arrays.rebuild(clipped, [value / self._denominator for value in noisy])

    def _query(self, clipped: Any) -> list[Floats]:
        """Return the arrays that noise is added to, in float64: the contribution, or the sum over the examples."""
        if not self._per_example:
            return arrays.leaves(clipped, "gradients")
        if _is_empty_sample(clipped):
            return [np.zeros(leaf.shape[1:]) for leaf in _leaves(clipped)]
        return [sum_examples(part, self._params.clip_norm) for part in arrays.leaves(clipped, "gradients")]


class DPSGDTrainer:
    """A manager in a training loop, with the counts that a log wants.

    The counts are of steps, which are public; how many gradients were longer than the clip norm is not
    reported, because it depends on the data and no noise covers it.
    """

    def __init__(self, privacy_manager: PrivacyManager) -> None:
        if not isinstance(privacy_manager, PrivacyManager):
            raise InvalidArgument(
                "privacy_manager", f"privacy_manager must be a PrivacyManager, got {privacy_manager!r:.80}"
            )
        self.privacy_manager = privacy_manager
        self._steps = 0

    def clip_and_noise_gradients(self, gradients: Any) -> Any:
        """Clip the gradients, charge one round and add noise."""
        released = self.privacy_manager.apply_privacy(gradients)
        self._steps += 1
        return released

    def get_stats(self) -> dict[str, Any]:
        """Return how many gradients went through, and where the budget stands."""
        return {
            "gradients_clipped": self._steps,
            "noise_added": self._steps,
            "training_steps": self._steps,
            "privacy_budget": self.privacy_manager.privacy_budget.get_status(),
        }


def _check_flag(per_example: bool) -> bool:
    if not isinstance(per_example, bool):
        raise InvalidArgument("per_example", f"per_example must be True or False, got {per_example!r}")
    return per_example


def _choose_unit(unit: str | None, per_example: bool) -> str:
    if unit is None:
        return "record" if per_example else "client"
    if unit not in UNITS:
        raise InvalidArgument("unit", f"unit must be one of {', '.join(UNITS)}, got {unit!r}")
    return unit


def _check_denominator(expected_batch_size: int | None, per_example: bool) -> int:
    if expected_batch_size is None:
        return 1
    if not per_example:
        raise InvalidArgument(
            "expected_batch_size",
            "expected_batch_size divides a sum over examples: it needs per_example=True",
        )
    return checks.count(expected_batch_size=expected_batch_size)


def _is_empty_sample(gradients: Any) -> bool:
    """Return whether every array has a leading axis of no examples, and something to sum over."""
    shapes: list[tuple[int, ...]] = [getattr(leaf, "shape", ()) for leaf in _leaves(gradients)]
    return bool(shapes) and all(shape[:1] == (0,) and math.prod(shape[1:]) > 0 for shape in shapes)


def _leaves(gradients: Any) -> Iterator[Any]:
    if isinstance(gradients, Mapping | list | tuple):
        for item in gradients.values() if isinstance(gradients, Mapping) else gradients:
            yield from _leaves(item)
    else:
        yield gradients

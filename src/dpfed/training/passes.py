"""Batches in passes over the data, for noise that asks not for sampling but for a bound on how often a record is used.

A record draws its place in a pass once and on its own, and keeps it in every pass: adding or removing one moves no
other, and two of its participations are a whole pass apart. Batches of a shuffled list would not do: where one record
is left out, all behind it move up.

>>> from dpfed.randomness import SeededSource
>>> sampler = PassSampler(size_of_data=6, pass_steps=3, steps=6, max_participations=2, source=SeededSource(3))
>>> batches = [sorted(draw.indices.tolist()) for draw in sampler]
>>> batches[:3] == batches[3:], sorted(sum(batches[:3], []))
(True, [0, 1, 2, 3, 4, 5])
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.plan import LocalPlan
from dpfed.randomness import RandomSource
from dpfed.training.sampling import PoissonSampler, Sampler


class PassSampler(Sampler):
    """`steps` batches in passes of `pass_steps`; each record is in one batch of a pass, the same in all passes.

    Privacy: a record is in at most max_participations draws, and `pass_steps` draws apart: what
    ``TreeAggregation(steps=steps, max_participations, min_separation=pass_steps)`` asks for. Its place does not depend
    on the other records, nor theirs on it. How many are in a batch varies, and is as private as the records.
    """

    def __init__(
        self,
        size_of_data: int,
        pass_steps: int,
        steps: int,
        max_participations: int = 1,
        source: RandomSource | None = None,
    ) -> None:
        super().__init__(size_of_data, steps, source)
        self.pass_steps = checks.count(pass_steps=pass_steps)
        self.max_participations = checks.count(max_participations=max_participations)
        if self.steps > self.pass_steps * self.max_participations:
            message = (
                f"{steps} steps are more than {max_participations} passes of {pass_steps}, and no more are declared"
            )
            raise InvalidArgument("steps", f"{message}: raise max_participations, which takes more noise")

    def _indices(self, number: int) -> Tensor:
        return self._batches[number % self.pass_steps]

    @cached_property
    def _batches(self) -> tuple[Tensor, ...]:
        places = torch.from_numpy(self._source.integers(self.pass_steps, self.size_of_data))
        counts = torch.bincount(places, minlength=self.pass_steps)
        return torch.split(torch.argsort(places, stable=True), counts.tolist())

    def __repr__(self) -> str:
        stamp = "" if self.is_private else " [NOT PRIVATE]"
        return f"PassSampler(pass_steps={self.pass_steps}, steps={self.steps}){stamp}"


def sampler_of(plan: LocalPlan, records: int, steps: int, source: RandomSource) -> Sampler:
    """The draws that the plan's event is about: Poisson samples, or batches in passes where its noise is a tree's."""
    if plan.tree is None:
        return PoissonSampler(records, plan.sample_rate, steps, source=source)
    return PassSampler(records, plan.pass_steps, steps, plan.tree.max_participations, source=source)

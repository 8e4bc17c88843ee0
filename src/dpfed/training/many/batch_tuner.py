"""How many models to train at once: as many as are fastest, per model, on made-up examples.

Small models spend their time on Python and dispatch, which is shared; large ones leave the caches when stacked. Where
the one ends and the other begins depends on the processor, so it is measured: once for each ensemble and kind of step.

>>> import torch
>>> from torch import nn
>>> like = torch.randn(4, 2), torch.zeros(4, dtype=torch.long)
>>> tuner = BatchTuner(Ensemble(nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), like))
>>> work = Work(steps=2, batch_size=10, is_private=True, is_shared=True)
>>> tuner.choose_count(1, work), tuner.choose_count(500, work) > 1
(1, True)
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from dpfed.training.many.ensemble import Ensemble

MOST_MODELS = 4096
MOST_BYTES = 1 << 28  # for parameters and examples of all models together
LONG = 0.02  # seconds after which a step's share of dispatch is gone: more models at once save nothing
WORSE = 1.1  # times the best so far: beyond that more models at once are not tried
GROWTH = 4
TRIALS = 4


@dataclass(frozen=True)
class Work:
    """The work of each model; `is_shared` if the first step is one pass that all models share."""

    steps: int
    batch_size: int
    is_private: bool
    is_shared: bool


class BatchTuner:
    """A tuner that measures how long a step takes, and chooses how many models to train at once."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self._seconds: dict[tuple[int, int, bool, bool], float] = {}

    def choose_count(self, models: int, work: Work) -> int:
        """Return how many of `models` to train at once: the fastest of 1, 4, 16, … that fits into memory."""
        most = min(MOST_MODELS, MOST_BYTES // self._estimate_bytes(work.batch_size))
        chosen = tried = 1
        seconds = fastest = self._estimate_step(1, work)
        while tried < min(models, most) and seconds <= LONG and seconds / tried <= WORSE * fastest:
            tried = min(GROWTH * tried, most)
            seconds = self._estimate_step(tried, work)
            if seconds / tried < fastest:
                chosen, fastest = tried, seconds / tried
        return chosen

    def _estimate_bytes(self, batch_size: int) -> int:
        # Parameters are held with gradients, what noise makes of them, and the optimizer's memory.
        return 4 * self.ensemble.bytes_per_model + batch_size * self.ensemble.bytes_per_example

    def _estimate_step(self, models: int, work: Work) -> float:
        """Return the mean seconds of a step of all models, the first step counted as it is shared or not."""
        steps, first = max(work.steps, 1), int(work.is_shared and models > 1)
        kinds = [(True, first), (False, steps - first)]
        return (
            sum(
                count * self._seconds_of((models, work.batch_size, work.is_private, is_first))
                for is_first, count in kinds
                if count
            )
            / steps
        )

    def _seconds_of(self, key: tuple[int, int, bool, bool]) -> float:
        if key not in self._seconds:
            self._seconds[key] = min(self._measure(*key) for _ in range(TRIALS))
        return self._seconds[key]

    def _measure(self, models: int, batch_size: int, is_private: bool, is_shared: bool) -> float:
        ensemble = self.ensemble
        parameters = ensemble.stacked(models)
        held = {name: value[0] for name, value in parameters.items()} if is_shared else parameters
        rows = (torch.arange(batch_size) % len(ensemble.like[0])).expand(models, -1)
        inputs, targets = (part[rows] for part in ensemble.like)
        mask, clip_norms = torch.ones(models, batch_size, dtype=torch.float64), torch.ones(models)
        start = time.process_time()
        if is_private:
            gradients = ensemble.clipped_sums(held, inputs, targets, mask, clip_norms, is_shared=is_shared)
        else:
            gradients = ensemble.mean_gradients(held, inputs, targets, mask, is_shared=is_shared)
        for name, value in parameters.items():
            value.add_(gradients[name], alpha=-0.01)
        return time.process_time() - start

"""The rounds of a run, as an iterator: progress, early stopping and evaluation are the body of your `for`.

A round: the cohort is charged and trains; each noised update is stored as it arrives; their average, by public
weights, moves the model; a checkpoint is written; the result is yielded. After a crash at any point the same
call goes on: stored updates are used again and cost nothing, anything else is charged anew, and a client whose
reserved charges are used up contributes zero.

>>> RoundResult(round=1, weights=None, contributed=("ward",), head="3:ab").facts()["contributed"]
('ward',)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.federated.update import Failure, Runner, Task
from dpfed.plan import Plan
from dpfed.runs import Checkpoint, RunDirectory, Update, sequence
from dpfed.structure import Floats


@dataclass(frozen=True)
class RoundResult:
    """What a round released, and who took part in it; `reused` are updates stored before a crash."""

    round: int
    weights: Floats
    contributed: tuple[str, ...]
    head: str
    reused: tuple[str, ...] = ()
    exhausted: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """The result without the model: what is written into rounds.jsonl."""
        return {key: value for key, value in vars(self).items() if key != "weights"}


class Federation:
    """An iterator of RoundResult over the rounds of a plan that are still to be done in that directory.

    Privacy: what leaves a client is noised by its LocalPlan and charged to its account before; the engine sees
    nothing else, so all it computes, stores and yields is covered by the clients' guarantees. Who contributed,
    was exhausted or failed is not noised. The promise is that of the whole reserved plan, also after a crash
    or an early stop.
    """

    def __init__(self, plan: Plan, weights: Floats, runner: Runner, directory: str | Path) -> None:
        self.plan = plan
        self.runner = runner
        self.run = RunDirectory(directory)
        self.run.begin(plan)
        self._checkpoint = self._enrolled(np.asarray(weights, dtype=float))

    @property
    def weights(self) -> Floats:
        """The model after the last finished round."""
        return self._checkpoint.weights

    def __iter__(self) -> Federation:
        return self

    def __next__(self) -> RoundResult:
        if self._checkpoint.round >= self.plan.rounds:
            self.finish()
            raise StopIteration
        result = self._round(self._checkpoint.round + 1)
        stamp = {} if self.runner.is_private else {"noise": "NOT PRIVATE"}
        self.run.append({**result.facts(), **stamp})
        self._checkpoint = Checkpoint(result.round, result.weights, result.head)
        self.run.write_checkpoint(self._checkpoint)
        return result

    def finish(self) -> None:
        """Returns what was never committed to the accounts; a run that is to be resumed is not finished."""
        self.runner.finish(self.plan.name)

    def _enrolled(self, weights: Floats) -> Checkpoint:
        checkpoint = self.run.checkpoint()
        done = checkpoint.round if checkpoint else 0
        heads = [update.head for update in self.run.updates(done + 1).values()]
        if checkpoint is None:
            checkpoint = Checkpoint(0, weights, self.runner.enroll(self.plan, weights, heads))
            self.run.write_checkpoint(checkpoint)
        elif done < self.plan.rounds:
            self.runner.enroll(self.plan, checkpoint.weights, [checkpoint.head, *heads])
        return checkpoint

    def _round(self, number: int) -> RoundResult:
        reused = self.run.updates(number)
        failures = self._train(number, [name for name in self.plan.local if name not in reused])
        updates = self.run.updates(number)
        for failure in failures if not updates else ():
            # Every client that was asked broke down: more likely a fault of the program than of their data.
            if failure.error is not None:
                raise failure.error
        return RoundResult(
            round=number,
            weights=self._stepped(updates),
            contributed=tuple(updates),
            head=max([self._checkpoint.head, *(update.head for update in updates.values())], key=sequence),
            reused=tuple(reused),
            exhausted=tuple(failure.client for failure in failures if failure.reason == "exhausted"),
            failed=tuple(failure.client for failure in failures if failure.reason != "exhausted"),
        )

    def _train(self, number: int, cohort: list[str]) -> list[Failure]:
        failures = []
        for outcome in self.runner.train(Task(number, self.weights), cohort):
            if isinstance(outcome, Failure):
                failures.append(outcome)
            elif outcome.value.shape != self.weights.shape or not np.isfinite(outcome.value).all():
                failures.append(Failure(outcome.client, "refused"))
            else:
                self.run.write_update(number, outcome)
        return failures

    def _stepped(self, updates: dict[str, Update]) -> Floats:
        shares = self.plan.weights
        step = sum((shares[name] * update.value for name, update in updates.items()), np.zeros_like(self.weights))
        return np.asarray(self.weights + self.plan.server_learning_rate * step)

"""Many small models on one machine: all at once against one after the other.

    python benchmarks/ensemble.py [--json] [--quick]

K models of one architecture with 20 examples each take 4 steps on batches of 10 (2 epochs), in CPU seconds on one
thread. Private ones clip every example. The peer is Opacus, its wrapper built once and its optimizer once for each
model; ours are `Ensemble.clipped_sums` and one step of `Descent` for all, in parts that `BatchTuner` chose before, the
first step in one pass where that pays, as in `train_many`. In the rows with a goal both leave the noise out, because
a number of it costs the same whoever clips; in those with noise both add it, Opacus from torch's generator, we from a
cipher. Without privacy the peer is a plain torch loop. Both take the same batches, and the mean of all models must
agree to one part in 10³.

In the rows of teachers, 250 logistic teachers of PATE with about 64 records each take 100 steps on batches of 16, or of
64, which are all their records: by `train_teachers` from arrays to parameters, with set-up, hashes and padding, and one
after the other in plain torch, in the same order. Full batches have no goal: a loop over torch pays for calls, of which
it has as many, and we for arithmetic, of which there is four times as much.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import bench
from bench import Contestant, Result, Row, Task

PLAIN, OPACUS, OURS = "plain torch", "Opacus", "dpfed"
EXAMPLES, BATCH, STEPS = 20, 10, 4
CLIP, NOISE, LEARNING_RATE = 1.0, 1.0, 0.1
KEEP_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}


@dataclass(frozen=True)
class Case:
    """A model, what it is fed, and how many models there are; goals of times Opacus and of times a plain loop."""

    title: str
    kind: str
    shape: tuple[int, ...]
    models: int
    goal: float
    plain_goal: float = 0.98
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.models}"


CASES = [
    Case("logistic 30", "logistic", (30,), 100, 90),
    Case("logistic 30", "logistic", (30,), 1000, 270),
    Case("MLP 784-256-10", "mlp", (784,), 100, 9),
    Case("CNN 28×28", "cnn", (1, 28, 28), 100, 2.4),
    # Shadow models of an attack.
    Case("MLP 30-64-2", "mlp", (30,), 64, 15, 15, (("features", 30), ("hidden", (64,)), ("classes", 2))),
]
VERBS = ("clipped", "noised", "plain")
TEACHERS = 250
TEACHING = {f"teachers/{TEACHERS}/{batch}": batch for batch in (16, 64)}


class World:
    """The data of all models, (K, 20, …), and the model they start from."""

    def __init__(self, case: Case) -> None:
        import torch
        from torch import nn

        from dpfed import models

        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn((case.models, EXAMPLES, *case.shape), generator=generator)
        self.targets = torch.randint(2, (case.models, EXAMPLES), generator=generator)
        self.model = models.build(case.kind, **dict(case.options))
        self.loss = nn.CrossEntropyLoss(reduction="none")
        self.batches = [slice(BATCH * (step % 2), BATCH * (step % 2 + 1)) for step in range(STEPS)]

    def one_by_one(self, train: Callable[[Any, Any], None]) -> float:
        """The mean of all parameters after every model was trained, the model as it was before."""
        import torch

        start = {name: value.clone() for name, value in self.model.state_dict().items()}
        total = 0.0
        for inputs, targets in zip(self.inputs, self.targets, strict=True):
            train(inputs, targets)
            with torch.no_grad():
                total += sum(float(value.abs().sum()) for value in self.model.parameters())
                self.model.load_state_dict(start)
        return total / len(self.inputs)


# --- one after the other ---


def plainly(world: World) -> float:
    import torch

    def train(inputs: Any, targets: Any) -> None:
        optimizer = torch.optim.SGD(world.model.parameters(), lr=LEARNING_RATE)
        for batch in world.batches:
            optimizer.zero_grad()
            world.loss(world.model(inputs[batch]), targets[batch]).mean().backward()
            optimizer.step()

    return world.one_by_one(train)


def by_opacus(world: World, wrapped: Any, noise: float) -> float:
    import torch
    from opacus.optimizers import DPOptimizer

    def train(inputs: Any, targets: Any) -> None:
        optimizer = DPOptimizer(
            torch.optim.SGD(world.model.parameters(), lr=LEARNING_RATE),
            noise_multiplier=noise,
            max_grad_norm=CLIP,
            expected_batch_size=BATCH,
            loss_reduction="mean",
        )
        for batch in world.batches:
            optimizer.zero_grad()
            world.loss(wrapped(inputs[batch]), targets[batch]).mean().backward()
            optimizer.step()

    return world.one_by_one(train)


# --- all at once ---


def at_once(world: World, pace: Any, *, is_private: bool, noise: Any = None) -> float:
    import torch

    from dpfed.training.many.batch_tuner import Work
    from dpfed.training.many.descent import Descent
    from dpfed.training.optimizing import OptimizerSettings

    models, is_shared = len(world.inputs), pace.ensemble.is_better_shared(is_private=is_private)
    several = pace.choose_count(models, Work(STEPS, BATCH, is_private, is_shared))
    parts, total = -(-models // several), 0.0
    for part in range(parts):
        some = slice(part, None, parts)
        inputs, targets = world.inputs[some], world.targets[some]
        parameters = pace.ensemble.stacked(len(inputs))
        descent = Descent(OptimizerSettings(), parameters, LEARNING_RATE)
        mask = torch.ones(len(inputs), BATCH, dtype=torch.float64)
        clips = torch.full((len(inputs),), CLIP, dtype=torch.float64)
        for step, batch in enumerate(world.batches):
            is_first = is_shared and several > 1 and not step
            held = {name: value[0] for name, value in parameters.items()} if is_first else parameters
            examples = (held, inputs[:, batch], targets[:, batch], mask)
            found = (
                pace.ensemble.clipped_sums(*examples, clips, is_shared=is_first)
                if is_private
                else pace.ensemble.mean_gradients(*examples, is_shared=is_first)
            )
            if noise is not None:
                found = noise.add(found, NOISE * CLIP)
            if is_private:
                found = {name: value.div_(BATCH) for name, value in found.items()}
            descent.step(found, LEARNING_RATE)
        total += sum(float(value.abs().sum()) for value in parameters.values())
    return total / models


# --- teachers of PATE ---


class Teaching:
    """The records of all teachers, and one way to train them; made before the clock runs."""

    def __init__(self, way: Callable[[Any, Any, int], float], batch: int) -> None:
        self.way, self.batch, self.world = way, batch, None

    def ready(self) -> None:
        if self.world is None:
            import torch

            features = torch.randn((64 * TEACHERS, 30), generator=torch.Generator().manual_seed(0)).numpy()
            self.world = features, (features[:, 0] > 0).astype(int)
            self.way(*self.world, self.batch)

    def __call__(self, nudge: float) -> float:
        return self.way(*self.world, self.batch)


def teacher_plan(batch: int) -> Any:
    from dpfed.pate.teachers import TeacherPlan

    return TeacherPlan(teachers=TEACHERS, steps=100, batch_size=batch, learning_rate=LEARNING_RATE)


def teach_at_once(features: Any, labels: Any, batch: int) -> float:
    from dpfed import models
    from dpfed.pate.teachers import train_teachers

    found = train_teachers(models.build("logistic"), features, labels, teacher_plan(batch))
    return sum(float(value.abs().sum()) for value in found.parameters.values()) / TEACHERS


def shuffled_batches(records: int, size: int, source: Any) -> Iterator[Any]:
    """Batches from passes over the records, every pass in the order that `train_many` takes."""
    import torch

    while records:
        yield from torch.split(torch.from_numpy(source.words(records).argsort(kind="stable")), size)


def teach_one_by_one(features: Any, labels: Any, batch: int) -> float:
    import torch
    from torch import nn

    from dpfed import models
    from dpfed.pate.teachers import assign_teachers
    from dpfed.randomness import SeededSource

    plan, loss, total, origin = teacher_plan(batch), nn.CrossEntropyLoss(), 0.0, SeededSource(0).stream("teachers")
    for number, part in enumerate(assign_teachers(features, labels, plan)):
        inputs, targets = torch.from_numpy(features[part]), torch.from_numpy(labels[part])
        model, words = models.build("logistic"), origin.once(f"model {number}").stream("training order")
        optimizer = torch.optim.SGD(model.parameters(), lr=plan.learning_rate)
        for step, some in enumerate(islice(shuffled_batches(len(part), plan.batch_size, words), plan.steps)):
            optimizer.param_groups[0]["lr"] = plan.settings.rate(plan.learning_rate, step, plan.steps)
            optimizer.zero_grad()
            loss(model(inputs[some]), targets[some]).backward()
            optimizer.step()
        total += sum(float(value.detach().abs().sum()) for value in model.parameters())
    return total / TEACHERS


# --- the tasks of a worker ---


class Prepared:
    """A task whose world is made before the clock runs, and kept while it is the one that is asked for."""

    held: tuple[str, Any] = ("", None)

    def __init__(self, case: Case, prepare: Callable[[World], Callable[[], float]], verb: str) -> None:
        self.case, self.prepare, self.name = case, prepare, f"{verb}/{case.name}"

    def ready(self) -> None:
        if Prepared.held[0] != self.name:
            Prepared.held = ("", None)
            run = self.prepare(World(self.case))
            run()
            Prepared.held = (self.name, run)

    def __call__(self, nudge: float) -> float:
        return float(Prepared.held[1]())


def tasks(ways: Mapping[str, Callable[[World], Callable[[], float]]]) -> dict[str, Task]:
    import torch

    torch.set_num_threads(1)
    return {f"{verb}/{case.name}": Prepared(case, ways[verb], verb) for case in CASES for verb in ways}


def load_plain() -> dict[str, Task]:
    teaching = {name: Teaching(teach_one_by_one, batch) for name, batch in TEACHING.items()}
    return tasks({"plain": lambda world: partial(plainly, world)}) | teaching


def load_opacus() -> dict[str, Task]:
    from opacus.grad_sample import GradSampleModule

    def way(noise: float, world: World) -> Callable[[], float]:
        return partial(by_opacus, world, GradSampleModule(world.model), noise)

    return tasks({"clipped": partial(way, 0.0), "noised": partial(way, NOISE)})


def load_dpfed() -> dict[str, Task]:
    from dpfed.training.many.batch_tuner import BatchTuner
    from dpfed.training.many.ensemble import Ensemble
    from dpfed.training.noise import NoiseSource

    def way(options: Mapping[str, Any], world: World) -> Callable[[], float]:
        like = (world.inputs[0, :4].clone(), world.targets[0, :4].clone())
        return partial(at_once, world, BatchTuner(Ensemble(world.model, world.loss, like)), **options)

    return tasks(
        {
            "clipped": partial(way, {"is_private": True}),
            "noised": partial(way, {"is_private": True, "noise": NoiseSource()}),
            "plain": partial(way, {"is_private": False}),
        }
    ) | {name: Teaching(teach_at_once, batch) for name, batch in TEACHING.items()}


CONTESTANTS = [
    Contestant(name, load, clock="cpu", environment=KEEP_HEAP)
    for name, load in {PLAIN: load_plain, OPACUS: load_opacus, OURS: load_dpfed}.items()
]


# --- the rows ---


def rows(quick: bool) -> list[Row]:
    cases = CASES[:1] if quick else CASES
    names = [f"{verb}/{case.name}" for case in cases for verb in VERBS] + [*TEACHING]
    found = bench.measure(Path(__file__), CONTESTANTS, names, quick=quick, repeats=20, least=3, patience=10.0)
    return [row for case in cases for row in case_rows(found, case)] + teacher_rows(found)


def teacher_rows(found: Mapping[tuple[str, str], Result]) -> list[Row]:
    title = f"{TEACHERS} logistic teachers of PATE, batches of {{}}: CPU seconds, one after the other in {PLAIN}"
    (few, small), (whole, large) = TEACHING.items()
    return [
        bench.faster(title.format(small), agreed(found, OURS, PLAIN, few), found.get((PLAIN, few)), 15),
        bench.compared(title.format(large), agreed(found, OURS, PLAIN, whole), found.get((PLAIN, whole))),
    ]


def case_rows(found: Mapping[tuple[str, str], Result], case: Case) -> list[Row]:
    title = f"{case.title}, {case.models} models: CPU seconds"
    clipped, noised, plain = (f"{verb}/{case.name}" for verb in VERBS)
    return [
        bench.faster(
            f"{title}, clipped, {OPACUS}", agreed(found, OURS, OPACUS, clipped), found.get((OPACUS, clipped)), case.goal
        ),
        bench.compared(
            f"{title}, clipped and noised, {OPACUS}", found.get((OURS, noised)), found.get((OPACUS, noised))
        ),
        bench.faster(
            f"{title}, without privacy, {PLAIN}",
            agreed(found, OURS, PLAIN, plain),
            found.get((PLAIN, plain)),
            case.plain_goal,
        ),
    ]


def agreed(found: Mapping[tuple[str, str], Result], ours: str, peer: str, task: str) -> Result | None:
    """Our result, if the peer's models are the same."""
    own, other = found.get((ours, task)), found.get((peer, task))
    if own is not None and other is not None and abs(own.value - other.value) > 1e-3 * abs(other.value):
        print(f"{task}: {own.value} is not {other.value}", file=sys.stderr)
        return None
    return own


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))

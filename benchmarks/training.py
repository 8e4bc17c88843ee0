"""What clipping every example costs: one step of DP-SGD against one of plain SGD, vmap(grad) and Opacus.

    python benchmarks/training.py [--json] [--quick]

A step is forward, backward, clip, sum and SGD update on a fixed batch, in CPU seconds on one thread; its first rows
are without noise, because noise costs the same whatever clips. Opacus is its own wrapper and optimizer in each of
its three modes, and the best of them is the peer. Every contestant must first give the clipped sum that a loop over
the examples gives, to one part in 10³ (cutting a little below the clip norm is sound); one that does not is "not
measured". What a first step does besides, such as trying out methods, is not in the seconds. Peak memory is that of
a fresh process above what it held before (VmHWM − VmRSS), in its first steps and again when warm; peaks below 1 MB
count as 1 MB, which is as finely as the kernel tells.

glibc gives large buffers back to the system at every step, and the page faults of taking them again fall on whoever
allocates most at once: plain SGD here, which would flatter us. Workers that measure time therefore keep their heap
(MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_); those that measure memory do not. The minimum of many steps
leaves out the looks at a program that is new.

Small models are asked up to 20 times; who has taken 8 seconds is asked three times and no more, or once with noise,
where no bar depends on it.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import bench
from bench import Contestant, Result, Row, Task

SGD, VMAP, OURS = "plain SGD", "vmap(grad)", "dpfed"
OPACUS = {mode: f"Opacus {mode}" for mode in ("hooks", "functorch", "ghost")}
CLIP, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.0, 1e-4
BATCHES = (32, 256)
MEMORY_GOAL, MEGABYTE = 2.2, 1 << 20
NUMBERS = 1_000_000
KEEP_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
Gradient = Callable[[Any, Any], None]  # leaves the sum over the batch in every .grad


@dataclass(frozen=True)
class Case:
    """A reference model, what it is fed, and how many times plain SGD's time it may take, by batch."""

    title: str
    kind: str
    shape: tuple[int, ...]
    classes: int
    goals: Mapping[int, float]
    options: Mapping[str, Any] = field(default_factory=dict)


def at_most(times: float) -> dict[int, float]:
    return dict.fromkeys(BATCHES, times)


CASES = [
    Case("logistic 30", "logistic", (30,), 2, at_most(2.0)),
    Case("MLP 784-256-10", "mlp", (784,), 10, {32: 1.4, 256: 1.25}),
    Case("CNN 28×28", "cnn", (1, 28, 28), 10, at_most(1.35)),
    Case("GroupNorm ResNet 32×32", "resnet", (3, 32, 32), 10, at_most(1.4)),
    Case("transformer, 128 tokens", "transformer", (128,), 2, at_most(1.3)),
    Case("U-Net 64×64", "unet", (1, 64, 64), 2, at_most(1.25)),
]
WORKLOADS = {f"{case.kind}/{batch}": (case, batch) for case in CASES for batch in BATCHES}
QUICK = ("logistic/32", "mlp/32", "cnn/32")


# --- what is trained ---


def per_example(scores: Any, targets: Any) -> Any:
    """Cross-entropy of shape (B,): for a segmentation the mean over the pixels of each example."""
    from torch.nn import functional

    losses = functional.cross_entropy(scores, targets, reduction="none")
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def example_batch(case: Case, batch: int) -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randint, generator=generator)
    shape = (batch, *case.shape)
    inputs = draw(1000, shape) if case.kind == "transformer" else torch.randn(shape, generator=generator)
    return inputs, draw(case.classes, (batch, *case.shape[1:]) if case.kind == "unet" else (batch,))


class Step:
    """One contestant's step on one workload."""

    def __init__(self, prepare: Callable[..., Gradient], case: Case, batch: int, *, noisy: bool) -> None:
        import torch

        from dpfed import models

        self.model = models.build(case.kind, **case.options)
        self.batch = example_batch(case, batch)
        self.small = tuple(part[:4] for part in self.batch)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE / batch)
        expected = None if prepare is plain else looped(self.model, *self.small)
        if expected is not None:  # a twin, so that what was measured has seen one batch size only
            twin = models.build(case.kind, **case.options)
            prepare(twin, noisy=False)(*self.small)
            check_agreement(expected, {name: parameter.grad for name, parameter in twin.named_parameters()})
        self.gradient = prepare(self.model, noisy=noisy)

    def __call__(self, *, small: bool = False) -> None:
        self.gradient(*(self.small if small else self.batch))
        self.optimizer.step()
        self.optimizer.zero_grad()


def looped(model: Any, inputs: Any, targets: Any) -> dict[str, Any]:
    """The clipped sum, one example after the other."""
    import torch

    names, parameters = zip(*model.named_parameters(), strict=True)
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for place in range(len(inputs)):
        one = slice(place, place + 1)
        gradients = torch.autograd.grad(per_example(model(inputs[one]), targets[one])[0], parameters)
        norm = torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))
        weight = min(1.0, CLIP / float(norm))
        total = [term + weight * gradient for term, gradient in zip(total, gradients, strict=True)]
    return dict(zip(names, total, strict=True))


def check_agreement(expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    error = max(float((found[name] - gradient).abs().max()) for name, gradient in expected.items())
    if not error <= 1e-3 * largest:
        raise ValueError(f"the clipped sum is off by {error / largest:.1e} of its largest number")


# --- the contestants ---


def plain(model: Any, *, noisy: bool) -> Gradient:  # noqa: ARG001 - it is never private
    return lambda inputs, targets: per_example(model(inputs), targets).sum().backward()


def by_vmap(model: Any, *, noisy: bool) -> Gradient:
    import torch
    from torch.func import functional_call, grad, vmap

    def loss(parameters: Any, example: Any, target: Any) -> Any:
        return per_example(functional_call(model, parameters, (example.unsqueeze(0),)), target.unsqueeze(0))[0]

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))

    def gradient(inputs: Any, targets: Any) -> None:
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        each = gradients(parameters, inputs, targets)
        norms = torch.stack([part.flatten(1).norm(dim=1) for part in each.values()]).norm(dim=0)
        weights = (CLIP / (norms + 1e-6)).clamp(max=1.0)
        for name, parameter in model.named_parameters():
            parameter.grad = torch.tensordot(weights, each[name], 1)
            if noisy:
                parameter.grad += torch.randn_like(parameter) * NOISE_MULTIPLIER * CLIP

    return gradient


def by_opacus(model: Any, *, noisy: bool, force_functorch: bool) -> Gradient:
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model, loss_reduction="sum", force_functorch=force_functorch)
    optimizer = DPOptimizer(**opacus_settings(model, noisy))

    def gradient(inputs: Any, targets: Any) -> None:
        optimizer.zero_grad()
        per_example(wrapped(inputs), targets).sum().backward()
        optimizer.pre_step()

    return gradient


def by_opacus_ghost(model: Any, *, noisy: bool) -> Gradient:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(model, loss_reduction="sum", max_grad_norm=CLIP)
    optimizer = DPOptimizerFastGradientClipping(**opacus_settings(model, noisy))
    loss = DPLossFastGradientClipping(wrapped, optimizer, Criterion(), loss_reduction="sum")

    def gradient(inputs: Any, targets: Any) -> None:
        optimizer.zero_grad()
        loss(wrapped(inputs), targets).backward()
        optimizer.pre_step()

    return gradient


def opacus_settings(model: Any, noisy: bool) -> dict[str, Any]:
    import torch

    return {
        "optimizer": torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        "noise_multiplier": NOISE_MULTIPLIER if noisy else 0.0,
        "max_grad_norm": CLIP,
        "expected_batch_size": None,
        "loss_reduction": "sum",
    }


class Criterion:
    """What Opacus's ghost clipping takes for a loss: it sets ``reduction`` and calls."""

    reduction = "sum"

    def __call__(self, scores: Any, targets: Any) -> Any:
        losses = per_example(scores, targets)
        return losses if self.reduction == "none" else losses.sum()


def by_dpfed(model: Any, *, noisy: bool) -> Gradient:
    from dpfed.training.engine.forward import make_forward
    from dpfed.training.engine.gradients import ClippedGradients
    from dpfed.training.noise import NoiseSource

    clipped, noise = ClippedGradients(model, clip_norm=CLIP, takes_losses=False), NoiseSource()
    parameters = dict(model.named_parameters())

    def gradient(inputs: Any, targets: Any) -> None:
        sums, _ = clipped.clipped(make_forward(model, per_example, inputs, targets))
        if noisy:
            sums = noise.add(sums, std=NOISE_MULTIPLIER * CLIP)
        for name, parameter in parameters.items():
            parameter.grad = sums[name]

    return gradient


# --- the tasks of a worker ---


class Workshop:
    """The tasks of one contestant; only the step of the workload asked last is kept, so that memory is given back."""

    def __init__(self, prepare: Callable[..., Gradient]) -> None:
        self.prepare = prepare
        self.name = ("", False)
        self.step: Step | None = None

    def tasks(self) -> dict[str, Task]:
        measures = {"step": time_step, "noisy": time_step, "first": first_peak, "warm": peak}
        return {f"{verb}/{name}": Measured(self, verb, name, measures[verb]) for verb in measures for name in WORKLOADS}

    def ready(self, name: str, *, noisy: bool, warm: bool) -> Step:
        if self.step is None or self.name != (name, noisy):
            self.step = None
            gc.collect()
            self.step, self.name = Step(self.prepare, *WORKLOADS[name], noisy=noisy), (name, noisy)
            if warm:
                self.step()
        return self.step


@dataclass(frozen=True)
class Measured:
    """A task whose preparation is not timed."""

    workshop: Workshop
    verb: str
    name: str
    measure: Callable[[Step], float]

    def ready(self) -> Step:
        return self.workshop.ready(self.name, noisy=self.verb == "noisy", warm=self.verb != "first")

    def __call__(self, nudge: float) -> float:
        return self.measure(self.ready())


def time_step(step: Step) -> float:
    step()
    return 0.0


def first_peak(step: Step) -> float:
    step(small=True)  # loads what torch loads late, and holds next to nothing
    return peak(step)


def peak(step: Step) -> float:
    """The most bytes that three steps held above what was held before."""

    def steps() -> None:
        for _ in range(3):
            step()

    return max(held_by(steps), MEGABYTE)


def held_by(work: Callable[[], None]) -> float:
    """Return the most bytes that the work held above what was held before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is held now
    before = status("VmRSS")
    work()
    return status("VmHWM") - before


def status(name: str) -> int:
    """That line of the process's status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def load(prepare: Callable[..., Gradient], requires: str = "torch") -> dict[str, Task]:
    """The tasks, if the library is there."""
    import importlib

    import torch

    importlib.import_module(requires)
    torch.set_num_threads(1)
    return Workshop(prepare).tasks()


def load_plain() -> dict[str, Task]:
    import torch

    def draw(_: float) -> float:
        return float(torch.randn(NUMBERS)[0])

    return load(plain) | {"noise/float": draw, "noise/grid": draw}


def load_dpfed() -> dict[str, Task]:
    return load(by_dpfed, "dpfed.training.engine.gradients") | {
        f"noise/{mode}": noising(mode) for mode in ("float", "grid")
    }


def noising(mode: str) -> Task:
    import torch

    from dpfed.training.noise import NoiseSource

    source, tensors = NoiseSource(mode=mode), {"weight": torch.zeros(NUMBERS)}
    return lambda _: float(source.add(tensors, std=1.0)["weight"][0])


CONTESTANTS = [
    Contestant(name, loader, clock="cpu", environment=KEEP_HEAP)
    for name, loader in {
        SGD: load_plain,
        VMAP: partial(load, by_vmap),
        OPACUS["hooks"]: partial(load, partial(by_opacus, force_functorch=False), "opacus"),
        OPACUS["functorch"]: partial(load, partial(by_opacus, force_functorch=True), "opacus"),
        OPACUS["ghost"]: partial(load, by_opacus_ghost, "opacus"),
        OURS: load_dpfed,
    }.items()
]


# --- the rows ---

Found = Mapping[tuple[str, str], Result]


def rows(quick: bool) -> list[Row]:
    names = QUICK if quick else tuple(WORKLOADS)
    ask = partial(bench.measure, Path(__file__), CONTESTANTS, quick=quick)
    judged = [*(f"step/{name}" for name in names), "noise/float", "noise/grid"]
    found = ask(judged, repeats=20, least=3, patience=8.0)
    found |= ask([f"noisy/{name}" for name in names], repeats=5, patience=4.0)  # no bar hangs on these
    weighed = names[1:2] if quick else names
    found |= peaks(weighed)
    return [
        *(row for name in names for row in step_rows(found, name)),
        *(row for name in weighed for row in memory_rows(found, name)),
        *(noise_row(found, mode, goal) for mode, goal in (("float", 1.5), ("grid", 3.5))),
        *(row for name in names for row in noisy_rows(found, name)),
    ]


def peaks(names: Iterable[str]) -> dict[tuple[str, str], Result]:
    """Each in a new process: memory that an earlier workload left behind would hide what this one takes."""
    found: dict[tuple[str, str], Result] = {}
    judged = [replace(contestant, environment={}) for contestant in CONTESTANTS if contestant.name in (SGD, OURS)]
    for name in names:
        found |= bench.measure(Path(__file__), judged, [f"first/{name}", f"warm/{name}"], repeats=1)
    return found


def titled(name: str) -> str:
    case, batch = WORKLOADS[name]
    return f"{case.title}, batch {batch}"


def best_opacus(found: Found, task: str) -> tuple[str, Result | None]:
    """The name and the time of the mode that was fastest."""
    measured = {name: found[name, task] for name in OPACUS.values() if (name, task) in found}
    best = min(measured, key=lambda name: measured[name].seconds, default="Opacus")
    return best, measured.get(best)


def step_rows(found: Found, name: str) -> list[Row]:
    case, batch = WORKLOADS[name]
    task, title = f"step/{name}", f"{titled(name)}: CPU seconds"
    ours, (opacus, opacus_result) = found.get((OURS, task)), best_opacus(found, task)
    return [
        bench.faster(f"{title}, {SGD}", ours, found.get((SGD, task)), 1 / case.goals[batch]),
        bench.faster(f"{title}, {opacus} (its best)", ours, opacus_result, 1.0),
        bench.compared(f"{title}, {VMAP}", ours, found.get((VMAP, task))),
    ]


def memory_rows(found: Found, name: str) -> list[Row]:
    titles = {"first": "first steps", "warm": "warm"}
    return [
        bench.smaller(
            f"{titled(name)}: peak bytes, {when}, {SGD}",
            found.get((OURS, f"{verb}/{name}")),
            found.get((SGD, f"{verb}/{name}")),
            1 / MEMORY_GOAL,
        )
        for verb, when in titles.items()
    ]


def noise_row(found: Found, mode: str, times: float) -> Row:
    task = f"noise/{mode}"
    title = f"10⁶ numbers with {mode} noise: CPU seconds, torch.randn"
    return bench.faster(title, found.get((OURS, task)), found.get((SGD, task)), 1 / times)


def noisy_rows(found: Found, name: str) -> list[Row]:
    task, title = f"noisy/{name}", f"{titled(name)}, with noise: CPU seconds"
    ours, (opacus, opacus_result) = found.get((OURS, task)), best_opacus(found, task)
    return [
        bench.compared(f"{title}, {SGD} without", ours, found.get((SGD, task))),
        bench.compared(f"{title}, {opacus} (its best)", ours, opacus_result),
    ]


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))

"""What a whole private step costs, as a user takes it: draw, read, forward, backward, clip, noise, update.

    python benchmarks/whole_step.py [--json] [--quick] [--only NAME ...]

Ours is ``make_private`` with its loader and float noise. Opacus is ``PrivacyEngine.make_private`` with its Poisson
loader and its noise, after ``ModuleValidator.fix`` and without activations in place (its hooks refuse them), in each of
its three modes; the best is the peer. vmap(grad) and plain SGD index the tensors that hold the data. Models are the
reference models of training.py, those of everyday.py, and those of picked.py, picked after optimisation was frozen.

The size of a Poisson sample varies, and a minimum over steps would choose the smallest. So everybody draws, plain SGD
too, and a figure is the first quartile of the steps whose draw was within a tenth of the planned size, in CPU seconds
on one thread. Contestants take turns of a third of a second. Setting up and the first steps, in which methods are
tried out, are not in it; they have a row of their own.

Everybody must first take a step without noise on four records as plain arithmetic takes it, one example after the
other, to one part in a hundred (another rounding may flip a ReLU). Who refuses a model is in the row with the first
words of what it says, and so is who needs more than a minute of CPU time for its first three steps.

Peak memory is that of a forked process above what it held with model and data, in setting up and five steps.
"""

from __future__ import annotations

import gc
import re
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bench
from bench import Contestant, Result, Row, Task
from training import KEEP_HEAP, MEGABYTE, OPACUS, OURS, SGD, VMAP, held_by

CLIP, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.0, 1e-4
MANY_STEPS = 1_000_000
TINY = 1e-9  # noise for the check, where there must be some
FAR = 1024.0  # learning rate of the check: the parameters' own rounding must not show
PATIENCE, TURN = 60.0, 0.3  # CPU seconds: for the first steps, and of a turn
WARM = 3
TURNS, QUICK_TURNS = 5, 2
NEAR = 0.1
WEIGHED = 5  # steps whose memory counts
BOTH = (32, 256)


@dataclass(frozen=True)
class Case:
    """A model of everyday.py, picked.py or training.py at a batch size, and how many times plain SGD's time and memory
    it may take; no number, no bar."""

    model: str
    batch: int
    times: float | None = None
    memory: float | None = None
    size: int = 2000


def cases() -> dict[str, Case]:
    """{NAME/BATCH: case} of all rows."""
    small = {"logistic": {32: 3.0, 256: 3.0}, "mlp": {32: 2.6, 256: 1.6}}
    large = ("cnn", "resnet", "transformer", "unet")
    found = [Case(name, batch, goals[batch], size=10_000) for name, goals in small.items() for batch in BOTH]
    found += [Case(name, batch, times) for name in large for batch, times in ((32, None), (256, 1.25))]
    at_most = dict.fromkeys(
        ("textcnn", "residual", "bilstm", "gru", "gru-batch", "lstm-words", "lstm-words-batch"), 2.0
    )
    at_most |= dict.fromkeys(("encoder", "encoder-batch", "learned", "vit", "resnet18"), 1.4)
    found += [Case(name, 32, times) for name, times in at_most.items()]
    found += [Case("wide-residual", 128, memory=2.2)]
    others = ("mnist", "mnist-rnn", "vae", "dcgan", "super", "tied-words", "encoder-words", "seq2seq", "snli", "packed")
    others += ("bag", "ngram", "letters", "names", "waves")
    found += [Case(name, 32) for name in others]
    found += [Case(name, 32) for name in ("mobilenet", "tcn", "gat")]  # picked after optimisation was frozen
    return {f"{case.model}/{case.batch}": case for case in found}


CASES = cases()
QUICK = ("logistic/32", "mlp/32", "textcnn/32")


def model_of(name: str) -> Any:
    """Return the everyday.Model of that name; the reference models as such."""
    import everyday
    import picked
    import training
    from dpfed import models

    if name == "wide-residual":
        build = partial(everyday.ResidualEmbedding, words=20_000)
        records = partial(everyday.sentences, words=20_000)
        return everyday.Model("residual after an Embedding of 20,000×128", build, records, everyday.classified)
    if name in everyday.NAMED:
        return everyday.NAMED[name]
    if name in everyday.FOUND:
        return everyday.FOUND[name]
    if name in picked.PICKED:
        return picked.PICKED[name]
    case = next(case for case in training.CASES if case.kind == name)
    build, records = partial(models.build, name), partial(training.example_batch, case)
    return everyday.Model(case.title, build, records, training.per_example)


# --- what is trained, and by whom ---


@dataclass
class Job:
    """A model with its data, and the step that a contestant makes of them: it returns how many records it drew."""

    case: Case
    noisy: bool = True
    learning_rate: float = LEARNING_RATE
    what: Any = field(init=False)
    model: Any = field(init=False)
    inputs: Any = field(init=False)
    targets: Any = field(init=False)

    def __post_init__(self) -> None:
        import torch

        torch.manual_seed(0)
        self.what = model_of(self.case.model)
        self.model = self.what.build()
        self.inputs, self.targets = self.what.records(self.case.size)

    @property
    def optimizer(self) -> Any:
        import torch

        return torch.optim.SGD(self.model.parameters(), lr=self.learning_rate)

    @property
    def dataset(self) -> Any:
        """Return the data as a user has them: tensors, or records of a tuple and a target."""
        from torch.utils.data import TensorDataset

        if isinstance(self.inputs, tuple):
            return Records(self.inputs, self.targets)
        return TensorDataset(self.inputs, self.targets)

    def draws(self) -> Iterator[Any]:
        """Yield Poisson samples, as numbers of records."""
        import torch

        rate = self.case.batch / self.case.size
        while True:
            yield torch.nonzero(torch.rand(self.case.size) < rate).flatten()

    def records(self, chosen: Any) -> tuple[Any, Any]:
        inputs = self.inputs
        return tuple(part[chosen] for part in inputs) if isinstance(inputs, tuple) else inputs[chosen], self.targets[
            chosen
        ]


class Records:
    """A data set of several tensors for each input."""

    def __init__(self, inputs: tuple[Any, ...], targets: Any) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return tuple(part[number] for part in self.inputs), self.targets[number]


Step = Callable[[], int]


@dataclass(frozen=True)
class Way:
    """How a contestant makes a step of a job, and what it puts in the model's place before."""

    prepare: Callable[[Job], Step]
    fix: Callable[[Any], Any] | None = None

    def __call__(self, job: Job) -> Step:
        self.replace(job)
        return self.prepare(job)

    def replace(self, job: Job) -> None:
        job.model = job.model if self.fix is None else self.fix(job.model)


def plain(job: Job) -> Step:
    optimizer, draws, model, loss = job.optimizer, job.draws(), job.model, job.what.loss

    def step() -> int:
        inputs, targets = job.records(next(draws))
        optimizer.zero_grad()
        loss(model(inputs), targets).mean().backward()
        optimizer.step()
        return len(targets)

    return step


def by_vmap(job: Job) -> Step:
    import torch
    from torch.func import functional_call, grad, vmap
    from torch.utils._pytree import tree_map

    optimizer, draws, model = job.optimizer, job.draws(), job.model

    def loss(parameters: Any, example: Any, target: Any) -> Any:
        one = tree_map(lambda part: part.unsqueeze(0), example)
        return job.what.loss(functional_call(model, parameters, (one,)), target.unsqueeze(0))[0]

    gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    named = dict(model.named_parameters())

    def step() -> int:
        inputs, targets = job.records(next(draws))
        each = gradients({name: parameter.detach() for name, parameter in named.items()}, inputs, targets)
        norms = torch.stack([part.flatten(1).norm(dim=1) for part in each.values()]).norm(dim=0)
        weights = (CLIP / (norms + 1e-6)).clamp(max=1.0)
        for name, parameter in named.items():
            total = torch.tensordot(weights, each[name], 1)
            if job.noisy:
                total += torch.randn_like(parameter) * NOISE_MULTIPLIER * CLIP
            parameter.grad = total / job.case.batch
        optimizer.step()
        return len(targets)

    return step


def by_opacus(job: Job, *, mode: str) -> Step:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader

    criterion = Criterion(job.what.loss)
    made = PrivacyEngine().make_private(
        module=job.model,
        optimizer=job.optimizer,
        data_loader=DataLoader(job.dataset, batch_size=job.case.batch),
        criterion=criterion,
        noise_multiplier=NOISE_MULTIPLIER if job.noisy else 0.0,
        max_grad_norm=CLIP,
        poisson_sampling=True,
        grad_sample_mode=mode,
    )
    model, optimizer, loader = (made[0], made[1], made[-1])
    loss = made[2] if mode == "ghost" else criterion

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    served = batches()

    def step() -> int:
        inputs, targets = next(served)
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
        return len(targets)

    return step


def fixed(model: Any) -> Any:
    """Return the model with Opacus's layers in the place of those that it does not train, and nothing in place."""
    from opacus.validators import ModuleValidator

    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
    return ModuleValidator.fix(model.train())


class Criterion:
    """A loss as Opacus takes it: its ghost clipping sets ``reduction``."""

    reduction = "mean"

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        self.loss = loss

    def __call__(self, output: Any, targets: Any) -> Any:
        losses = self.loss(output, targets)
        return losses if self.reduction == "none" else losses.mean()


def by_dpfed(job: Job) -> Step:
    from dpfed.plan.plan import LocalPlan
    from dpfed.training.private import make_private

    noise = NOISE_MULTIPLIER if job.noisy else TINY
    plan = LocalPlan(
        size=job.case.size, batch_size=job.case.batch, clip_norm=CLIP, steps=MANY_STEPS, noise_multiplier=noise
    )
    private = make_private(job.model, job.optimizer, job.dataset, plan, loss=job.what.loss)
    batches = iter(private.loader)

    def step() -> int:
        batch = next(batches)
        private.step(batch)
        return len(batch.indices)

    return step


# --- that they all do the same ---


def still(model: Any) -> Any:
    """Return the model without its dropout."""
    for module in model.modules():
        if "Dropout" in type(module).__name__:
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model


def check(way: Way, case: Case) -> None:
    """Refuse who does not take the step that clipping one example after the other takes, of its own model."""
    small = replace(case, batch=4, size=4)
    job = Job(small, noisy=False, learning_rate=FAR)
    if job.what.is_random:
        return
    still(job.model)
    way.replace(job)
    expected = clipped_sum(job)
    step = way.prepare(job)
    before = {name: value.detach().clone() for name, value in values(job.model).items()}
    step()
    after = values(job.model)
    largest = max(float(value.abs().max()) for value in expected.values())
    errors = [(before[name] - after[name]).detach() * (small.batch / FAR) - value for name, value in expected.items()]
    error = max(float(found.abs().max()) for found in errors)
    if not error <= 1e-2 * largest:
        raise ValueError(f"the clipped sum is off by {error / largest:.1e} of its largest number")


def values(model: Any) -> dict[str, Any]:
    """Return what the model holds, by the names of its state_dict and by those of its parameters."""
    return {**model.state_dict(), **dict(model.named_parameters())}


def clipped_sum(job: Job) -> dict[str, Any]:
    import torch

    names, parameters = zip(*still(job.model).named_parameters(), strict=True)
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for number in range(job.case.size):
        inputs, targets = job.records(torch.tensor([number]))
        gradients = torch.autograd.grad(job.what.loss(job.model(inputs), targets)[0], parameters)
        norm = torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))
        weight = min(1.0, CLIP / float(norm))
        total = [term + weight * gradient for term, gradient in zip(total, gradients, strict=True)]
    return dict(zip(names, total, strict=True))


# --- the tasks of a worker ---


class Workshop:
    """The tasks of one contestant; only the job asked last is kept, so that memory is given back."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.name = ""
        self.running: Running | None = None

    def tasks(self) -> dict[str, Task]:
        steps: dict[str, Task] = {f"step/{name}": Steps(self, name) for name in CASES}
        return steps | {f"peak/{name}": Peak(self, name) for name in CASES}

    def ready(self, name: str) -> Running:
        if self.running is None or self.name != name:
            self.running = None
            gc.collect()
            self.running, self.name = Running(self.way, CASES[name]), name
        return self.running


def weighed(way: Way, name: str) -> float:
    """Return the most bytes that setting up and some steps hold beside model and data."""
    way(Job(replace(CASES[name], batch=4, size=4)))()  # loads what torch loads late, and holds next to nothing
    job = Job(CASES[name])

    def steps() -> None:
        step = way(job)
        for _ in range(WEIGHED):
            step()

    with at_most(PATIENCE):
        return max(held_by(steps), MEGABYTE)


class Running:
    """A job that was checked, set up and warmed, and the seconds of its steps by the size of the draw."""

    def __init__(self, way: Way, case: Case) -> None:
        with at_most(PATIENCE):
            if way.prepare is not plain:
                check(way, case)
        self.case = case
        self.taken: list[tuple[int, float]] = []
        started = time.process_time()
        with at_most(PATIENCE):
            self.step = way(Job(case))
            for _ in range(WARM):
                self.step()
        self.start = time.process_time() - started

    def turn(self) -> Result:
        """Take steps for a while; return the seconds of setting up, and of one step as known by now."""
        spent = 0.0
        while spent < TURN:
            started = time.process_time()
            size = self.step()
            seconds = time.process_time() - started
            self.taken.append((size, seconds))
            spent += seconds
        return Result(self.start, typical(self.taken, self.case.batch))


def typical(taken: Collection[tuple[int, float]], batch: int) -> float:
    """Return the first quartile of the steps with about that many records, or the step that comes nearest."""
    near = [seconds for size, seconds in taken if abs(size - batch) <= NEAR * batch]
    if len(near) < 2:
        return near[0] if near else min(taken, key=lambda step: abs(step[0] - batch))[1]
    return statistics.quantiles(near, n=4, method="inclusive")[0]


@dataclass(frozen=True)
class Steps:
    """A task that measures itself."""

    workshop: Workshop
    name: str

    def measure(self) -> Result:
        return self.workshop.ready(self.name).turn()

    def __call__(self, nudge: float) -> float:
        return self.measure().seconds


@dataclass(frozen=True)
class Peak:
    """The memory of a child, because what an earlier case left behind would hide what this one takes."""

    workshop: Workshop
    name: str

    def measure(self) -> Result:
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            return Result(pool.submit(weighed, self.workshop.way, self.name).result(), 0.0)

    def __call__(self, nudge: float) -> float:
        return self.measure().value


class TooLong(BaseException):
    """No Exception, because who is measured may catch those."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after so many CPU seconds."""

    def stop(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    except TooLong:
        raise TimeoutError(f"more than {seconds:.0f} s of CPU time for the first steps") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def load(way: Way, requires: str = "torch") -> dict[str, Task]:
    """The tasks, if the library is there."""
    import importlib

    import torch

    importlib.import_module(requires)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return Workshop(way).tasks()


CONTESTANTS = [
    Contestant(SGD, partial(load, Way(plain)), clock="cpu", environment=KEEP_HEAP),
    Contestant(VMAP, partial(load, Way(by_vmap)), clock="cpu", environment=KEEP_HEAP),
    *(
        Contestant(
            name, partial(load, Way(partial(by_opacus, mode=mode), fixed), "opacus"), clock="cpu", environment=KEEP_HEAP
        )
        for mode, name in OPACUS.items()
    ),
    Contestant(OURS, partial(load, Way(by_dpfed), "dpfed.training.private"), clock="cpu", environment=KEEP_HEAP),
]


# --- the rows ---

Key = tuple[str, str]
Found = Mapping[Key, Result]
Said = Mapping[Key, str]


def rows(quick: bool, only: Collection[str] = ()) -> list[Row]:
    names = [name for name in CASES if not only or name in only or CASES[name].model in only]
    if quick and not only:
        names = list(QUICK)
    found, said = measured(CONTESTANTS, "step", names, QUICK_TURNS if quick else TURNS)
    shown = [row for name in names for row in step_rows(found, said, name)]
    if quick:
        return shown
    judged = [replace(contestant, environment={}) for contestant in CONTESTANTS if contestant.name in (SGD, OURS)]
    weights, reasons = measured(judged, "peak", names, turns=1)
    return shown + [memory_row(weights, reasons, name) for name in names]


def measured(
    contestants: Sequence[Contestant], verb: str, names: Iterable[str], turns: int
) -> tuple[dict[Key, Result], dict[Key, str]]:
    """What everybody says last, after so many turns of each; and what those say who do not take part.

    Each model has workers of its own: they keep their heaps, and those of all models are more than a machine has.
    """
    found: dict[Key, Result] = {}
    said: dict[Key, str] = {}
    for name in names:
        with workers_of(contestants) as workers:
            running = list(workers)
            for _ in range(turns):
                for worker in list(running):
                    key = (worker.contestant.name, f"{verb}/{name}")
                    answer = worker.ask(key[1], 0.0)
                    if answer is None:
                        running.remove(worker)
                        said[key] = worker.said
                    else:
                        found[key] = answer
    return found, said


@contextmanager
def workers_of(contestants: Iterable[Contestant]) -> Iterator[list[bench.Worker]]:
    with ExitStack() as stack:
        scratch = stack.enter_context(TemporaryDirectory(prefix="dpfed-", ignore_cleanup_errors=True))
        make = partial(bench.Worker, script=Path(__file__), core=bench.last_core(), scratch=scratch)
        yield [stack.enter_context(make(contestant)) for contestant in contestants]


def titled(name: str) -> str:
    return f"{model_of(CASES[name].model).title}, batch {CASES[name].batch}"


def step_rows(found: Found, said: Said, name: str) -> list[Row]:
    case, task, title = CASES[name], f"step/{name}", f"{titled(name)}: whole step, CPU seconds"
    ours = found.get((OURS, task))
    by_plain, by_peer = found.get((SGD, task)), found.get((VMAP, task))
    opacus = min(OPACUS.values(), key=lambda name: found[name, task].seconds if (name, task) in found else 1e9)
    best = found.get((opacus, task))
    made = [
        bench.faster(f"{title}, {SGD}", ours, by_plain, 1 / case.times)
        if case.times
        else bench.compared(f"{title}, {SGD}", ours, by_plain),
        bench.faster(f"{title}, {opacus} (its best)" if best else f"{title}, Opacus", ours, best, 1.0),
        bench.faster(f"{title}, {VMAP}", ours, by_peer, 1.0),
        bench.compared(f"{titled(name)}: make_private and {WARM} steps, Opacus", started(ours), started(best)),
    ]
    reasons = (said.get((SGD, task)), said.get((opacus, task)), said.get((VMAP, task)), said.get((opacus, task)))
    return [with_reasons(row, said.get((OURS, task)), reason) for row, reason in zip(made, reasons, strict=True)]


def started(result: Result | None) -> Result | None:
    return result and Result(0.0, result.value)


def memory_row(found: Found, said: Said, name: str) -> Row:
    ours, by_plain = ((contestant, f"peak/{name}") for contestant in (OURS, SGD))
    goal = CASES[name].memory
    title = f"{titled(name)}: peak bytes of setting up and {WEIGHED} steps, {SGD}"
    row = bench.smaller(title, found.get(ours), found.get(by_plain), 1 / goal if goal else 0.0)
    row = row if goal else replace(row, goal=None, holds=None if ours in found else False)
    return with_reasons(row, said.get(ours), said.get(by_plain))


def with_reasons(row: Row, ours: str | None, peer: str | None) -> Row:
    """Return the row with the first words of a refusal in the place of its figure."""
    if ours and row.ours == bench.NOT_MEASURED:
        row = replace(row, ours=first_words(ours))
    return replace(row, peer=first_words(peer)) if peer and row.peer == bench.NOT_MEASURED else row


def first_words(said: str, most: int = 70) -> str:
    words = re.sub(r"[|\s`<>*]+", " ", said).strip()
    return words if len(words) <= most else f"{words[:most].rsplit(' ', 1)[0]} …"


if __name__ == "__main__":
    names = sorted({*CASES, *(case.model for case in CASES.values())})
    sys.exit(bench.run(__file__, CONTESTANTS, rows, names=names))

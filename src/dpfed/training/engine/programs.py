"""What a model and its loss compute, told by the form of autograd's graph, and the way in which each program is served.

A program that was not seen before is looked at: do layers explain all of its parameters (`attribution`), and are all of
its operations on the allow-list (`independence`)? It is watched twice, with other numbers of examples, so that
constants that follow from their number show. What was found holds for every later run of the same form.

>>> import torch
>>> from torch import nn
>>> from dpfed.training.engine.forward import make_forward
>>> model = nn.Linear(2, 1)
>>> programs = Programs(model, {})
>>> inputs = torch.randn(5, 2), torch.zeros(5)
>>> tidy = make_forward(model, lambda output, _: output.squeeze(1), *inputs)
>>> programs.way(programs.run(tidy), tidy).why
>>> untidy = make_forward(model, lambda output, _: output.squeeze(1) / len(output), *inputs)
>>> programs.way(programs.run(untidy), untidy).why
'what is computed depends on the number of examples'
>>> programs.close()
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction

from dpfed.errors import InvalidArgument
from dpfed.training.engine import inner
from dpfed.training.engine.attribution import Sight, Way, attribute, find_reason_against
from dpfed.training.engine.capture import Capture, Graph, Leaves
from dpfed.training.engine.forward import Forward, Recorder
from dpfed.training.engine.kept import Restorer
from dpfed.training.engine.rules.contributions import Call
from dpfed.training.engine.rules.meeting import Meeting
from dpfed.training.engine.rules.product import of_node
from dpfed.training.engine.watch.calls import CallLog
from dpfed.training.engine.watch.independence import ExampleWatch
from dpfed.training.engine.watch.marks import NONE, Marks, Place, mark_of
from dpfed.training.engine.watch.operation import FRONT
from dpfed.training.faults import STOPS
from dpfed.training.generators import mark_seed, restored

MOST = 1024  # programs of a model that are remembered
TRIALS = 4  # times that a program is looked at of which random numbers decide what is computed
FEW = 3  # examples of the second look
MOVE = 0.01  # how far parameters are moved while a program is looked at
FAR = 3.0  # and how far the second time
CHANGES = "what is computed changes from pass to pass"


@dataclass(frozen=True, eq=False, slots=True)
class Run:
    """Losses, the calls of layers on the way to them, and the graph; `model` is the part of it that can be run
    again."""

    losses: Tensor
    calls: list[Call]
    graph: Graph
    model: Graph
    setting: Hashable  # what the graph does not show: loss, modes of the modules, shapes, about how many examples
    asked: CallLog  # of torch, by Python

    @property
    def key(self) -> Hashable:
        """What runs of one program have in common."""
        return self.setting, self.graph.form, self._calls(self.graph), self.asked

    @property
    def kin(self) -> Hashable:
        """What it has in common with runs that only have other constants."""
        return self.setting, self.graph.form, self._calls(self.graph), self.asked.calls

    @property
    def program(self) -> Hashable:
        """The same for the part that can be run again."""
        return self.model.form, self._calls(self.model)

    def _calls(self, graph: Graph) -> Hashable:
        return tuple([(call.path, graph.place(call)) for call in self.calls])


# What was found of the programs of each model, for all who train it one after the other.
_WAYS: WeakKeyDictionary[nn.Module, dict[Hashable, Way]] = WeakKeyDictionary()


def forget(model: nn.Module) -> None:
    """Drop what was found of a model's programs."""
    _WAYS.pop(model, None)


class Programs:
    """The programs of one model, each with its way, and the hooks that tell its calls."""

    def __init__(self, model: nn.Module, pinned: Mapping[str, str], *, is_tried: bool = False) -> None:
        self.leaves = Leaves(model)
        self.capture = Capture(model)
        self.kept = Restorer(model)
        self._modules = list(model.modules())
        self._pinned = pinned
        self._ways = _WAYS.setdefault(model, {}) if not pinned else {}
        self.is_tried = is_tried

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why programs seen so far run on one example at a time.

        Not of draws of a single one, which is alone anyway, and which torch may compute by other operations.
        """
        ways = (way for way in self._ways.values() if not (way.is_apart and way.why == CHANGES))
        return tuple(dict.fromkeys(way.why for way in ways if way.why is not None))

    def close(self) -> None:
        """Take the hooks off the model."""
        self.capture.close()
        self.kept.close()

    def run(self, forward: Forward) -> Run:
        """Run a pass."""
        self.capture.take()
        try:
            losses, roots, asked = forward.run()
        finally:
            self.kept.bring_back(is_over=False)
        with DisableTorchFunction():  # what is asked of torch in here is not the model's doing
            graph = self.leaves.graph([losses.grad_fn])
        model = graph if roots is None else self.leaves.graph(roots)
        setting = (forward.loss, self._modes(), forward.shapes, len(losses).bit_length())
        return Run(losses, self._take_used(graph), graph, model, setting, asked)

    def find_passing(self, forward: Forward) -> list[int]:
        """Return the numbers of the examples on which the passes work, each alone."""
        good = []
        with self.capture.paused():
            for number in range(forward.size):
                self.kept.bring_back()
                try:
                    with torch.enable_grad():
                        losses = forward.rows([number]).losses()
                        torch.autograd.grad(losses.sum(), list(self.leaves.parameters.values()), allow_unused=True)
                    good.append(number)
                except STOPS:
                    raise
                except BaseException:  # noqa: S112 - nobody may hear of it: the example counts as zero
                    continue
        self.kept.bring_back()
        return good

    def _modes(self) -> Hashable:
        return tuple([module.training for module in self._modules])

    def record(self, losses: Tensor, recorder: Recorder) -> Run:
        """Return the run that gave these losses, of which the model's own calls can be run again."""
        graph = self.leaves.graph([losses.grad_fn])
        model = self.leaves.graph(recorder.keep(graph.numbers))
        setting = (self._modes(), len(losses).bit_length())
        return Run(losses, self._take_used(graph), graph, model, setting, recorder.asked)

    def _take_used(self, graph: Graph) -> list[Call]:
        """Return the calls since the last time that the losses use."""
        return [call for call in self.capture.take() if graph.place(call) is not None]

    def find_known(self, run: Run) -> Way | None:
        """Return the way of a program that was seen before."""
        return self._ways.get(run.key) or self._ways.get(run.kin)

    def mark_slow(self, run: Run, why: str) -> None:
        """Remember that a program is run on one example at a time from here on."""
        self._remember(run.key, Way(why=why, is_apart=True))  # or it would not have had a fast way

    def _remember(self, key: Hashable, way: Way) -> None:
        self._ways[key] = way
        if len(self._ways) > MOST:  # a model that computes something else at every step
            del self._ways[next(iter(self._ways))]

    def way(self, run: Run, forward: Forward) -> Way:
        """Return the way of the run's program; looks at it if it is new."""
        found = self.find_known(run)
        if found is None:
            self._require_used(run.graph)
            with restored():  # how often a program is looked at may depend on addresses, and must not show in a result
                found = self._inspect(run, forward)
            # One that has other constants in every pass would be looked at in every pass, to the same end.
            self._remember(run.kin if found.why == CHANGES else run.key, found)
            self.is_tried = True
        return found

    def meetings(self, way: Way, run: Run) -> list[Meeting]:
        """Return where parameters meet the examples in a run, before its backward pass."""
        nodes = list(run.graph.numbers) if way.met else []
        parameters, size = self.leaves.parameters, len(run.losses)
        made: dict[tuple[int, int], list[Tensor]] = {}
        return [
            of_node(
                met.name,
                parameters[met.name],
                nodes[met.number],
                met.input,
                met.place,
                size,
                made.setdefault((met.number, met.input), []),
            )
            for met in way.met
        ]

    def _inspect(self, run: Run, forward: Forward) -> Way:
        why = find_reason_against(run.graph, self._pinned)
        if why is not None and forward.part is None:  # all of it runs again, so nothing else has to be known
            return Way(why=why)
        for _ in range(TRIALS):
            try:
                every, most, few = (forward.rows(rows) for rows in _choose_rows(forward.size))
                with self._parameters_moved(MOVE):
                    looks = [self._watch(each) for each in (every, most, few)]
                with self._parameters_moved(FAR):  # what is flat for these parameters need not be so for others
                    looks.append(self._watch(few, is_far=True))
            except STOPS:
                raise
            except BaseException as error:  # of torch, or of the model on other numbers of examples
                return Way(why=f"it cannot be watched ({type(error).__name__})")
            if any(look.watch.escaped for look in looks) or all(look.is_of(run) for look in looks):
                return self._judge(run, looks)
        return Way(why=CHANGES, is_apart=forward.size == 1)

    def _watch(self, forward: Forward, *, is_far: bool = False) -> _Look:
        mark_seed()  # or a pass that seeds torch's generator, as the run before this look did, would change nothing
        watch = ExampleWatch(forward.size, forward.tensors, is_far=is_far)
        placed: dict[int, Place | None] = {}

        def note(call: Call, output: Any) -> None:
            placed[id(call)] = _find_place(watch.marks, call, output)

        with watch, self.capture.shown_to(note):
            run = self.run(forward)
        nodes = {number: watch.nodes[node] for node, number in run.model.numbers.items() if node in watch.nodes}
        sight = Sight([placed[id(call)] for call in run.calls], inner.find_places(run.model, nodes, len(run.losses)))
        is_apart = watch.marks.is_in_front(run.losses)
        watch.forget()
        return _Look(len(run.losses), run.program, run.asked, watch, sight, is_apart)

    def _judge(self, run: Run, looks: Sequence[_Look]) -> Way:
        """Return the way of a program that was looked at, or the reason why it runs on one example at a time."""
        if (why := next((look.why for look in looks if look.why is not None), None)) is not None:
            return Way(why=why)
        if not all(look.watch.agrees_with(looks[0].watch) for look in looks[1:3]):
            return Way(why="what is computed depends on the number of examples")
        way = attribute(run.calls, run.graph, self.leaves, self._pinned, _restrict(run, _intersect(looks)))
        return way if way.why is None else replace(way, is_apart=True)

    @contextmanager
    def _parameters_moved(self, distance: float) -> Iterator[None]:
        """Let parameters be others inside: rows of one that are all zero at first do not stay so."""
        before = [(parameter, parameter.data) for parameter in self.leaves.parameters.values()]
        generator = torch.Generator().manual_seed(0)
        try:
            for parameter, values in before:
                by = torch.rand(values.shape, generator=generator).to(values).mul_(distance)
                parameter.data = torch.addcmul(by, values, by).add_(values) if distance < 1 else by.sub_(distance / 2)
            with self.kept.scope():
                yield
        finally:
            for parameter, values in before:
                parameter.data = values

    def _require_used(self, graph: Graph) -> None:
        """Refuse parameters that the first losses do not depend on; later that may be for a reason in a record."""
        unused = [name for name in self.leaves.parameters if name not in graph.used]
        if unused and not self.is_tried:
            message = (
                f"the losses do not depend on {', '.join(unused)}: freeze it with requires_grad_(False), or use it; "
                "checkpointing with use_reentrant=True hides parameters, use False"
            )
            raise InvalidArgument("model", message)


@dataclass(frozen=True, eq=False, slots=True)
class _Look:
    """What was seen of a run, without what it computed: where examples were, and whether they lead the losses."""

    size: int
    program: Hashable
    asked: CallLog
    watch: ExampleWatch
    sight: Sight
    is_apart: bool

    def is_of(self, run: Run) -> bool:
        """Return whether this is the run's program: the same graph, and for as many examples the same calls."""
        is_as_large = self.size == len(run.losses)
        return self.program == run.program and (not is_as_large or self.asked == run.asked)

    @property
    def why(self) -> str | None:
        """Why the examples do not stay apart and in their places, if they do not."""
        if self.watch.escaped is not None:
            return f"{self.watch.escaped} lets the examples decide what is computed"
        is_mixed = self.watch.why is not None or not self.is_apart
        return f"{self.watch.why} is not known to keep examples apart" if is_mixed else None


def _choose_rows(size: int) -> list[list[int]]:
    """Return the rows of three looks: all of them, as many as one of the same class can have, and a few.

    No look has a single one, in which nothing can mix.
    """
    every = list(range(size))
    few = every[:FEW] if size > FEW else every[:-1] if size == FEW else (every * FEW)[:FEW]
    most = (every * 2)[: 2 ** size.bit_length() - 1]
    return [every, most, few] if size > 1 else [every * 2, every * 2, few]


def _find_place(marks: Marks, call: Call, output: Any) -> Place | None:
    """Return where the examples are in a call's input and output, None if that is not one place for both."""
    if call.x is None or not isinstance(output, Tensor):
        return None
    is_same = marks.of(call.x) == marks.of(output) == NONE and call.x.shape[:1] == output.shape[:1] == (marks.size,)
    if is_same and marks.is_alike(call.x, FRONT):
        # The same for all examples, and from here on each has its own: a gradient in another row would not show else.
        marks.put(output, mark_of(output.shape, FRONT))
        return FRONT
    before, after = marks.place(call.x), marks.place(output)
    return before if before == after and before is not None and 1 in (before.outer, before.inner) else None


def _restrict(run: Run, sight: Sight) -> Sight:
    """Return what was seen of the part that can be run again, by the numbers that its nodes have in the whole graph."""
    whole = run.graph.numbers
    used = {whole[node]: number for node, number in run.model.numbers.items() if node in whole}
    return sight._replace(nodes={number: sight.nodes[own] for number, own in used.items() if own in sight.nodes})


def _intersect(looks: Sequence[_Look]) -> Sight:
    """Return what all looks have seen alike."""
    first, *others = [look.sight for look in looks]
    calls = [
        place if all(each.calls[number] == place for each in others) else None
        for number, place in enumerate(first.calls)
    ]
    nodes = {
        number: place
        for number, place in first.nodes.items()
        if all(number in each.nodes and each.nodes[number] == place for each in others)
    }
    return Sight(calls, nodes)

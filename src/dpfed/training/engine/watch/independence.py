"""Whether a forward pass keeps its examples apart and in their places, by watching every operation it is made of.

Book-keeping takes row i of a layer's input and output gradient for example i. That is so if, and only if, all that
stands between the examples and the losses is on the allow-list (`operations`). Autograd's graph does not show all of
it (whole numbers leave no trace there), so the pass runs once more under a dispatch mode that sees what torch really
does. It runs with two batch sizes, and numbers that differ between the two depend on how many records were drawn.

>>> import torch
>>> x = torch.randn(5, 3)
>>> with ExampleWatch(5, [x]) as watch:
...     sums, sorted_rows = (x * 2).sum(1), x[x[:, 0].argsort()]
>>> watch.marks.is_in_front(sums), watch.marks.is_in_front(sorted_rows), watch.why
(True, False, 'sort')
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.autograd.graph import Node
from torch.nn.utils import rnn
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from dpfed.training.engine.forward import map_tensors, tensors_of
from dpfed.training.engine.watch import calls, index_rules, operations, packing_rules
from dpfed.training.engine.watch.calls import remove_idle_modes
from dpfed.training.engine.watch.marks import MIXED, NOISE, NONE, Marks, Place, mark_in, mark_of
from dpfed.training.engine.watch.operation import FRONT, Found, Operation
from dpfed.training.layers.packed import DrawnSize

# What takes numbers out of torch's sight, or changes a gradient behind its back.
_OUT_OF_SIGHT: frozenset[Any] = frozenset(
    {
        Tensor.numpy,
        Tensor.tolist,
        Tensor.__array__,
        Tensor.register_hook,
        Tensor.__dlpack__,
        Tensor.__deepcopy__,
        Tensor.__reduce_ex__,
        Tensor.__repr__,
        Tensor.__format__,
        Tensor.apply_,
        Tensor.map_,
        Tensor.map2_,
        Tensor.storage,
        Tensor.data_ptr,
        Tensor.untyped_storage,
        Tensor.register_post_accumulate_grad_hook,
        Tensor.grad_fn.__get__,  # type: ignore[union-attr]
        Tensor.data.__get__,  # type: ignore[attr-defined]
        Tensor.data.__set__,  # type: ignore[attr-defined]
    }
)
# What reads numbers out of tensors in its lists, or a shape out of one.
_READ: frozenset[Any] = frozenset(
    {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor, torch.tensor_split, Tensor.tensor_split}
)
# What may be asked of a tensor whose shape depends on the records drawn.
_SHAPELESS: frozenset[Any] = frozenset({Tensor.dim, Tensor.requires_grad.__get__})  # type: ignore[attr-defined]
# What torch's own code of packed sequences asks of one, and tells nobody.
_ASKED_BY_TORCH: frozenset[Any] = frozenset({Tensor.size, Tensor.to, Tensor.device.__get__})
# What lays something without examples out for each of them, as a class token: from there on each has its own.
_REPEATED = ("ExpandBackward0", "RepeatBackward0")
_CLOSE = 1e-6
_PIECE = 1 << 16  # of a constant


class ExampleWatch:
    """A watch that follows where the examples are in all tensors of a pass; they are the first axis of `given`.

    In a pass that `is_far` parameters are not the model's own, and values computed with them may not be finite. An
    operation that raises for such values (`operations.REFUSING`) runs on others: no mark depends on the values of
    examples, and where those reach Python the pass has escaped.
    """

    def __init__(self, size: int, given: Iterable[Tensor], *, is_far: bool = False) -> None:
        self.marks = Marks(size)
        self.is_far = is_far
        self.seen: list[tuple[Any, ...]] = []
        self.why: str | None = None  # the first operation that is not known to keep examples apart
        self.escaped: str | None = None  # the first one that showed Python something of the examples
        self.nodes: dict[Node, Place | None] = {}  # where the results of autograd's nodes have examples; None for none
        self._modes: list[_Operations | _Functions] = []
        self._seed = torch.default_generator.initial_seed()
        for tensor in given:
            self.marks.put(tensor, mark_of(tensor.shape, FRONT))

    def __enter__(self) -> Self:
        remove_idle_modes()
        self._modes = [_Operations(self), _Functions(self)]
        for mode in self._modes:
            mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for mode in self._modes:
            mode.watch = None
        remove_idle_modes()

    def forget(self) -> None:
        """Drop what holds the tensors of the pass, and autograd's graph."""
        self.marks = Marks(self.marks.size)
        self.nodes = {}

    def agrees_with(self, other: ExampleWatch) -> bool:
        """Return whether both passes ran the same operations with the same numbers, whatever their sizes."""
        return len(self.seen) == len(other.seen) and all(map(_agree, self.seen, other.seen))

    def note(self, operation: Operation, found: Found, *, is_followed: bool = False) -> None:
        """Record an operation on examples, with its numbers and constants."""
        if found == MIXED and not is_followed and self.why is None:
            self.why = operation.name
        self.seen.append((operation.name, *_collect_numbers(operation), *_summarise_constants(operation)))

    def note_nodes(self, output: Any) -> None:
        """Record where the examples are in a result that has a gradient, if they are at one place or not in it."""
        with DisableTorchFunction():
            made = [(tensor, tensor.grad_fn) for tensor in tensors_of(output) if tensor.grad_fn is not None]
            for tensor, node in made if len(made) == 1 else ():
                mark, place = self.marks.of(tensor), self.marks.place(tensor)
                if (
                    mark == NONE
                    and node.name() in _REPEATED
                    and (place := self._find_repeated_axis(tensor)) is not None
                ):
                    self.marks.mark_repeated(tensor, place)
                if mark == NONE or place is not None:
                    self.nodes[node] = place

    def _find_repeated_axis(self, tensor: Tensor) -> Place | None:
        """Return the axis along which something without examples was repeated, once for each of them."""
        axes = [Place(axis) for axis, length in enumerate(tensor.shape) if length == self.marks.size]
        alike = [place for place in axes if self.marks.is_alike(tensor, place)]
        return alike[0] if len(alike) == 1 else None

    def is_repeatable(self, operation: Operation) -> bool:
        """Return whether an operation draws numbers from a seed that the pass has set: the same for the same places."""
        if torch.Tag.nondeterministic_seeded not in operation.tags:
            return False
        return operation.get("generator") is not None or torch.default_generator.initial_seed() != self._seed

    @property
    def memory(self) -> list[torch.UntypedStorage]:
        """The memory that holds something of examples."""
        return self.marks.memory

    def is_example(self, value: Any) -> bool:
        """Return whether the value is a tensor with something of examples."""
        return isinstance(value, Tensor) and self.marks.of(value) not in operations.EXAMPLE_FREE


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that sees every aten operation, also those inside torch's own layers."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler, which takes seconds, to keep it away from here

    def __init__(self, watch: ExampleWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch: ExampleWatch | None = watch

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to watch any more."""
        return self.watch is None

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords, watch = kwargs or {}, self.watch
        if watch is None:
            return function(*args, **keywords)
        with DisableTorchFunction():  # what is asked of torch in here is not the model's doing
            return self._follow(watch, function, args, keywords)

    def _follow(self, watch: ExampleWatch, function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run an operation, and mark its results and what it writes."""
        marks, schema = watch.marks, function._schema
        if schema.is_mutable:
            into = find_written(schema, args, keywords)
            # Before it happens: afterwards the old numbers are gone.
            operation = Operation(function, args, keywords, into[0] if into else (), marks)
            followed = packing_rules.follow(operation)
            found = _judge(watch, operation, is_followed=followed is not None)
            if torch.Tag.inplace_view in function.tags:  # the same memory, seen with other axes
                output = function(*args, **keywords)
                marks.put(output, mark_in(output, found, marks.size))
                return output
            for value in tensors_of(into):
                marks.overwrite(value, mark_in(value, found, marks.size) if len(into) == 1 else _keep_or_mix(found))
            output = function(*args, **keywords)
            _give_roles(marks, into, followed, is_written=True)
            return output
        output = _run(watch, function, args, keywords)
        operation = Operation(function, args, keywords, output, marks)
        if operation.kind in operations.EMPTY:
            output.zero_()
        followed = packing_rules.follow(operation)
        found = _judge(watch, operation, is_followed=followed is not None)
        if followed is None:
            for tensor, mark in operations.marks_of(operation, found):
                marks.put(tensor, mark)
        else:
            for tensor, (own, _) in zip(tensors_of(output), followed, strict=True):
                marks.put(tensor, mark_in(tensor, own, marks.size))
            _give_roles(marks, tensors_of(output), followed)
        return output


class _Functions(TorchFunctionMode):
    """A function mode that sees what Python reads of a tensor without an operation."""

    def __init__(self, watch: ExampleWatch) -> None:
        super().__init__()
        self.watch: ExampleWatch | None = watch

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to watch any more."""
        return self.watch is None

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        watch, keywords = self.watch, kwargs or {}
        if watch is None:
            return function(*args, **keywords)
        if function in _OUT_OF_SIGHT and watch.is_example(args[0]):
            of = getattr(function, "__self__", function)  # of a property, or of a method
            watch.escaped = watch.escaped or of.__name__
        if function in _READ and any(map(watch.is_example, _find_listed(args, keywords))):
            watch.escaped = watch.escaped or function.__name__
        is_drawn = packing_rules.has_drawn_shape(watch.marks, tensors_of([*args, *keywords.values()]))
        if is_drawn and function not in _SHAPELESS and not _is_asked_by_torch(function, sys._getframe(1)):
            watch.escaped = (
                watch.escaped or f"the number of packed positions ({getattr(function, '__name__', 'asked')})"
            )
        try:
            output = function(*args, **keywords)
        except Exception as error:  # which the pass may catch, and then the examples have decided
            if any(map(watch.is_example, tensors_of([*args, *keywords.values()]))):
                watch.escaped = watch.escaped or type(error).__name__
            raise
        watch.note_nodes(output)
        return DrawnSize(output) if is_drawn and function is Tensor.size and isinstance(output, int) else output


def _is_asked_by_torch(function: Any, frame: Any) -> bool:
    """Return whether it is torch's own code of packed sequences that asks for something of one."""
    if function not in _ASKED_BY_TORCH:
        return False
    while frame is not None and frame.f_globals.get("__name__") in (__name__, calls.__name__):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == rnn.__name__


def _run(watch: ExampleWatch, function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Run an operation; if it raises for values that far parameters have made, run it on allowed values."""
    try:
        return function(*args, **keywords)
    except RuntimeError:
        if not watch.is_far or function._schema.name.removeprefix("aten::") not in operations.REFUSING:
            raise

    def tame(value: Tensor) -> Tensor:
        is_tamed = value.is_floating_point() and watch.is_example(value)
        return torch.full_like(value, operations.ALLOWED) if is_tamed else value

    return function(*map_tensors(args, tame), **map_tensors(keywords, tame))


def _give_roles(
    marks: Marks, made: Sequence[Tensor], followed: Sequence[packing_rules.Result] | None, *, is_written: bool = False
) -> None:
    for tensor, (_, role) in zip(made, followed or (), strict=False):
        if role is not None:
            marks.give_role(tensor, role, is_written=is_written)


def _judge(watch: ExampleWatch, operation: Operation, *, is_followed: bool = False) -> Found:
    """Return where the examples are after an operation; record it, and whether it shows Python something of them."""
    has_examples = any(map(watch.is_example, operation.tensors))
    if has_examples and (operation.kind in operations.ESCAPES or index_rules.chooses_shape(operation)):
        watch.escaped = watch.escaped or operation.name
    if has_examples and _is_kept_by_others():
        watch.escaped = watch.escaped or "saved_tensors_hooks"
    found = MIXED if operation.kind == "set" else operations.locate_examples(operation)  # memory of no matter whom
    if watch.is_repeatable(operation):
        found, watch.why = MIXED, watch.why or f"{operation.name} with a seed of its own"
    if has_examples:
        watch.note(operation, found, is_followed=is_followed)
    return found


def _find_listed(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[Tensor]:
    """Return all tensors of a call, without the first argument if that is a tensor itself."""
    first, *rest = arguments or (None,)
    return list(tensors_of([*([] if isinstance(first, Tensor) else [first]), *rest, *keywords.values()]))


def _is_kept_by_others() -> bool:
    """Return whether hooks other than torch's checkpoints see what autograd saves for the backward pass."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and any(hook.__module__ != checkpoint.__name__ for hook in hooks)


def find_written(schema: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
    """Return the arguments into which an operation writes."""
    found = [value for each, value in zip(schema.arguments, arguments, strict=False) if _is_written(each)]
    return found + [keywords[each.name] for each in schema.arguments if _is_written(each) and each.name in keywords]


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _keep_or_mix(found: Found) -> int:
    """Return the mark of one of several tensors that an operation writes: MIXED unless it has no examples."""
    return found if found in (NONE, NOISE) and isinstance(found, int) else MIXED


def _collect_numbers(operation: Operation) -> list[float]:
    """Return the numbers of a call, without sizes that follow from the batch's."""
    given = [value for name, value in operation.values.items() if name != "N"]
    if operation.kind not in operations.SIZED:
        given += [number for value in given if isinstance(value, list | tuple) for number in value]
    return [float(value) for value in given if isinstance(value, float | int)]


def _summarise_constants(operation: Operation) -> list[_Constant]:
    """Return a summary of each constant or parameter that examples meet, the same whatever the batch's size."""
    marks = operation.marks
    constants = [value.detach() for value in operation.tensors if marks.of(value) == NONE and value.numel()]
    reals = [torch.view_as_real(value.resolve_conj()) if value.is_complex() else value for value in constants]
    return [_Constant.of(value) for value in reals]


class _Constant(NamedTuple):
    """A summary of a constant: the means of its positive and its negative part, and a weighted sum of its values.

    The means are the same however often it is repeated; the weighted sum is compared for constants of the same shape.
    """

    positive: float
    negative: float
    shape: torch.Size
    weighted: float

    @classmethod
    def of(cls, values: Tensor) -> _Constant:
        """Summarise these values, a piece at a time: a table of words is large."""
        positive = negative = weighted = 0.0
        for number, piece in enumerate(torch.split(values.flatten(), _PIECE)):
            exact = piece.double()
            first = 1 + number * _PIECE
            weights = torch.arange(first, first + len(exact), dtype=torch.float64, device=values.device).sin_()
            weighted += float(weights.mul_(exact).sum())
            positive += float(exact.clamp(min=0).sum())
            negative += float(exact.clamp(max=0).sum())
        return cls(positive / values.numel(), negative / values.numel(), values.shape, weighted)

    def is_close(self, other: _Constant) -> bool:
        """Return whether the other may be the same constant."""
        scale = (self.positive - self.negative) * max(1, math.prod(self.shape))
        is_other = self.shape == other.shape and abs(self.weighted - other.weighted) > _CLOSE * scale
        return _is_close(self.positive, other.positive) and _is_close(self.negative, other.negative) and not is_other


def _agree(one: Sequence[Any], two: Sequence[Any]) -> bool:
    """Return whether two records are of the same operation with the same numbers and constants."""
    if one[0] != two[0] or len(one) != len(two):
        return False
    return all(
        a.is_close(b) if isinstance(a, _Constant) and isinstance(b, _Constant) else _is_close(a, b)
        for a, b in zip(one[1:], two[1:], strict=True)
    )


def _is_close(one: Any, two: Any) -> bool:
    is_nan = one != one and two != two
    return is_nan or (type(one) is type(two) and math.isclose(one, two, rel_tol=_CLOSE))

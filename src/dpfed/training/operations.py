"""The allow-list: which of torch's operations keep examples apart and in their places, and where they put them.

A rule says where in an operation's outputs the examples are, from where they are in what goes in: a `Place`, or a mark
(`marks`). An operation without a rule, or used so that examples could meet or move, gives MIXED. What has nothing of
any example in it stays so, whatever is done to it.

>>> import torch
>>> marks = Marks(size=4)
>>> x = torch.ones(4, 3)
>>> marks.put(x, 3)
>>> result(Operation(torch.ops.aten.sum.dim_IntList, (x, [1]), {}, x.sum(1), marks))
Place(axis=0, outer=1, inner=1)
>>> result(Operation(torch.ops.aten.flip.default, (x, [0]), {}, x.flip(0), marks)) == MIXED
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dpfed.training.forward import tensors_of
from dpfed.training.marks import COUNT, MIXED, NOISE, NONE, Marks, Place, mark_of

Found = int | Place
FRONT = Place(0)


class Operation:
    """One call of an aten operation: its arguments by name, what it makes, and the marks so far."""

    def __init__(
        self, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], output: Any, marks: Marks
    ) -> None:
        schema = function._schema
        # Somebody's own operation (torch.library) may have the name of one of torch's, and do something else.
        self.name = str(schema.name).removeprefix("aten::")
        self.tags = function.tags
        self.kind = self.name if self.name.startswith("_") else self.name.rstrip("_")
        self.output = output
        self.marks = marks
        given = dict(zip((argument.name for argument in schema.arguments), arguments, strict=False))
        defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        results = {a.name for a in schema.arguments if a.is_out}  # written, and not read
        values = {**defaults, **given, **keywords}
        self.values: dict[str, Any] = {name: value for name, value in values.items() if name not in results}

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that go in."""
        return list(tensors_of(self.values))

    @property
    def shape(self) -> torch.Size:
        """The shape of the output, or of the first of several."""
        return tensors_of(self.output)[0].shape

    @property
    def own(self) -> Tensor:
        """The tensor that the operation is a method of."""
        value: Tensor = self.values["self" if "self" in self.values else "input"]
        return value

    def get(self, name: str) -> Any:
        """Return an argument, None if the operation has none of that name."""
        return self.values.get(name)

    def place(self, name: str) -> Place | None:
        """Return where the examples are in an argument."""
        value = self.get(name)
        return self.marks.place(value) if isinstance(value, Tensor) else None

    def axis(self, name: str = "dim") -> int:
        """Return an argument that names an axis of the operation's own tensor, counted from the front."""
        return int(self.values[name]) % max(self.own.dim(), 1)

    def axes(self, name: str) -> set[int] | None:
        """Return an argument that names several axes; None if it names all."""
        given = self.get(name)
        if given is None or (not isinstance(given, int) and not len(given)):
            return None
        return {axis % max(self.own.dim(), 1) for axis in ([given] if isinstance(given, int) else given)}

    def is_clean(self, *names: str) -> bool:
        """Return whether these arguments have nothing of any example, and nothing random."""
        return all(self.marks.of(tensor) in (NONE, COUNT) for tensor in tensors_of([self.get(name) for name in names]))


def result(operation: Operation) -> Found:
    """Return where the examples are in the operation's outputs, or their mark."""
    if operation.kind in MADE_NEW:
        return NOISE if operation.kind in RANDOM else NONE
    marked = {operation.marks.of(tensor) for tensor in operation.tensors}
    if MIXED in marked:
        return MIXED
    if not any(mark > NONE for mark in marked):
        return _without_examples(operation, marked)
    rule = RULES.get(operation.kind)
    found = None if rule is None else rule(operation)
    return MIXED if found is None else found


def _without_examples(operation: Operation, marked: set[int]) -> int:
    """Return the mark of what is made of random numbers and constants only."""
    if operation.name == "arange":
        return COUNT
    if operation.kind in RANDOM:
        return NOISE if _is_flat(operation) else NONE
    if operation.kind in ("fill", "zero"):
        return NONE
    if operation.kind in IN_ORDER and len(marked) == 1:
        return marked.pop()
    is_kept = NOISE in marked and operation.kind in POINTWISE | SHAPES
    return NOISE if is_kept and _is_flat(operation) else NONE


def _is_flat(operation: Operation) -> bool:
    """Return whether what meets, or makes, random numbers is one number everywhere."""
    marks = operation.marks
    values = operation.tensors[1:] if operation.name.endswith("_") and operation.kind in RANDOM else operation.tensors
    constants = [value.detach() for value in values if marks.of(value) != NOISE and value.numel() > 1]
    return all(bool((value == value.flatten()[0]).all()) for value in constants)


# --- the rules; None where examples could meet or move ---


def pointwise(operation: Operation) -> Found | None:
    """Each number of the output comes from the numbers at its own place, after broadcasting."""
    return aligned(operation.marks, operation.tensors, operation.shape)


def aligned(marks: Marks, tensors: Sequence[Tensor], shape: Sequence[int]) -> Found | None:
    """Return where the examples are in tensors that are broadcast to the shape and used number by number."""
    marked = [tensor for tensor in tensors if marks.of(tensor) > NONE]
    kinds = {marks.of(tensor) for tensor in marked}
    is_alone = all(tensor.numel() == 1 for tensor in tensors if marks.of(tensor) <= NONE)
    if is_alone and len(kinds) == 1 and all(tensor.shape == shape for tensor in marked):
        return kinds.pop()  # also where examples are at no single axis
    places = {broadcast(marks, tensor, shape) for tensor in marked}
    place = places.pop()
    if places or place is None:
        return None
    others = (tensor for tensor in tensors if marks.of(tensor) <= NONE)
    return place if all(marks.is_alike(other, place.moved(other.dim() - len(shape))) for other in others) else None


def broadcast(marks: Marks, tensor: Tensor, shape: Sequence[int]) -> Place | None:
    """Return where the tensor's examples are after it was broadcast to the shape."""
    place = marks.place(tensor)
    if place is None:
        return None
    moved = place.moved(len(shape) - tensor.dim())
    return moved if shape[moved.axis] == tensor.shape[place.axis] else None


def in_order(operation: Operation) -> Found | None:
    """All numbers stay, in their logical order; seen as other types of number they may not."""
    return operation.marks.of(operation.own) if math.prod(operation.shape) == operation.own.numel() else None


def copied(operation: Operation) -> Found | None:
    """Numbers written over those of another tensor, of which this may be a part: it keeps its examples."""
    marks, source = operation.marks, operation["src"]
    if marks.of(source) > NONE:
        return aligned(marks, [source], operation.shape)
    return aligned(marks, [source, operation.own], operation.shape)


def permuted(operation: Operation) -> Found | None:
    """Axes change places."""
    place, count = operation.marks.place(operation.own), operation.own.dim()
    if place is None:
        return None
    axes = list(range(count))
    if operation.kind == "permute":
        axes = [axis % count for axis in operation["dims"]]
    elif count > 1:
        one, two = (0, 1) if operation.kind == "t" else (operation.axis("dim0"), operation.axis("dim1"))
        axes[one], axes[two] = axes[two], axes[one]
    return place.at(axes.index(place.axis))


def expanded(operation: Operation) -> Found | None:
    """Axes of length one are repeated."""
    return broadcast(operation.marks, operation.own, operation.shape)


def repeated(operation: Operation) -> Found | None:
    """The tensor is laid out several times."""
    place = operation.marks.place(operation.own)
    if place is None:
        return None
    moved = place.moved(len(operation.shape) - operation.own.dim())
    return moved if operation["repeats"][moved.axis] == 1 else None


def reduced(operation: Operation) -> Found | None:
    """Some axes are added up, or otherwise made one number each."""
    if operation.get("other") is not None:  # the larger of two tensors
        return pointwise(operation)
    place, gone = operation.marks.place(operation.own), operation.axes("dim")
    if place is None or gone is None or place.axis in gone:
        return None
    return place.moved(0 if operation.get("keepdim") else -sum(axis < place.axis for axis in gone))


def along(name: str) -> Callable[[Operation], Found | None]:
    """Numbers along the axes with that name meet or change places, and the axes stay."""

    def rule(operation: Operation) -> Found | None:
        place, met = operation.marks.place(operation.own), operation.axes(name)
        return None if place is None or met is None or place.axis in met else place

    return rule


def inside(axes: int, *clean: str) -> Callable[[Operation], Found | None]:
    """The last so many axes meet; `clean` names arguments that must have nothing of examples."""

    def rule(operation: Operation) -> Found | None:
        place = operation.marks.place(operation.own)
        is_outside = place is not None and place.axis < operation.own.dim() - axes
        return place if is_outside and operation.is_clean(*clean) else None

    return rule


def normalised(operation: Operation) -> Found | None:
    """The last axes are normalised together (LayerNorm, RMSNorm)."""
    return inside(len(operation["normalized_shape"]), "weight", "bias")(operation)


def in_front(*names: str, clean: Sequence[str] = ()) -> Callable[[Operation], Found | None]:
    """Examples are the first axis of the output and of each of these arguments; one without them is alike for all."""

    def rule(operation: Operation) -> Found | None:
        values = [value for value in map(operation.get, names) if isinstance(value, Tensor)]
        is_kept = all(_is_in_step(operation.marks, value) for value in values) and operation.is_clean(*clean)
        return FRONT if is_kept and not _is_summed_up(operation) else None

    return rule


def _is_in_step(marks: Marks, value: Tensor) -> bool:
    if marks.of(value) > NONE:
        return marks.is_in_front(value)
    return value.dim() > 0 and marks.is_alike(value, FRONT)


def _is_summed_up(operation: Operation) -> bool:
    """Return whether the operation is a loss that adds up over examples."""
    return operation.get("reduction") not in (None, 0)


def loss(operation: Operation) -> Found | None:
    """A loss of each number on its own, unless it adds them up."""
    return None if _is_summed_up(operation) else pointwise(operation)


def multiplied(left: str, right: str, added: str | None = None) -> Callable[[Operation], Found | None]:
    """A product of matrices, to which another tensor may be added."""

    def rule(operation: Operation) -> Found | None:
        found = _product(operation, left, right)
        extra = operation.get(added) if added else None
        if not isinstance(extra, Tensor):
            return found
        if found is None:
            return _with_constant(operation, left, right, extra)
        return found if _adds(operation, found, extra) else None

    return rule


def _product(operation: Operation, left: str, right: str) -> Place | None:
    """Rows of the left factor, or columns of the right one, are rows or columns of the product."""
    one, two = operation.place(left), operation.place(right)
    if one is not None and operation.is_clean(right):
        return one if one.axis < operation[left].dim() - 1 else None
    is_column = two is not None and operation[right].dim() > 1 and two.axis == operation[right].dim() - 1
    return two.at(len(operation.shape) - 1) if two is not None and is_column and operation.is_clean(left) else None


def _with_constant(operation: Operation, left: str, right: str, extra: Tensor) -> Place | None:
    """Return the place of examples to which a product without any is added, the same for each of them."""
    place = broadcast(operation.marks, extra, operation.shape)
    if place is None or len(operation.shape) != 2 or not operation.is_clean(left, right):
        return None
    return place if operation.marks.is_alike(operation[right if place.axis else left], place) else None


def _adds(operation: Operation, place: Place, extra: Tensor) -> bool:
    """Return whether a tensor that is added to a product keeps the examples where they are."""
    marks, shape = operation.marks, operation.shape
    if marks.of(extra) > NONE:
        return broadcast(marks, extra, shape) == place
    return marks.is_alike(extra, place.moved(extra.dim() - len(shape)))


def paired(left: str, right: str, added: str | None = None) -> Callable[[Operation], Found | None]:
    """As many products of matrices as the first axis has."""
    apart = multiplied(left, right, added)

    def rule(operation: Operation) -> Found | None:
        marks, factors = operation.marks, (operation[left], operation[right])
        places = {place for factor in factors if (place := marks.place(factor)) is not None}
        first = next(iter(places), None)
        if first is None or first.axis:
            return apart(operation)
        are_in_step = len(places) == 1 and all(
            marks.of(factor) > NONE or marks.is_alike(factor, first) for factor in factors
        )
        extra = operation.get(added) if added else None
        return first if are_in_step and (extra is None or _adds(operation, first, extra)) else None

    return rule


def transformed(operation: Operation) -> Found | None:
    """A Linear over the last axis."""
    return inside(1, "weight", "bias")(operation)


def multiplied_twice(operation: Operation) -> Found | None:
    """A bilinear layer: both of an example's vectors with one table."""
    places = {operation.place(name) for name in ("i1", "i3") if operation.marks.of(operation[name]) > NONE}
    place = places.pop() if places else None
    is_kept = operation["expand2"] == [0] and 0 not in (
        *operation["expand1"],
        *operation["expand3"],
        *operation["sumdim"],
    )
    if places or place is None or place.axis or not is_kept or not operation.is_clean("i2"):
        return None
    others = [operation[name] for name in ("i1", "i3") if operation.marks.of(operation[name]) <= NONE]
    return place if all(operation.marks.is_alike(other, place) for other in others) else None


def distances(operation: Operation) -> Found | None:
    """Distances between all points of an example; without an axis of examples, between all points there are."""
    return in_front("x1", "x2")(operation) if operation["x1"].dim() == operation["x2"].dim() == 3 else None


def grouped(operation: Operation) -> Found | None:
    """Groups of channels normalised, each example on its own."""
    is_so = operation["N"] == operation.marks.size
    return in_front("input", clean=("weight", "bias"))(operation) if is_so else None


def attended(operation: Operation) -> Found | None:
    """Attention over (example, head, position, feature), with a mask that is broadcast to it."""
    mask = operation.get("attn_mask")
    is_kept = mask is None or _adds(operation, FRONT, mask)
    return in_front("query", "key", "value")(operation) if is_kept else None


def looked_up(operation: Operation) -> Found | None:
    """Rows of a table without examples, by numbers that have them."""
    mark = operation.marks.of(operation["indices"])
    return mark * int(operation["weight"].shape[1]) if mark > NONE and operation.is_clean("weight") else None


def bagged(operation: Operation) -> Found | None:
    """Rows of a table added up, as many for each example."""
    marks, numbers, weights = operation.marks, operation["indices"], operation.get("per_sample_weights")
    each = len(numbers) // marks.size
    if each * marks.size != len(numbers) or not each or marks.of(numbers) != each or operation["include_last_offset"]:
        return None
    is_kept = operation.is_clean("weight", "offsets") and (weights is None or _is_weighed(marks, weights, each))
    return FRONT if is_kept and torch.equal(operation["offsets"], torch.arange(0, len(numbers), each)) else None


def _is_weighed(marks: Marks, weights: Tensor, each: int) -> bool:
    """Return whether the words of each bag have weights of their own example, or the same for all of them."""
    return marks.of(weights) == each or (marks.of(weights) == NONE and marks.is_alike(weights, Place(0, 1, each)))


def gathered(operation: Operation) -> Found | None:
    """Numbers are taken from, or put at, other places along one axis only."""
    marks = operation.marks
    parts = [part for name in ("self", "index", "src") if isinstance(part := operation.get(name), Tensor)]
    places = {marks.place(part) for part in parts if marks.of(part) > NONE}
    place = places.pop()
    if places or place is None or place.axis == operation.axis() or not place.is_plain:
        return None
    return place if all(_spans(marks, part, place) for part in parts) else None


def _spans(marks: Marks, part: Tensor, place: Place) -> bool:
    """Return whether a part has all examples at the place, or is alike for all of them."""
    return part.shape[place.axis] == marks.size and (marks.of(part) > NONE or marks.is_alike(part, place))


def selected(operation: Operation) -> Found | None:
    """Whole slices along one axis by their numbers."""
    place = operation.place("self")
    is_kept = place is not None and operation.axis() != place.axis and operation.is_clean("index")
    return place if is_kept else None


def indexed(operation: Operation) -> Found | None:
    """Advanced indexing: x[:, numbers], table[numbers of each example], x[arange(B), numbers of each example]."""
    indices, place = operation["indices"], operation.place("self")
    given = [index for index in indices if isinstance(index, Tensor)]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return None
    if place is None:
        return _from_table(operation, given)
    if place != FRONT:
        return None
    if indices[0] is None:
        first = next(axis for axis, index in enumerate(indices) if index is not None)
        is_one_block = all(isinstance(index, Tensor) for index in indices[first : first + len(given)])
        return FRONT if is_one_block and operation.is_clean("indices") else None
    is_one_block = all(isinstance(index, Tensor) for index in indices[: len(given)])
    return FRONT if is_one_block and _counts(operation.marks, given[0], given[1:]) else None


def _from_table(operation: Operation, given: list[Tensor]) -> Found | None:
    """Return the mark of table[numbers], for a table without examples and one tensor of numbers."""
    if len(given) != 1 or not isinstance(operation["indices"][0], Tensor) or not operation.is_clean("self"):
        return None
    mark = operation.marks.of(given[0])
    return mark * math.prod(operation.own.shape[1:]) if mark > NONE else None


def _counts(marks: Marks, own: Tensor, others: Sequence[Tensor]) -> bool:
    """Return whether `own` is arange(B) and the numbers beside it are those of the example that it counts."""
    if marks.of(own) != COUNT or own.shape[:1] != (marks.size,) or own.numel() != marks.size:
        return False
    shape = torch.broadcast_shapes(own.shape, *[other.shape for other in others])  # type: ignore[no-untyped-call]
    is_counting = torch.equal(own.flatten(), torch.arange(marks.size, dtype=own.dtype))
    return is_counting and len(shape) == own.dim() and all(_stays(marks, other, shape) for other in others)


def _stays(marks: Marks, other: Tensor, shape: Sequence[int]) -> bool:
    if marks.of(other) > NONE:
        return broadcast(marks, other, shape) == FRONT
    return marks.is_alike(other, FRONT.moved(other.dim() - len(shape)))


def chooses(operation: Operation) -> bool:
    """Return whether the shape of what an operation makes follows from numbers: a mask, or how often to repeat."""
    masks = operation.get("indices") if operation.kind == "index" else None
    is_mask = isinstance(masks, list | tuple) and any(
        isinstance(mask, Tensor) and mask.dtype in (torch.bool, torch.uint8) for mask in masks
    )
    return is_mask or operation.kind in ("repeat_interleave", "to_sparse", "_to_sparse")


def filled(operation: Operation) -> Found | None:
    """One value put wherever a mask of the tensor's shape says so."""
    masks, value = operation["indices"], operation["values"]
    is_fill = len(masks) == 1 and isinstance(masks[0], Tensor) and masks[0].dtype == torch.bool and not value.dim()
    if not is_fill or not operation.is_clean("values") or masks[0].shape != operation.own.shape:
        return None
    return aligned(operation.marks, [operation.own, masks[0]], operation.shape)


def sliced(operation: Operation) -> Found | None:
    """A part of one axis."""
    place, axis = operation.marks.place(operation.own), operation.axis()
    is_whole = operation.shape[axis] == operation.own.shape[axis]
    return place if place is not None and (axis != place.axis or is_whole) else None


def taken(operation: Operation) -> Found | None:
    """One number of an axis, or each of them on its own."""
    place, axis = operation.marks.place(operation.own), operation.axis()
    return None if place is None or axis == place.axis else place.moved(-(axis < place.axis))


def joined(operation: Operation) -> Found | None:
    """Tensors behind each other along one axis, an old one or a new one."""
    marks, is_new = operation.marks, operation.kind == "stack"
    parts = [part for part in operation["tensors"] if part.dim() != 1 or part.numel()]
    axis = operation["dim"] % len(operation.shape)
    places = {marks.place(part) for part in parts if marks.of(part) > NONE}
    place = places.pop()
    if places or place is None or (axis == place.axis and not is_new):
        return None
    are_alike = all(marks.is_alike(part, place) for part in parts if marks.of(part) <= NONE)
    return place.moved(int(is_new and axis <= place.axis)) if are_alike else None


def padded(operation: Operation) -> Found | None:
    """Numbers put around some axes, counted from the last."""
    place = operation.marks.place(operation.own)
    if place is None:
        return None
    start = 2 * (operation.own.dim() - 1 - place.axis)
    return None if any(operation["pad"][start : start + 2]) else place


def batch_normalised(operation: Operation) -> Found | None:
    """Each channel normalised over all else: apart where examples are the channels (InstanceNorm), or in eval."""
    place = operation.place("input")
    names = ("weight", "bias", "running_mean", "running_var")
    if place is None or not operation.is_clean(*names):
        return None
    if operation.get("training") is False or operation.kind.endswith("no_training"):
        return place if place == FRONT else None
    values = [value for name in names if isinstance(value := operation.get(name), Tensor)]
    return place if place.axis == 1 and all(operation.marks.is_alike(value, place.at(0)) for value in values) else None


def unrolled(operation: Operation) -> Found | None:
    """A recurrent layer over (time, example, feature)."""
    is_kept = operation.place("input") == Place(1) and operation.is_clean(*(f"weight{n}" for n in range(4)))
    return (
        Place(1) if is_kept and all(_is_in_step(operation.marks, operation[name]) for name in ("hx_", "cx_")) else None
    )


def as_numbers(operation: Operation) -> Found | None:
    """Complex numbers become pairs, or pairs complex numbers."""
    return operation.marks.place(operation.own)


def marks_of(operation: Operation, found: Found) -> list[tuple[Tensor, int]]:
    """Return every output with its mark."""
    return [(output, _mark(output, found, operation)) for output in tensors_of(operation.output)]


def _mark(output: Tensor, found: Found, operation: Operation) -> int:
    if isinstance(found, int):
        return found
    if operation.kind == "mkldnn_rnn_layer" and output.dim() == 2:
        found = FRONT  # the last states, without an axis of time
    is_there = found.axis < output.dim()
    length = operation.marks.size * found.outer * found.inner
    return mark_of(output.shape, found) if is_there and output.shape[found.axis] == length else MIXED


def named(*names: str) -> frozenset[str]:
    """Return the words of all arguments."""
    return frozenset(" ".join(names).split())


def ruled(rule: Callable[[Operation], Found | None], *names: str) -> dict[str, Callable[[Operation], Found | None]]:
    """Return a table with one rule for all these names."""
    return dict.fromkeys(named(*names), rule)


POINTWISE = named(
    "abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or",
    "bitwise_xor ceil celu clamp clamp_max clamp_min conj_physical copysign cos cosh deg2rad digamma div",
    "elu eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac ge gelu gt hardshrink",
    "hardsigmoid hardswish hardtanh heaviside hypot isinf isnan isneginf isposinf ldexp le leaky_relu",
    "lerp lgamma log log10 log1p log2 logaddexp log_sigmoid_forward logical_and logical_not logical_or",
    "logical_xor logit lt masked_fill maximum minimum mish mul nan_to_num ne neg polygamma pow rad2deg",
    "reciprocal relu remainder round rsqrt rsub sgn sigmoid sign signbit silu sin sinc sinh softplus",
    "softshrink special_entr special_erfcx special_i0e special_i1 special_log_ndtr special_ndtri",
    "special_xlog1py special_zeta sqrt sub tan tanh threshold trunc where xlogy",
    "_prelu_kernel native_dropout complex polar bernoulli normal poisson",
)
IN_ORDER = named(
    "view _unsafe_view unsqueeze squeeze alias detach clone _lazy_clone",
    "_to_copy lift_fresh lift _conj _neg_view view_copy fill zero",
)
SHAPES = named("expand permute transpose t select slice")
# Filled with what lay in memory, which no program may depend on.
EMPTY = named("empty empty_like empty_strided new_empty new_empty_strided")
MADE_NEW = named(
    "ones_like zeros_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided rand_like",
    "randn_like randint_like",
)
# Independent at every place. Not randperm: each of its numbers depends on how many there are, and on the others.
RANDOM = named(
    "bernoulli uniform normal exponential rand randn rand_like randn_like randint randint_like cauchy log_normal",
    "geometric random poisson",
)
# What gives Python, or a shape, something of the numbers themselves.
ESCAPES = named(
    "_local_scalar_dense equal nonzero masked_select _unique _unique2 unique_dim unique_consecutive",
    "bincount nonzero_static allclose",
)
# What raises an error for some values of its tensors, NaN among them; and a value that it always takes.
REFUSING = named("binary_cross_entropy bernoulli multinomial normal poisson")
ALLOWED = 0.5

# Marks of what has nothing of any example.
EXAMPLE_FREE = (NONE, NOISE, COUNT)
# Whose lists of numbers are sizes, which follow from the batch's.
SIZED = IN_ORDER | MADE_NEW | named("expand repeat")

RULES: dict[str, Callable[[Operation], Found | None]] = {
    **dict.fromkeys(POINTWISE, pointwise),
    **dict.fromkeys(IN_ORDER, in_order),
    "copy": copied,
    **ruled(permuted, "permute transpose t"),
    "expand": expanded,
    "repeat": repeated,
    **ruled(
        reduced,
        "sum mean prod amax amin argmax argmin any all logsumexp var std var_mean std_mean norm linalg_vector_norm",
        "nansum max min median nanmedian mode kthvalue count_nonzero aminmax",
    ),
    **ruled(
        along("dim"),
        "_softmax _safe_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin sort topk glu",
    ),
    **ruled(along("dim"), "_fft_r2c _fft_c2c _fft_c2r"),
    **ruled(along("dims"), "flip roll"),
    "unfold": along("dimension"),
    "mm": multiplied("self", "mat2"),
    "mv": multiplied("self", "vec"),
    "addmm": multiplied("mat1", "mat2", "self"),
    "addmv": multiplied("mat", "vec", "self"),
    "bmm": paired("self", "mat2"),
    "baddbmm": paired("batch1", "batch2", "self"),
    "_cdist_forward": distances,
    "_trilinear": multiplied_twice,
    "linear": transformed,
    **ruled(in_front("input", clean=("weight", "bias")), "convolution mkldnn_convolution"),
    "native_group_norm": grouped,
    **ruled(normalised, "native_layer_norm"),
    **ruled(batch_normalised, "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training"),
    **ruled(inside(1), "avg_pool1d adaptive_avg_pool1d upsample_nearest1d upsample_linear1d reflection_pad1d"),
    **ruled(inside(1), "replication_pad1d multinomial"),
    **ruled(
        inside(2),
        "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d tril triu",
        "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_nearest_exact2d _upsample_bilinear2d_aa",
        "reflection_pad2d replication_pad2d linalg_inv_ex _linalg_det",
    ),
    **ruled(
        inside(3),
        "max_pool3d_with_indices avg_pool3d _adaptive_avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d",
        "upsample_nearest3d upsample_trilinear3d replication_pad3d reflection_pad3d pixel_shuffle pixel_unshuffle",
        "channel_shuffle",
    ),
    **ruled(in_front("self"), "im2col col2im"),
    **ruled(in_front("input", "grid"), "grid_sampler_2d grid_sampler_3d"),
    "affine_grid_generator": in_front("theta"),
    **ruled(in_front("self", "indices"), "max_unpool2d max_unpool3d"),
    "_scaled_dot_product_flash_attention_for_cpu": attended,
    **ruled(in_front("self", "target", clean=("weight",)), "nll_loss_forward nll_loss2d_forward"),
    **ruled(in_front("self", "target", clean=("weight",)), "multi_margin_loss multilabel_margin_loss_forward"),
    **ruled(
        loss,
        "mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss",
    ),
    "embedding": looked_up,
    **ruled(bagged, "_embedding_bag _embedding_bag_forward_only"),
    **ruled(gathered, "gather scatter scatter_add scatter_reduce"),
    "index_select": selected,
    "index": indexed,
    "index_put": filled,
    "slice": sliced,
    **ruled(taken, "select unbind"),
    **ruled(along("dim"), "split split_with_sizes unsafe_split unsafe_split_with_sizes"),
    **ruled(joined, "cat stack"),
    "constant_pad_nd": padded,
    "mkldnn_rnn_layer": unrolled,
    **ruled(as_numbers, "view_as_real view_as_complex"),
}

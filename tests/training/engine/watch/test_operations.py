"""Every rule of the allow-list against what the operation does: a mark must be the truth about who is where.

Each operation runs with its examples at every axis of every input, alone and with another axis folded into theirs.
Where the rules say that examples stay apart and in their places, permuting the examples must permute the result,
leaving one out must leave it out of the result, and changing one must change no other. Nothing is claimed of MIXED.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dpfed.training.engine.watch.independence import ExampleWatch
from dpfed.training.engine.watch.marks import MIXED, Place, mark_of, place_of
from dpfed.training.engine.watch.operations import RULES

SIZE = 4
Case = tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]
WEIGHT = torch.linspace(-1, 1, 12).view(3, 4)
KERNEL = torch.linspace(-1, 1, 12).view(2, 3, 2)
PICTURE = torch.linspace(-1, 1, 24).view(2, 3, 2, 2)
TABLE = torch.linspace(-1, 1, 21).view(7, 3)

BILINEAR = torch.linspace(-1, 1, 24).view(4, 3, 2)
LSTM, GRU = torch.nn.LSTM(3, 2), torch.nn.GRU(3, 2)

CASES: dict[str, Case] = {
    "add": (torch.add, ((2, 3), (2, 3))),
    "add a row": (lambda x: x + torch.arange(3.0), ((2, 3),)),
    "add a ramp": (lambda x: x + torch.arange(len(x)).view(-1, *[1] * (x.dim() - 1)), ((2, 3),)),
    "outer": (lambda x, y: x.unsqueeze(-1) * y, ((3,), (3,))),
    "where": (lambda x, y: torch.where(x > 0, x, y), ((2, 3), (2, 3))),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 2.0), ((2, 3),)),
    "index_put": (lambda x: x.clone().index_put_((x > 0,), torch.tensor(0.5)), ((2, 3),)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), ((2, 3),)),
    "view": (lambda x: x.reshape(-1, 3), ((2, 3),)),
    "flatten": (lambda x: x.flatten(), ((2, 3),)),
    "unsqueeze": (lambda x: x.unsqueeze(1), ((2, 3),)),
    "squeeze": (lambda x: x.squeeze(), ((1, 3),)),
    "permute": (lambda x: x.movedim(0, -1), ((2, 3),)),
    "transpose": (lambda x: x.transpose(0, 1), ((2, 3),)),
    "axes changed in place": (lambda x: (x * 2).transpose_(0, 1).unsqueeze_(0), ((2, 3),)),
    "t": (lambda x: x.t(), ((3,),)),
    "expand": (lambda x: x.unsqueeze(0).expand(5, *x.shape), ((2, 3),)),
    "repeat": (lambda x: x.repeat(*[1] * (x.dim() - 1), 2), ((2, 3),)),
    "repeat in front": (lambda x: x.repeat(2, *[1] * (x.dim() - 1)), ((2, 3),)),
    "sum": (lambda x: x.sum(-1), ((2, 3),)),
    "sum, axis kept": (lambda x: x.sum(0, keepdim=True), ((2, 3),)),
    "sum of all": (lambda x: x.sum().expand(SIZE), ((2, 3),)),
    "mean of two": (lambda x: x.mean((0, 1)), ((2, 3, 2),)),
    "amax": (lambda x: x.amax(1), ((2, 3),)),
    "max": (lambda x: x.max(1).values, ((2, 3),)),
    "max of two": (torch.max, ((2, 3), (2, 3))),
    "argmax": (lambda x: x.argmax(1), ((2, 3),)),
    "var": (lambda x: x.var(1), ((2, 3),)),
    "norm": (lambda x: x.norm(dim=1), ((2, 3),)),
    "logsumexp": (lambda x: x.logsumexp(1), ((2, 3),)),
    "median": (lambda x: x.median(1).values, ((2, 3),)),
    "softmax": (lambda x: x.softmax(1), ((2, 3),)),
    "log_softmax": (lambda x: x.log_softmax(0), ((2, 3),)),
    "cumsum": (lambda x: x.cumsum(1), ((2, 3),)),
    "sort": (lambda x: x.sort(1).values, ((2, 3),)),
    "topk": (lambda x: x.topk(2, 1).values, ((2, 3),)),
    "flip": (lambda x: x.flip(1), ((2, 3),)),
    "roll": (lambda x: x.roll(1, 1), ((2, 3),)),
    "roll of all": (lambda x: x.roll(1), ((2, 3),)),
    "glu": (lambda x: functional.glu(x, -1), ((2, 4),)),
    "unfold": (lambda x: x.unfold(1, 2, 1), ((2, 3),)),
    "fft": (lambda x: torch.fft.rfft(x, dim=-1).abs(), ((2, 4),)),
    "mm": (torch.mm, ((3,), (3,))),
    "mm of a constant": (lambda x: x @ WEIGHT, ((3,),)),
    "a constant's mm": (lambda x: WEIGHT @ x, ((4,),)),
    "linear": (lambda x: functional.linear(x, WEIGHT.t(), torch.ones(4)), ((2, 3),)),
    "linear of three axes": (lambda x: functional.linear(x, WEIGHT.t()), ((2, 2, 3),)),
    "addmm of constants": (lambda x: torch.addmm(x, torch.ones(len(x), 2), torch.ones(2, x.shape[1])), ((3,),)),
    "addmm of a ramp": (
        lambda x: torch.addmm(x, torch.arange(2.0 * len(x)).view(-1, 2), torch.arange(6.0).view(2, -1)),
        ((3,),),
    ),
    "bmm": (torch.bmm, ((2, 3), (3, 2))),
    "bmm of a constant": (lambda x: torch.bmm(x, WEIGHT.expand(len(x), 3, 4)), ((2, 3),)),
    "bmm of a ramp": (lambda x: torch.bmm(x, torch.arange(len(x) * 12.0).view(len(x), 3, 4)), ((2, 3),)),
    "baddbmm": (lambda x, y: torch.baddbmm(torch.ones(1, 2, 2), x, y), ((2, 3), (3, 2))),
    "mv": (lambda x: x @ torch.ones(3), ((3,),)),
    "einsum": (lambda x, y: torch.einsum("btd,bsd->bts", x, y), ((2, 3), (2, 3))),
    "einsum over the first": (lambda x, y: torch.einsum("btd,btd->td", x, y), ((2, 3), (2, 3))),
    "bilinear": (lambda x, y: functional.bilinear(x, y, BILINEAR), ((3,), (2,))),
    "cdist": (torch.cdist, ((2, 3), (2, 3))),
    "conv1d": (lambda x: functional.conv1d(x, KERNEL), ((3, 5),)),
    "conv2d": (lambda x: functional.conv2d(x, PICTURE), ((3, 4, 4),)),
    "transposed conv": (lambda x: functional.conv_transpose1d(x, KERNEL), ((2, 5),)),
    "layer norm": (lambda x: functional.layer_norm(x, (3,)), ((2, 3),)),
    "rms norm": (lambda x: functional.rms_norm(x, (3,)), ((2, 3),)),
    "group norm": (lambda x: functional.group_norm(x, 2), ((4, 3),)),
    "instance norm": (lambda x: functional.instance_norm(x), ((3, 4),)),
    "batch norm": (lambda x: functional.batch_norm(x, None, None, training=True), ((3, 4),)),
    "batch norm that is off": (
        lambda x: functional.batch_norm(x, torch.zeros(3), torch.ones(3), training=False),
        ((3, 4),),
    ),
    "max_pool1d": (lambda x: functional.max_pool1d(x, 2), ((3, 4),)),
    "max_pool2d": (lambda x: functional.max_pool2d(x, 2), ((3, 4, 4),)),
    "avg_pool2d": (lambda x: functional.avg_pool2d(x, 2), ((3, 4, 4),)),
    "adaptive pool": (lambda x: functional.adaptive_avg_pool2d(x, 2), ((3, 4, 4),)),
    "upsample": (lambda x: functional.interpolate(x, scale_factor=2), ((3, 4, 4),)),
    "bilinear upsample": (lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), ((3, 4, 4),)),
    "pixel shuffle": (lambda x: functional.pixel_shuffle(x, 2), ((4, 3, 3),)),
    "pad": (lambda x: functional.pad(x, (1, 1)), ((2, 3),)),
    "pad of two": (lambda x: functional.pad(x, (0, 0, 1, 1)), ((2, 3),)),
    "reflect": (lambda x: functional.pad(x, (1, 1), mode="reflect"), ((2, 3),)),
    "tril": (lambda x: x.tril(), ((4, 4),)),
    "im2col": (lambda x: functional.unfold(x, 2), ((3, 4, 4),)),
    "grid_sample": (lambda x, g: functional.grid_sample(x, g.tanh(), align_corners=False), ((3, 4, 4), (2, 2, 2))),
    "attention": (functional.scaled_dot_product_attention, ((2, 3, 4), (2, 3, 4), (2, 3, 4))),
    "masked attention": (
        lambda q, k: functional.scaled_dot_product_attention(q, k, k, torch.ones(3, 3).tril().bool()),
        ((2, 3, 4), (2, 3, 4)),
    ),
    "embedding": (lambda x: functional.embedding(_whole(x), TABLE), ((2, 3),)),
    "embedding bag": (lambda x: functional.embedding_bag(_whole(x), TABLE), ((3,),)),
    "table by number": (lambda x: TABLE[_whole(x)], ((2, 3),)),
    "gather": (lambda x: x.gather(1, _whole(x) % x.shape[1]), ((2, 3),)),
    "gather of a constant": (lambda x: x.gather(1, torch.zeros_like(x).long()), ((2, 3),)),
    "scatter_add": (lambda x: torch.zeros_like(x).scatter_add(1, _whole(x) % x.shape[1], x), ((2, 3),)),
    "index_select": (lambda x: x.index_select(1, torch.tensor([1, 0])), ((2, 3),)),
    "index_select in front": (lambda x: x.index_select(0, torch.arange(len(x)).flip(0)), ((2, 3),)),
    "columns": (lambda x: x[:, [1, 0]], ((2, 3),)),
    "own column": (lambda x: x[torch.arange(len(x)), _whole(x).flatten(1)[:, 0] % x.shape[1]], ((2, 3),)),
    "another's column": (
        lambda x: x[torch.arange(len(x)), (_whole(x).flatten(1)[:, 0] % x.shape[1]).flip(0)],
        ((2, 3),),
    ),
    "slice": (lambda x: x[:, 1:], ((2, 3),)),
    "slice in front": (lambda x: torch.cat([x[1:], x[:1]]), ((2, 3),)),
    "select": (lambda x: x[:, 0], ((2, 3),)),
    "first": (lambda x: x[0].expand_as(x) + x, ((2, 3),)),
    "split": (lambda x: torch.stack(x.split(1, 1)), ((2, 3),)),
    "unbind": (lambda x: torch.stack(x.unbind(1), 1), ((2, 3),)),
    "chunk": (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), ((2, 3),)),
    "cat": (lambda x, y: torch.cat([x, y], 1), ((2, 3), (2, 3))),
    "cat with a constant": (lambda x: torch.cat([x, torch.ones_like(x)], 1), ((2, 3),)),
    "cat with a ramp": (
        lambda x: torch.cat([x, torch.arange(len(x)).view(-1, *[1] * (x.dim() - 1)).expand_as(x)], 1),
        ((2, 3),),
    ),
    "written in place": (lambda x: _written(x, torch.zeros(len(x), 2, 3)), ((3,),)),
    "written elsewhere": (lambda x: _written(x, torch.zeros(3, 2, len(x)).transpose(0, 2)), ((3,),)),
    "nll": (lambda x: functional.nll_loss(x, _whole(x)[:, 0] % x.shape[1], reduction="none"), ((3,),)),
    "cross entropy": (
        lambda x: functional.cross_entropy(x, _whole(x)[:, 0] % x.shape[1], reduction="none", label_smoothing=0.1),
        ((3,),),
    ),
    "mean cross entropy": (
        lambda x: functional.cross_entropy(x, _whole(x)[:, 0] % x.shape[1]).expand(SIZE),
        ((3,),),
    ),
    "mse": (lambda x, y: functional.mse_loss(x, y, reduction="none"), ((2, 3), (2, 3))),
    "bce": (lambda x, y: functional.binary_cross_entropy_with_logits(x, y, reduction="none"), ((2, 3), (2, 3))),
    "margin": (lambda x: functional.multi_margin_loss(x, _whole(x)[:, 0] % x.shape[1], reduction="none"), ((3,),)),
    "lstm": (lambda x: LSTM(x)[0], ((2, 3),)),
    "gru": (lambda x: GRU(x)[0], ((2, 3),)),
}
NEVER = {"addmm of a ramp", "sum of all", "roll of all", "mm", "mean cross entropy", "another's column"}


def _whole(x: Tensor) -> Tensor:
    return (x.detach() * 100).long().abs() % 7


def _written(x: Tensor, out: Tensor) -> Tensor:
    out[:, 0] = x
    out[:, 1].copy_(x * 2)
    return out


def layouts(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Where the examples may be in a tensor of that shape for one of them: a new axis, or folded before an old one."""
    return [(axis, 1) for axis in range(len(shape) + 1)] + [(axis, 2) for axis in range(len(shape) + 1)]


def laid_out(rows: Tensor, axis: int, inner: int) -> Tensor:
    """Examples (B, inner, …) with both axes as one."""
    return rows.flatten(0, 1).movedim(0, axis) if inner > 1 else rows.movedim(0, axis)


def run(function, several, layout):
    """What the operation makes, and where the watch says that the examples are."""
    given = [laid_out(rows, *where) for rows, where in zip(several, layout, strict=True)]
    with ExampleWatch(len(several[0]), []) as watch:
        for tensor, (axis, inner) in zip(given, layout, strict=True):
            watch.marks.put(tensor, mark_of(tensor.shape, Place(axis, 1, inner)))
        output = function(*given)
    mark = watch.marks.of(output)
    place = place_of(output.shape, mark, len(several[0])) if mark > 0 else None
    return output.detach(), place, mark


def rows_of(output: Tensor, place: Place, size: int) -> Tensor:
    """The output with the examples in front."""
    shape = (*output.shape[: place.axis], place.outer, size, place.inner, *output.shape[place.axis + 1 :])
    return output.reshape(shape).movedim(place.axis + 1, 0)


def close(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.allclose(one.double(), two.double(), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", CASES)
def test_what_a_rule_says_of_examples_is_so(name):
    function, shapes = CASES[name]
    several = [
        torch.randn(SIZE, 2, *shape, generator=torch.Generator().manual_seed(7 + n)) for n, shape in enumerate(shapes)
    ]
    order = torch.tensor([2, 0, 3, 1])
    kept = torch.tensor([0, 1, 3])
    found = 0
    for layout in product(*map(layouts, shapes)):
        parts = [rows if inner > 1 else rows[:, 0] for rows, (_, inner) in zip(several, layout, strict=True)]
        try:
            output, place, _ = run(function, parts, layout)
        except (RuntimeError, IndexError, ValueError):
            continue  # the operation does not take such shapes
        if place is None:
            continue
        found += 1
        rows = rows_of(output, place, SIZE)
        moved, moved_place, _ = run(function, [part[order] for part in parts], layout)
        assert moved_place == place, layout
        assert close(rows_of(moved, place, SIZE), rows[order]), f"{name}, {layout}: examples change places"
        fewer, fewer_place, _ = run(function, [part[kept] for part in parts], layout)
        assert fewer_place == place, layout
        assert close(rows_of(fewer, place, 3), rows[kept]), f"{name}, {layout}: one left out changes others"
        changed, _, _ = run(function, [torch.cat([part[:1] * -3 + 1, part[1:]]) for part in parts], layout)
        assert close(rows_of(changed, place, SIZE)[1:], rows[1:]), f"{name}, {layout}: one changes others"
    assert bool(found) == (name not in NEVER), f"{found} layouts are known to be safe"


def test_every_rule_has_a_case_or_is_a_pointwise_function():
    """Names of the list that torch no longer has, or never had, are errors of writing."""
    for name in RULES:
        assert hasattr(torch.ops.aten, name) or hasattr(torch.ops.aten, name + "_"), name


def test_what_has_no_rule_is_mixed():
    x = torch.randn(SIZE, 3)
    with ExampleWatch(SIZE, [x]) as watch:
        output = x.renorm(2, 0, 1.0)
    assert watch.marks.of(output) == MIXED
    assert watch.why == "renorm"

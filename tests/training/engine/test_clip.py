"""What one example's gradient is cut to: by layer or as a whole, in L2 or in L1, in float32 and in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from clipped import distance, flat, per_example, squares
from dpfed.errors import InvalidArgument
from dpfed.training.engine.clip import LEAST_CLIP_NORM, MOST_CLIP_NORM, TOLERANCE, Clip, group_of
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.many.ensemble import Ensemble
from one_by_one import gradients as one_by_one

MODES = [
    {"norm": norm, "layers": layers, "is_exact": is_exact}
    for norm in ("l2", "l1")
    for layers in ("together", "each")
    for is_exact in (False, True)
]
NAMES = ["-".join(map(str, mode.values())) for mode in MODES]


class Pooled(nn.Module):
    """Positions in, the mean over them out."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mean(2) if x.dim() == 4 else x.mean(1)


class Tied(nn.Module):
    """A table that is looked up and multiplied by, a layer called twice, a bare scale and a bias of a stray."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.out = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7)
        self.out.weight = self.table.weight
        self.scale, self.lone = nn.Parameter(torch.ones(7)), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(torch.tanh(self.inner(self.table(x)))))
        return nn.functional.linear(self.out(hidden).mean(1) * self.scale, self.lone.weight, self.lone.bias)


class Borrowed(nn.Module):
    """A layer whose weight belongs to another that is never called: one call, two groups."""

    def __init__(self) -> None:
        super().__init__()
        self.owner, self.user = nn.Linear(3, 5, bias=False), nn.Linear(3, 5)
        self.user.weight = self.owner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.user(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cell(x)[0][:, -1])


def models() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    return {
        "dense": (nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)), torch.randn(9, 3)),
        "positions": (nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Tanh(), Pooled()), torch.randn(9, 5, 3)),
        "image": (
            nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.PReLU(), Pooled(), nn.Linear(4, 2)),
            torch.randn(9, 2, 6, 6),
        ),
        "transposed": (
            nn.Sequential(nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), nn.Flatten()),
            torch.randn(9, 2, 4),
        ),
        "tied": (Tied(), torch.randint(0, 7, (9, 5))),
        "borrowed": (Borrowed(), torch.randn(9, 3)),
        "bilinear": (Squared(), torch.randn(9, 3)),
        "recurrent": (Recurrent(), torch.randn(9, 4, 3)),
    }


class Squared(nn.Module):
    """A leaf of its own, and one that vmap cannot serve."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.PReLU(3), nn.Bilinear(3, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x), x)


def length(value: Tensor, norm: str) -> float:
    return float(value.double().abs().sum() if norm == "l1" else value.double().norm())


def expected(rows: Mapping[str, Tensor], clip: Clip) -> dict[str, Tensor]:
    """Every group of every example cut on its own, as written in the plan."""
    groups: dict[str, list[str]] = {}
    for name in rows:
        groups.setdefault(group_of(name) if clip.layers == "each" else "", []).append(name)
    share = clip.limit(len(groups))
    sums = {name: torch.zeros_like(value[0]) for name, value in rows.items()}
    for place in range(len(next(iter(rows.values())))):
        for names in groups.values():
            long = length(torch.cat([rows[name][place].flatten() for name in names]), clip.norm)
            for name in names:
                sums[name] += rows[name][place] * min(1.0, share / max(long, 1e-300))
    return sums


def summed(model: nn.Module, x: Tensor, y: Tensor, clip_norm: float, mode: Mapping[str, object]) -> dict[str, Tensor]:
    with ClippedGradients(model, clip_norm=clip_norm, **mode) as gradients:
        return gradients.sum(squares(model(x), y))


def middle(rows: Mapping[str, Tensor], norm: str) -> float:
    """A clip norm that cuts some examples and leaves others."""
    lengths = [
        length(torch.cat([value[place].flatten() for value in rows.values()]), norm)
        for place in range(len(next(iter(rows.values()))))
    ]
    return sorted(lengths)[len(lengths) // 2]


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("name", models())
def test_every_rule_clips_as_the_plan_says(name: str, mode: dict[str, object]):
    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        model, x = models()[name]
        model, y = model.to(dtype), torch.linspace(-1, 2, len(x), dtype=dtype)
        x = x.to(dtype) if x.is_floating_point() else x
        rows = one_by_one(squares(model(x), y), model)
        clip = Clip(middle(rows, str(mode["norm"])), str(mode["norm"]), str(mode["layers"]))
        wide = {name: value.double() if mode["is_exact"] else value for name, value in rows.items()}
        assert distance(summed(model, x, y, clip.clip_norm, mode), expected(wide, clip)) < bound


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_removing_one_example_moves_the_sum_by_at_most_the_clip_in_its_norm(mode: dict[str, object]):
    for name in ("dense", "image", "tied"):
        model, x = models()[name]
        y = 100 * torch.linspace(-1, 2, len(x))
        total = flat(summed(model, x, y, 0.1, mode))
        for place in range(len(x)):
            kept = [row for row in range(len(x)) if row != place]
            moved = length(total - flat(summed(model, x[kept], y[kept], 0.1, mode)), str(mode["norm"]))
            assert 0.05 < moved <= 0.1


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_gradients_a_million_times_longer_leave_the_sum_unchanged(mode: dict[str, object]):
    model, x = models()["dense"]
    y = torch.linspace(-1, 2, len(x))
    with ClippedGradients(model, clip_norm=1e-4, **mode) as gradients:
        once = gradients.sum(squares(model(x), y))
        again = gradients.sum(1e6 * squares(model(x), y))
    assert distance(again, once) < 1e-5


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38, 1e25])
def test_an_example_of_any_value_moves_the_sum_by_at_most_the_clip(value: float, mode: dict[str, object]):
    for name in ("dense", "image", "bilinear"):
        model, x = models()[name]
        y = torch.linspace(-1, 2, len(x))
        y[4] = value
        good = [row for row in range(len(x)) if row != 4]
        moved = flat(summed(model, x, y, 0.1, mode)) - flat(summed(model, x[good], y[good], 0.1, mode))
        assert length(moved, str(mode["norm"])) <= (0.1 if value < math.inf else 1e-6)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_each_layer_of_one_example_is_as_long_as_its_share(norm: str):
    model, x = models()["dense"]
    sums = summed(model, x[:1], torch.full((1,), 1e6), 0.3, {"norm": norm, "layers": "each"})
    share = 0.3 / 2 if norm == "l1" else 0.3 / math.sqrt(2)
    for layer in ("0", "2"):
        own = torch.cat([value.flatten() for name, value in sums.items() if group_of(name) == layer])
        assert length(own, norm) == pytest.approx(share * (1 - TOLERANCE), rel=1e-6)


def test_what_modules_share_belongs_to_the_group_of_the_first():
    names = [name for name, _ in Tied().named_parameters()]
    assert "out.weight" not in names
    assert {group_of(name) for name in names} == {"", "table", "inner", "out", "lone"}


def test_the_norms_are_those_before_the_cut_and_of_all_groups_together():
    model, x = models()["dense"]
    y = torch.linspace(-1, 2, len(x))
    y[3] = math.nan
    rows = per_example(model, squares, x, y)
    for mode in MODES:
        with ClippedGradients(model, clip_norm=0.1, **mode) as gradients:
            _, norms = gradients.sum_and_norms(squares(model(x), y))
        assert norms.dtype == torch.float64
        for place in range(len(x)):
            whole_row = torch.cat([value[place].flatten() for value in rows.values()])
            expected_norm = math.inf if place == 3 else length(whole_row, str(mode["norm"]))
            assert float(norms[place]) == pytest.approx(expected_norm, rel=1e-4)


def test_gram_matrices_are_not_used_where_they_have_no_norm_or_round_apart_from_it():
    model, x = models()["positions"]
    for mode in ({"norm": "l1"}, {"is_exact": True}):
        with (
            ClippedGradients(model, clip_norm=1.0, methods={"0": "ghost"}, **mode) as gradients,
            pytest.raises(InvalidArgument, match="direct or whole, not 'ghost'"),
        ):
            gradients.sum(squares(model(x), torch.ones(9)))


def test_sums_have_the_parameters_precision_and_float64_where_they_are_exact():
    model, x = models()["dense"]
    for count in (0, 9):
        for is_exact, dtype in ((False, torch.float32), (True, torch.float64)):
            found = summed(model, x[:count], torch.ones(count), 1.0, {"is_exact": is_exact})
            assert {value.dtype for value in found.values()} == {dtype}


@pytest.mark.parametrize(
    ("argument", "bad"),
    [
        ("clip_norm", {"clip_norm": LEAST_CLIP_NORM / 2}),
        ("clip_norm", {"clip_norm": 2 * MOST_CLIP_NORM}),
        ("clip_norm", {"clip_norm": math.inf}),
        ("norm", {"norm": "linf"}),
        ("layers", {"layers": "some"}),
    ],
)
def test_a_clip_that_is_none_is_refused(argument: str, bad: dict[str, object]):
    with pytest.raises(InvalidArgument, match=f"{argument} must be"):
        Clip(**{"clip_norm": 1.0, **bad})


def test_an_example_that_is_not_finite_in_one_layer_counts_as_zero_in_all():
    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)

        def forward(self, x):
            return self.a(x[:, :2]) + self.b(x[:, 2:])

    model, x = Apart(), torch.ones(3, 4)
    x[1, 0] = torch.inf
    with ClippedGradients(model, clip_norm=1.0, layers="each") as gradients:
        found = gradients.sum(model(x).squeeze(1))
        expected = gradients.sum(model(x[[0, 2]]).squeeze(1))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("operation", ["matmul", "conv"])
def test_float32_that_is_multiplied_with_fewer_digits_is_refused(operation):
    backend = getattr(torch.backends.mkldnn, operation)
    before = backend.fp32_precision
    model, data = nn.Linear(3, 2), (torch.randn(4, 3), torch.zeros(4, dtype=torch.long))
    forward = make_forward(model, lambda output, _: output.square().sum(1), *data)
    try:
        backend.fp32_precision = "bf16"
        with ClippedGradients(model, clip_norm=1.0) as gradients, pytest.raises(InvalidArgument, match="as bf16"):
            gradients.clipped(forward)
        with pytest.raises(InvalidArgument, match="as bf16"):
            Ensemble(model, lambda output, _: output.square().sum(1), data)
    finally:
        backend.fp32_precision = before

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from clipped import distance, require_parity, squares
from dpfed.errors import InvalidArgument
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from one_by_one import clipped, gradients, require_equal


class Applied(nn.Module):
    """A model whose forward pass is any function of its layers."""

    def __init__(self, forward, **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self._forward = forward

    def forward(self, x):
        return self._forward(x, **self.layers)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in out if isinstance(out, list | tuple) else [out]:
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.untyped_storage().nbytes() // value.element_size())
        return out


def tied_words(rows: int = 7, width: int = 4, *, bias: bool = True, padding: int | None = None) -> nn.Module:
    """A small language model: its output layer is its table."""
    torch.manual_seed(0)
    model = Applied(
        lambda x, table, body, head: head(body(table(x)).tanh()),
        table=nn.Embedding(rows, width, padding_idx=padding),
        body=nn.Linear(width, width),
        head=nn.Linear(width, rows, bias=bias),
    )
    model.layers["head"].weight = model.layers["table"].weight
    return model


@pytest.mark.parametrize("shape", [(6, 4), (6, 5, 4)], ids=["one position", "positions"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_called_twice(shape, bias):
    torch.manual_seed(0)
    model = Applied(lambda x, a, b: b(a(a(x).tanh())), a=nn.Linear(4, 4, bias=bias), b=nn.Linear(4, 2))
    require_parity(model, torch.randn(shape))


def test_a_linear_called_with_and_without_positions():
    torch.manual_seed(0)
    model = Applied(lambda x, a: a(a(x).tanh().mean(1)) * a(x[:, 0]), a=nn.Linear(4, 4))
    require_parity(model, torch.randn(6, 5, 4))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 4, 3, padding=1), (6, 4, 5)),
        (nn.Conv2d(4, 4, 3, padding=1, groups=2), (6, 4, 5, 3)),
        (nn.ConvTranspose2d(4, 4, 1), (6, 4, 3, 3)),
        (nn.GroupNorm(2, 4), (6, 4, 5)),
        (nn.LayerNorm(4), (6, 5, 4)),
        (nn.RMSNorm(4), (6, 5, 4)),
        (nn.PReLU(4), (6, 4, 5)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_any_layer_called_three_times(layer, shape):
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, 0.5, 0.5)
    require_parity(Applied(lambda x, a: a(a(a(x).tanh()).sin() + x), a=layer), torch.randn(shape))


def test_a_table_looked_up_twice():
    torch.manual_seed(0)
    model = Applied(lambda x, a, b: b(a(x[:, :2]).sum(1) + a(x).tanh().sum(1)), a=nn.Embedding(5, 4), b=nn.Linear(4, 2))
    require_parity(model, torch.randint(0, 5, (6, 4)))


def test_weights_tied_between_layers_with_biases_of_their_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    require_parity(model, torch.randn(6, 3, 4))


def test_weights_tied_between_layers_of_different_kinds():
    """A kernel of one point is no Linear: gradients are written out and added."""
    torch.manual_seed(0)
    model = Applied(lambda x, a, b: b(a(x)).tanh(), a=nn.Conv1d(4, 4, 1, bias=False), b=nn.ConvTranspose1d(4, 4, 1))
    model.layers["b"].weight = model.layers["a"].weight
    require_parity(model, torch.randn(6, 4, 3))


def test_one_parameter_under_two_names_of_one_module():
    class Squared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return (x * self.a).tanh() * self.b

    torch.manual_seed(0)
    require_parity(nn.Sequential(nn.Linear(4, 4), Squared()), torch.randn(6, 4))


class Owner(nn.Module):
    """A bare parameter that is its child's weight as well."""

    def __init__(self, is_functional: bool) -> None:
        super().__init__()
        self.child = nn.Linear(4, 4, bias=False)
        self.own = self.child.weight
        self._is_functional = is_functional

    def forward(self, x):
        first = x @ self.child.weight.t() if self._is_functional else self.child(x)
        return first.tanh() @ self.own


@pytest.mark.parametrize("is_used_outside", [False, True])
@pytest.mark.parametrize("is_functional", [False, True])
def test_a_bare_parameter_tied_to_a_child_is_counted_once_for_each_use(is_functional, is_used_outside):
    """Owner and child both claim the child's use; a use outside that nobody claims would make the counts agree."""
    torch.manual_seed(0)
    model = Applied(lambda x, a: a(x).sin() @ a.own if is_used_outside else a(x), a=Owner(is_functional))
    require_parity(model, torch.randn(6, 4))


@pytest.mark.parametrize("outside", [0, 1, 3])
def test_a_layer_that_remembers_what_it_gave_is_counted_once_for_each_use(outside):
    """Its third call reaches the parameter's uses in the first two: 6 claims for 3 uses."""

    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.state = nn.Parameter(torch.randn(4)), 0.0

        def forward(self, x):
            self.state = (x + self.state) * self.scale
            return self.state

    def forward(x, a):
        a.state = 0.0
        values = a(x).sin() + a(x.cos()) + a(x.tanh())
        for _ in range(outside):
            values = values * a.scale
        return values

    torch.manual_seed(0)
    model = Applied(forward, a=Remembers())
    require_equal(model, model, torch.randn(6, 4), lambda model, x: squares(model(x), x[:, 0]))


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_a_table_tied_to_the_output_layer(bias, padding):
    require_parity(tied_words(bias=bias, padding=padding), torch.randint(0, 7, (6, 5)))


def test_two_tables_with_different_padding_tied_to_the_output_layer():
    torch.manual_seed(0)
    model = Applied(
        lambda x, a, b, c: c((a(x) + b(x.flip(1))).tanh()),
        a=nn.Embedding(7, 4, padding_idx=1),
        b=nn.Embedding(7, 4, padding_idx=3),
        c=nn.Linear(4, 7),
    )
    for name in ("b", "c"):
        model.layers[name].weight = model.layers["a"].weight
    require_parity(model, torch.randint(0, 7, (6, 5)))


def test_a_tied_table_whose_two_gradients_cancel_is_not_taken_for_short():
    """‖L‖² + ‖E‖² + 2⟨L, E⟩ loses all digits there, and the clip may not."""
    torch.manual_seed(0)
    table, clip = nn.Parameter(torch.randn(5, 3)), 1e-9
    model = Applied(lambda x, a, b: (a(x), b(torch.ones(len(x), 1, 3))), a=nn.Embedding(5, 3), b=nn.Linear(3, 5, False))
    model.layers["a"].weight = model.layers["b"].weight = table
    with ClippedGradients(model, clip_norm=clip) as gradients:
        looked, product = model(torch.tensor([[1], [2]]))
        scale = torch.tensor([1e4, 3e3])
        picked = product[:, 0, 1:3].diagonal()
        losses = scale * (looked.flatten(1).sum(1) - picked)
        found = gradients.sum(losses)
    assert float(found["layers.a.weight"].norm()) <= 2 * clip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("apart", [1e-3, 1e-5, 1e-7, 1e-9])
def test_a_tied_table_whose_two_gradients_nearly_cancel_is_cut_to_the_clip(apart, dtype):
    torch.manual_seed(0)
    table = nn.Parameter(torch.randn(5, 300, dtype=dtype))
    given = torch.rand(1, 1, 300, dtype=dtype) + 0.5
    model = Applied(lambda x, a, b: (a(x), b(given)), a=nn.Embedding(5, 300), b=nn.Linear(300, 5, False))
    model.layers["a"].weight = model.layers["b"].weight = table
    with ClippedGradients(model, clip_norm=1.0) as gradients:
        looked, product = model(torch.tensor([[1]]))
        losses = 1e12 * ((looked * given).sum((1, 2)) * (1 + apart) - product[:, 0, 1])
        assert float(gradients.sum(losses)["layers.a.weight"].norm()) <= 1.0


def test_a_tied_table_is_never_written_out_for_each_example():
    model = tied_words(rows=3000, width=16)
    x = torch.randint(0, 3000, (32, 2))
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        losses = squares(model(x), torch.zeros(32))
        with Largest() as largest:
            gradients.sum(losses)
    assert largest.elements < 32 * 3000 * 16 // 4


def test_a_wide_layer_called_twice_may_be_served_without_writing_out(monkeypatch):
    monkeypatch.setattr("dpfed.training.engine.rules.linear.LARGE", 1000)
    torch.manual_seed(0)
    model = Applied(lambda x, a: a(a(x).tanh()), a=nn.Linear(200, 200))
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        losses = squares(model(torch.randn(16, 200)), torch.zeros(16))
        with Largest() as largest:
            gradients.sum(losses)
    assert largest.elements < 16 * 200 * 200 // 4
    require_parity(model, torch.randn(6, 200))


@pytest.mark.parametrize("shape", [(6, 4), (6, 3, 4)], ids=["one position", "positions"])
def test_a_model_that_gives_a_gradient_of_its_own_uses_weights_twice(shape):
    """The transposed weight of the one call is used again in the backward pass inside the model."""

    def slope(x, a):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(a(x).tanh().square().sum(), x, create_graph=True)[0]

    torch.manual_seed(0)
    model = Applied(slope, a=nn.Linear(4, 4))
    x, y = torch.randn(shape), torch.arange(6.0)
    expected = clipped(gradients(squares(model(x), y), model), 0.5)
    with ClippedGradients(model, clip_norm=0.5) as engine:
        found, _ = engine.clipped(make_forward(model, squares, x, y))
        assert distance(found, expected) < 1e-5
        with pytest.raises(InvalidArgument, match="examples may meet in the model"):  # it adds them up on the way
            engine.sum(squares(model(x), y))

"""Models that use parts of torch which come between an engine and the graph."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class _Sign(torch.autograd.Function):
    """The sign, with the gradient of a clamp."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 2)


class _Product(torch.autograd.Function):
    """x·Wᵀ, with gradients by hand."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


class _Neighbour(torch.autograd.Function):
    """Each row plus the one before it; no name of an operation tells."""

    @staticmethod
    def forward(ctx, x):
        return x + 0.5 * x.roll(1, 0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient + 0.5 * gradient.roll(-1, 0)


class _Averaged(torch.autograd.Function):
    """The identity, whose gradient is taken the batch's mean off: only the way back mixes."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient - 0.5 * gradient.mean(0)


class _Reversed(torch.autograd.Function):
    """The identity, with the gradient turned round (domain adaptation)."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -0.3 * gradient


class Binarised(nn.Module):
    """A straight-through sign between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.b(_Sign.apply(self.a(x)))


class OwnProduct(nn.Module):
    """A product of a layer's weight by a Function of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 3, bias=False), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(_Product.apply(x, self.layer.weight).tanh())


class HiddenNeighbour(nn.Module):
    """A Function of one's own that mixes neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(_Neighbour.apply(self.layer(x)).tanh())


class MixedOnTheWayBack(nn.Module):
    """Outputs keep apart, gradients do not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(_Averaged.apply(self.layer(x)).tanh())


class MixedByHook(nn.Module):
    """A hook on a hidden tensor mixes its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        hidden = self.layer(x).sin()
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient - 0.5 * gradient.mean(0))
        return self.head(hidden)


class DomainAdversarial(nn.Module):
    """Two heads, one of which pushes the body the other way."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.task, self.domain = nn.Linear(4, 3), nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x):
        hidden = self.body(x).relu()
        return self.task(hidden), self.domain(_Reversed.apply(hidden))


class Checkpointed(nn.Module):
    """Activations are computed again on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


@torch.jit.script
def _gate(x: Tensor, scale: Tensor) -> Tensor:
    return x * torch.sigmoid(x * scale)


class Scripted(nn.Module):
    """A compiled function of a hidden tensor and a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.head = nn.Linear(4, 3), nn.Parameter(torch.rand(3)), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(_gate(self.layer(x), self.scale))


class Mapped(nn.Module):
    """vmap over the examples inside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return torch.func.vmap(lambda row: torch.outer(self.layer(row), row).sin())(x)


class MappedParameters(nn.Module):
    """vmap over a stack of parameters, for all examples at once."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Parameter(torch.randn(3, 2, 4))

    def forward(self, x):
        return torch.func.vmap(lambda weight: functional.linear(x, weight), out_dims=1)(self.stack).tanh()


class Slopes(nn.Module):
    """The gradient of an energy with respect to the input, by torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return torch.func.grad(lambda values: self.layer(values).tanh().square().sum())(x)


class SlopesByAutograd(nn.Module):
    """The same by autograd.grad inside the forward pass, as in physics."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.layer(x).tanh().pow(3).sum(), x, create_graph=True)[0]


class CalledElsewhere(nn.Module):
    """A part that is called with parameters of another (functional_call)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 2), nn.Parameter(torch.ones(()))

    def forward(self, x):
        scaled = {name: value * self.scale for name, value in self.layer.named_parameters()}
        return torch.func.functional_call(self.layer, scaled, (x,)).tanh()


class Fixpoint(nn.Module):
    """An equilibrium: the last of many steps has the gradient, the others none."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.read, self.head = nn.Linear(3, 3), nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        with torch.no_grad():
            state = x.new_zeros(len(x), 3)
            for _ in range(5):
                state = (0.3 * self.own(state) + self.read(x)).tanh()
        return self.head((0.3 * self.own(state) + self.read(x)).tanh())


class Solved(nn.Module):
    """A small linear system, solved for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        matrices = torch.eye(2) * 3 + self.layer(x).tanh().view(-1, 2, 2)
        return torch.linalg.solve(matrices, x[:, :2])


class Eigen(nn.Module):
    """Eigenvalues of a symmetric matrix of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 9)

    def forward(self, x):
        matrices = self.layer(x).view(-1, 3, 3)
        return torch.linalg.eigvalsh(matrices + matrices.mT + torch.diag(torch.tensor([0.0, 1.0, 2.0])))


class Strided(nn.Module):
    """Windows of a signal as a view over strides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x.unfold(2, 3, 1)).tanh()


class AsStrided(nn.Module):
    """Windows by as_strided, which may reach into the next example's memory, and here does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        padded = functional.pad(x.contiguous().flatten(), (0, 1))
        return self.layer(padded.as_strided((len(x), 5), (4, 1))).tanh()


class WritesInput(nn.Module):
    """Scales the batch in place by a mean over it before the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        x = x.clone()
        x -= x.mean(0, keepdim=True)
        return self.layer(x).cos()


class Nested(nn.Module):
    """Hooks that add a learnt offset to what a layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.offset = nn.Linear(4, 2), nn.Parameter(torch.randn(2))
        self.layer.register_forward_hook(lambda module, given, output: output.sigmoid() + self.offset)

    def forward(self, x):
        return self.layer(x)


class ThroughNumpy(nn.Module):
    """Features that are made outside torch, of the whole batch: each value's rank."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        ranks = x.detach().numpy().argsort(0).argsort(0)
        return self.layer(torch.from_numpy(ranks).to(x.dtype)).tanh()


class ThroughItems(nn.Module):
    """A Python number taken from the batch scales all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) * (1 + abs(x.mean().item()))


class Remembers(nn.Module):
    """A plain attribute, no buffer, carries the last batch's mean into the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 2), 0.0

    def forward(self, x):
        out = self.layer(x - self.last).tanh()
        self.last = float(x.mean())
        return out


class OwnGenerator(nn.Module):
    """Dropout by a generator of its own with a seed that everybody can read."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        hidden = self.layer(x).tanh()
        return self.head(hidden * (torch.rand(hidden.shape, generator=self.generator) < 0.5))


class OwnNumpyGenerator(nn.Module):
    """The same by one of numpy's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
        self.generator = np.random.default_rng(0)

    def forward(self, x):
        mask = torch.from_numpy(self.generator.random((len(x), 6)) < 0.5)
        return self.head(self.layer(x).sin() * mask)

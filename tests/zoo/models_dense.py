"""Models of linear layers and elementwise operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def classifier(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 3))


class ResidualMLP(nn.Module):
    """Blocks around which the input is added again, normalised before."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.GELU()) for _ in range(2))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Pooled(nn.Module):
    """The same layer at every position, then the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.embed(x).relu().mean(1))


class RMSNormed(nn.Module):
    """An RMSNorm and a gated unit, as in recent language models."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(4, eps=1e-3)
        self.gate, self.up, self.down = nn.Linear(4, 6, False), nn.Linear(4, 6, False), nn.Linear(6, 4, False)

    def forward(self, x):
        normed = self.norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class HandNormed(nn.Module):
    """A normalisation that is written by hand with bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(4) + 0.5), nn.Parameter(torch.zeros(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return self.head(centred / (centred.var(-1, keepdim=True) + 1e-2).sqrt() * self.scale + self.shift)


class Gated(nn.Module):
    """A GLU: half of the outputs gate the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.head = nn.Linear(4, 8), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(functional.glu(self.both(x), dim=-1))


class Maxout(nn.Module):
    """The largest of three linear pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = nn.Linear(4, 6)

    def forward(self, x):
        return self.pieces(x).unflatten(1, (2, 3)).amax(2)


class PReLUs(nn.Module):
    """A slope for each channel, with scale and shift of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.slope = nn.Linear(4, 3), nn.PReLU(3)
        self.scale, self.shift = nn.Parameter(torch.rand(3)), nn.Parameter(torch.rand(3))

    def forward(self, x):
        return self.slope(self.layer(x)) * self.scale + self.shift


class Bilinear(nn.Module):
    """Two halves of the input, multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Bilinear(2, 2, 3)

    def forward(self, x):
        return self.product(x[:, :2], x[:, 2:])


class RadialBasis(nn.Module):
    """Distances to centres that are a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.centres, self.width = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.zeros(5))
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        squares = (x.unsqueeze(1) - self.centres).square().sum(2)
        return self.head((-squares * self.width.exp() / 8).exp())


class FourierFeatures(nn.Module):
    """Sines and cosines of a fixed random projection, kept in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(4, 5) / 2)
        self.head = nn.Linear(10, 2)

    def forward(self, x):
        angles = x @ self.frequencies
        return self.head(torch.cat([angles.sin(), angles.cos()], dim=1))


class Kronecker(nn.Module):
    """A weight that is the Kronecker product of two small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(2, 2)), nn.Parameter(torch.randn(2, 2))

    def forward(self, x):
        return functional.linear(x, torch.kron(self.a, self.b)).tanh()


class Hypernetwork(nn.Module):
    """A layer whose weight is made from the example itself."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Linear(4, 8)

    def forward(self, x):
        weights = self.maker(x).view(len(x), 2, 4)
        return torch.bmm(weights, x.unsqueeze(2)).squeeze(2)


class Spectral(nn.Module):
    """A filter in the frequencies of one example's signal, complex in between."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.imaginary = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        spectrum = torch.fft.rfft(x, dim=1)
        return self.head(torch.fft.irfft(spectrum * torch.complex(self.real, self.imaginary), n=6, dim=1))


class Functional(nn.Module):
    """Layers that are not called: their weights are used by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return torch.addmm(self.b.bias, functional.linear(x, self.a.weight, self.a.bias).sigmoid(), self.b.weight.t())


class Auxiliary(nn.Module):
    """A dict of two outputs, one of them from halfway."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.early, self.late = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.body(x).tanh()
        return {"main": self.late(hidden.relu()), "early": self.early(hidden)}


class Several(nn.Module):
    """A tuple of outputs of heads in a ModuleDict."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 1), "b": nn.Linear(4, 2)})

    def forward(self, x):
        return tuple(head(x).cos() for head in self.heads.values())


class Stashed(nn.Module):
    """Keeps its hidden layer, which the loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        self.hidden = self.body(x).tanh()
        return self.head(self.hidden)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.sum(1) - targets).square() + self.hidden.abs().sum(1)


class StashedInside(nn.Module):
    """A layer with bare parameters keeps what it had before its activation, and the loss uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scaled = nn.Linear(4, 4), _Scaled()

    def forward(self, x):
        return self.scaled(self.body(x))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.sum(1) - targets).square() + self.scaled.before.square().sum(1)


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x):
        self.before = x * self.scale
        return self.before.tanh()


class Penalised(nn.Module):
    """The loss looks at the parameters too: decay of weights, once for each record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x).sin()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.sum(1) - targets).square() + 0.1 * self.layer.weight.square().sum()


class Listed(nn.Module):
    """A module that is called with a list of parts of the example."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = _Parts()

    def forward(self, x):
        return self.parts([x[:, :2], x[:, 2:]])


class _Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 3), nn.Linear(2, 3)])

    def forward(self, parts):
        return torch.stack([layer(part) for layer, part in zip(self.layers, parts, strict=True)], dim=1).prod(1)


class Siamese(nn.Module):
    """One encoder for the two, or three, items of a record, called once for each."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ELU(), nn.Linear(4, 3))

    def forward(self, x):
        return torch.stack([self.encoder(item) for item in x.unbind(1)], dim=1)


class Twice(nn.Module):
    """A nested module that runs on what it gave before."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Softplus()))

    def forward(self, x):
        return self.inner(self.inner(x) - x)


class Generated(nn.Module):
    """A forward pass by a generator of hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x):
        return torch.stack(list(self._states(x)), dim=1).flatten(1)

    def _states(self, x):
        for layer in self.layers:
            x = functional.mish(layer(x))
            yield x


class InPlace(nn.Module):
    """Activations and additions in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.a(x)
        hidden += 0.5
        return self.b(functional.relu_(hidden)).mul_(2.0)


class Squeezed(nn.Module):
    """squeeze() without dims, which at a batch of one drops the batch's axis too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x).squeeze().view(len(x), -1).exp()


class Capsules(nn.Module):
    """Two rounds of routing by agreement, with weights for each pair of capsules."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 2, 3, 4) * 0.5)

    def forward(self, x):
        votes = torch.einsum("jiok,bjk->bjio", self.weight, x)
        agreement = votes.new_zeros(votes.shape[:3])
        for _ in range(2):
            sums = (agreement.softmax(2).unsqueeze(3) * votes).sum(1)
            out = sums * (sums.norm(dim=2, keepdim=True) / (1 + sums.square().sum(2, keepdim=True)))
            agreement = agreement + (votes * out.unsqueeze(1)).sum(3)
        return out


class Factorised(nn.Module):
    """A factorisation machine: pairs of features by the trick of squares."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factors = nn.Linear(4, 1), nn.Parameter(torch.randn(4, 3))

    def forward(self, x):
        pairs = (x @ self.factors).pow(2) - x.pow(2) @ self.factors.pow(2)
        return self.linear(x) + 0.5 * pairs.sum(1, keepdim=True)


class Periodic(nn.Module):
    """Mixture density of sines with a learnt phase."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.rand(4) * math.pi)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.sin(x + self.phase).atan())

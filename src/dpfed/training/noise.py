"""Noise for the tensors of a training step, Gaussian or Laplace's, from a cipher's keystream.

A step of DP-SGD needs as many normal draws as the model has parameters, and with small batches they cost as much
as the gradients. torch's own generator is fast and predictable, which protects nobody. Here the bits come from
:mod:`dpfed.randomness`; all tensors of a step are one vector that is noised a cache-sized piece at a time, so that
Gaussian noise takes about as long as ``randn``.

* ``float`` adds in the tensor's own arithmetic (float32, float64 for float64). Its guarantee is that of ideal
  reals: what the low bits of a float tell (Mironov 2012) is not covered, and statements must say so.
* ``grid`` rounds the tensors and the noise to one grid that does not depend on the data, and adds there.

>>> import torch
>>> noise = NoiseSource()
>>> noisy = noise.add({"weight": torch.zeros(3, 2), "bias": torch.zeros(2)}, std=1.0)
>>> noisy["weight"].shape, noise.arithmetic
(torch.Size([3, 2]), 'ideal arithmetic')
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed import checks
from dpfed.clipping import NORMS
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.additive import grid_step
from dpfed.randomness import RandomSource, or_system
from dpfed.rounding import round_up

FLOAT = "float"
GRID = "grid"

_PAIRS = 1 << 17  # Box–Muller pairs a pass: few enough for the cache, many enough to hide the cost of the calls
_EXTREME = 1 << 21  # of 2³¹: below it, and as close to 1, a float32 uniform is too coarse for a radius
_NARROW = (torch.float32, torch.bfloat16, torch.float16)
_STD_RANGE = {torch.float32: (2.0**-90, 2.0**90), torch.float64: (2.0**-400, 2.0**400)}
# What rounding the scale and the few roundings of a draw can take from it, paid in advance with more noise.
_MARGIN = {torch.float32: 1 + 2.0**-20, torch.float64: 1 + 2.0**-48}

_workspaces = threading.local()


class NoiseSource:
    """Adds N(0, std²), or Laplace noise of scale std, to every number of a dict of tensors; each call draws new noise.

    Privacy: where one unit moves all tensors together by at most C in L2 norm, one call is the event
    Gaussian(std/C) in mode "float", for ideal arithmetic, and Gaussian(std/grid_sensitivity(C, d, g)) in mode
    "grid", with d the count of all numbers and g = ``grid(std)``; :meth:`std` gives the std to ask for. On the
    grid the sum of two multiples of g is exact or correctly rounded, so the output is a function of the exact
    sum; rounding the noise is rounding that sum; rounding the tensors costs g√d. A tensor in which the units
    were added up with float rounding moves by more than C (Casacuberta et al. 2022): C must include that. With
    `norm="l1"` it is Laplace(std/C) for a unit that moves them by C in L1 norm, and rounding costs gd. Not
    proved, in either mode: the distance of the computed normal draws from the ideal law. They have 53 bits or
    more (float32: 24 significant ones, everywhere) and end at 9.4 standard deviations (float32: 10.7; Laplace: 44
    scales).
    """

    def __init__(self, source: RandomSource | None = None, mode: str = FLOAT) -> None:
        if mode not in (FLOAT, GRID):
            raise InvalidArgument("mode", f"mode must be 'float' or 'grid', got {mode!r}")
        self._source = or_system(source).stream("training noise")
        self.mode = mode

    @property
    def is_private(self) -> bool:
        """Whether the noise is unpredictable; a seeded source's is not."""
        return self._source.is_private

    @property
    def arithmetic(self) -> str:
        """The arithmetic in which the guarantee holds, as a statement names it."""
        return GRID if self.mode == GRID else "ideal arithmetic"

    def grid(self, std: float) -> float:
        """The step of the grid for noise of that standard deviation, whatever the data; 0 in mode "float"."""
        return grid_step(checks.positive(std=std)) if self.mode == GRID else 0.0

    def std(self, noise_multiplier: float, clip_norm: float, dimension: int, norm: str = "l2") -> float:
        """The std at which noise on `dimension` numbers is the event Gaussian(noise_multiplier), or Laplace for L1."""
        multiplier = checks.positive(noise_multiplier=noise_multiplier)
        grid = self.grid(multiplier * checks.positive(clip_norm=clip_norm))
        while True:
            std = round_up(Fraction(multiplier) * Fraction(grid_sensitivity(clip_norm, dimension, grid, norm)))
            if self.grid(std) <= grid:
                return std
            grid = self.grid(std)  # paying for the grid took the noise to the next power of two

    def add(self, tensors: Mapping[str, Tensor], std: float, norm: str = "l2") -> dict[str, Tensor]:
        """New tensors with noise on every number: same names, shapes, precisions and devices.

        The noise is Gaussian of that standard deviation, or with `norm="l1"` Laplace's of that scale.
        """
        std = checks.positive(std=std)
        _require_norm(norm)
        for name, tensor in tensors.items():
            _require_floats(name, tensor)
        noisy: dict[str, Tensor] = {}
        for dtypes, working in ((_NARROW, torch.float32), ((torch.float64,), torch.float64)):
            group = {name: tensor.detach() for name, tensor in tensors.items() if tensor.dtype in dtypes}
            if group:
                noisy |= self._add_in(working, group, std, norm)
        return {name: noisy[name] for name in tensors}

    def _add_in(self, dtype: torch.dtype, tensors: Mapping[str, Tensor], std: float, norm: str) -> dict[str, Tensor]:
        _require_in_range(std, torch.float64 if self.mode == GRID else dtype)
        vector = torch.cat([tensor.reshape(-1).to("cpu", dtype) for tensor in tensors.values()])
        _require_finite("tensors", vector, "NaN or infinity is released as it is: leave such examples out before")
        for piece in _pieces(vector):
            self._add_(piece, std, norm)
        parts = torch.split(vector, [tensor.numel() for tensor in tensors.values()])
        return {name: _like(tensors[name], part, std) for name, part in zip(tensors, parts, strict=True)}

    def _add_(self, piece: Tensor, std: float, norm: str) -> None:
        pairs = (len(piece) + 1) // 2
        if norm == "l1":
            _add_laplace_(piece, torch.from_numpy(self._source.laplace(len(piece))), std, self.grid(std))
        elif self.mode == GRID:
            _add_on_grid_(piece, _polar64(self._source, pairs), std)
        elif piece.dtype == torch.float32:
            _add_floats_(piece, _polar32(self._source, pairs), std)
        else:
            _add_floats_(piece, _polar64(self._source, pairs), std)

    def __repr__(self) -> str:
        return f"NoiseSource(mode={self.mode!r})" + ("" if self.is_private else " [NOT PRIVATE]")


def grid_sensitivity(clip_norm: float, dimension: int, grid: float, norm: str = "l2") -> float:
    """clip_norm + grid × √dimension, rounded up: how far one unit moves a sum that was rounded to the grid.

    Nearest rounding moves two neighbouring sums apart by at most one step in each coordinate. In L1 it is
    clip_norm + grid × dimension.
    """
    clip = Fraction(checks.positive(clip_norm=clip_norm))
    step = Fraction(checks.non_negative(grid=grid))
    steps = Fraction(checks.count(dimension=dimension))
    if _require_norm(norm) == "l2":
        steps = Fraction(math.isqrt(dimension << 64) + 1, 2**32)
    return round_up(clip + step * steps)


@dataclass(frozen=True)
class _Polar:
    """Standard normal pairs as radius × cosine and radius × sine (Box and Muller 1958), and the words behind them."""

    radius: Tensor
    cosine: Tensor
    sine: Tensor
    words: Tensor


def _workspace(dtype: torch.dtype, pairs: int, source: RandomSource) -> _Polar:
    """This thread's arrays for so many pairs with fresh random words; new memory would cost as much as the noise."""
    space: Tensor | None = getattr(_workspaces, str(dtype), None)
    if space is None or space.shape[1] < pairs:
        space = torch.empty((5, pairs), dtype=dtype)
        setattr(_workspaces, str(dtype), space)
    words = space[3:].view(-1)[: 2 * pairs]
    source.fill(words.numpy())
    return _Polar(space[0, :pairs], space[1, :pairs], space[2, :pairs], words)


def _add_floats_(piece: Tensor, polar: _Polar, std: float) -> None:
    scale = std * _MARGIN[piece.dtype]
    half, rest = len(polar.radius), len(piece) - len(polar.radius)
    piece[:half].addcmul_(polar.radius, polar.cosine, value=scale)
    piece[half:].addcmul_(polar.radius[:rest], polar.sine[:rest], value=scale)


def _add_on_grid_(piece: Tensor, polar: _Polar, std: float) -> None:
    half, grid = len(polar.radius), grid_step(std)
    polar.radius.mul_(std * _MARGIN[torch.float64] / grid)
    for part, direction in ((piece[:half], polar.cosine), (piece[half:], polar.sine)):
        noise = direction.mul_(polar.radius).round_()[: len(part)]
        part.copy_(_steps_(polar.words[: len(part)].copy_(part), grid).add_(noise).mul_(grid))


def _add_laplace_(piece: Tensor, draws: Tensor, scale: float, grid: float) -> None:
    draws.mul_(scale * _MARGIN[torch.float64])
    if grid:
        piece.copy_(_steps_(piece.double(), grid).add_(draws.mul_(1 / grid).round_()).mul_(grid))
    else:
        piece.add_(draws)


def _steps_(values: Tensor, grid: float) -> Tensor:
    # Adding 0 makes −0 a plain 0: the sign of a zero would tell the sign of what was rounded to it.
    return values.mul_(1 / grid).round_().add_(0.0)


def _polar32(source: RandomSource, pairs: int) -> _Polar:
    polar = _workspace(torch.float32, pairs, source)
    words = polar.words.numpy().view(np.uint32)
    uniforms = np.right_shift(words[:pairs], np.uint32(1), out=words[:pairs])
    np.copyto(polar.radius.numpy(), uniforms.view(np.int32))
    polar.radius.mul_(2.0**-31).log_().mul_(-2.0).sqrt_()
    _refine_(polar.radius.numpy(), uniforms, source)
    np.copyto(polar.sine.numpy(), words[pairs:].view(np.int32))
    return _turned(polar, math.pi * 2.0**-31)


def _refine_(radius: NDArray[np.float32], uniforms: NDArray[np.uint32], source: RandomSource) -> None:
    """Draws the longest and the shortest radii again, given their leading 31 bits, with 53 bits more.

    Without it the law would end at 6.6 standard deviations, and one pair in 2²⁵ would be exactly zero.
    """
    extreme = np.flatnonzero(uniforms - np.uint32(_EXTREME) >= np.uint32(2**31 - 2 * _EXTREME))
    leading = uniforms[extreme].astype(np.float64)
    is_long = leading < _EXTREME
    distance = np.where(is_long, leading, 2.0**31 - 1 - leading) + (1.0 - source.uniform(extreme.size))
    distance *= 2.0**-31  # from 0 or from 1, and never 0 itself
    radius[extreme] = np.sqrt(-2.0 * np.where(is_long, np.log(distance), np.log1p(-distance)))


def _polar64(source: RandomSource, pairs: int) -> _Polar:
    polar = _workspace(torch.float64, pairs, source)
    words = polar.words.numpy().view(np.uint64)
    uniforms = np.right_shift(words[:pairs], np.uint64(1), out=words[:pairs])
    np.copyto(polar.radius.numpy(), uniforms.view(np.int64))
    polar.radius.add_(0.5).mul_(2.0**-63).log_().mul_(-2.0).sqrt_()
    np.copyto(polar.sine.numpy(), words[pairs:].view(np.int64))
    return _turned(polar, math.pi * 2.0**-63)


def _turned(polar: _Polar, unit: float) -> _Polar:
    """The pairs with cosine and sine of the angles that stand, in that unit, in the place of the sines."""
    torch.cos(polar.sine.mul_(unit), out=polar.cosine)
    polar.sine.sin_()
    return polar


def _like(tensor: Tensor, values: Tensor, std: float) -> Tensor:
    """The values in the tensor's shape, precision and place."""
    like = values.view(tensor.shape).to(tensor.dtype)
    _require_finite("std", like, f"{std:g} takes the noise beyond the numbers of {tensor.dtype}")
    return like.to(tensor.device)


def _pieces(vector: Tensor) -> Iterator[Tensor]:
    return (vector[start : start + 2 * _PAIRS] for start in range(0, len(vector), 2 * _PAIRS))


def _require_floats(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype not in (*_NARROW, torch.float64):
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        message = f"tensors must hold float64, float32, bfloat16 or float16 numbers, got {kind} for {name!r}"
        raise InvalidArgument("tensors", message)
    if tensor.layout != torch.strided:
        message = f"{name!r} is sparse, and noise belongs on its zeros too: give tensor.to_dense()"
        raise InvalidArgument("tensors", message)


def _require_norm(norm: str) -> str:
    if norm not in NORMS:
        raise InvalidArgument("norm", f"norm must be 'l1' or 'l2', got {norm!r}")
    return norm


def _require_in_range(std: float, dtype: torch.dtype) -> None:
    least, most = _STD_RANGE[dtype]
    if not least <= std <= most:
        message = f"std must be from {least:.0e} to {most:.0e} for {dtype}, where noise does not vanish, got {std:g}"
        raise InvalidArgument("std", message)


def _require_finite(argument: str, vector: Tensor, reason: str) -> None:
    # The sum is cheap and NaN or infinite if a number is; where it only overflowed, each number decides.
    if not math.isfinite(float(vector.sum())) and not bool(vector.isfinite().all()):
        raise InvalidArgument(argument, f"{argument} must be finite: {reason}")

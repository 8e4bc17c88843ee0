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
from typing import Any

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
    """A source of noise for tensors: N(0, std²), or Laplace of scale std, on every number and new at each call.

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
        """Return the step of the grid for noise of that standard deviation, whatever the data; 0 in mode "float"."""
        return grid_step(checks.positive(std=std)) if self.mode == GRID else 0.0

    def std(self, noise_multiplier: float, clip_norm: float, dimension: int, norm: str = "l2") -> float:
        """Return the std at which noise on `dimension` numbers is Gaussian(noise_multiplier), or Laplace for L1."""
        multiplier = checks.positive(noise_multiplier=noise_multiplier)
        grid = self.grid(multiplier * checks.positive(clip_norm=clip_norm))
        while True:
            std = round_up(Fraction(multiplier) * Fraction(grid_sensitivity(clip_norm, dimension, grid, norm)))
            if self.grid(std) <= grid:
                return std
            grid = self.grid(std)  # paying for the grid took the noise to the next power of two

    def add(self, tensors: Mapping[str, Tensor], std: float, norm: str = "l2") -> dict[str, Tensor]:
        """Return new tensors with noise on every number: same names, shapes, precisions and devices.

        The noise is Gaussian of that standard deviation, or with `norm="l1"` Laplace's of that scale.
        """
        std = checks.positive(std=std)
        _require_norm(norm)
        for name, tensor in tensors.items():
            _require_floats(name, tensor)
        wide = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.float64}
        narrow = {name: tensor for name, tensor in tensors.items() if name not in wide}
        noisy = self._add_in(torch.float32, narrow, std, norm) if narrow else {}
        if wide:
            noisy |= self._add_in(torch.float64, wide, std, norm)
        return noisy if not (narrow and wide) else {name: noisy[name] for name in tensors}

    def _add_in(self, dtype: torch.dtype, tensors: Mapping[str, Tensor], std: float, norm: str) -> dict[str, Tensor]:
        _require_in_range(std, torch.float64 if self.mode == GRID else dtype)
        vector = torch.cat([_flatten(tensor, dtype) for tensor in tensors.values()])
        for piece in _split(vector):
            self._add_(piece, std, norm)
        _require_finite(vector, tensors, std)
        parts = torch.split_with_sizes(vector, [tensor.numel() for tensor in tensors.values()])
        return {name: _restore_form(tensors[name], part, std) for name, part in zip(tensors, parts, strict=True)}

    def _add_(self, piece: Tensor, std: float, norm: str) -> None:
        pairs = (piece.shape[0] + 1) // 2
        if norm == "l1":
            _add_laplace_(piece, torch.from_numpy(self._source.laplace(piece.shape[0])), std, self.grid(std))
        elif self.mode == GRID:
            _add_on_grid_(piece, _draw_normals64(self._source, pairs), std)
        elif piece.dtype == torch.float32:
            _add_floats_(piece, _draw_normals32(self._source, pairs), std)
        else:
            _add_floats_(piece, _draw_normals64(self._source, pairs), std)

    def __repr__(self) -> str:
        return f"NoiseSource(mode={self.mode!r})" + ("" if self.is_private else " [NOT PRIVATE]")


def grid_sensitivity(clip_norm: float, dimension: int, grid: float, norm: str = "l2") -> float:
    """Return how far one unit moves a sum that was rounded to the grid: clip_norm + grid × √dimension, rounded up.

    Nearest rounding moves two neighbouring sums apart by at most one step in each coordinate. In L1 it is
    clip_norm + grid × dimension.
    """
    clip = Fraction(checks.positive(clip_norm=clip_norm))
    step = Fraction(checks.non_negative(grid=grid))
    steps = Fraction(checks.count(dimension=dimension))
    if _require_norm(norm) == "l2":
        steps = Fraction(math.isqrt(dimension << 64) + 1, 2**32)
    return round_up(clip + step * steps)


@dataclass(frozen=True, slots=True)
class _Space:
    """Memory of one thread for `pairs` Box–Muller pairs; new memory would cost as much as the noise."""

    memory: Tensor
    pairs: int
    words: NDArray[Any]  # two for each pair
    uniforms: NDArray[Any]  # the first half of the words
    angles: NDArray[Any]  # the second half, with their signs
    radius: Tensor
    normals: Tensor  # (2, pairs): radius × cosine, and radius × sine (Box and Muller 1958)
    flat: Tensor  # all of these


def _reuse_space(dtype: torch.dtype, pairs: int) -> _Space:
    """Return this thread's memory for so many pairs; the views of the last call, if that had as many."""
    name = "narrow" if dtype == torch.float32 else "wide"
    space: _Space | None = getattr(_workspaces, name, None)
    if space is None or space.pairs != pairs:
        is_enough = space is not None and len(space.memory) >= 5 * pairs
        memory = space.memory if space is not None and is_enough else torch.empty(5 * pairs, dtype=dtype)
        signed, unsigned = (np.int32, np.uint32) if dtype == torch.float32 else (np.int64, np.uint64)
        radius, flat, floats = memory[: 5 * pairs].split_with_sizes([pairs, 2 * pairs, 2 * pairs])
        words: NDArray[Any] = floats.numpy().view(unsigned)
        angles = words[pairs:].view(signed)
        space = _Space(memory, pairs, words, words[:pairs], angles, radius, flat.view(2, pairs), flat)
        setattr(_workspaces, name, space)
    return space


def _add_floats_(piece: Tensor, normals: Tensor, std: float) -> None:
    piece.add_(normals[: piece.shape[0]], alpha=std * _MARGIN[piece.dtype])


def _add_on_grid_(piece: Tensor, normals: Tensor, std: float) -> None:
    grid = grid_step(std)
    noise = normals[: len(piece)].mul_(std * _MARGIN[torch.float64] / grid).round_()
    piece.copy_(_round_to_steps_(piece.to(torch.float64), grid).add_(noise).mul_(grid))


def _add_laplace_(piece: Tensor, draws: Tensor, scale: float, grid: float) -> None:
    draws.mul_(scale * _MARGIN[torch.float64])
    if grid:
        piece.copy_(_round_to_steps_(piece.double(), grid).add_(draws.mul_(1 / grid).round_()).mul_(grid))
    else:
        piece.add_(draws)


def _round_to_steps_(values: Tensor, grid: float) -> Tensor:
    # Adding 0 makes −0 a plain 0: the sign of a zero would tell the sign of what was rounded to it.
    return values.mul_(1 / grid).round_().add_(0.0)


def _draw_normals32(source: RandomSource, pairs: int) -> Tensor:
    """Return standard normal draws by numpy, whose float32 functions take a third of the time of torch's.

    For every float32 that can occur here they were off by at most 3.9 (log) and 1.5 (sine, cosine) units in the last
    place, with numpy 2.4 on AVX-512; a test looks at a sample on every machine. The root halves the first, and four
    roundings more are half a unit each, so that a draw is off by less than 6 of them: _MARGIN is 8.
    """
    space = _reuse_space(torch.float32, pairs)
    source.fill(space.words)
    radius, normals = space.radius.numpy(), space.normals.numpy()
    cosine, sine = normals
    uniforms = np.right_shift(space.uniforms, np.uint32(1), out=space.uniforms)
    np.copyto(radius, uniforms.view(np.int32))
    radius *= 2.0**-31
    with np.errstate(divide="ignore"):  # a radius of log 0 is drawn again
        np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    _refine_(radius, uniforms, source)
    np.copyto(sine, space.angles)
    sine *= math.pi * 2.0**-31
    np.cos(sine, out=cosine)
    np.sin(sine, out=sine)
    normals *= radius
    return space.flat


def _refine_(radius: NDArray[np.float32], uniforms: NDArray[np.uint32], source: RandomSource) -> None:
    """Draw the longest and the shortest radii again, given their leading 31 bits, with 53 bits more.

    Without it the law would end at 6.6 standard deviations, and one pair in 2²⁵ would be exactly zero.
    """
    extreme = np.flatnonzero(uniforms - np.uint32(_EXTREME) >= np.uint32(2**31 - 2 * _EXTREME))
    if not extreme.size:
        return
    leading = uniforms[extreme].astype(np.float64)
    is_long = leading < _EXTREME
    distance = np.where(is_long, leading, 2.0**31 - 1 - leading) + (1.0 - source.uniform(extreme.size))
    distance *= 2.0**-31  # from 0 or from 1, and never 0 itself
    radius[extreme] = np.sqrt(-2.0 * np.where(is_long, np.log(distance), np.log1p(-distance)))


def _draw_normals64(source: RandomSource, pairs: int) -> Tensor:
    """Return standard normal draws by torch, which is faster than numpy in float64."""
    space = _reuse_space(torch.float64, pairs)
    source.fill(space.words)
    radius, (cosine, sine) = space.radius, space.normals
    uniforms = np.right_shift(space.uniforms, np.uint64(1), out=space.uniforms)
    np.copyto(radius.numpy(), uniforms.view(np.int64))
    radius.add_(0.5).mul_(2.0**-63).log_().mul_(-2.0).sqrt_()
    np.copyto(sine.numpy(), space.angles)
    torch.cos(sine.mul_(math.pi * 2.0**-63), out=cosine)
    sine.sin_()
    space.normals.mul_(radius)
    return space.flat


def _restore_form(tensor: Tensor, values: Tensor, std: float) -> Tensor:
    """Return the values in the tensor's shape, precision and device."""
    like = values.view(tensor.shape)
    if tensor.dtype != values.dtype:
        like = like.to(tensor.dtype)
        if not is_finite(like):
            raise _make_overflow_error(std, tensor.dtype)
    return like if tensor.is_cpu else like.to(tensor.device)


def _flatten(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat if tensor.is_cpu and tensor.dtype == dtype else flat.to("cpu", dtype)


def _split(vector: Tensor) -> Iterator[Tensor]:
    return iter(torch.split(vector, 2 * _PAIRS) if vector.shape[0] > 2 * _PAIRS else (vector,))


def _require_floats(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype not in (*_NARROW, torch.float64):
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        message = (
            f"tensors must hold float64, float32, bfloat16 or float16 numbers, as noise is not a whole number, got "
            f"{kind} for {name!r}: convert it with .float()"
        )
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
        message = (
            f"std must be from {least:.0e} to {most:.0e} for {dtype}, or noise is rounded away, got {std:g}: "
            "change clip_norm or noise_multiplier"
        )
        raise InvalidArgument("std", message)


def _require_finite(noisy: Tensor, tensors: Mapping[str, Tensor], std: float) -> None:
    """Refuse a noised sum that is not finite, and say whether the tensors or the noise made it so."""
    if is_finite(noisy):
        return
    if not all(map(is_finite, tensors.values())):
        message = "tensors must be finite, since noise hides neither NaN nor infinity: leave such examples out before"
        raise InvalidArgument("tensors", message)
    raise _make_overflow_error(std, noisy.dtype)


def _make_overflow_error(std: float, dtype: torch.dtype) -> InvalidArgument:
    return InvalidArgument(
        "std", f"std {std:g} takes the noise beyond the numbers of {dtype}, and what overflows is infinite: lower std"
    )


def is_finite(values: Tensor) -> bool:
    """Return whether every number is finite."""
    # The sum is cheap and NaN or infinite if a number is; where it only overflowed, each number decides.
    return math.isfinite(float(values.detach().sum())) or bool(values.isfinite().all())

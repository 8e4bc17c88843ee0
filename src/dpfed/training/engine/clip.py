"""What one example's gradient is cut to: as a whole or group by group, in L2 or in L1.

A *group* is the parameters that one module registers itself, so that each layer is one; a parameter that several
modules share belongs to the first of them. Groups follow from the model's names alone, which are public.

>>> [group_of(name) for name in ("0.weight", "0.bias", "cell.weight_ih_l0", "scale")]
['0', '0', 'cell', '']
>>> Clip(1.0, layers="each").limit(groups=4) == 0.5 * (1 - TOLERANCE)
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from dpfed import checks
from dpfed.clipping import NORMS, group_clip_norm
from dpfed.errors import InvalidArgument
from dpfed.plan.local import LAYERS
from dpfed.training.engine.rules.contributions import Piece, WrittenPiece

# Gradients are cut to clip_norm·(1 − TOLERANCE). A norm is at most NORM_ERROR = 3.2e-5 of itself too small (proved in
# rules/contributions.py), and its coefficient has a few roundings, below 1e-6 together. The rest, two thirds, is for
# the rounding of the sum: n examples added in float32 are off by at most n²·2⁻²⁴·clip_norm, whatever the order, so that
# n ≤ 23 is covered for certain; in practice it is about √n·2⁻²⁴·clip_norm. Beyond that the promise is for ideal sums,
# as it is for ideal noise.
# With ``is_exact`` norms and sums are computed in float64. Norms and coefficients are then off by less than 1e-6 of
# themselves (10⁹ numbers · 2⁻⁵³), and a sum of n examples, in any order and any number of parts, by at most
# (n + 8)·2⁻⁵³ of the sum of their lengths. Two neighbouring sums of n ≤ MOST_EXACT are thus moved apart by at most
# 2·n·(n + 8)·2⁻⁵³ ≤ 6.2e-5 clip norms more than exact ones: within the tolerance, for certain.
TOLERANCE = 1e-4
MOST_EXACT = 1 << 19
# √n · 1.1e-19 of a gradient of n numbers may vanish by underflow: nothing beside the tolerance from this clip norm on.
LEAST_CLIP_NORM = 1e-9
# Noise for longer gradients would leave the range of float32.
MOST_CLIP_NORM = 1e18

# A piece, and the model's names of its parameters by the module's own.
Named = tuple[Piece, Mapping[str, str]]


@dataclass(frozen=True)
class Clip:
    """A bound on the norm of one example's gradient: how long, in which norm, for all layers together or for each.

    Privacy: what is cut to ``limit`` is within clip_norm, and sums of it move by at most clip_norm when one example is
    added or removed, rounding included as far as TOLERANCE says. With `layers="each"` every one of L groups is cut
    to clip_norm/√L in L2 and clip_norm/L in L1, so that all together are within clip_norm.
    """

    clip_norm: float
    norm: str = "l2"
    layers: str = "together"

    def __post_init__(self) -> None:
        if not LEAST_CLIP_NORM <= checks.positive(clip_norm=self.clip_norm) <= MOST_CLIP_NORM:
            bounds = f"from {LEAST_CLIP_NORM:g} to {MOST_CLIP_NORM:g}"
            message = f"clip_norm must be {bounds} for sums in floating point, got {self.clip_norm}"
            raise InvalidArgument("clip_norm", message)
        for name, known in (("norm", NORMS), ("layers", LAYERS)):
            if getattr(self, name) not in known:
                message = f"{name} must be {' or '.join(map(repr, known))}, got {getattr(self, name)!r}"
                raise InvalidArgument(name, message)

    def limit(self, groups: int) -> float:
        """Return the norm to which each of the groups, or the whole, is clipped: TOLERANCE less than its share."""
        is_whole = self.layers == "together"
        share = self.clip_norm if is_whole else group_clip_norm(self.clip_norm, groups, self.norm)
        return share * (1 - TOLERANCE)

    def group(self, pieces: list[Named]) -> list[list[Named]]:
        """Split the pieces into the groups that are clipped together."""
        if self.layers == "together":
            return [pieces]
        groups: dict[str, list[Named]] = {}
        for piece, names in pieces:
            for group in dict.fromkeys(map(group_of, names.values())):
                own = {name: full for name, full in names.items() if group_of(full) == group}
                groups.setdefault(group, []).append((piece.only(own), own))
        return list(groups.values())

    def measure(self, pieces: Iterable[Named]) -> Tensor:
        """Return the norm of every example's gradient over all pieces, in float64."""
        if self.norm == "l1":
            return torch.stack([_measure_l1(piece) for piece, _ in pieces]).sum(0)
        return reduce(torch.hypot, [piece.norms() for piece, _ in pieces])

    def combine(self, lengths: list[Tensor]) -> Tensor:
        """Return the norm of every example's whole gradient from the norms of its groups."""
        if len(lengths) == 1:
            return lengths[0]
        norms: Tensor = torch.linalg.vector_norm(torch.stack(lengths), ord=1 if self.norm == "l1" else 2, dim=0)
        return norms


def group_of(name: str) -> str:
    """Return the path of the module that registers the parameter, "" for the model itself."""
    return name.rpartition(".")[0]


def _measure_l1(piece: Piece) -> Tensor:
    """Return the L1 norm of every example's gradient; only pieces that are written out have one."""
    if not isinstance(piece, WrittenPiece):
        raise TypeError(f"{type(piece).__name__} has no L1 norms")
    return piece.absolute_norms()


def require_full_precision(device: str) -> None:
    """Refuse settings of torch that multiply float32 with fewer digits than the bounds on norms and sums assume."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise InvalidArgument(
            "model", "autocast is on, and norms need the precision that it takes away: train without autocast"
        )
    backend = "cuda" if device == "cuda" else "mkldnn"
    for operation in ("matmul", "conv", "rnn", "all"):
        if (setting := _read_precision(backend, operation)) not in ("none", "ieee"):
            name = f"torch.backends.{backend}" if operation == "all" else f"torch.backends.{backend}.{operation}"
            remedy = (
                'torch.set_float32_matmul_precision("highest")'
                if operation == "matmul"
                else f'{name}.fp32_precision = "ieee"'
            )
            message = f"float32 is multiplied as {setting} here, and clipped sums could be longer than the clip norm"
            raise InvalidArgument("model", f"{message}: {remedy}")


def _read_precision(backend: str, operation: str) -> str:
    """Return the type in which torch multiplies float32; earlier versions have a setting for matrices only."""
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        return str(torch._C._get_fp32_precision_getter(backend, operation))
    return {"highest": "ieee"}.get(torch.get_float32_matmul_precision(), "bf16 or tf32")

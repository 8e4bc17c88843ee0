"""Parameters that several calls use: a layer called twice, a table tied to the output layer.

The gradient of such a parameter is the sum over its uses, and norms of parts do not add. Two calls of a Linear are
one call with the positions of both, so nothing needs to be written out; a table that is looked up and multiplied by
has a norm of three terms. Where there is no such shortcut, gradients are written out and added.

>>> import torch
>>> values = torch.tensor([[[3.0]]]).double()
>>> lookups = embedding.gathered(torch.tensor([[1]]), values, torch.Size([2, 1]))
>>> product = linear.Ghost(torch.tensor([[[1.0]]]), torch.tensor([[[0.0, 4.0]]]), ("weight",), torch.Size([2, 1]))
>>> table = Table(product, lookups, torch.tensor([[1]]), values)
>>> round(float(table.norms()), 3), table.weighted(torch.ones(1))["weight"].tolist()      # (0, 3 + 4)
(7.0, [[0.0], [7.0]])
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpfed.training.attribution import Part
from dpfed.training.rules import bag, embedding, linear, registry
from dpfed.training.rules.pieces import Call, Materialised, Piece, Rows


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is looked up and multiplied by: ‖L + E‖² = ‖L‖² + ‖E‖² + 2⟨L, E⟩, nothing written out.

    L and E may cancel, so all of it is float64 and has room for rounding, see `linear.Ghost`.
    """

    product: linear.Ghost
    lookups: embedding.Touched
    rows: Tensor
    values: Tensor

    def norms(self) -> Tensor:
        """The norms in float64, with room for all rounding."""
        squares = self.product.squares() + self.lookups.squares() + 2 * self._inner()
        roundings = 2 * sum(self.values.shape[1:]) + 2 * self.product.g.shape[1]
        room = self.product.room() + linear.share(roundings) * linear.long(self.values).sum(1)
        return squares.clamp_(min=0).sqrt_().add_(room)

    def weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Both sums together."""
        found = self.product.wide(coefficients)["weight"]
        found.add_(self.lookups.weighted(coefficients.double())["weight"])
        return {"weight": found.to(self.product.g.dtype)}

    def only(self, names: Collection[str]) -> Table:
        """The same: there is only the one table."""
        return self

    def _inner(self) -> Tensor:
        """⟨L, E⟩ = Σₛₜ gₜ[rowₛ]·(xₜ·vₛ) for every example."""
        x, g = self.product.x, self.product.g
        outputs = g.gather(2, self.rows.unsqueeze(1).expand(-1, g.shape[1], -1))
        inputs = torch.bmm(x.double(), self.values.transpose(1, 2))
        return (outputs.double() * inputs).sum(2).sum(1)


def grouped(parts: Sequence[Part]) -> list[list[Part]]:
    """Calls that share parameters together, every other one alone."""
    together = [part for part in parts if part.is_shared]
    alone = [[part] for part in parts if not part.is_shared]
    return [*alone, together] if together else alone


def pieces(
    parts: Sequence[Part], chosen: dict[Hashable, str], *, is_written: bool = False
) -> list[tuple[Piece, Mapping[str, str]]]:
    """What the calls contribute together, each with the model's names of its parameters."""
    users: dict[str, tuple[int, ...]] = {}
    for place, part in enumerate(parts):
        users.update({full: (*users.get(full, ()), place) for full in part.names.values()})
    groups: dict[tuple[int, ...], list[str]] = {}
    for full, places in users.items():
        groups.setdefault(places, []).append(full)
    return [_piece([parts[place] for place in places], names, chosen, is_written) for places, names in groups.items()]


def _piece(
    parts: list[Part], names: list[str], chosen: dict[Hashable, str], is_written: bool
) -> tuple[Piece, Mapping[str, str]]:
    """One piece for parameters that all of the parts use."""
    owns = [{own: full for own, full in part.names.items() if full in names} for part in parts]
    calls = [_limited(part.call, tuple(own)) for part, own in zip(parts, owns, strict=True)]
    kinds = {part.rule.name for part in parts}
    if all(own == owns[0] for own in owns):
        if kinds == {"linear"}:
            return registry.made(_joined(calls), registry.LINEAR, None, chosen, is_written=is_written), owns[0]
        if kinds <= {"embedding", "bag"}:
            return embedding.merged([_touched(part, call) for part, call in zip(parts, calls, strict=True)]), owns[0]
        is_ghost = not is_written and linear.can_be_ghost(calls[0].pair[1])
        if kinds == {"linear", "embedding"} and is_ghost:
            return _table(calls, [part.rule.name == "linear" for part in parts]), owns[0]
    return _added(parts, calls, owns), {name: name for name in names}


def _limited(call: Call, names: tuple[str, ...]) -> Call:
    """Return the call for these of its parameters; of a cell in a loop there are many, and all are the same."""
    return call if call.trainable == names else replace(call, trainable=names)


def _joined(calls: Sequence[Call]) -> Call:
    """One call of a Linear with the positions of all."""
    if len(calls) == 1:
        return calls[0]
    pairs = [linear.positions(call) for call in calls]
    x, g = (torch.cat(values, 1) for values in zip(*pairs, strict=True))
    return replace(calls[0], x=x, gradient=g)


def _touched(part: Part, call: Call) -> embedding.Touched:
    """Return what a look-up alone contributes."""
    if part.rule is registry.BAG:
        return bag.rows_touched(call)
    return embedding.gathered(*embedding.looked_up(call), call.module.get_parameter("weight").shape)


def _table(calls: Sequence[Call], is_product: Sequence[bool]) -> Piece:
    """Return what look-ups and products with the same table contribute together."""
    shape = calls[0].module.get_parameter("weight").shape
    products = [call for call, is_it in zip(calls, is_product, strict=True) if is_it]
    lookups = [embedding.looked_up(call) for call, is_it in zip(calls, is_product, strict=True) if not is_it]
    rows, values = (torch.cat(parts, 1) for parts in zip(*lookups, strict=True))
    values = values.double()
    touched = embedding.gathered(rows, values, shape)
    return Table(linear.Ghost(*linear.positions(_joined(products)), ("weight",), shape), touched, rows, values)


def _added(parts: Sequence[Part], calls: Sequence[Call], owns: Sequence[Mapping[str, str]]) -> Materialised:
    """Gradients written out, call by call, and added under the model's names."""
    found: dict[str, Rows] = {}
    for part, call, names in zip(parts, calls, owns, strict=True):
        for own, rows in part.rule.direct(call).rows.items():
            before = found.get(names[own])
            # Not in place: rows may be the very gradient that another call needs.
            found[names[own]] = rows if before is None else replace(before, values=before.values + rows.values)
    return Materialised(found)

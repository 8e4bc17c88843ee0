"""Parameters that several calls use: a layer called twice, a table tied to the output layer.

The gradient of such a parameter is the sum over its uses, and norms of parts do not add. Two calls of a Linear are
one call with the positions of both, so nothing needs to be written out; a table that is looked up and multiplied by
has a norm of three terms. Where there is no such shortcut, gradients are written out and added.

>>> import torch
>>> values = torch.tensor([[[3.0]]]).double()
>>> lookups = embedding.sum_by_row(torch.tensor([[1]]), values, torch.Size([2, 1]))
>>> product = linear.Ghost(torch.tensor([[[1.0]]]), torch.tensor([[[0.0, 4.0]]]), ("weight",), torch.Size([2, 1]))
>>> table = TiedTable(product, lookups, torch.tensor([[1]]), values)
>>> round(float(table.norms()), 3), table.sum_weighted(torch.ones(1))["weight"].tolist()      # (0, 3 + 4)
(7.0, [[0.0], [7.0]])
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpfed.training.engine.attribution import Part
from dpfed.training.engine.rules import bag, embedding, linear, registry
from dpfed.training.engine.rules.contributions import Call, Materialised, Piece, Rows


@dataclass(frozen=True, slots=True)
class TiedTable:
    """A table that is looked up and multiplied by: ‖L + E‖² = ‖L‖² + ‖E‖² + 2⟨L, E⟩, nothing written out.

    L and E may cancel, so all of it is float64 and has room for rounding, see `linear.Ghost`.
    """

    product: linear.Ghost
    lookups: embedding.TouchedRows
    rows: Tensor
    values: Tensor

    def norms(self) -> Tensor:
        """Return the norms in float64, with room for all rounding."""
        grams = self.product.grams()
        squares = grams.squares() + self.lookups.squares() + 2 * self._multiply()
        roundings = 2 * sum(self.values.shape[1:]) + 2 * self.product.g.shape[1]
        lengths = linear.measure_vectors(self.values).sum(1)
        room = self.product.share * grams.reach() + linear.rounding_share(roundings) * lengths
        return squares.clamp_(min=0).sqrt_().add_(room)

    def sum_weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Return Σ cᵢgᵢ of product and look-ups together."""
        found = self.product.sum_in_float64(coefficients)["weight"]
        found.add_(self.lookups.sum_weighted(coefficients.double())["weight"])
        return {"weight": found.to(self.product.g.dtype)}

    def only(self, names: Collection[str]) -> TiedTable:
        """Return the same: the table is its only parameter."""
        return self

    def _multiply(self) -> Tensor:
        """Return ⟨L, E⟩ = Σₛₜ gₜ[rowₛ]·(xₜ·vₛ) for every example."""
        x, g = self.product.x, self.product.g
        outputs = g.gather(2, self.rows.unsqueeze(1).expand(-1, g.shape[1], -1))
        inputs = torch.bmm(x.double(), self.values.transpose(1, 2))
        return (outputs.double() * inputs).sum(2).sum(1)


def group_calls(parts: Sequence[Part]) -> list[list[Part]]:
    """Group the calls: those that share parameters together, every other one alone."""
    together = [part for part in parts if part.is_shared]
    alone = [[part] for part in parts if not part.is_shared]
    return [*alone, together] if together else alone


def make_pieces(
    parts: Sequence[Part], chosen: dict[Hashable, str], *, is_written: bool = False
) -> list[tuple[Piece, Mapping[str, str]]]:
    """Return the gradients of calls that share parameters, each piece with the model's names of its parameters."""
    users: dict[str, tuple[int, ...]] = {}
    for place, part in enumerate(parts):
        users.update({full: (*users.get(full, ()), place) for full in part.names.values()})
    groups: dict[tuple[int, ...], list[str]] = {}
    for full, places in users.items():
        groups.setdefault(places, []).append(full)
    return [
        _make_piece([parts[place] for place in places], names, chosen, is_written) for places, names in groups.items()
    ]


def _make_piece(
    parts: list[Part], names: list[str], chosen: dict[Hashable, str], is_written: bool
) -> tuple[Piece, Mapping[str, str]]:
    """Return one piece for parameters that all of the parts use, by a shortcut where these kinds of layer have one."""
    owns = [{own: full for own, full in part.names.items() if full in names} for part in parts]
    calls = [_limit(part.call, tuple(own)) for part, own in zip(parts, owns, strict=True)]
    kinds = {part.rule.name for part in parts}
    if all(own == owns[0] for own in owns):
        if kinds == {"linear"}:
            return registry.choose_contribution(
                _join(calls), registry.LINEAR, None, chosen, is_written=is_written
            ), owns[0]
        if kinds <= {"embedding", "bag"}:
            return embedding.merge([_gather_rows(part, call) for part, call in zip(parts, calls, strict=True)]), owns[0]
        is_ghost = not is_written and linear.can_be_ghost(calls[0].pair[1])
        if kinds == {"linear", "embedding"} and is_ghost:
            return _make_table(calls, [part.rule.name == "linear" for part in parts]), owns[0]
    return _add_gradients(parts, calls, owns), {name: name for name in names}


def _limit(call: Call, names: tuple[str, ...]) -> Call:
    """Return the call with only these of its parameters; the call itself if it has no others."""
    return call if call.trainable == names else replace(call, trainable=names)


def _join(calls: Sequence[Call]) -> Call:
    """Return one call of a Linear with the positions of all calls."""
    if len(calls) == 1:
        return calls[0]
    pairs = [linear.flatten_positions(call) for call in calls]
    x, g = (torch.cat(values, 1) for values in zip(*pairs, strict=True))
    return replace(calls[0], x=x, gradient=g)


def _gather_rows(part: Part, call: Call) -> embedding.TouchedRows:
    """Return the gradients of the rows that one call looked up."""
    if part.rule is registry.BAG:
        return bag.gather_rows(call)
    return embedding.gather_rows(call)


def _make_table(calls: Sequence[Call], is_product: Sequence[bool]) -> Piece:
    """Return the gradients of a table from its look-ups and its products together."""
    shape = calls[0].module.get_parameter("weight").shape
    products = [call for call, is_it in zip(calls, is_product, strict=True) if is_it]
    lookups = [embedding.find_lookups(call) for call, is_it in zip(calls, is_product, strict=True) if not is_it]
    rows, values = (torch.cat(parts, 1) for parts in zip(*lookups, strict=True))
    values = values.double()
    touched = embedding.sum_by_row(rows, values, shape)
    return TiedTable(
        linear.Ghost(*linear.flatten_positions(_join(products)), ("weight",), shape), touched, rows, values
    )


def _add_gradients(parts: Sequence[Part], calls: Sequence[Call], owns: Sequence[Mapping[str, str]]) -> Materialised:
    """Write out the gradients of each call, and add them under the model's names."""
    found: dict[str, Rows] = {}
    for part, call, names in zip(parts, calls, owns, strict=True):
        for own, rows in part.rule.direct(call).rows.items():
            before = found.get(names[own])
            # Not in place: rows may be the very gradient that another call needs.
            found[names[own]] = rows if before is None else replace(before, values=before.values + rows.values)
    return Materialised(found)

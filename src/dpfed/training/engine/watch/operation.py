"""One call of a torch operation, with its arguments by name and where the examples are in them.

>>> import torch
>>> x = torch.ones(4, 3)
>>> call = Operation(torch.ops.aten.sum.dim_IntList, (x, [1]), {}, x.sum(1), Marks(size=4))
>>> call.kind, call.axes("dim")
('sum', {1})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dpfed.training.engine.forward import tensors_of
from dpfed.training.engine.watch.marks import COUNT, NONE, Marks, Place

Found = int | Place
FRONT = Place(0)


class Operation:
    """One call of an aten operation: its arguments by name, its output, and the marks so far."""

    def __init__(
        self, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], output: Any, marks: Marks
    ) -> None:
        schema = function._schema
        # Somebody's own operation (torch.library) may have the name of one of torch's, and do something else.
        self.name = str(schema.name).removeprefix("aten::")
        self.tags = function.tags
        self.kind = self.name if self.name.startswith("_") else self.name.rstrip("_")
        self.output = output
        self.marks = marks
        given = dict(zip((argument.name for argument in schema.arguments), arguments, strict=False))
        defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        results = {a.name for a in schema.arguments if a.is_out}  # written, and not read
        values = {**defaults, **given, **keywords}
        self.values: dict[str, Any] = {name: value for name, value in values.items() if name not in results}

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that go in."""
        return list(tensors_of(self.values))

    @property
    def shape(self) -> torch.Size:
        """The shape of the output, or of the first of several."""
        return tensors_of(self.output)[0].shape

    @property
    def own(self) -> Tensor:
        """The tensor that the operation is a method of."""
        value: Tensor = self.values["self" if "self" in self.values else "input"]
        return value

    def get(self, name: str) -> Any:
        """Return an argument, None if the operation has none of that name."""
        return self.values.get(name)

    def place(self, name: str) -> Place | None:
        """Return where the examples are in an argument."""
        value = self.get(name)
        return self.marks.place(value) if isinstance(value, Tensor) else None

    def axis(self, name: str = "dim") -> int:
        """Return an argument that names an axis of the operation's own tensor, counted from the front."""
        return int(self.values[name]) % max(self.own.dim(), 1)

    def axes(self, name: str) -> set[int] | None:
        """Return the axes that an argument names; None for all of them."""
        given = self.get(name)
        if given is None or (not isinstance(given, int) and not len(given)):
            return None
        return {axis % max(self.own.dim(), 1) for axis in ([given] if isinstance(given, int) else given)}

    def is_clean(self, *names: str) -> bool:
        """Return whether these arguments have nothing of any example, and nothing random."""
        return all(self.marks.of(tensor) in (NONE, COUNT) for tensor in tensors_of([self.get(name) for name in names]))

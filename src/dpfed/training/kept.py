"""Buffers that are, after every pass of a model, what they were before it.

A buffer that a pass changes would carry something of the records to later passes, and to whoever gets the model,
without noise. Models that do so with any record are refused (`compat.probe`). Of one that does it for some records only
(it counts missing values, say) nothing is known before they are drawn, and a refusal would tell of them. So what was
written is taken back, in silence.

>>> import torch
>>> from torch import nn
>>> class Counting(nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.register_buffer("missing", torch.zeros(()))
...     def forward(self, x):
...         self.missing += x.isnan().sum()
...         return x
>>> model = Counting()
>>> kept = Kept(model)
>>> _ = model(torch.tensor([torch.nan]))
>>> model.missing
tensor(0.)
>>> kept.close()
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode
from torch.utils.weak import WeakTensorKeyDictionary

# Buffers by the tensors that they stand for, which were written.
_FIRST = WeakTensorKeyDictionary()


def first(tensor: Tensor) -> Tensor:
    """Return the tensor that a buffer stands for, itself if for no other: the same before and after it was written."""
    found: Tensor = _FIRST.get(tensor, tensor)  # type: ignore[no-untyped-call]
    return found


class Kept:
    """Hooks on a module that bring its buffers back after each of its calls, also after one that fails.

    Privacy: what a pass writes into a buffer, or puts in its place, is used by no later pass and is in no model that is
    given away.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._open: list[_Snapshot] = []  # calls inside calls
        self._handles = [
            module.register_forward_pre_hook(self._begin, prepend=True),
            module.register_forward_hook(self._end, always_call=True),
        ]

    def close(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        tables = [own._buffers for own in self._modules]
        if not any(tables):
            self._open.append(_Snapshot(tables, [{}] * len(tables), {}))
            return
        with DisableTorchFunction(), unwatched():  # this is not the model's doing
            values = [dict(table.items()) for table in tables]
            every = {id(value): value for own in values for value in own.values() if value is not None}
            copies = {number: value.detach().clone() for number, value in every.items()}
            self._open.append(_Snapshot(tables, values, copies))

    def _end(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        snapshot = self._open.pop() if self._open else None
        if snapshot is not None and any(snapshot.tables):
            with DisableTorchFunction(), unwatched():
                snapshot.bring_back()


class _Snapshot(NamedTuple):
    """The tables of buffers, what was in them, and a copy of each tensor by its id."""

    tables: list[Any]
    values: list[dict[str, Tensor | None]]
    copies: dict[int, Tensor]

    def bring_back(self) -> None:
        """Put back what is not the same any more.

        A copy takes the place of a tensor that was written: the backward pass may still need what is in it.
        """
        for table, values in zip(self.tables, self.values, strict=True):
            for name in [name for name in table if name not in values]:
                del table[name]
            for name, value in values.items():
                right = None if value is None else self._right(value)
                if table.get(name) is not right:
                    table[name] = right

    def _right(self, value: Tensor) -> Tensor:
        """Return the tensor if it was not written, and else its copy."""
        copy = self.copies[id(value)]
        if torch.equal(value, copy):
            return value
        _FIRST[copy] = first(value)
        return copy


def unwatched() -> AbstractContextManager[Any]:
    """Return what hides this from a watch of the pass, if there is one."""
    return nullcontext() if _get_current_dispatch_mode() is None else _disable_current_modes()

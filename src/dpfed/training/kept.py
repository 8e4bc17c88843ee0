"""Buffers and parameters that are, after every pass of a model, what they were before it.

What a pass writes into them would carry something of the records to later passes, and to whoever gets the model,
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

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode
from torch.utils.weak import WeakTensorKeyDictionary

# Buffers by the tensors that they stand for, which were written.
_FIRST = WeakTensorKeyDictionary()


def first(tensor: Tensor) -> Tensor:
    """Return the tensor that a buffer stands for, itself if for no other: the same before and after it was written."""
    found: Tensor = _FIRST.get(tensor, tensor)  # type: ignore[no-untyped-call]
    return found


def copy_on_write(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor's values, for which torch moves memory only when somebody writes into either.

    Where torch cannot do that (memory of numpy, of other processes or of a file) it is made at once.
    """
    if tensor.device.type == "cpu" and tensor.layout is torch.strided:
        try:
            return torch._lazy_clone(tensor)
        except RuntimeError:
            pass
    return tensor.clone()


class Kept:
    """Hooks on a module that bring its buffers and parameters back after each of its calls, also after one that fails.

    Privacy: what a pass writes into a buffer or a parameter, or puts in its place, is used by no later pass and is in
    no model that is given away.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._scopes: list[Snapshot] = []
        self._calls: list[Snapshot] = []  # outside of any scope, some inside others
        self._handles = [
            module.register_forward_pre_hook(self._begin, prepend=True),
            module.register_forward_hook(self._end, always_call=True),
        ]

    def close(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Bring back at the end, and not after each call, what calls, losses and backward passes write inside."""
        self._scopes.append(Snapshot(self._modules))
        try:
            yield
        finally:
            self._scopes.pop().bring_back()

    def bring_back(self) -> None:
        """Bring buffers and parameters back to what they were when the innermost scope began."""
        if self._scopes:
            self._scopes[-1].bring_back()

    def _begin(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if not self._scopes:
            self._calls.append(Snapshot(self._modules))

    def _end(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if self._calls and not self._scopes:
            self._calls.pop().bring_back()


class Snapshot:
    """What is in the tables of buffers and parameters of modules, and a copy of each tensor that is not `replaced`.

    Somebody puts others in the place of these for every pass, so that nothing is written into them.
    """

    def __init__(self, modules: Iterable[nn.Module], replaced: Collection[int] = ()) -> None:
        tables = [table for own in modules for table in (own._buffers, own._parameters)]
        self._found: list[tuple[Any, dict[str, Any]]] = [(table, dict(table)) for table in tables]
        own = {id(value): value for _, found in self._found for value in found.values() if _is_own(value)}
        every = {number: value for number, value in own.items() if number not in replaced} if replaced else own
        self._copies: dict[int, Copy] = {}
        if every:
            with DisableTorchFunction(), torch.no_grad(), unwatched():  # this is not the model's doing
                self._copies = {number: Copy(value) for number, value in every.items()}

    def bring_back(self) -> None:
        """Put back what is not the same any more; may be called again."""
        changed: dict[int, Tensor] = {}
        if self._copies:
            with DisableTorchFunction(), torch.no_grad(), unwatched():
                changed = {number: copy.bring_back() for number, copy in self._copies.items() if copy.is_written}
        for table, found in self._found:
            for name in [name for name in table if name not in found] if len(table) > len(found) else ():
                del table[name]
            for name, value in found.items():
                wanted = changed.get(id(value), value) if changed else value
                if table.get(name, table) is not wanted:
                    table[name] = wanted


class Copy:
    """A tensor with a copy of its values, where these lay in memory, and whether it had a gradient."""

    __slots__ = ("_address", "_requires_grad", "tensor", "values")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.values = copy_on_write(tensor)
        address = _address(tensor)
        self._address = address if address and address == _address(self.values) else None
        self._requires_grad = tensor.requires_grad

    @property
    def is_written(self) -> bool:
        """Whether the tensor may be another now: a write moves it away from its copy."""
        if self.tensor.requires_grad != self._requires_grad:
            return True
        if self._address is None:
            return not torch.equal(self.tensor, self.values)
        return _address(self.tensor) != self._address or not _is_laid_out_alike(self.tensor, self.values)

    def bring_back(self) -> Tensor:
        """Return the tensor with the values it had.

        Another one takes the place of a buffer that was written, since the backward pass may still need what is in it.
        A parameter stays the same object, which its optimizer holds, and gets its values back.
        """
        values = copy_on_write(self.values)  # these stay as they are, whatever is written later
        if isinstance(self.tensor, nn.Parameter):
            self.tensor.data = values
            return self.tensor.requires_grad_(self._requires_grad)
        _FIRST[values] = first(self.tensor)
        return values


def _is_laid_out_alike(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and one.stride() == two.stride()


def _is_own(value: Any) -> bool:
    """Whether this is a tensor of the module's own, and not one that torch.func has put in its place for a call."""
    return value is not None and not is_functorch_wrapped_tensor(value)


def _address(tensor: Tensor) -> int | None:
    """Return where a tensor lies in memory, without moving it there; None for one that has no memory of its own."""
    try:
        return int(torch._C._data_address(tensor))  # type: ignore[attr-defined]
    except RuntimeError:
        return None


def unwatched() -> AbstractContextManager[Any]:
    """Return what hides this from a watch of the pass, if there is one."""
    return nullcontext() if _get_current_dispatch_mode() is None else _disable_current_modes()

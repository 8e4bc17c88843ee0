"""Copies of tensors that a pass may write into, and how their values are restored.

Where only one tensor uses its memory, a lazy copy is enough: torch makes it when somebody writes, and the tensor then
has another address. Where others use the memory too (an array of numpy, another process, a view that a model keeps) it
is not known who writes, and who reads later. So that is copied at once, and written back.

>>> import torch
>>> weights = torch.zeros(2)
>>> view = weights.view(-1)
>>> copy = Copy(weights)
>>> _ = view.add_(1)
>>> copy.is_written, copy.bring_back() is weights, view
(True, True, tensor([0., 0.]))
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

# References to the memory of a tensor that shares it with none: its own, and that of the question.
_ALONE = 2
# Buffers by the tensors that they stand for, which were written.
_FIRST = WeakTensorKeyDictionary()


def original_of(tensor: Tensor) -> Tensor:
    """Return the tensor that a restored buffer replaces, or the tensor itself: the same before and after a write."""
    if not _FIRST.data:  # asked for each tensor of a pass, and in most runs no buffer is ever written
        return tensor
    found: Tensor = _FIRST.get(tensor, tensor)  # type: ignore[no-untyped-call]
    return found


def copy_on_write(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor that takes memory only when somebody writes into either of them.

    Where torch cannot do that (memory of numpy, of other processes or of a file) the copy is made at once.
    """
    found = _copy_lazily(tensor)
    return tensor.clone() if found is None else found


class Copy:
    """A tensor with a copy of its values, its address in memory, and its attributes."""

    __slots__ = ("_address", "_form", "_length", "_shared", "_without_values", "tensor", "values")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        copied = None if _has_others(tensor) else _copy_lazily(tensor)
        self.values = tensor.clone() if copied is None else copied
        self._address = None if copied is None else _address(tensor)
        self._shared = tensor.data if copied is None and tensor.layout is torch.strided else None
        self._length = 0 if self._shared is None else self._shared.untyped_storage().nbytes()
        self._form = _form(tensor)
        self._without_values = TensorAttributes(tensor)

    @classmethod
    def of_plain(cls, tensor: Tensor, values: Tensor, plain: _Plain, gradient: Tensor | None) -> Copy:
        """Return the copy of a plain tensor from what was read of it before."""
        made = cls.__new__(cls)
        made.tensor, made.values = tensor, values
        made._address, stride, shape, dtype, requires_grad = plain
        made._shared, made._length, made._form = None, 0, (shape, dtype, stride, False)
        made._without_values = TensorAttributes.of_plain(tensor, requires_grad, gradient)
        return made

    @property
    def is_written(self) -> bool:
        """Whether the tensor may have changed: a write moves it away from its copy."""
        if self._shared is not None or _form(self.tensor) != self._form or self._without_values.is_changed:
            return True
        if self._address is None:
            return not torch.equal(self.tensor, self.values)
        return _address(self.tensor) != self._address

    def bring_back(self, *, is_over: bool = True) -> Tensor:
        """Restore the values and return the tensor, or another one that takes its place.

        Unless the backward pass `is_over`, which may need what is in it, another takes the place of a buffer that was
        written. A parameter stays the same object, which its optimizer holds, and its values are restored; and so are
        those of memory that others use as well.
        """
        if not is_over and self._shared is None and not isinstance(self.tensor, nn.Parameter):
            values = copy_on_write(self.values)  # these stay as they are, whatever is written later
            _FIRST[values] = original_of(self.tensor)
            return values
        if self._shared is None:
            self.tensor.data = copy_on_write(self.values)
        else:
            if (storage := self._shared.untyped_storage()).nbytes() < self._length:
                storage.resize_(self._length)
            _write(self.values, self._shared)
            if _form(self.tensor) != self._form or not self.tensor.is_set_to(self._shared):
                self.tensor.data = self._shared
        if self._without_values.is_changed:
            self._without_values.bring_back()
        return self.tensor


class TensorAttributes:
    """All that belongs to a tensor besides its values: whether it trains, its gradient, its hooks and attributes."""

    __slots__ = ("_attributes", "_gradient", "_hooks", "_requires_grad", "_tensor")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._requires_grad = tensor.requires_grad
        self._gradient = tensor.grad if tensor.is_leaf else None
        self._hooks = dict(tensor._backward_hooks or ())
        self._attributes = dict(vars(tensor))

    @classmethod
    def of_plain(cls, tensor: Tensor, requires_grad: bool, gradient: Tensor | None) -> TensorAttributes:
        """Return the attributes of a tensor without hooks and attributes of its own."""
        made = cls.__new__(cls)
        made._tensor, made._requires_grad, made._gradient = tensor, requires_grad, gradient
        made._hooks, made._attributes = {}, {}
        return made

    @property
    def is_changed(self) -> bool:
        """Whether any of them was changed."""
        tensor = self._tensor
        if tensor.requires_grad != self._requires_grad or (tensor.is_leaf and tensor.grad is not self._gradient):
            return True
        hooks, attributes = tensor._backward_hooks, vars(tensor)
        if (hooks or self._hooks) and not are_same(hooks or {}, self._hooks):
            return True
        return bool(attributes or self._attributes) and not are_same(attributes, self._attributes)

    def bring_back(self) -> None:
        """Restore all of them."""
        tensor = self._tensor
        tensor.requires_grad_(self._requires_grad).grad = self._gradient
        vars(tensor).clear()
        vars(tensor).update(self._attributes)
        if tensor._backward_hooks is not None:
            tensor._backward_hooks.clear()
            tensor._backward_hooks.update(self._hooks)


class Copies:
    """Copies of many tensors, with one quick check that none was written: in most passes none is."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        found = [_copy_lazily(tensor) if _is_plain(tensor) else None for tensor in tensors]
        self._plain = [tensor for tensor, copied in zip(tensors, found, strict=True) if copied is not None]
        self._values = [copied for copied in found if copied is not None]
        others = [tensor for tensor, copied in zip(tensors, found, strict=True) if copied is None]
        self._others = [Copy(tensor) for tensor in others]
        self._found, self._gradients = _read(self._plain), list(map(_gradient, self._plain))

    @property
    def are_same(self) -> bool:
        """Whether nothing was written, as far as can be seen without comparing values."""
        if self._others or _read(self._plain) != self._found or any(map(_hooks, self._plain)):
            return False
        return all(map(is_, map(_gradient, self._plain), self._gradients)) and not any(map(vars, self._plain))

    def bring_back(self, *, is_over: bool) -> dict[int, Tensor]:
        """Restore what was written; return the tensors that are there now, by the ids of those before."""
        every = zip(self._plain, self._values, self._found, self._gradients, strict=True)
        copies = [*self._others, *(Copy.of_plain(*each) for each in every)]
        return {id(copy.tensor): copy.bring_back(is_over=is_over) for copy in copies if copy.is_written}


# Where a tensor lies and how it reads its memory: address, stride, shape, type; and whether it has a gradient.
_Plain = tuple[int | None, tuple[int, ...], torch.Size, torch.dtype, bool]
_gradient, _hooks = attrgetter("grad"), attrgetter("_backward_hooks")
_READS = (torch._C._data_address, Tensor.stride, *map(attrgetter, ("shape", "dtype", "requires_grad")))  # type: ignore[attr-defined]


def _read(tensors: Sequence[Tensor]) -> list[_Plain]:
    """Return where each tensor lies and how it reads its memory."""
    columns: list[Any] = [map(read, tensors) for read in _READS]
    return list(zip(*columns, strict=True))


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a lazy copy shows every write, and nothing but values, gradient and form has to be restored."""
    if not tensor.is_leaf or tensor.is_complex() or tensor._backward_hooks or vars(tensor):
        return False
    return not _has_others(tensor)


def are_same(one: dict[Any, Any], two: dict[Any, Any]) -> bool:
    """Return whether two dicts hold the same objects by the same names in the same order."""
    return [*one] == [*two] and all(map(is_, one.values(), two.values()))


def _copy_lazily(tensor: Tensor) -> Tensor | None:
    """Return a lazy copy, None where torch cannot make one."""
    if tensor.is_cpu and tensor.layout is torch.strided:
        try:
            return torch._lazy_clone(tensor)
        except RuntimeError:
            pass
    return None


def _has_others(tensor: Tensor) -> bool:
    """Return whether somebody else uses the tensor's memory: a view, or an array."""
    if tensor.layout is not torch.strided:
        return False
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) > _ALONE


def _write(values: Tensor, memory: Tensor) -> None:
    """Write values into memory, where one number may stand for several (a stride of 0)."""
    for axis, stride in enumerate(memory.stride()):
        if not stride and memory.shape[axis]:
            values, memory = values.narrow(axis, 0, 1), memory.narrow(axis, 0, 1)
    memory.copy_(values)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    """Return how a tensor reads its memory."""
    if tensor.layout is not torch.strided:
        return tensor.shape, tensor.dtype
    return tensor.shape, tensor.dtype, tensor.stride(), tensor.is_conj()


def _address(tensor: Tensor) -> int | None:
    """Return the tensor's address without making its lazy copy; None for a tensor without memory of its own."""
    try:
        return int(torch._C._data_address(tensor))  # type: ignore[attr-defined]
    except RuntimeError:
        return None

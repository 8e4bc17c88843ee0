"""A log of every call that a pass makes of torch, so that decisions of Python show at every step.

Autograd's graph does not show what happens to tensors without a gradient: ``x = x.roll(1, 0)`` on inputs leaves no
trace in it. So every call of a pass is recorded: the function, its whole numbers (a multiple of the batch's size as
such), and which of the tensors without a gradient are its arguments. A pass in which Python decided otherwise, by
its own random numbers, a counter, the size of the batch or an error that was caught, has other calls.

>>> import torch
>>> x = torch.ones(4, 3)
>>> def asked(function):
...     with CallRecorder(4, [x]) as calls:
...         function()
...     return calls.log
>>> rolled = asked(lambda: x.roll(1, 0))
>>> rolled == asked(lambda: x.roll(1, 0)), rolled == asked(lambda: x.roll(1, 1)), rolled == asked(lambda: x.roll(4, 0))
(True, False, False)
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from dpfed.training.engine.copied import original_of
from dpfed.training.layers import packed

_PLAIN = (str, bool, type(None))
_WHOLE = (int, np.integer)
_SEVERAL = (list, tuple)


class Identity:
    """The identity of an object that is not kept alive: equal to that of the same object only, hashable or not."""

    def __init__(self, value: Any) -> None:
        self._number = id(value)
        self._value = weakref.ref(value)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._value() is not None and self._value() is other._value()


class CallLog(NamedTuple):
    """The calls of a pass, with their numbers; and the sources of the tensors without a gradient in them."""

    calls: Hashable = ()
    sources: Hashable = ()


class CallRecorder(TorchFunctionMode):
    """A torch function mode that records the calls inside; `given` are the tensors of a pass over `size` examples.

    With `has_sources` false the log has no sources: for passes under ``vmap``, in which every tensor is another one.
    """

    def __init__(self, size: int, given: Iterable[Tensor], *, has_sources: bool = True) -> None:
        super().__init__()
        self.is_idle = False
        self._has_sources = has_sources
        self._size = size
        self._notes: list[Hashable] = []
        self._sources: list[Hashable] = []
        # Tensors without a gradient by where they come from; kept alive, so that no id is used again.
        self._known: dict[int, tuple[Tensor, int]] = {
            id(tensor): (tensor, -1 - number) for number, tensor in enumerate(given)
        }

    @property
    def log(self) -> CallLog:
        """The log of the calls so far."""
        return CallLog(tuple(self._notes), tuple(self._sources))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.is_idle = True
        self._known.clear()
        remove_idle_modes()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if self.is_idle:
            return function(*args, **keywords)
        asked: list[Any] = [function]
        self._note_values(args, asked)
        if keywords:
            asked.append(tuple(keywords))
            self._note_values(keywords.values(), asked)
        try:
            output = packed.FAST.get(function, function)(*args, **keywords)
        except Exception as error:
            self._notes.append((*asked, type(error)))
            raise
        self._notes.append(tuple(asked))
        if self._has_sources:
            self._know(output)
        return output

    def _know(self, output: Any) -> None:
        """Remember that the last call has made these tensors."""
        for made in output if isinstance(output, _SEVERAL) else (output,):
            if isinstance(made, Tensor) and not made.requires_grad:
                self._known[id(made)] = (made, len(self._notes))

    def _source(self, tensor: Tensor) -> Hashable:
        """Return the source of a tensor: the call that made it, or else its own identity, as a buffer or a constant.

        One that numpy made is never mistaken for a later one, also if that lies at the same address.
        """
        known = self._known.get(id(tensor))
        return Identity(original_of(tensor)) if known is None else known[1]

    def _note_values(self, values: Iterable[Any], asked: list[Any]) -> None:
        """Append what matters of a call's arguments to the list: numbers, structure, the kinds of all else."""
        for value in values:
            if isinstance(value, Tensor):
                asked.append(None)
                if self._has_sources:
                    self._sources.append(None if value.requires_grad else self._source(value))
            elif isinstance(value, _PLAIN):
                asked.append(value)
            elif isinstance(value, _WHOLE):
                times, rest = divmod(int(value), self._size) if self._size > 1 else (0, int(value))
                asked.append(("batch", times) if times > 0 and not rest else value)
            elif isinstance(value, _SEVERAL):
                asked.append("(")
                self._note_values(value, asked)
                asked.append(")")
            elif isinstance(value, slice):
                asked.append(":")
                self._note_values((value.start, value.stop, value.step), asked)
            else:
                asked.append(type(value))


def remove_idle_modes() -> None:
    """Remove idle modes from the top of torch's stacks.

    A pass that is stopped, or a loop that is left, may leave one below another that is still in use: it goes later.
    """
    stacks: tuple[tuple[Any, Any], ...] = (
        (_get_current_dispatch_mode, TorchDispatchMode),
        (_get_current_function_mode, TorchFunctionMode),
    )
    for current, kind in stacks:
        while getattr(mode := current(), "is_idle", False):
            kind.__exit__(mode, None, None, None)

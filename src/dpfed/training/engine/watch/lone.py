"""A watch for a micro-batch of one row, which can mix with nothing but what is left of earlier rows.

>>> import torch
>>> x, queue = torch.ones(1, 3), torch.ones(4, 3)
>>> with SingleRowWatch([x], [queue.untyped_storage()]) as lone:
...     own, mixed = x.sum() / len(x), (x * queue[1]).sum()
>>> lone.is_mixed(own), lone.is_mixed(mixed)
(False, True)
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.utils._python_dispatch import TorchDispatchMode

from dpfed.training.engine.forward import tensors_of
from dpfed.training.engine.watch.calls import remove_idle_modes
from dpfed.training.engine.watch.independence import find_written
from dpfed.training.engine.watch.marks import address


class SingleRowWatch(TorchDispatchMode):
    """A watch that follows the memory of one row, and that of `earlier` ones, through every operation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler, which takes seconds, to keep it away from here

    def __init__(self, given: Iterable[Tensor], earlier: Iterable[torch.UntypedStorage]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_idle = False
        # By address; kept alive, so that none is used again.
        self._own: dict[int, torch.UntypedStorage] = {}
        self._earlier = {storage.data_ptr(): storage for storage in earlier}
        self._note(given, self._own)

    def __enter__(self) -> Self:
        remove_idle_modes()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.is_idle = True
        remove_idle_modes()

    @property
    def memory(self) -> list[torch.UntypedStorage]:
        """The memory that holds something of the row, or of earlier ones."""
        return [*self._own.values(), *self._earlier.values()]

    def is_mixed(self, tensor: Tensor) -> bool:
        """Return whether a tensor has something of earlier rows."""
        return address(tensor) in self._earlier

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        output = function(*args, **keywords)
        if not self.is_idle:
            with DisableTorchFunction():
                used = tensors_of([*args, *keywords.values()])
                made = tensors_of([output, find_written(function._schema, args, keywords)])
                if any(map(self.is_mixed, used)):
                    self._note(made, self._earlier)
                elif any(address(tensor) in self._own for tensor in used):
                    self._note(made, self._own)
        return output

    def _note(self, tensors: Iterable[Tensor], memory: dict[int, torch.UntypedStorage]) -> None:
        """Add the tensors' memory to that which is followed."""
        for tensor in tensors:
            if (place := address(tensor)) is not None:
                memory[place] = tensor.untyped_storage()

"""Private random numbers for everything that a training step draws besides its sample and its noise.

Dropout, stochastic depth, augmentation and noise layers draw from the global generators of torch, numpy and Python. A
script that begins with ``torch.manual_seed(42)`` makes them public, and one record more in a batch shifts the numbers
of all rows behind it: whoever knows the seed can look for that shift, which no clipping bounds. So for the time of a
step these generators are filled from the run's own source, and their former states come back afterwards.

>>> from dpfed.randomness import SystemSource
>>> generator = torch.manual_seed(42)
>>> private = Generators(SystemSource())
>>> with private.scope():
...     masks = torch.rand(3)
>>> torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(42)))
True
"""

from __future__ import annotations

import copy
import hashlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand
from torch import nn
from torch.utils.data import get_worker_info

from dpfed.randomness import RandomSource

_STATE = slice(3, 627)  # of torch's Mersenne twister, in 64-bit words; the first word is its seed
_TORCH_BYTES, _NUMPY_BYTES, _PYTHON_BYTES = 8 + 624 * 4, 32, 16
_BYTES = _TORCH_BYTES + _NUMPY_BYTES + _PYTHON_BYTES
_BLANK = torch.Generator().manual_seed(0).get_state()
_PINNED = np.random.MT19937(0)


class MT19937(np.random.MT19937):
    """Numpy's Mersenne twister, which remembers that somebody seeded it; numpy asks for a class of this name."""

    is_reseeded = False

    def _legacy_seeding(self, seed: Any) -> None:
        self.is_reseeded = True
        super()._legacy_seeding(seed)

    @property  # type: ignore[override]
    def state(self) -> dict[str, Any]:
        """The state, as numpy describes it."""
        return np.random.MT19937.state.__get__(self)  # type: ignore[no-any-return]

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        self.is_reseeded = True
        np.random.MT19937.state.__set__(self, value)  # type: ignore[attr-defined]


class _GlobalStates:
    """The states of the global generators: how many private scopes are open, and what restores the public states.

    Scopes may overlap in any order, since loops of two runs, and generators that are collected late, end when they
    like: the first one to begin saves the public states, and the last one to end restores them.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner: Generators | None = None
        self._scopes = 0
        self._restore: dict[int, Callable[[], object]] = {}
        self._seeds: dict[int, int] = {}
        self._numpy = MT19937()

    def enter(self, generators: tuple[torch.Generator, ...]) -> None:
        """Save the public states, as far as no open scope has done so."""
        self._scopes += 1
        if self._scopes == 1:
            self._restore = {id(np.random): _restore_numpy(), id(random): _restore_python()}
        for generator in generators:
            if id(generator) not in self._restore:
                self._restore[id(generator)] = _restore_torch(generator)

    def leave(self) -> None:
        """Restore the public states if this was the last scope."""
        self._scopes -= 1
        if not self._scopes:
            self.owner = None
            restore, self._restore = self._restore, {}
            for bring_back in restore.values():
                bring_back()

    @property
    def is_private(self) -> bool:
        """Whether a scope is open and nobody else has seeded torch's generator in it."""
        generator = torch.default_generator
        return bool(self._scopes) and generator.initial_seed() == self._seeds.get(id(generator))

    @property
    def is_untouched(self) -> bool:
        """Whether nobody else has seeded torch's generator, or numpy's; for Python's nobody can know."""
        is_numpy = mtrand.get_bit_generator() is self._numpy and not self._numpy.is_reseeded
        return is_numpy and self.is_private

    def fill(self, generators: tuple[torch.Generator, ...], secret: bytes) -> None:
        """Give the generators of torch, numpy and Python new secret states."""
        for number, generator in enumerate(generators):
            own = secret if not number else hashlib.shake_256(secret + number.to_bytes(4)).digest(_TORCH_BYTES)
            self._seeds[id(generator)] = _fill(generator, own[:_TORCH_BYTES])
        mtrand.set_bit_generator(self._numpy)
        np.random.seed(_to_words(secret[_TORCH_BYTES : _TORCH_BYTES + _NUMPY_BYTES]))
        self._numpy.is_reseeded = False
        random.seed(secret[-_PYTHON_BYTES:])


_GLOBAL = _GlobalStates()


class Generators:
    """The generators of torch (also of these `devices`), numpy and Python, filled from a private source.

    Privacy: inside a `scope`, from each `refresh` on, what they give follows from bits of the source alone, until
    somebody seeds them; `are_private` tells whether that happened to torch's. With a `SeededSource` it can be repeated,
    and the run says NOT PRIVATE. The generators themselves are no ciphers: their numbers must not be shown. All
    threads of a process share them: what one seeds, another draws from.
    """

    def __init__(self, source: RandomSource, devices: Iterable[torch.device] = ()) -> None:
        self._source = source.stream("training generators")
        others = {device for device in devices if device.type not in ("cpu", "meta")}
        self._torch = (torch.default_generator, *map(_generator_of, sorted(others, key=str)))

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Make the generators private inside, and restore their former states afterwards."""
        with _GLOBAL.lock:
            _GLOBAL.enter(self._torch)
        try:
            if _GLOBAL.owner is not self:
                self.refresh()
            yield
        finally:
            with _GLOBAL.lock:
                _GLOBAL.leave()

    def refresh(self) -> None:
        """Make the next random numbers private, whatever was seeded meanwhile."""
        with _GLOBAL.lock:
            if _GLOBAL.owner is self and _GLOBAL.is_untouched:
                random.seed(self._source.bytes(_PYTHON_BYTES))
            else:
                _GLOBAL.fill(self._torch, self._source.bytes(_BYTES))
                _GLOBAL.owner = self

    @property
    def are_private(self) -> bool:
        """Whether a scope is open and torch's generator was not seeded inside it by somebody else."""
        return _GLOBAL.is_private

    def for_workers(self, worker_init_fn: Callable[[int], object] | None) -> dict[str, Any]:
        """Return the settings of a DataLoader whose workers draw private numbers."""
        generator = torch.Generator()
        _fill(generator, self._source.bytes(_TORCH_BYTES))
        return {"generator": generator, "worker_init_fn": WorkerSeeds(worker_init_fn, self._source.bytes(32))}


class WorkerSeeds:
    """A worker_init_fn that calls the user's own and then gives the worker's generators secret states."""

    def __init__(self, worker_init_fn: Callable[[int], object] | None, secret: bytes) -> None:
        self._init = worker_init_fn
        self._secret = secret

    def __call__(self, worker_id: int) -> None:
        """Initialise the worker of that number."""
        if self._init is not None:
            self._init(worker_id)
        worker = get_worker_info()
        parts = (self._secret, worker_id, 0 if worker is None else worker.seed)
        _GLOBAL.fill((torch.default_generator,), hashlib.shake_256(repr(parts).encode()).digest(_BYTES))

    def __repr__(self) -> str:
        return f"WorkerSeeds({self._init!r})"


@contextmanager
def pinned(seed: int = 0) -> Iterator[None]:
    """Seed all generators inside, for trials on made-up records, and restore their states afterwards."""
    with _GLOBAL.lock, _states_restored():
        torch.default_generator.manual_seed(seed)  # torch.manual_seed asks for every kind of device, which takes long
        mtrand.set_bit_generator(_PINNED)
        np.random.seed(seed)
        random.seed(seed)
        yield


@contextmanager
def restored() -> Iterator[None]:
    """Restore the states of all generators afterwards, so that what is drawn inside changes nothing outside."""
    with _states_restored():
        mtrand.set_bit_generator(copy.deepcopy(mtrand.get_bit_generator()))
        yield


def mark_seed() -> None:
    """Give torch's generator a random seed, so that a seed that somebody sets later is noticed by the difference."""
    torch.default_generator.manual_seed(int(torch.randint(1 << 48, 1 << 62, ())))


@contextmanager
def _states_restored() -> Iterator[None]:
    """Restore torch's and Python's states, and numpy's generator; the caller gives numpy another one inside."""
    restore = [_restore_torch(torch.default_generator), _restore_numpy(), _restore_python()]
    try:
        yield
    finally:
        for bring_back in restore:
            bring_back()


def devices_of(model: nn.Module) -> set[torch.device]:
    """Return the devices on which the model has parameters or buffers."""
    return {value.device for value in (*model.parameters(), *model.buffers())}


def _generator_of(device: torch.device) -> torch.Generator:
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    module = torch.get_device_module(device)
    found: torch.Generator = module.default_generators[
        module.current_device() if device.index is None else device.index
    ]
    return found


def _fill(generator: torch.Generator, secret: bytes) -> int:
    """Give the generator a secret state; return the number by which it can be recognised.

    On the CPU all words of the state are filled: torch's own seeding would use 32 bits of the secret.
    """
    seed = int.from_bytes(secret[:8], "little") >> 1
    if generator.device.type != "cpu":
        return generator.manual_seed(seed).initial_seed()
    state = _BLANK.clone()
    words = state.numpy().view(np.uint64)
    words[0] = seed
    words[_STATE] = _to_words(secret[8:])
    generator.set_state(state)
    return seed


def _to_words(secret: bytes) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.frombuffer(secret, dtype=np.uint32)


def _restore_torch(generator: torch.Generator) -> Callable[[], object]:
    state = generator.get_state()
    return lambda: generator.set_state(state)


def _restore_numpy() -> Callable[[], None]:
    own = mtrand.get_bit_generator()
    is_plain = isinstance(own, np.random.MT19937)  # which numpy describes faster by a tuple
    state: Any = np.random.get_state() if is_plain else np.random.get_state(legacy=False)
    has_half = state[3] if is_plain else state["has_gauss"]
    was_reseeded = isinstance(own, MT19937) and own.is_reseeded

    def bring_back() -> None:
        mtrand.set_bit_generator(own)
        if has_half:  # the second one of a pair of normal numbers, which is no part of `own`
            np.random.set_state(state)
            if isinstance(own, MT19937):
                own.is_reseeded = was_reseeded

    return bring_back


def _restore_python() -> Callable[[], None]:
    state = random.getstate()
    return lambda: random.setstate(state)

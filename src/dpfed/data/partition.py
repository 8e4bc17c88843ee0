"""Partitions: which client holds which record, when one data set stands for many clients.

A partition is a simulation: it gives the records of one set to clients, equally or as unequally as real data are.
Each function returns, per client, the positions of its records; every record is in exactly one part, the same seed
gives the same parts, and no client is empty unless ``minimum=0`` allows it. Who holds a record depends on all records,
except in `by_hash` and `by_column`: the promise of a run is about records as they were assigned.

>>> [part.tolist() for part in quantity(6, sizes=[3, 2, 1], seed=1)]
[[0, 2, 4], [1, 5], [3]]
>>> {name: part.tolist() for name, part in by_column(["north", "south", "north"]).items()}
{'north': [0, 2], 'south': [1]}
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed import checks
from dpfed.errors import InvalidArgument

Indices = NDArray[np.int64]
Parts = tuple[Indices, ...]
LARGEST_SEED = 2**128  # and more, which is no key of a hash


def iid(records: int, clients: int, seed: int = 0, *, minimum: int = 1) -> Parts:
    """Split shuffled records into parts of equal size, give or take one."""
    _require_enough(records, clients, minimum)
    return _sort(np.array_split(_shuffle(records, seed), clients))


def hash_contents(contents: Iterable[bytes], seed: int, purpose: bytes = b"") -> NDArray[np.uint64]:
    """Return a 64-bit hash of each content, keyed by the seed; those of two purposes are independent.

    Privacy: it depends on the content and the seed alone, so no other record and no order of the data changes it.
    """
    key = _require_seed(seed).to_bytes(16, "big")
    digests = [hashlib.blake2b(content, digest_size=8, key=key, person=purpose).digest() for content in contents]
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)


def hash_rows(features: NDArray[Any], labels: NDArray[Any], seed: int, purpose: bytes = b"") -> NDArray[np.uint64]:
    """Return the hash of each record's own content: its features and its label, as float64."""
    rows = np.hstack([part.reshape(len(part), math.prod(part.shape[1:])) for part in (features, labels)])
    return hash_contents((row.tobytes() for row in rows.astype(np.float64)), seed, purpose)


def hash_names(names: Iterable[Any], seed: int, purpose: bytes = b"") -> NDArray[np.uint64]:
    """Return the hash of the name of each record's person."""
    return hash_contents((str(name).encode(errors="surrogatepass") for name in names), seed, purpose)


def by_hash(hashes: NDArray[np.uint64], clients: int) -> Parts:
    """Assign each record to a client by its own hash: parts differ by chance only, and no record moves another.

    Privacy: neighbouring data sets have neighbouring parts: a record more or less is one at one client.
    """
    count = checks.count(clients=clients)
    # The upper 32 bits: times the count they stay within 64, and a client's share is exact to one in 2³².
    holders = ((hashes.astype(np.uint64) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)
    counts = np.bincount(holders.astype(np.int64), minlength=count)
    return tuple(np.split(np.argsort(holders, kind="stable"), np.cumsum(counts)[:-1]))


def quantity(records: int, sizes: Sequence[int], seed: int = 0) -> Parts:
    """Split shuffled records into parts of exactly these sizes, which must add up to all records."""
    counts = [checks.count(sizes=size) for size in sizes]
    if sum(counts) != records or not counts:
        message = f"sizes must add up to all {records} records, got {sum(counts)}: change a size or the test_fraction"
        raise InvalidArgument("sizes", message)
    return _sort(np.split(_shuffle(records, seed), np.cumsum(counts)[:-1]))


def dirichlet(labels: ArrayLike, clients: int, alpha: float, seed: int = 0, *, minimum: int = 1) -> Parts:
    """Split each class by shares drawn from Dirichlet(alpha): the smaller alpha, the more clients differ.

    A client with fewer than `minimum` records gets the missing ones from whoever holds the most at that moment
    (Hsu, Qi and Brown 2019 draw shares; the minimum is ours, as small alphas leave many clients with nothing).
    """
    codes, draws = _read_codes(labels), np.random.default_rng(_require_seed(seed))
    _require_enough(len(codes), clients, minimum)
    concentration = np.full(clients, checks.positive(alpha=alpha))
    piles: list[list[Indices]] = [[] for _ in range(clients)]
    for members in _group_by_code(codes):
        cuts = np.rint(np.cumsum(_draw_shares(draws, concentration))[:-1] * len(members)).astype(int)
        for pile, piece in zip(piles, np.split(draws.permutation(members), cuts), strict=True):
            pile.append(piece)
    return _sort(_top_up([np.concatenate(pile) for pile in piles], minimum))


def shards(labels: ArrayLike, clients: int, shards_per_client: int = 2, seed: int = 0) -> Parts:
    """Give each client a few shards, cut from the records sorted by label (McMahan et al. 2017)."""
    codes, draws = _read_codes(labels), np.random.default_rng(_require_seed(seed))
    count = checks.count(clients=clients) * checks.count(shards_per_client=shards_per_client)
    _require_enough(len(codes), count, 1, name="shards")
    order = draws.permutation(len(codes))
    pieces = np.array_split(order[np.argsort(codes[order], kind="stable")], count)
    dealt = draws.permutation(count).reshape(clients, shards_per_client)
    return _sort([np.concatenate([pieces[piece] for piece in hand]) for hand in dealt])


def by_class(labels: ArrayLike, clients: int, classes_per_client: int = 1, seed: int = 0) -> Parts:
    """Give each client records of `classes_per_client` classes only; its holders share a class equally."""
    codes, draws = _read_codes(labels), np.random.default_rng(_require_seed(seed))
    members = _group_by_code(codes)
    slots = checks.count(clients=clients) * checks.count(classes_per_client=classes_per_client)
    if not classes_per_client <= len(members) <= slots:
        message = (
            f"{clients} clients with {classes_per_client} classes each cannot share {len(members)} classes: "
            f"classes_per_client must be at most {len(members)}, times clients at least that"
        )
        raise InvalidArgument("classes_per_client", message)
    holders = np.arange(slots) // classes_per_client
    held = draws.permutation(len(members))[np.arange(slots) % len(members)]
    return _sort(_deal_classes(members, holders, held, clients, draws))


def by_column(values: ArrayLike) -> dict[str, Indices]:
    """Return the parts by name, one client for each value of a column; who holds a record depends on it alone."""
    column = np.asarray(values)
    if column.ndim != 1 or not len(column):
        raise InvalidArgument("values", "values must be one column with a site's name per record")
    names, codes = np.unique(column.astype(str), return_inverse=True)
    return {str(name): part for name, part in zip(names, _group_by_code(codes), strict=True)}


def number_clients(clients: int) -> tuple[str, ...]:
    """Return names for clients that have none: numbers from 1, padded with zeros so that they sort."""
    width = len(str(clients))
    return tuple(f"{number:0{width}d}" for number in range(1, clients + 1))


def _deal_classes(
    members: list[Indices], holders: Any, held: Any, clients: int, draws: np.random.Generator
) -> list[Any]:
    piles: list[list[Indices]] = [[] for _ in range(clients)]
    for code, records in enumerate(members):
        takers = holders[held == code]
        _require_enough(len(records), len(takers), 1, name="clients that hold one class")
        for taker, piece in zip(takers, np.array_split(draws.permutation(records), len(takers)), strict=True):
            piles[taker].append(piece)
    return [np.concatenate(pile) for pile in piles]


def _top_up(parts: list[Indices], minimum: int) -> list[Indices]:
    sizes = np.array([len(part) for part in parts])
    for taker in np.flatnonzero(sizes < minimum).tolist():
        while sizes[taker] < minimum:
            giver = int(sizes.argmax())
            parts[taker] = np.append(parts[taker], parts[giver][-1])
            parts[giver] = parts[giver][:-1]
            sizes[[taker, giver]] += (1, -1)
    return parts


def _draw_shares(draws: np.random.Generator, concentration: NDArray[np.float64]) -> NDArray[np.float64]:
    # Gamma draws of a tiny alpha can all underflow to zero: then one client has the class.
    with np.errstate(invalid="ignore"):
        shares = draws.dirichlet(concentration)
    if np.isfinite(shares).all() and shares.sum() > 0:
        return np.asarray(shares)
    return np.asarray(np.eye(len(concentration))[draws.integers(len(concentration))])


def _require_enough(records: int, clients: int, minimum: int, *, name: str = "clients") -> None:
    if isinstance(minimum, bool) or not isinstance(minimum, int) or minimum < 0:
        raise InvalidArgument("minimum", f"minimum must be a whole number of at least 0, got {minimum!r}")
    if checks.count(clients=clients) * minimum > records:
        message = f"{records} records are too few for {clients} {name} with at least {minimum} each"
        raise InvalidArgument("clients", message)


def _read_codes(labels: ArrayLike) -> Indices:
    values = np.asarray(labels)
    if values.ndim != 1 or not len(values):
        raise InvalidArgument("labels", f"labels must be one label per record, got shape {values.shape}")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _group_by_code(codes: Indices) -> list[Indices]:
    """Return the positions of code 0, of code 1 and so on, each in order."""
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])


def _shuffle(records: int, seed: int) -> Indices:
    return np.random.default_rng(_require_seed(seed)).permutation(checks.count(records=records))


def _require_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < LARGEST_SEED:
        raise InvalidArgument("seed", f"seed must be a whole number from 0 and below 2**128, got {seed!r:.60}")
    return int(seed)


def _sort(parts: Sequence[Any]) -> Parts:
    return tuple(np.sort(part).astype(np.int64) for part in parts)

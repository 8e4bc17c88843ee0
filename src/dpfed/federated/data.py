"""What each client holds, what is held out, and which sizes are public: the ``data:`` block, carried out.

Who is held out, and who holds a record of one set that plays a federation, must not depend on somebody else's record.
Each record's own content decides whether it is held out, by a keyed hash: a record more or less moves no other one,
which a shuffle of all would do. Where true counts are public, the smallest hashes are held out: a record replaced
leaves all counts alone. With a column that names the person, a record is all rows of one person, held out and dealt
together; the hash is then one of the person's name. Identical records have one hash and are on one side, except where
counts are public and it is the last to be held out; which of them is held out then makes no difference.

What is held out stays where it is: at the site that a column names, or with the client to which its hash deals it.
Where parts need no given sizes (`iid`), hashes deal the rest as well. Any other kind deals all records at once: that is
a simulation, whose promise is for the deal as it was fixed.

>>> from dpfed.config.data import Data
>>> config = Data(source="sklearn:iris", partition={"kind": "quantity", "sizes": [80, 40]}, names=["a", "b"])
>>> prepared = prepare(config)
>>> {name: len(records) for name, records in prepared.clients.items()}, len(prepared.test), prepared.sizes
({'a': 80, 'b': 40}, 30, {'a': 80, 'b': 40})
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.config import data as blocks
from dpfed.data import partition
from dpfed.data.declared import Declared
from dpfed.data.persons import Persons, grouped, most_sites
from dpfed.data.records import Records
from dpfed.data.scaling import Bounds, Standard
from dpfed.data.sources import load
from dpfed.errors import InvalidArgument
from dpfed.plan.rules import HASHED

DEALT = b"dealt"  # the purpose of hashes that deal; the others hold out


@dataclass(frozen=True)
class DataFacts:
    """What a plan and a model need to know of the data, and no record: names, sizes, shapes and classes.

    `sizes` are those that a plan may use, by client. The `shape` of a record's features is None where nobody has
    declared it. `dealing` and `sites_per_person` are those of `FederatedData`.
    """

    sizes: Mapping[str, int]
    shape: tuple[int, ...] | None = None
    classes: tuple[str, ...] = ()
    sites_per_person: int = field(default=1, repr=False)
    dealing: str | None = None


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The records of each client, those held out, and the sizes a plan may use.

    `sizes` are what the configuration declares; None if it declares none. Only where it says ``sizes: public`` they
    are the true counts, and `sizes_are_public` is true: the report must say so, and the promise is for replace-one.
    A score on `test`, whose records are rows, is not covered by any promise unless `test_is_public`.

    Where a column names the person, clients hold `Persons`, and sizes count them. `sites_per_person` is at how many
    clients a person is at most, and `left_out` the rows that were more than a person may have, for owners only.
    `dealing` is how clients came to their records; None for a run of an earlier version, which did not say.
    `held_out` are the records of `test` by client, persons as persons; a client of which none is held out is not there.
    """

    clients: Mapping[str, Records | Persons] = field(repr=False)
    test: Records | None = field(repr=False)
    sizes: Mapping[str, int] | None
    sizes_are_public: bool
    test_is_public: bool = False
    sites_per_person: int = field(default=1, repr=False)
    left_out: int = field(default=0, repr=False)
    dealing: str | None = None
    held_out: Mapping[str, Records | Persons] = field(default_factory=dict, repr=False)

    @property
    def classes(self) -> tuple[str, ...]:
        """The declared names of the labels; none where labels are numbers or unnamed."""
        return next(iter(self.clients.values())).classes

    @property
    def facts(self) -> DataFacts:
        """What a plan and a model need to know of the data: names, sizes, shape and classes.

        Sizes are true counts if none are declared, which style none alone allows: it protects nobody.
        """
        sizes = {name: len(held) if self.sizes is None else self.sizes[name] for name, held in self.clients.items()}
        shape = next(iter(self.clients.values())).rows.features.shape[1:]
        return DataFacts(sizes, tuple(shape), self.classes, self.sites_per_person, self.dealing)


def prepare(
    config: blocks.Data, directory: str | Path = ".", *, is_older: bool = False, is_shuffled: bool = False
) -> FederatedData:
    """Return the data of a configuration, by client; files and modules are looked up in `directory` first.

    A run that `is_older` than dealing by hashes goes on as it was dealt, and one whose hold-outs were chosen by a
    shuffle of all rows (`is_shuffled`) with those: a record must not move to another client.
    """
    rows = scale_records(load_records(config, directory), config)
    return divide(rows, config, is_older=is_older, is_shuffled=is_shuffled)


def divide(rows: Records, config: blocks.Data, *, is_older: bool = False, is_shuffled: bool = False) -> FederatedData:
    """Return scaled records by client, and those held out; which is which follows from them as they are scaled."""
    is_hashed, persons = config.dealing == HASHED and not is_older, config.person_column
    records, left_out = (rows, 0) if persons is None else _group_by_person(rows, persons, config)
    shuffles = is_older or (is_shuffled and not is_hashed)
    chosen = _hold_out_shuffled(len(records), config) if shuffles and not _has_sites(config) else None
    held_out = _hold_out(records, config) if chosen is None else chosen
    trained = records.take(~held_out)
    parts = _deal_by_hash(trained, config) if is_hashed else _deal(trained, config)
    return FederatedData(
        parts,
        records.take(held_out).rows if held_out.any() else None,
        _find_sizes(config, parts),
        config.sizes_are_public,
        config.test_is_public,
        most_sites(records, persons) if persons is not None and isinstance(records, Persons) else 1,
        left_out,
        None if is_older else config.dealing,
        _leave_at_sites(records.take(held_out), config, parts) if held_out.any() else {},
    )


def scale_records(records: Records, config: blocks.Data) -> Records:
    """Return the records scaled by the declared constants and in the declared shape."""
    features: NDArray[Any] = records.features
    if config.feature_bounds is not None:
        features = Bounds(config.feature_bounds).apply(features, records.columns)
    elif config.mean is not None or config.scale is not None:
        mean = 0.0 if config.mean is None else config.mean
        features = Standard(mean, 1.0 if config.scale is None else config.scale).apply(features)
    if config.shape is not None:
        if features[0].size != np.prod(config.shape):
            message = f"shape must hold the {features[0].size} features of a record, got {list(config.shape)}"
            raise InvalidArgument("shape", f"{message}: give sides whose product is that number")
        features = features.reshape(len(features), *config.shape)
    scaled = records.with_features(features)
    return scaled if config.label_bounds is None else _scale_labels(scaled, config.label_bounds)


def _scale_labels(records: Records, bounds: blocks.Pair) -> Records:
    """Return the records with labels clipped to their declared range and mapped to [−1, 1]."""
    return replace(records, labels=Bounds(bounds).apply(records.labels).astype(np.float32))


def hash_records(
    records: Records | Persons, person_column: str | None, seed: int, purpose: bytes = b""
) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each record: of the seed and its own content, or of the name of its person.

    Those of two purposes have nothing to do with each other.

    Privacy: it depends on nothing else, so no other record and no order of the data changes it.
    """
    if isinstance(records, Persons):
        return partition.hash_names(records.groups[person_column or ""], seed, purpose)
    return partition.hash_rows(records.features, records.labels, seed, purpose)


def hold_out_by_hash(found: NDArray[np.uint64], fraction: float) -> NDArray[np.bool_]:
    """Return which records are held out: about that fraction, each by its own hash.

    Privacy: whether a record is trained on depends on that record and the seed alone, so neighbouring data sets have
    neighbouring training sets.
    """
    return np.asarray(found.astype(np.float64) < fraction * 2.0**64)


def hold_out_of_each(
    found: NDArray[np.uint64], piles: Iterable[partition.Indices], fraction: float
) -> NDArray[np.bool_]:
    """Return which records are held out: that fraction of each group, rounded, those with the smallest hashes.

    Privacy: in whatever order the data are. With one record in place of another, at most one more changes sides, and
    fills the gap: training sets have the same sizes, which are public, and at most one record is replaced.
    """
    held_out = np.zeros(len(found), dtype=bool)
    for pile in piles:
        held_out[pile[np.argsort(found[pile], kind="stable")[: round(fraction * len(pile))]]] = True
    return held_out


def load_records(config: blocks.Data, directory: str | Path) -> Records:
    """Load the records of the configured source, unscaled."""
    return load(
        config.source,
        label=config.label,
        classes=config.classes,
        categories=config.categories,
        groups=[column for column in (_site_column(config), config.person_column) if column is not None],
        ignore=config.ignore,
        fill=declare_columns(config).fill,
        indicator=config.indicator,
        options=config.options,
        directory=directory,
    )


def declare_columns(config: blocks.Data) -> Declared:
    """Return what is declared of a table's columns; the middle of its bounds fills one that has an indicator alone."""
    bounds = config.feature_bounds if isinstance(config.feature_bounds, Mapping) else {}
    middles = {
        column: sum(bounds.get(column, (0.0, 0.0))) / 2
        for column in config.indicator
        if column not in config.categories and column not in config.fill
    }
    return Declared(config.categories, {**config.fill, **middles}, config.indicator)


def _site_column(config: blocks.Data) -> str | None:
    return config.partition.column if isinstance(config.partition, blocks.Column) else None


def _group_by_person(rows: Records, column: str, config: blocks.Data) -> tuple[Records | Persons, int]:
    return grouped(rows, column, config.rows_per_person or 1, _site_column(config))


def _has_sites(config: blocks.Data) -> bool:
    return isinstance(config.partition, blocks.Column)


def _hold_out(records: Records | Persons, config: blocks.Data) -> NDArray[np.bool_]:
    """Return which records are held out, each by its own hash; with true counts that are public, the smallest ones."""
    found = hash_records(records, config.person_column, config.seed)
    # Given sizes are true counts as well: together they must be all records that are not held out.
    if not config.sizes_are_public and not isinstance(config.partition, blocks.Quantity):
        return hold_out_by_hash(found, config.test_fraction)
    whole = {"": np.arange(len(found))}
    sites = partition.by_column(_site_names(records, str(_site_column(config)))) if _has_sites(config) else whole
    return hold_out_of_each(found, sites.values(), config.test_fraction)


def _hold_out_shuffled(records: int, config: blocks.Data) -> NDArray[np.bool_]:
    draws, held_out = np.random.default_rng([config.seed, len(b"held out")]), np.zeros(records, dtype=bool)
    held_out[draws.permutation(records)[: round(config.test_fraction * records)]] = True  # not the draws that deal
    return held_out


def _leave_at_sites(
    held_out: Records | Persons, config: blocks.Data, parts: Mapping[str, Records | Persons]
) -> dict[str, Records | Persons]:
    """Return what is held out by client: at its own site, or with the client to which its own hash deals it."""
    if _has_sites(config):
        found = partition.by_column(_site_names(held_out, str(_site_column(config))))
    else:
        names = list(parts)
        dealt = partition.by_hash(hash_records(held_out, config.person_column, config.seed, DEALT), len(names))
        found = dict(zip(names, dealt, strict=True))
    return {name: held_out.take(part) for name, part in found.items() if len(part) and name in parts}


def _deal(records: Records | Persons, config: blocks.Data) -> dict[str, Records | Persons]:
    kind = config.partition
    if isinstance(kind, blocks.Column):
        return _split_by_site(records, kind.column, config)
    dealt = _partition(records, kind, config.seed)
    return {name: records.take(part) for name, part in zip(config.clients or (), dealt, strict=True) if len(part)}


def _deal_by_hash(records: Records | Persons, config: blocks.Data) -> dict[str, Records | Persons]:
    names = config.clients or ()
    dealt = partition.by_hash(hash_records(records, config.person_column, config.seed, DEALT), len(names))
    if not all(map(len, dealt)):
        # Left out, a client would be in the public list or not because of one record.
        message = f"{len(names)} clients are too many: one would hold no record, as each goes to a client by its hash"
        raise InvalidArgument("clients", f"{message}; ask for fewer, or say minimum: 1 to deal in equal parts")
    return {name: records.take(part) for name, part in zip(names, dealt, strict=True)}


def _partition(records: Records | Persons, kind: blocks.Partition, seed: int) -> partition.Parts:
    match kind:
        case blocks.Iid():
            return partition.iid(len(records), kind.clients, seed, minimum=1 if kind.minimum is None else kind.minimum)
        case blocks.Quantity():
            return partition.quantity(len(records), kind.sizes, seed)
        case blocks.Dirichlet():
            return partition.dirichlet(records.labels, kind.clients, kind.alpha, seed, minimum=kind.minimum)
        case blocks.Shards():
            return partition.shards(records.labels, kind.clients, kind.shards_per_client, seed)
        case blocks.ByClass():
            return partition.by_class(records.labels, kind.clients, kind.classes_per_client, seed)
    raise InvalidArgument("partition", f"partition must be of a known kind, got {kind!r}")


def _site_names(records: Records | Persons, column: str) -> NDArray[Any]:
    if column not in records.groups:
        known = ", ".join(records.groups) or "none"
        raise InvalidArgument("column", f"the data have no column {column!r} that names the site: name one of {known}")
    return records.groups[column]


def _split_by_site(records: Records | Persons, column: str, config: blocks.Data) -> dict[str, Records | Persons]:
    sites = partition.by_column(_site_names(records, column))
    parts = {name: records.take(part) for name, part in sites.items()}
    require_sites(parts, config)
    return parts


def require_sites(parts: Collection[str], config: blocks.Data) -> None:
    """Refuse records whose sites are not those that the configuration names."""
    column = str(_site_column(config))
    missing = [name for name in config.clients or () if name not in parts]
    unknown = [name for name in parts if config.clients and name not in config.clients]
    if missing or unknown:
        # What the column holds is private: of the sites only those that the configuration names are shown.
        lacking = f"it has no record of {', '.join(missing)}" if missing else "it has a site that is not named"
        raise InvalidArgument("sizes", f"names and sizes must be for the sites of column {column}: {lacking}")


def _find_sizes(config: blocks.Data, parts: Mapping[str, Records | Persons]) -> dict[str, int] | None:
    if config.sizes_are_public:
        return {name: len(records) for name, records in parts.items()}
    declared = config.declared_sizes
    return dict.fromkeys(parts, declared) if isinstance(declared, int) else declared

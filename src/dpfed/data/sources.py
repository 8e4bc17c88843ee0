"""Sources of records: arrays, a torch dataset, a table, images, a data set of scikit-learn, a loader of your own.

>>> digits = load("sklearn:digits")
>>> digits.features.shape, digits.classes[:3]
((1797, 64), ('0', '1', '2'))
>>> load(([[1.0], [2.0]], [0, 1])).labels.tolist()
[0, 1]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.data import idx, images
from dpfed.data.bundled import load_bundled
from dpfed.data.declared import Declared
from dpfed.data.parquet import read_parquet, read_parquet_names
from dpfed.data.records import Records
from dpfed.data.tables import TextTable, read_header, read_table
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.references import explain_failure, is_reference, resolve

SKLEARN = "sklearn:"  # how sources begin that come with scikit-learn: anybody has them
CLIENT = "client"  # the group column of a loader that returns one part for each client
TABLES: dict[str, Callable[[Path], TextTable]] = {".csv": read_table, ".tsv": read_table, ".parquet": read_parquet}
IMAGES: dict[str, Callable[..., Records]] = {
    "image-folder": images.read_folder,
    "nnunet": images.read_segmentations,
    "idx": idx.read_images,
}


def load(
    source: Any,
    *,
    label: str | None = None,
    classes: Sequence[Any] = (),
    categories: Mapping[str, Sequence[Any]] | None = None,
    groups: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fill: Mapping[str, Any] | None = None,
    indicator: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    directory: str | Path = ".",
) -> Records:
    """Load the records of a source: a name as in the configuration file, or the data themselves.

    `label` to `indicator` say what the columns of a table are, `classes` those of images too; `options` go to a reader
    of images or to your own loader. Names of files and modules are looked up in `directory` first.
    """
    if not isinstance(source, str):
        return from_object(source)
    if source.startswith(SKLEARN):
        return load_bundled(source.removeprefix(SKLEARN))
    if is_table(source):
        if label is None:
            raise InvalidArgument("label", f"label must name the column of {source} to predict")
        return read_file(Path(directory) / source).records(
            label,
            classes=classes,
            categories=categories,
            groups=groups,
            ignore=ignore,
            fill=fill,
            indicator=indicator,
        )
    kind, _, place = source.partition(":")
    if kind in IMAGES:
        return IMAGES[kind](Path(directory) / place, classes, **_check_options(kind, options or {}))
    if is_own(source):
        return _call_loader(source, resolve(source, directory), options or {})
    kinds = ", ".join(f"{kind}:PATH" for kind in IMAGES)
    allowed = f"a file that ends in {' or '.join(TABLES)}, {kinds}, sklearn:NAME or package.module:name"
    raise InvalidArgument("source", f"source must be {allowed}, got {source!r}")


def load_unlabelled(source: str, like: Records, declared: Declared, directory: str | Path) -> Any:
    """Load the features of examples that need no label: of a table the columns that `like` has, by their names."""
    if not is_table(source):
        return load(source, directory=directory).features
    return encode_features(read_file(Path(directory) / source), like.columns, declared)


def encode_features(table: TextTable, features: Sequence[str], declared: Declared) -> Any:
    """Return the features of these names, in their order, from the columns of a table that may have more of them."""
    columns = find_columns(table, features, declared)
    table.require_complete(columns, declared)
    return table.features(columns, declared)


def find_columns(table: TextTable, features: Sequence[str], declared: Declared) -> list[str]:
    """Return the columns that become these features; refuse a table that has not all of them."""
    column_of = {name: column for column in declared.columns for name in declared.name_features(column)}
    columns = list(dict.fromkeys(column_of.get(name, name) for name in features))
    for column in columns:
        table.require(column)
    return columns


def read_column_names(path: Path) -> tuple[str, ...]:
    """Read the names of a file's columns, and no record."""
    return read_parquet_names(path) if path.suffix.lower() == ".parquet" else read_header(path)


def read_file(path: Path) -> TextTable:
    """Read the cells of a CSV or Parquet file."""
    return TABLES[path.suffix.lower()](path)


def is_table(source: str) -> bool:
    """Return whether the source is a file of rows and columns."""
    return Path(source).suffix.lower() in TABLES


def is_own(source: str) -> bool:
    """Return whether the source is a user's own code: a module that is imported, and its function that is called."""
    return is_reference(source) and not is_table(source) and source.partition(":")[0] not in IMAGES


def from_object(source: Any) -> Records:
    """Return the records of a pair (features, labels), a dataset of such pairs, or a mapping of these by client."""
    if isinstance(source, Records):
        return source
    if isinstance(source, Mapping):
        return _join_clients({str(name): from_object(part) for name, part in source.items()})
    if isinstance(source, tuple) and len(source) == 2:
        return Records(_as_array("features", source[0]), _as_array("labels", source[1]))
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, str):
        return _read_dataset(source)
    allowed = "(features, labels), a dataset of such pairs or a mapping of these by client"
    raise InvalidArgument("source", f"data must be {allowed}, got {_describe_type(source)}")


def _call_loader(name: str, loader: Any, options: Mapping[str, Any]) -> Records:
    """Return the records of a user's loader; if it fails, name the place but not the text, which may quote a record."""
    if not callable(loader):
        raise InvalidArgument(
            "source", f"{name} must be a function that returns records, and is {_describe_type(loader)}"
        )
    try:
        return from_object(loader(**options))
    except PrivacyError:
        raise
    except Exception as error:
        remedy = "call it in Python to see the error, whose text may quote a record and is not shown here"
        raise InvalidArgument("source", f"{name} fails ({explain_failure(error)}): {remedy}") from None


def _describe_type(value: Any) -> str:
    return f"a value of type {type(value).__name__}"


def _check_options(kind: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a reader of images; refuse unknown and missing ones."""
    known = list(inspect.signature(IMAGES[kind]).parameters.values())[2:]
    missing = [each.name for each in known if each.default is each.empty and each.name not in options]
    if missing or not {each.name for each in known} >= set(options):
        allowed = ", ".join(each.name + (" (needed)" if each.default is each.empty else "") for each in known)
        raise InvalidArgument("options", f"options of {kind}: are {allowed}; got {', '.join(options) or 'none'}")
    return options


def _join_clients(parts: Mapping[str, Records]) -> Records:
    if not parts:
        raise InvalidArgument("source", "a mapping of data by client must name at least one client")
    first = next(iter(parts.values()))
    for name, part in parts.items():
        if part.features.shape[1:] != first.features.shape[1:] or part.labels.shape[1:] != first.labels.shape[1:]:
            raise InvalidArgument(
                "source",
                f"the records of {name} have another shape than those of {next(iter(parts))}: give all the same",
            )
    return Records(
        np.concatenate([part.features for part in parts.values()]),
        np.concatenate([part.labels for part in parts.values()]),
        first.columns,
        _join_groups(parts),
        first.classes,
    )


def _join_groups(parts: Mapping[str, Records]) -> dict[str, Any]:
    """Return the name of each record's client, and the groups that the records of all clients have."""
    common = set.intersection(*(set(part.groups) for part in parts.values())) - {CLIENT}
    own = {name: np.concatenate([part.groups[name] for part in parts.values()]) for name in sorted(common)}
    return own | {CLIENT: np.concatenate([np.full(len(part), name) for name, part in parts.items()])}


def _read_dataset(dataset: Any) -> Records:
    """Return the records of any map-style dataset, such as torch's, whose items are pairs that numpy can read."""
    items = [dataset[position] for position in range(len(dataset))]
    if not items or any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
        raise InvalidArgument(
            "source", "every item of a dataset must be a pair (features, label), and there must be at least one item"
        )
    features, labels = zip(*items, strict=True)
    try:
        return Records(np.stack([np.asarray(row) for row in features]), np.stack([np.asarray(row) for row in labels]))
    except InvalidArgument:
        raise
    except ValueError:
        raise InvalidArgument("source", "the items of the dataset do not have one shape: give all the same") from None


def _as_array(name: str, values: Any) -> Any:
    try:
        return np.asarray(values)
    except ValueError:
        raise InvalidArgument(name, f"{name} must be one array: the rows have different lengths") from None

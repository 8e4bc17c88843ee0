"""Parquet files, read without guessing: each is a table like a CSV file, and what a column may hold is declared.

The types in the file are not trusted: a column of text has declared categories, any other holds numbers, and a
refusal names row and column. Needs ``pip install dpfed[data]``.

>>> import pyarrow
>>> from pyarrow import parquet
>>> parquet.write_table(pyarrow.table({"age": [61, 47], "ill": ["yes", None]}), "ward.parquet")
>>> read_parquet("ward.parquet").records("ill", classes=["no", "yes"])
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: ward.parquet: cells are missing in ill (1, the first in row 2); ...
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dpfed.data.tables import TextTable
from dpfed.errors import InvalidArgument

T = TypeVar("T")
MOST_CELLS = 200_000_000  # each is a text of some fifty bytes here


def read_parquet(path: str | Path) -> TextTable:
    """Read a file's cells as text; the text of a number is that number, to the last bit."""
    return _open(path, _read_table)


def read_parquet_names(path: str | Path) -> tuple[str, ...]:
    """Read the names of the columns alone."""
    return _open(path, lambda file, _name: tuple(file.schema_arrow.names))


def _open(path: str | Path, read: Callable[[Any, str], T]) -> T:
    name = Path(path).name
    try:
        from pyarrow import parquet
    except ImportError:
        raise InvalidArgument("source", f"reading {name} needs pyarrow: pip install dpfed[data]") from None
    try:
        with Path(path).open("rb") as file:
            return read(parquet.ParquetFile(file), name)
    except InvalidArgument:
        raise
    except MemoryError:
        raise InvalidArgument("source", f"{name} is larger than this machine's memory: split it") from None
    except Exception as error:  # a damaged file raises whatever pyarrow stumbles over, maybe with cells in its text
        why = getattr(error, "strerror", None)
        what = (
            f"{path} cannot be read: {why}"
            if why
            else f"{name} is not a Parquet file, or a damaged one: write it again"
        )
        raise InvalidArgument("source", what) from None


def _read_table(file: Any, name: str) -> TextTable:
    # A few bytes of Parquet can stand for more cells than a machine can hold.
    if file.metadata.num_rows * file.metadata.num_columns > MOST_CELLS:
        raise InvalidArgument(
            "source",
            f"{name} has more than {MOST_CELLS:,} cells, which may not fit into memory: split it, or write a loader",
        )
    found = file.read()
    if len(set(found.column_names)) < len(found.column_names) or not found.num_rows:
        raise InvalidArgument("source", f"{name} must have a different name for each column, and at least one record")
    columns = {column: tuple(map(_read_cell, found[column].to_pylist())) for column in found.column_names}
    return TextTable(name, columns, tuple(range(1, found.num_rows + 1)), "row")


def _read_cell(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def write_parquet(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Return columns of texts and numbers as the content of a Parquet file."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InvalidArgument("output", "writing Parquet needs pyarrow: pip install dpfed[data]") from None
    made = io.BytesIO()
    parquet.write_table(pyarrow.table(dict(columns)), made)
    return made.getvalue()

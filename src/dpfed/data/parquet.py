"""Parquet files, read without guessing: each is a table like a CSV file, and what a column may hold is declared.

Types of a file are not taken at their word: a column of text has declared categories, any other holds numbers, and a
refusal names row and column. Needs ``pip install dpfed[data]``.

>>> import pyarrow
>>> from pyarrow import parquet
>>> parquet.write_table(pyarrow.table({"age": [61, 47], "ill": ["yes", None]}), "ward.parquet")
>>> read_parquet("ward.parquet").records("ill", classes=["no", "yes"])
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: ward.parquet, row 2, column ill: the cell is missing: fill it in, ...
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpfed.data.tables import Table
from dpfed.errors import InvalidArgument


def read_parquet(path: str | Path) -> Table:
    """The file's cells as text; a number's text is that number, to the last bit."""
    name = Path(path).name
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InvalidArgument("source", f"reading {name} needs pyarrow: pip install dpfed[data]") from None
    try:
        with Path(path).open("rb") as file:
            found = parquet.ParquetFile(file).read()
    except OSError as error:
        raise InvalidArgument("source", f"{path} cannot be read: {error.strerror or 'it is damaged'}") from None
    except pyarrow.ArrowException:
        raise InvalidArgument("source", f"{name} is not a Parquet file, or a damaged one") from None
    if len(set(found.column_names)) < len(found.column_names) or not found.num_rows:
        raise InvalidArgument("source", f"{name} must have a name of its own for each column, and at least one record")
    columns = {column: tuple(map(_text, found[column].to_pylist())) for column in found.column_names}
    return Table(name, columns, tuple(range(1, found.num_rows + 1)), "row")


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()

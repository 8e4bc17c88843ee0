"""The ``data:`` block: where records come from, who holds them, and which facts about them are public.

>>> Data(source="sklearn:iris", partition={"kind": "quantity", "sizes": [100, 50]}).declared_sizes
{'1': 100, '2': 50}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dpfed.config.fields import Block, Number, SettingError, Whole, as_number, quote, setting
from dpfed.data.partition import number_clients
from dpfed.data.sources import is_table
from dpfed.plan.rules import HASHED, ROWS, SITES

PUBLIC = "public"
KIND = "how records are distributed to clients"
CLIENTS = "how many clients there are"
MINIMUM = "the least records of a client; 0 allows clients that have none"
Pair = tuple[float, float]
TO_DECLARE = {
    "classes": "list what the label may be, such as [no, yes], or write [] if it is a quantity",
    "names": "list the sites, such as [north, south]",
}


class Iid(Block):
    """A partition into parts that differ by chance only: each record goes to a client by its own hash."""

    kind: Literal["iid"] = setting(effect=KIND)
    clients: Whole = setting(symbol="K", effect=CLIENTS, ge=1)
    minimum: Whole | None = setting(
        None,
        effect=(
            "splits the shuffled records equally, so that no client has fewer; who holds a record then depends on all "
            "others, and the run is a SIMULATION"
        ),
        ge=0,
    )


class Quantity(Block):
    """A partition into parts of given sizes."""

    kind: Literal["quantity"] = setting(effect=KIND)
    sizes: tuple[Whole, ...] = setting(effect="the records of each client; together all that are not held out")

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    @field_validator("sizes")
    @classmethod
    def _require_positive(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if not sizes or min(sizes) < 1:
            raise ValueError(f"must be whole numbers of at least 1, one for each client, got {list(sizes)}")
        return sizes


class Dirichlet(Block):
    """A partition whose shares of each class are drawn from a Dirichlet distribution."""

    kind: Literal["dirichlet"] = setting(effect=KIND)
    clients: Whole = setting(symbol="K", effect=CLIENTS, ge=1)
    alpha: Number = setting(symbol="α", effect="how similar clients are: 0.1 very different, 100 nearly equal", gt=0)
    minimum: Whole = setting(1, effect=MINIMUM, ge=0)


class Shards(Block):
    """A partition into a few shards each, cut from the records sorted by label."""

    kind: Literal["shards"] = setting(effect=KIND)
    clients: Whole = setting(symbol="K", effect=CLIENTS, ge=1)
    shards_per_client: Whole = setting(
        2, effect="shards of sorted records that a client gets: the fewer, the more clients differ", ge=1
    )


class ByClass(Block):
    """A partition in which each client has records of a few classes only."""

    kind: Literal["class"] = setting(effect=KIND)
    clients: Whole = setting(symbol="K", effect=CLIENTS, ge=1)
    classes_per_client: Whole = setting(1, effect="classes a client sees", ge=1)


class Column(Block):
    """A partition by real sites: a column of the data names the client that holds the record."""

    kind: Literal["column"] = setting(effect=KIND)
    column: str = setting(
        effect="the column that names the site of a record ('client' for a loader of parts by client)"
    )

    @property
    def clients(self) -> None:
        """None: the number of clients is unknown before the data are read."""
        return


Partition = Annotated[Iid | Quantity | Dirichlet | Shards | ByClass | Column, Field(discriminator="kind")]


class Data(Block):
    """The source of the records, and what of them is declared public."""

    source: str = setting(
        effect=(
            "a .csv, .tsv or .parquet file, image-folder:PATH, nnunet:PATH, idx:FILE, sklearn:NAME (breast_cancer, "
            "digits, iris, wine, diabetes) or package.module:name"
        )
    )
    options: dict[str, Any] = setting(
        {}, effect="arguments of a reader of images (size, channels, by_client; labels of idx) or of your own loader"
    )
    label: str | None = setting(None, effect="the column of a table to predict")
    classes: tuple[str, ...] = setting(
        (), effect="the values a label may have, in the order of the model's outputs; without them a label is a number"
    )
    label_bounds: Any = setting(
        None,
        effect=(
            "public [low, high] of a label that is a quantity: clipped and mapped to [-1, 1] for training, so that a "
            "clipped gradient can reach it; errors are reported in the label's own unit"
        ),
    )
    categories: dict[str, tuple[str, ...]] = setting(
        {}, effect="the values each column of text may have; one feature for each"
    )
    class_counts: dict[str, Number] = setting(
        {},
        effect=(
            "how many records each class has, or its share, if anybody may know it: the run then says what guessing "
            "would reach; never taken from the data"
        ),
    )
    ignore: tuple[str, ...] = setting((), effect="columns of a table that are not features")
    fill: dict[str, Any] = setting(
        {}, effect="by column, the public constant that stands for missing cells: a number, or one of the categories"
    )
    indicator: tuple[str, ...] = setting(
        (),
        effect=(
            "columns with one feature more, 1 where a cell is missing; without fill: the middle of the column's bounds "
            "stands for the cell, or no category"
        ),
    )
    person_column: str | None = setting(
        None,
        effect=(
            "the column that names the person of each row: all rows of a person are then one record: held out, given "
            "to a client, sampled and clipped together, and sizes count persons; for privacy.person"
        ),
    )
    rows_per_person: Whole | None = setting(
        None, symbol="R", effect="the most rows of a person that are used: its first ones, in the data's order", ge=1
    )
    shape: tuple[Whole, ...] | None = setting(
        None, effect="the shape of one record's features for models of images, such as [1, 8, 8]"
    )
    feature_bounds: Any = setting(
        None,
        effect=(
            "public [low, high] of all features, a list of one each, or by column: clipped and mapped to [-1, "
            "1]; never taken from the data"
        ),
    )
    mean: Any = setting(
        None, effect="public constant subtracted from all features, or a list of one each; never taken from the data"
    )
    scale: Any = setting(
        None, effect="public constant all features are divided by, or a list of one each; never taken from the data"
    )
    partition: Partition = setting(effect="who holds which record")
    names: tuple[str, ...] = setting(
        (),
        effect="names of the clients, in order (without them, numbers), or the sites that a column may name",
    )
    sizes: Any = setting(
        None,
        symbol="n",
        effect=(
            "records, or persons, each client declares in public: one number, or by name. Sampling rates, steps and "
            "weights come from it and never from the data. 'public' takes the true counts: they are then published, "
            "and the promise is for replacing a record instead of adding or removing it"
        ),
    )
    test_fraction: Number = setting(
        0.2,
        effect=("the share of records held out for evaluation; what is measured on them is not covered by the promise"),
        ge=0,
        lt=1,
    )
    test_is_public: bool = setting(
        False,
        effect=(
            "whether anybody may know the records held out: otherwise scores on them are marked 'not covered' and are "
            "in the owner's report alone"
        ),
    )
    seed: Whole = setting(
        0, effect="decides which records each client gets and which are held out; it has nothing to do with noise", ge=0
    )

    @property
    def clients(self) -> tuple[str, ...] | None:
        """The names of all clients; None where only the data have them."""
        if self.names:
            return self.names
        if self.partition.clients is not None:
            return number_clients(self.partition.clients)
        return tuple(sorted(self.sizes)) if isinstance(self.sizes, Mapping) else None

    @property
    def dealing(self) -> str:
        """How records are assigned to clients: by real sites, each by its own hash, or all of one set at once.

        A hash leaves sizes to chance: where they are public, a record in place of another would change two of them.
        """
        if isinstance(self.partition, Column):
            return SITES
        is_hashed = isinstance(self.partition, Iid) and self.partition.minimum is None and not self.sizes_are_public
        return HASHED if is_hashed else ROWS

    @property
    def sizes_are_public(self) -> bool:
        """Whether sizes are the true counts, so that a promise can be for replacing a record only."""
        return bool(self.sizes == PUBLIC)

    @property
    def declared_sizes(self) -> dict[str, int] | int | None:
        """The declared size by client, one for all, or None: none is declared, or they are the true counts."""
        if self.sizes is None and isinstance(self.partition, Quantity):
            return dict(zip(self.clients or (), self.partition.sizes, strict=True))
        if self.sizes is None or self.sizes == PUBLIC:
            return None
        return dict(self.sizes) if isinstance(self.sizes, Mapping) else int(self.sizes)

    @field_validator("classes", "names", mode="before")
    @classmethod
    def _require_declared(cls, values: Any, info: ValidationInfo) -> Any:
        if values is None:
            raise ValueError(f"is not declared yet: {TO_DECLARE[str(info.field_name)]}")
        return values

    @field_validator("classes", "ignore", "indicator", "names", mode="before")
    @classmethod
    def _read_texts(cls, values: Any) -> Any:
        return tuple(_read_text(value) for value in values) if isinstance(values, list | tuple) else values

    @field_validator("categories", mode="before")
    @classmethod
    def _read_text_lists(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        _refuse_blanks(values, "the values that anybody may know, such as {name}: [low, high]")
        return {_read_text(key): cls._read_texts(value) for key, value in values.items()}

    @field_validator("fill", mode="before")
    @classmethod
    def _read_fill(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        _refuse_blanks(values, "a value that anybody may know, such as {name}: 0")
        return {_read_text(key): _read_constant(value) for key, value in values.items()}

    @field_validator("class_counts", mode="before")
    @classmethod
    def _read_counts(cls, values: Any) -> Any:
        return {_read_text(key): value for key, value in values.items()} if isinstance(values, Mapping) else values

    @field_validator("sizes", mode="plain")
    @classmethod
    def _read_sizes(cls, sizes: Any) -> Any:
        if sizes is None or sizes == PUBLIC:
            return sizes
        if isinstance(sizes, Mapping) and sizes:
            return {_read_text(name): _read_size(size) for name, size in sizes.items()}
        return _read_size(sizes)

    @field_validator("feature_bounds", mode="plain")
    @classmethod
    def _read_bounds(cls, bounds: Any) -> Any:
        return read_bounds(bounds)

    @field_validator("label_bounds", mode="plain")
    @classmethod
    def _read_label_bounds(cls, bounds: Any) -> Any:
        return None if bounds is None else _read_pair(bounds)

    @field_validator("mean", "scale", mode="plain")
    @classmethod
    def _read_constants(cls, values: Any) -> Any:
        if values is None:
            return None
        return tuple(map(_read_finite, values)) if isinstance(values, list | tuple) else _read_finite(values)

    @model_validator(mode="after")
    def _check_all(self) -> Self:
        if self.feature_bounds is not None and (self.mean is not None or self.scale is not None):
            raise SettingError("feature_bounds", "and mean or scale are two ways to scale: give one of them")
        if self.label_bounds is not None and self.classes:
            raise SettingError("label_bounds", "are for a label that is a quantity: leave them or classes out")
        scales = self.scale if isinstance(self.scale, tuple) else (self.scale,)
        if any(scale is not None and scale <= 0 for scale in scales):
            raise SettingError("scale", f"must be above 0, got {self.scale}")
        if is_table(self.source) and self.label is None:
            raise SettingError("label", f"is missing: name the column of {self.source} to predict")
        self._check_counts()
        self._check_persons()
        self._check_names()
        return self

    def _check_counts(self) -> None:
        counts = self.class_counts
        if counts and (set(counts) != set(self.classes) or min(counts.values()) < 0 or not sum(counts.values()) > 0):
            form = ", ".join(f"{name}: N" for name in self.classes) or "declare classes first"
            raise SettingError("class_counts", f"must have a count of at least 0 for each class: {{{form}}}")

    def _check_persons(self) -> None:
        column = self.person_column
        if (column is None) != (self.rows_per_person is None):
            missing = "person_column" if column is None else "rows_per_person"
            raise SettingError(missing, "is missing: person_column and rows_per_person go together")
        others = {self.label: "the label", getattr(self.partition, "column", None): "the site"}
        if column is not None and column in others:
            raise SettingError("person_column", f"must be another column than that of {others[column]}")

    def _check_names(self) -> None:
        count = self.partition.clients
        if len(set(self.names)) != len(self.names):
            raise SettingError("names", "must all be different: two clients have the same name")
        if self.clients is None and isinstance(self.sizes, int):
            # Else the list of sites would be taken from the records, and reveal a site with one record.
            raise SettingError("names", "is missing: list the sites that the column of the partition may name")
        if self.names and count not in (None, len(self.names)):
            raise SettingError("names", f"must be one for each of the {count} clients, got {len(self.names)}")
        if isinstance(self.sizes, Mapping) and set(self.sizes) != set(self.clients or self.sizes):
            known = ", ".join(self.clients or ())
            raise SettingError("sizes", f"must name the clients {known}; got {', '.join(self.sizes)}")


def _refuse_blanks(values: Mapping[Any, Any], form: str) -> None:
    """Refuse columns of which `init` left open what only the owner can declare, all at once."""
    if blank := [str(name) for name, value in values.items() if value is None]:
        raise ValueError(f"of {', '.join(blank)} is not declared yet: write {form.format(name=blank[0])}")


def _read_constant(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value in (float("inf"), -float("inf")):
        raise ValueError(f"must be a finite number or a category for each column, got {quote(value)}")
    return value


def _read_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"must be text, got {quote(value)}: put it in quotes")
    return str(value)


def _read_size(value: Any) -> int:
    size = as_number(value)
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"must be 'public' or whole numbers of at least 1, got {quote(value)}")
    return size


def read_bounds(bounds: Any) -> Any:
    """Return bounds of all features, of each in order, or by name; refuse what is none, and None stays."""
    if bounds is None:
        return None
    if isinstance(bounds, Mapping):
        _refuse_blanks(bounds, "what anybody may know of its range, such as {name}: [0, 100]")
        return {_read_text(name): _read_pair(pair) for name, pair in bounds.items()}
    if isinstance(bounds, list | tuple) and bounds and all(isinstance(pair, list | tuple) for pair in bounds):
        return tuple(_read_pair(pair) for pair in bounds)
    return _read_pair(bounds)


def _read_finite(value: Any) -> float:
    number = float(as_number(value))
    if not abs(number) < float("inf"):
        raise ValueError(f"must be a finite number, got {quote(value)}")
    return number


def _read_pair(values: Any) -> Pair:
    if not isinstance(values, list | tuple) or len(values) != 2:
        raise ValueError(f"must be [low, high], a list of such pairs or such pairs by column, got {quote(values)}")
    low, high = map(_read_finite, values)
    if not 0 < high - low < float("inf"):
        raise ValueError(f"must be [low, high] with low below high and a finite distance, got {list(values)}")
    return low, high

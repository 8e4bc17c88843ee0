"""A run file for a table, written from what its owner declares: a record more or less never changes the file.

Names of columns are in it, and what was declared: ranges, categories, classes, sites and sizes. What is still open is
written as a key without a value, and a run is refused until somebody fills it in.

>>> draft = TableDraft("ward.csv", ("age", "ill"), label="ill", classes=("no", "yes"), sizes=500)
>>> draft.open_columns, draft.is_complete
(('age',), False)
>>> print(next(line for line in draft.to_yaml().splitlines() if "feature_bounds:" in line))
  feature_bounds: {age: null}
>>> replace(draft, bounds={"age": (0, 100)}).to_config().data.feature_bounds
{'age': (0.0, 100.0)}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dpfed.config.defaults import Defaults, choose
from dpfed.config.run import RunConfig
from dpfed.config.templates import HEADER, TEST_FRACTION, make_common
from dpfed.errors import InvalidArgument

__all__ = ["ONE_OWNER", "PUBLIC", "ROWS_PER_PERSON", "TableDraft", "replace"]

PUBLIC = "public"
ONE_OWNER = "owner"  # the client's name where a table has no column of sites
ROWS_PER_PERSON = 10
_UNKNOWN = 64  # a table of which nobody has declared a size: the file says what to declare
_OPEN = 10**9  # stands for a size that is not declared yet, so that everything else is checked
FOUND = "Found in the file; whoever wrote this one said that anybody may know it."


@dataclass(frozen=True)
class TableDraft:
    """What is declared of a table so far; None stands for what is not declared yet.

    `classes` are empty for a label that is a quantity. `counts` are the true sizes where sizes are public.
    `found` are the words for what was read from the records and declared public, `private` the columns of which the run
    is to release ranges.
    """

    source: str
    columns: tuple[str, ...]
    label: str
    site_column: str | None = None
    person_column: str | None = None
    rows_per_person: int = ROWS_PER_PERSON
    max_sites_per_person: int = 1
    classes: tuple[str, ...] | None = None
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    fill: Mapping[str, Any] = field(default_factory=dict)
    indicator: tuple[str, ...] = ()
    sites: tuple[str, ...] | None = None
    sizes: Mapping[str, int] | int | str | None = None
    counts: tuple[int, ...] = ()
    epsilon: float = 4.0
    private: tuple[str, ...] = ()
    found: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name, column in self.special.items():
            self.require(column, name)
        if len(set(self.special.values())) < len(self.special):
            message = "label, site column and person column must be different columns: name another one"
            raise InvalidArgument("label", message)
        for name in ("bounds", "categories", "ignore", "fill", "indicator", "private"):
            for column in getattr(self, name):
                self.require(column, name)
                if column in self.special.values() and (name, column) != ("bounds", self.label):
                    raise InvalidArgument(name, f"{name}: {column} is no feature: leave it out, or name another label")

    @property
    def special(self) -> dict[str, str]:
        """The columns that are no features, by what they are."""
        named = {"label": self.label, "site_column": self.site_column, "person_column": self.person_column}
        return {name: column for name, column in named.items() if column is not None}

    @property
    def features(self) -> tuple[str, ...]:
        """The columns that are features, or may become one."""
        return tuple(
            column for column in self.columns if column not in self.special.values() and column not in self.ignore
        )

    @property
    def open_columns(self) -> tuple[str, ...]:
        """The columns of which nobody has declared yet what they hold; a label that is a quantity needs a range too."""
        known = {*self.bounds, *self.categories, *self.private}
        wanted = (*self.features, self.label) if self.classes == () else self.features
        return tuple(column for column in wanted if column not in known)

    @property
    def feature_bounds(self) -> dict[str, tuple[float, float]]:
        """The declared range of each feature that has one."""
        return {column: pair for column, pair in self.bounds.items() if column != self.label}

    @property
    def private_epsilon(self) -> float:
        """What the ranges that the run releases may cost: an eighth of the promise."""
        return self.epsilon / 8

    @property
    def needs_sites(self) -> bool:
        """Whether the names of the sites are not declared yet."""
        return self.site_column is not None and self.sites is None and not isinstance(self.sizes, Mapping)

    @property
    def is_complete(self) -> bool:
        """Whether everything that a run needs is declared."""
        return not (self.open_columns or self.needs_sites or self.classes is None or self.sizes is None)

    def require(self, column: str, argument: str) -> None:
        """Refuse the name of a column that the table does not have."""
        if column not in self.columns:
            near = get_close_matches(column, self.columns, n=1, cutoff=0.75)
            what = f"did you mean {near[0]!r}?" if near else "its first line must name the columns"
            raise InvalidArgument(argument, f"{Path(self.source).name} has no column {column!r}: {what}")

    def to_config(self) -> RunConfig:
        """Return the configuration; refuse a draft that is not complete."""
        if not self.is_complete:
            raise InvalidArgument("draft", "not all is declared yet: write the file with to_yaml, and fill it in")
        return self._make_config()

    def to_yaml(self) -> str:
        """Return the file; what is not declared yet is a key without a value."""
        config = self._make_config()
        blank: dict[str, Any] = {}
        if self.classes is None:
            blank["classes"] = None
        if open_features := [column for column in self.open_columns if column != self.label]:
            blank["feature_bounds"] = {**self.feature_bounds, **dict.fromkeys(open_features)}
        if self.needs_sites:
            blank["names"] = None
        if self.sizes is None:
            blank["sizes"] = None
        data = config.data.model_copy(update=blank)
        return HEADER + config.model_copy(update={"data": data}).to_yaml(self._make_notes())

    def _make_config(self) -> RunConfig:
        data = {
            "source": self.source,
            "label": self.label,
            "classes": self.classes or (),
            "categories": dict(self.categories),
            "ignore": self.ignore,
            "fill": dict(self.fill),
            "indicator": self.indicator,
            "person_column": self.person_column,
            "rows_per_person": None if self.person_column is None else self.rows_per_person,
            "feature_bounds": self.feature_bounds or None,
            "label_bounds": None if self.classes else self.bounds.get(self.label),
            **self._place_records(),
        }
        chosen = self._choose_defaults()
        values = make_common(Path(self.source).stem, data, chosen)
        promise = {"epsilon": self.epsilon, "delta": chosen.delta, "clip_norm": 1.0}
        unit = "record" if self.person_column is None else "person"
        values["privacy"] = {"style": "sample", unit: promise}
        if self.max_sites_per_person > 1:
            values["max_sites_per_person"] = self.max_sites_per_person
        if self.private:
            values["bounds"] = {"release": self.private, "epsilon": self.private_epsilon}
        if self.classes == ():
            values["model"] |= {"options": {"classes": 1}, "loss": "mse", "metric": "mse"}
        return RunConfig.of(values)

    def _place_records(self) -> dict[str, Any]:
        """Return the partition, the names of the clients and their sizes, with stand-ins for what is open."""
        sizes = _OPEN if self.sizes is None else self.sizes
        if self.site_column is None:
            return {"partition": {"kind": "iid", "clients": 1}, "names": [ONE_OWNER], "sizes": sizes}
        names = self.sites or (sorted(sizes) if isinstance(sizes, Mapping) else [ONE_OWNER])
        return {"partition": {"kind": "column", "column": self.site_column}, "names": list(names), "sizes": sizes}

    def _choose_defaults(self) -> Defaults:
        """Return first values for the declared sizes; for the true ones only where these are public."""
        if isinstance(self.sizes, Mapping):
            sizes = list(self.sizes.values())
        elif isinstance(self.sizes, int):
            sizes = [self.sizes] * len(self.sites or [ONE_OWNER])
        else:
            sizes = [count_kept(count) for count in self.counts] or [_UNKNOWN]
        return choose(sizes, self.epsilon, is_quantity=self.classes == ())

    def _make_notes(self) -> dict[str, list[str]]:
        # The oldest patient's age is that patient's: a range is never copied from the records, not even as a comment.
        words = {"bounds": "feature_bounds", "categories": "categories", "classes": "classes", "sites": "names"}
        notes = {f"data.{words[word]}": [FOUND] for word in self.found if word in words}
        if self.open_columns:
            notes["data.feature_bounds"] = [
                "TO DECLARE: for each column of numbers, a range [low, high] that is publicly known, such as that of "
                "the device; one computed from the records is NOT PRIVATE. Columns of text go to categories, all "
                "others to ignore."
            ]
        if self.sizes is None:
            notes["data.sizes"] = [
                "TO DECLARE: what each site publishes, such as {north: 180, south: 60}, or one number for all; or "
                "'public' for the true counts."
            ]
        if self.person_column is not None:
            notes["data.rows_per_person"] = ["What is usual; the longest history in the file is one person's."]
        notes["data.test_is_public"] = [
            "Leave it false unless anybody may know these records: an exact score gives their number away, and a mean "
            "square error what one of them is."
        ]
        return notes


def count_kept(size: int) -> int:
    """Return how many of so many records are trained on, after the usual share is held out."""
    return max(1, size - round(TEST_FRACTION * size))

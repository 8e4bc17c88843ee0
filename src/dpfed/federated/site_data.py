"""A site's records: read once, when the site starts, and scaled for a study by constants that every record can bear.

What is wrong with the records is for their owner to know, before any request: an error that a server could provoke by
its choice of a constant would tell of them.

>>> from dpfed.config.site import SiteData
>>> _ = Path("ward.csv").write_text("age,ill\\n61,yes\\n47,no\\n")
>>> data = SiteData(source="ward.csv", label="ill", classes=("no", "yes"), size=2)
>>> load_site_records(data, Path()).features.tolist()
[[61.0], [47.0]]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpfed.config.site import SiteData
from dpfed.data.persons import Persons, grouped
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument
from dpfed.federated.data import hash_records, hold_out_by_hash, load_records, scale_records
from dpfed.federated.recipe import Recipe


def load_site_records(data: SiteData, folder: Path) -> Records | Persons:
    """Return the records of the site's file, unscaled."""
    rows = load_records(data, folder)
    if data.person_column is None:
        return rows
    return grouped(rows, data.person_column, data.rows_per_person or 1).persons


def hold_out(records: Records | Persons, data: SiteData) -> tuple[Records | Persons, Records | Persons | None]:
    """Return the records that the site trains on, and those it holds out; None where it holds out none.

    Privacy: each is held out by the hash of its person's name, or of its own content as the site's own file scales it.
    No other record decides, and nothing that a server sends: one that chose the scales would choose who is held out.
    """
    if data.test_fraction == 0:
        return records, None
    rows = scale_records(records.rows, data)
    hashed = Persons(rows, records.counts) if isinstance(records, Persons) else rows
    held_out = hold_out_by_hash(hash_records(hashed, data.person_column, data.seed), data.test_fraction)
    if held_out.all():
        message = "test_fraction holds out every record, and none is left to train on"
        raise InvalidArgument("test_fraction", f"{message}: give a smaller one, or another seed")
    return records.take(~held_out), records.take(held_out) if held_out.any() else None


def scale_for(records: Records | Persons, recipe: Recipe, data: SiteData) -> Any:
    """Return what a client of that recipe trains on: a pair of arrays, or persons."""
    scaled = _scale(records, recipe, data)
    return scaled if isinstance(scaled, Persons) else (scaled.features, scaled.labels)


def scale_held_out(records: Records | Persons | None, recipe: Recipe, data: SiteData) -> Records | Persons | None:
    """Return what a client of that recipe counts where a plan measures; None where the site holds out none."""
    return None if records is None else _scale(records, recipe, data)


def _scale(records: Records | Persons, recipe: Recipe, data: SiteData) -> Records | Persons:
    scales = {key: getattr(recipe, key) for key in ("shape", "feature_bounds", "mean", "scale")}
    scaled = scale_records(records.rows, data.model_copy(update=scales))
    return Persons(scaled, records.counts) if isinstance(records, Persons) else scaled

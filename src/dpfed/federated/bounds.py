"""Public bounds for every column of numbers: without them a model may learn nothing, so the run is refused.

Gradients are clipped to one norm. A column of salaries beside one of ages takes nearly all of it, and the noise drowns
the rest: the model is no better than guessing, at the full price. What to scale by must be declared, since anything
computed from the records would be a release of its own.

>>> from dpfed.config.data import Data
>>> ward = Data(source="ward.csv", label="y", partition={"kind": "iid", "clients": 1}, categories={"sex": ["f", "m"]})
>>> find_unbounded(ward, ("age", "sex=f", "sex=m"))
['age']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpfed.config.data import Data
from dpfed.config.run import RunConfig
from dpfed.data.sources import is_table
from dpfed.errors import InvalidArgument
from dpfed.federated.data import FederatedData, declare_columns


def require_bounds(config: RunConfig, data: FederatedData) -> None:
    """Refuse a table with a column of numbers for which no range or scale is public or to be released."""
    refuse_unbounded(config.data, next(iter(data.clients.values())).rows.columns, list_released(config))


def list_released(config: RunConfig) -> tuple[str, ...]:
    """Return the columns of which the run releases ranges."""
    return () if config.bounds is None else config.bounds.release


def refuse_unbounded(config: Data, features: Sequence[str], released: Sequence[str] = ()) -> None:
    """Refuse features that are numbers without a range, with the line to add; and ranges of what is no such feature."""
    if unknown := [name for name in released if name not in features]:
        message = f"bounds.release names {unknown[0]!r}, which is no feature of numbers"
        others = ", ".join(find_unbounded(config, features))
        remedy = f"name one of {others}" if others else "leave it out, or take it out of data.ignore or data.categories"
        raise InvalidArgument("bounds", f"{message}: {remedy}")
    if columns := [name for name in find_unbounded(config, features) if name not in released]:
        form = ", ".join(f"{column}: [LOW, HIGH]" for column in columns)
        what = f"{', '.join(columns)} {'has' if len(columns) == 1 else 'have'} no public range"
        why = "and without one the noise may drown what is to be learned"
        remedy = "what anybody may know, such as the range of the device"
        others = f"`bounds: {{release: [{', '.join(columns)}], epsilon: …}}` releases ranges"
        others = f"{others}, charged; `scale: 1` uses numbers as they are"
        given = "to data.feature_bounds add" if config.feature_bounds else "under data: add `feature_bounds:"
        line = f"`{form}`" if config.feature_bounds else f"{{{form}}}`"
        raise InvalidArgument("feature_bounds", f"{what}, {why}: {given} {line} with {remedy}; or {others}")


def refuse_unbounded_label(config: RunConfig) -> None:
    """Refuse a label that is a quantity of a table without a public range: clipped steps may never reach it."""
    data = config.data
    is_open = data.label_bounds is None and data.scale is None and is_table(data.source)
    if is_open and config.model.loss == "mse":
        what = f"{data.label} is to be predicted as a quantity and has no public range"
        remedy = "what anybody may know; or `classes:` with its values; or `scale: 1` to use numbers as they are"
        why = "and without one the noise may drown it"
        message = f"{what}, {why}: under data: add `label_bounds: [LOW, HIGH]` with {remedy}"
        raise InvalidArgument("label_bounds", message)


def find_unbounded(config: Data, features: Sequence[str]) -> list[str]:
    """Return the features that are numbers of a table and have neither bounds nor a scale."""
    if not is_table(config.source) or config.mean is not None or config.scale is not None:
        return []
    if config.feature_bounds is not None and not isinstance(config.feature_bounds, Mapping):
        return []
    declared = declare_columns(config)
    known = {name for column in declared.columns for name in declared.name_features(column) if name != column}
    return [name for name in features if name not in known and name not in (config.feature_bounds or {})]

"""The inputs of a table's model, each with all that turns a record into a number: for the card of an exported model.

>>> from dpfed.config.data import Data
>>> ward = Data(source="a.csv", label="y", partition={"kind": "iid", "clients": 1}, categories={"sex": ["f", "m"]},
...             feature_bounds={"age": [0, 100]}, fill={"age": 50})
>>> for each in list_inputs(ward, ["age", "sex=f"]):
...     print(each)
{'feature': 'age', 'column': 'age', 'fill': 50.0, 'low': 0.0, 'high': 100.0}
{'feature': 'sex=f', 'column': 'sex', 'category': 'f'}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpfed.config.data import Data
from dpfed.data.declared import INDICATOR
from dpfed.federated.data import declare_columns

# It needs numpy and safetensors, and neither dpfed nor torch. A test runs it.
SNIPPET = '''\
import json

import numpy as np
from safetensors.numpy import load_file

card, weights = json.load(open("{card}", encoding="utf-8")), load_file("{model}")


def encode(record):
    """Turn {{"column": value}} into the model's inputs; a value that is missing is None, or not there."""
    row = []
    for part in card["inputs"]:
        value = record.get(part["column"])
        if part.get("is_missing"):
            number = float(value is None)
        else:
            value = part.get("fill") if value is None else value
            number = float(value == part["category"]) if "category" in part else float(value)
        if "low" in part:  # clipped and mapped to [-1, 1]
            number = min(max((number - part["low"]) / (part["high"] - part["low"]) * 2 - 1, -1.0), 1.0)
        row.append((number - part.get("mean", 0.0)) / part.get("scale", 1.0))
    return row


def predict(records):
    """Return the probability of each class in card["classes"], or the quantity."""
    values = np.array([encode(record) for record in records])
    layers = [name.removesuffix(".weight") for name in card["parameters"] if name.endswith(".weight")]
    for place, layer in enumerate(layers):
        values = values @ weights[layer + ".weight"].T + weights[layer + ".bias"]
        values = np.maximum(values, 0.0) if place + 1 < len(layers) else values
    if not card["classes"]:
        low, high = card["label_bounds"] or (-1.0, 1.0)
        return low + (values[:, 0] + 1) / 2 * (high - low)
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
'''
KINDS = ("logistic", "mlp")  # models that are linear layers with ReLU between them


def list_inputs(data: Data, features: Sequence[str]) -> list[dict[str, Any]]:
    """Return what each feature is made of, in the order of the model's inputs."""
    declared = declare_columns(data)
    origin = {name: column for column in declared.columns for name in declared.name_features(column)}
    made = []
    for place, feature in enumerate(features):
        column = origin.get(feature, feature)
        part: dict[str, Any] = {"feature": feature, "column": column}
        if feature == INDICATOR.format(column) and column in declared.indicator:
            part["is_missing"] = True
        elif column in declared.categories:
            part["category"] = feature.removeprefix(f"{column}=")
        if column in declared.fill and "is_missing" not in part:
            part["fill"] = str(declared.fill[column]) if "category" in part else declared.number(column)
        made.append(part | _find_scale(data, feature, place))
    return made


def write_snippet(kind: str, model: str, card: str, *, has_inputs: bool) -> str:
    """Return a program that loads the model and predicts; an empty text for models that are not made of a table."""
    return SNIPPET.format(model=model, card=card) if has_inputs and kind in KINDS else ""


def _find_scale(data: Data, feature: str, place: int) -> dict[str, float]:
    bounds = data.feature_bounds
    if isinstance(bounds, Mapping):
        bounds = bounds.get(feature)
    elif bounds is not None and isinstance(bounds[0], tuple):
        bounds = bounds[place]
    if bounds is not None:
        return {"low": bounds[0], "high": bounds[1]}
    given = {"mean": data.mean, "scale": data.scale}
    return {
        name: value[place] if isinstance(value, tuple) else value for name, value in given.items() if value is not None
    }

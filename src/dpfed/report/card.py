"""The card of an exported model: what it is, which inputs it takes, and what is promised for its training data.

>>> card = {"model": "m.safetensors", "sha256": "ab", "run": "study", "kind": "logistic", "options": {}, "classes": [],
...         "shape": None, "scaling": {}, "parameters": {"linear.bias": [2]}, "rounds": "2 of 2", "status": "finished",
...         "is_private": True, "promises": [], "scores": {}, "head": "", "not_covered": [], "dpfed": "0.1"}
>>> print(render_card(card).splitlines()[0])
# study: m.safetensors
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfed import __version__
from dpfed.config.run import RunConfig
from dpfed.report.facts import RunFacts
from dpfed.report.inputs import list_inputs, write_snippet
from dpfed.rounding import decimal_up
from dpfed.runs.directory import NOT_PRIVATE

Card = Mapping[str, Any]


def make_card(
    facts: RunFacts,
    config: RunConfig,
    model: str,
    sha256: str,
    parameters: Mapping[str, Any],
    features: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what everyone may know of the model, as plain JSON values; `features` are those of a table, in order."""
    data = config.data
    scaling = {"feature_bounds": data.feature_bounds, "mean": data.mean, "scale": data.scale}
    last = facts.by_round[-1].scores if facts.by_round else ()
    return {
        "model": model,
        "sha256": sha256,
        "run": facts.name,
        "kind": config.model.kind,
        "options": config.model.options,
        "label": data.label,
        "classes": list(data.classes),
        "label_bounds": None if data.label_bounds is None else list(data.label_bounds),
        "features": list(features),
        "inputs": list_inputs(data, features),
        "categories": {column: list(values) for column, values in data.categories.items()},
        "fill": dict(data.fill),
        "shape": None if data.shape is None else list(data.shape),
        "scaling": {name: value for name, value in scaling.items() if value is not None},
        "parameters": {name: list(shape) for name, shape in parameters.items()},
        "rounds": f"{facts.rounds_done} of {facts.rounds}",
        "status": facts.status,
        "is_private": facts.is_private,
        "simulation": facts.simulation,
        "promises": [_collect_promise(unit) for unit in facts.units],
        "scores": {score.name: score.value for score in last if not score.mark},
        "head": facts.head,
        "not_covered": list(facts.not_covered),
        "dpfed": __version__,
    }


def render_card(card: Card) -> str:
    """Return the card as Markdown."""
    lines = [f"# {card['run']}: {card['model']}", ""]
    lines += [f"**{card['simulation']}**", ""] if card.get("simulation") else []
    lines += [*_render_privacy(card), "", "## The model", "", *_render_model(card)]
    lines += _render_inputs(card)
    if card["scores"]:
        lines += ["", "## How good it is", "", "On held-out records that were declared public:", ""]
        lines += [f"- {name}: {value:.4g}" for name, value in card["scores"].items()]
    if card["not_covered"]:
        lines += ["", "## Not covered by the promise", "", *(f"- {line}" for line in card["not_covered"])]
    return "\n".join([*lines, "", f"Made by dpfed {card['dpfed']}.", ""])


def _collect_promise(unit: Any) -> dict[str, Any]:
    return {
        "unit": unit.unit,
        "adjacency": unit.adjacency,
        "epsilon": unit.promised,
        "delta": unit.delta,
        "sentence": unit.sentence,
        "arithmetic": unit.arithmetic,
    }


def _render_privacy(card: Card) -> list[str]:
    if not card["is_private"]:
        return [f"**{NOT_PRIVATE}**: its noise came from a seed, and whoever knows it can subtract the noise."]
    if not card["promises"]:
        return ["Trained without any protection: no noise was added."]
    lines = ["## What is promised", ""]
    for promise in card["promises"]:
        epsilon, relation = decimal_up(promise["epsilon"]), promise["adjacency"].replace("_", "-")
        figures = f"ε = {epsilon} at δ = {promise['delta']:g} for one {promise['unit']} ({relation})"
        lines.append(f"- {figures}, computed for {promise['arithmetic']}. {promise['sentence']}")
    return [*lines, *(["", f"The ledger's head after the last round: `{card['head']}`"] if card["head"] else [])]


def _render_inputs(card: Card) -> list[str]:
    """Return the inputs of a table's model, and a program that loads it."""
    if not card.get("inputs"):
        return []
    rows = [f"| {place} | {each['feature']} | {_describe_input(each)} |" for place, each in enumerate(card["inputs"])]
    lines = ["", "## Its inputs, in order", "", "| | feature | how it is made |", "|---|---|---|", *rows]
    snippet = write_snippet(card["kind"], card["model"], f"{Path(card['model']).stem}.json", has_inputs=True)
    return [*lines, "", "## Use it", "", "```python", *snippet.rstrip().splitlines(), "```"] if snippet else lines


def _describe_input(each: Mapping[str, Any]) -> str:
    if each.get("is_missing"):
        text = f"1 where {each['column']} is missing, else 0"
    elif "category" in each:
        text = f"1 where {each['column']} is {each['category']}, else 0"
    else:
        text = f"the number in {each['column']}"
    if "fill" in each:
        text += f"; where missing, {each['fill']}"
    if "low" in each:
        return f"{text}; clipped to [{each['low']:g}, {each['high']:g}] and mapped to [-1, 1]"
    scale = [f"{word} {each[key]:g}" for key, word in (("mean", "minus"), ("scale", "divided by")) if key in each]
    return "; ".join([text, *scale])


def _render_model(card: Card) -> list[str]:
    inputs = json.dumps(card["scaling"]) if card["scaling"] else "as they are"
    facts = {
        "kind": f"{card['kind']} {json.dumps(card['options'])}" if card["options"] else card["kind"],
        "trained": f"{card['rounds']} rounds, {card['status'].replace('_', ' ')}",
        "parameters": ", ".join(f"`{name}` {shape}" for name, shape in card["parameters"].items()),
        "features": inputs,
        "shape of a record": card["shape"],
        "classes, in the order of the outputs": ", ".join(card["classes"]),
        "SHA-256": card["sha256"],
    }
    return [f"- {name}: {value}" for name, value in facts.items() if value]

"""The settings of a sweep: the file of a run, varied.

What varies is ε, clip norm, batch size and δ. A file may also have `variants:`, each of which changes blocks of the run
under `base:`; one with a block `pate:` trains teachers and a student in place of a federation.

>>> base = '''
... base:
...   name: flowers
...   data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: quantity, sizes: [80, 40]}}
...   model: {kind: logistic}
...   rounds: 2
...   local: {steps: 5, batch_size: 20, learning_rate: 0.5}
...   privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
... variants: {none: {privacy: {style: none}}, DP-SGD: {}}
... '''
>>> [(setting.label, setting.epsilon) for setting in read_settings(base)]
[('none', inf), ('DP-SGD', 4.0)]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from pydantic import ValidationError

from dpfed.config.fields import Block
from dpfed.config.pate import PateDefence
from dpfed.config.reading import make_refusal, read_values
from dpfed.config.run import RunConfig
from dpfed.config.strangers import require_configuration
from dpfed.config.yaml12 import Path
from dpfed.errors import InvalidArgument

PATE = "pate"
Lines = Mapping[Path, int]
B = TypeVar("B", bound=Block)


@dataclass(frozen=True, eq=False)
class Setting:
    """One row of a sweep: its label, the configuration, and the ε that it promises; ∞ where nobody is protected."""

    label: str
    config: RunConfig
    seed: int = 0
    pate: PateDefence | None = None

    @property
    def epsilon(self) -> float:
        """The largest ε among the promises; not a number where noise is given and no ε."""
        if self.pate is not None:
            return self.pate.privacy.epsilon
        blocks = [self.config.privacy.local, self.config.privacy.client]
        asked = [block.epsilon for block in blocks if block is not None]
        return max((math.nan if each is None else each for each in asked), default=math.inf)

    @property
    def is_protected(self) -> bool:
        """Whether anybody is promised anything."""
        return self.pate is not None or self.config.privacy.style != "none"


def read_settings(
    text: str,
    *,
    epsilons: Sequence[float] = (),
    clip_norms: Sequence[float] = (),
    batch_sizes: Sequence[int] = (),
    deltas: Sequence[float] = (),
    seeds: int = 1,
    file: str = "",
) -> tuple[Setting, ...]:
    """Return all settings of a sweep: of each variant, each combination of what varies, each seed.

    What a setting does not have does not vary: without privacy there is one, whatever the clip norms and δ.
    """
    base, variants, lines = _read_variants(text, file)
    found: list[Setting] = []
    for name, change in variants.items():
        lists: list[Sequence[Any]] = [epsilons, clip_norms, batch_sizes, deltas]
        choices = product(*(each or [None] for each in lists))
        combined = (_vary(_merge(base, change or {}), str(name), varied) for varied in choices)
        for label, changed in dict(combined).items():
            config, pate = _parse(changed, label, _find_lines(lines, str(name)), file)
            found += [Setting(label, config, seed, pate) for seed in range(seeds)]
    return tuple(found)


def _read_variants(text: str, file: str) -> tuple[Mapping[str, Any], Mapping[str, Any], Lines]:
    """Return the run, what each variant changes, and the lines of both; a plain run is its own single variant."""
    if "base:" not in text and "variants:" not in text:
        require_configuration(text, file)
    values, lines = read_values(text, file)
    if isinstance(values, Mapping) and not {"base", "variants"} & set(values):
        return values, {"": {}}, lines
    base, variants = (values.get(name) if isinstance(values, Mapping) else None for name in ("base", "variants"))
    are_blocks = isinstance(variants, Mapping) and all(isinstance(each, Mapping | None) for each in variants.values())
    if are_blocks and isinstance(base, Mapping) and isinstance(variants, Mapping):
        return base, variants, lines
    message = "a sweep is the file of a run, or has base: (such a file) and variants: (blocks to replace, by name)"
    raise InvalidArgument("config", f"{file or 'the file'} is neither: {message}")


def _find_lines(lines: Lines, variant: str) -> dict[Path, int]:
    """Return the line of each key of a variant: its own, or that of the base."""
    if ("base",) not in lines:
        return dict(lines)
    of_base = {path[1:]: line for path, line in lines.items() if path[:1] == ("base",)}
    return of_base | {path[2:]: line for path, line in lines.items() if path[:2] == ("variants", variant)}


def _parse(values: dict[str, Any], label: str, lines: Lines, file: str) -> tuple[RunConfig, PateDefence | None]:
    pate = values.pop(PATE, None)
    if pate is None:
        return _validate(RunConfig, values, label, lines, file), None
    # Teachers and student are promised something by votes alone: what else is trained has no noise.
    config = _validate(RunConfig, {**values, "privacy": {"style": "none"}}, label, lines, file)
    inner = {path[1:]: line for path, line in lines.items() if path[:1] == (PATE,)}
    return config, _validate(PateDefence, pate, label, inner, file)


def _validate(block: type[B], values: Any, label: str, lines: Lines, file: str) -> B:
    try:
        return block.model_validate(values)
    except ValidationError as error:
        refusal = make_refusal(error, block, values, lines, file)
        place = "" if refusal.argument == "path" else f" (in the setting {label})"
        raise InvalidArgument(refusal.argument, f"{refusal}{place}") from None


def _merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with those of a variant in their place: `privacy` as a whole, other blocks key by key."""
    merged = deepcopy(dict(base))
    for name, value in change.items():
        is_block = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping) and name != "privacy"
        merged[name] = {**merged[name], **value} if is_block else deepcopy(value)
    return merged


def _vary(values: dict[str, Any], name: str, varied: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    """Return a label and the values of a file with another ε, clip norm, batch size and δ."""
    epsilon, clip_norm, batch_size, delta = varied
    labels = [name] if name else []
    if epsilon == math.inf:
        values["privacy"] = {"style": "none"}
        values.pop(PATE, None)
    for key, value, symbol in (("epsilon", epsilon, "ε"), ("clip_norm", clip_norm, "C"), ("delta", delta, "δ")):
        if value is not None and (_change_promises(values, key, value) or value == math.inf):
            labels.append(f"{symbol} = {'∞' if value == math.inf else format(value, 'g')}")
    if batch_size is not None:
        labels.append(f"batch {batch_size}")
        values["local"] = {**_require_block(values, "local"), "batch_size": batch_size}
    return ", ".join(labels) or str(values.get("name", "")), values


def _change_promises(values: dict[str, Any], key: str, value: float) -> bool:
    """Change that key of all promises; return whether there is one that has it."""
    privacy = _require_block(values, "privacy")
    values["privacy"] = {unit: _replace(block, key, value) for unit, block in privacy.items()}
    promises = [*privacy.values()]
    if isinstance(pate := values.get(PATE), Mapping):
        promises.append(pate.get("privacy"))
        values[PATE] = {**pate, "privacy": _replace(pate.get("privacy"), key, value)}
    return any(_has(block, key) for block in promises)


def _require_block(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name) or {}
    if not isinstance(found, Mapping):
        raise InvalidArgument(name, f"{name} must be a block of keys, or nothing in it can vary: write {name}: {{…}}")
    return found


def _replace(block: Any, key: str, value: float) -> Any:
    if not _has(block, key):
        return block
    kept = {name: each for name, each in block.items() if key != "epsilon" or name != "noise_multiplier"}
    return {**kept, key: value}


def _has(block: Any, key: str) -> bool:
    return isinstance(block, Mapping) and (key == "epsilon" or key in block)

"""The `privacy` block of a configuration, as arguments of a PrivacyManager.

A number that decides how private a run is must not be lost to a typing error: unknown keys are refused,
with the right word where another tool's was used, and numbers that YAML reads as text (``1e-5``) are
numbers again.

>>> read_privacy_block({"privacy": {"epsilon": 1.0, "delta": "1e-5", "composition": "advanced"}})
{'epsilon': 1.0, 'delta': 1e-05}
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from dpfed.errors import InvalidArgument

# Each names a bound on the same total; the exact composition keeps the promise of any of them with less
# noise.
COMPOSITIONS = ("exact", "advanced", "basic")

_WORDS_OF_OTHERS = {
    "max_grad_norm": "clip_norm",
    "l2_norm_clip": "clip_norm",
    "clipping_norm": "clip_norm",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "rounds": "num_rounds",
    "batch_size": "expected_batch_size",
}


def read_privacy_block(config: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """Return the keyword arguments in the block; `config` is a mapping or the path of a YAML file."""
    block = _find_block(config if isinstance(config, Mapping) else _load(Path(config)))
    _require_known(block)
    _require_enabled(block.get("use_differential_privacy", True))
    _require_composition(block.get("composition", "exact"))
    return {key: read(key, block[key]) for key, read in _ARGUMENTS.items() if key in block}


def _load(path: Path) -> Mapping[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        # What is in the file is not shown: it may be another one than was meant.
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" from line {mark.line + 1} on"
        why = error.strerror if isinstance(error, OSError) else f"it is not YAML{place}"
        raise InvalidArgument("config", f"config must be a mapping or the path of a YAML file: {why}") from None
    if not isinstance(loaded, Mapping):
        raise InvalidArgument(
            "config", f"config must be a mapping with a privacy block, got a file that holds a {type(loaded).__name__}"
        )
    return loaded


def _find_block(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the block under the key `privacy`; a mapping without that key is the block itself."""
    if "privacy" not in config:
        return config
    stray = sorted(set(map(str, config)) & _KNOWN)
    if stray:
        raise InvalidArgument("config", f"{', '.join(stray)} must be inside the privacy block, not beside it")
    block = config["privacy"]
    if not isinstance(block, Mapping):
        raise InvalidArgument("privacy", f"privacy must be a block of keys and values, got {block!r:.80}")
    return block


def _require_known(block: Mapping[str, Any]) -> None:
    for key in map(str, block):
        if key not in _KNOWN:
            close = [_WORDS_OF_OTHERS[key]] if key in _WORDS_OF_OTHERS else difflib.get_close_matches(key, _KNOWN, 1)
            remedy = f"use {close[0]}" if close else f"known are {', '.join(sorted(_KNOWN))}"
            raise InvalidArgument(key, f"{key} is not a key of the privacy block: {remedy}")
    if not block:
        raise InvalidArgument("privacy", "the privacy block is empty: give at least epsilon and delta")


def _require_enabled(value: Any) -> None:
    if value is not True:
        raise InvalidArgument(
            "use_differential_privacy",
            f"use_differential_privacy must be true for a PrivacyManager, got {value!r}: "
            "a run without differential privacy makes none",
        )


def _require_composition(value: Any) -> None:
    if value not in COMPOSITIONS:
        raise InvalidArgument("composition", f"composition must be one of {', '.join(COMPOSITIONS)}, got {value!r}")


def _read_number(key: str, value: Any) -> Any:
    """Return the value, as a float where YAML read a number as text; its range is checked where it is used."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        raise InvalidArgument(key, f"{key} must be a number, got {value!r}") from None


def _keep(key: str, value: Any) -> Any:  # noqa: ARG001 - the same signature as _read_number
    return value


_ARGUMENTS: dict[str, Callable[[str, Any], Any]] = {
    "epsilon": _read_number,
    "delta": _read_number,
    "clip_norm": _read_number,
    "num_rounds": _keep,
    "per_example": _keep,
    "unit": _keep,
    "expected_batch_size": _keep,
}
_KNOWN = {"use_differential_privacy", "composition", *_ARGUMENTS}

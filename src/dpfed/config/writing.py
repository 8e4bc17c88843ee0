"""A configuration written as commented YAML: every comment is made from the setting below it.

What is at its default is commented out; remove the ``#`` in the first column to change it.

>>> from dpfed.config.privacy import Adaptive
>>> print(write_commented(Adaptive(count_noise=5.0)))
# γ · a number, above 0 and below 1 · the share of contributions that is to stay unclipped
#quantile: 0.5
<BLANKLINE>
# η_C · a number, above 0 · how fast the clip norm follows
#learning_rate: 0.2
<BLANKLINE>
# σ_b · a number, above 0 · noise on the count of unclipped contributions; it is charged together with the sum
count_noise: 5.0
<BLANKLINE>
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpfed.config.fields import Block, blocks_in, describe, kind_of
from dpfed.config.yaml12 import dump

Notes = Mapping[str, Sequence[str]]  # by the path of a key: lines of comment above it
WIDTH = 118
_ROW = 5  # entries of a long list on one line


def write_commented(config: Block, notes: Notes | None = None) -> str:
    """Return the configuration as YAML with a comment for every setting."""
    return "\n".join(_write_block(config, (), notes or {})) + "\n"


def _write_block(
    config: Block, path: tuple[str, ...], notes: Notes, others: Sequence[type[Block]] = ()
) -> Iterator[str]:
    kinds = tuple(kind_of(other) or "" for other in others) if len(others) > 1 else ()
    described = {name: field for name, field in type(config).model_fields.items() if field.description}
    for number, (name, field) in enumerate(described.items()):
        value, place = getattr(config, name), (*path, name)
        is_default = not field.is_required() and value == field.get_default(call_default_factory=True)
        if number and not path:
            yield ""
        lines = _write_comments(describe(type(config), name, kinds if name == "kind" else ()), place, notes)
        lines += list(_write_setting(name, value, place, notes, blocks_in(field)))
        yield from (f"#{line}" if is_default and not line.lstrip().startswith("#") else line for line in lines)


def _write_setting(
    name: str, value: Any, place: tuple[str, ...], notes: Notes, kinds: Sequence[type[Block]]
) -> Iterator[str]:
    margin = "  " * (len(place) - 1)
    if isinstance(value, Block):
        yield f"{margin}{dump(name)}:"
        yield from _uncomment_one(list(_write_block(value, place, notes, kinds)), "  " * len(place))
    elif value is None:
        yield f"{margin}{dump(name)}:"
        for kind in kinds[:1]:
            yield from _write_blank(kind, place)
    else:
        yield from _write_value(f"{margin}{dump(name)}: ", _plain(value), margin)


def _uncomment_one(lines: list[str], margin: str) -> list[str]:
    """Return the lines of a block with at least one that is no comment: YAML would read the block as missing."""
    if any(line.strip() and not line.lstrip().startswith("#") for line in lines):
        return lines
    start = f"#{margin}"
    of_own = (number for number, line in enumerate(lines) if line.startswith(start) and line[len(start)] != " ")
    first = next((number for number in of_own if ": " in lines[number]), None)
    return [line[1:] if number == first else line for number, line in enumerate(lines)]


def _write_blank(kind: type[Block], place: tuple[str, ...]) -> Iterator[str]:
    """Yield the keys of a block that is not given, to be filled in."""
    margin = "  " * len(place)
    for name, field in kind.model_fields.items():
        yield from _wrap(describe(kind, name), margin)
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        yield f"{margin}{name}:" + ("" if default is None else f" {dump(_plain(default))}")
        for inner in blocks_in(field)[:1]:
            yield from _write_blank(inner, (*place, name))


def _write_value(start: str, value: Any, margin: str) -> Iterator[str]:
    line = start + dump(value)
    if len(line) <= WIDTH or not isinstance(value, list):
        yield line
        return
    yield f"{start}["
    for first in range(0, len(value), _ROW):
        yield f"{margin}  {dump(value[first : first + _ROW])[1:-1]},"
    yield f"{margin}  ]"


def _write_comments(text: str, place: tuple[str, ...], notes: Notes) -> list[str]:
    margin = "  " * (len(place) - 1)
    said = [text, *notes.get(".".join(place), ())]
    return [line for part in said for line in _wrap(part, margin)]


def _wrap(text: str, margin: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}#   ")


def _plain(value: Any) -> Any:
    if isinstance(value, Block):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value

"""Settings that describe themselves: each field has its symbol, its range and its effect.

The comments that ``dpfed init`` writes and the refusals of a wrong value come from the field that checks it, so that
no second description can go stale. The range follows from the field's own type and limits.

>>> class Example(Block):
...     rounds: Whole = setting(symbol="T", effect="how often the clients are asked", ge=1)
>>> describe(Example, "rounds")
'T · a whole number, at least 1 · how often the clients are asked'
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

LIMITS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
OWN = "package.module:name"
QUOTED = 40  # letters of a text that a refusal may show


class Block(BaseModel):
    """A mapping of the file: frozen, and with known keys only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SettingError(ValueError):
    """A wrong setting: its key, and a text that continues a sentence which begins with the key."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.key = key


def quote(value: Any) -> str:
    """Return a value as a refusal may quote it: numbers and short texts whole, of anything else only its kind.

    A long text or a list may be records that were pasted or read by mistake, and an address may hold a password.
    """
    if isinstance(value, str) and (len(value) > QUOTED or "://" in value):
        return f"a text of {len(value)} letters"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    return "a list" if isinstance(value, list | tuple) else "a mapping" if isinstance(value, dict) else "something else"


def as_number(value: Any) -> Any:
    """Return the value as a number, also from a text such as 1e-5 or inf; refuse true and false."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be a number, got {quote(value)}")
    try:
        number = float(value) if isinstance(value, str) else value
        float(number)
    except ValueError:
        raise ValueError(f"must be a number, got {quote(value)}") from None
    except OverflowError:
        raise ValueError("must be a finite number, got one with hundreds of digits") from None
    is_whole = isinstance(number, float) and math.isfinite(number) and number.is_integer()
    return int(number) if is_whole else number


Number = Annotated[float, BeforeValidator(as_number)]
Whole = Annotated[int, BeforeValidator(as_number)]


def setting(default: Any = ..., *, effect: str, symbol: str = "", **limits: Any) -> Any:
    """Return a field with its description; limits are those of pydantic: gt, ge, lt, le."""
    return Field(default, description=effect, json_schema_extra={"symbol": symbol}, **limits)


def describe(block: type[BaseModel], name: str, alternatives: tuple[str, ...] = ()) -> str:
    """Describe a setting in one line: symbol, range and effect; `alternatives` replace the range."""
    field = block.model_fields[name]
    extra = field.json_schema_extra
    symbol = str(extra.get("symbol") or "") if isinstance(extra, dict) else ""
    span = " | ".join(alternatives) or describe_range(field)
    return " · ".join(part for part in (symbol, span, field.description) if part)


def describe_range(field: FieldInfo) -> str:
    """Describe the range of a field by its type and limits; return an empty text where any text will do."""
    kinds = list(types_in(field.annotation))
    choices = [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices or bool in kinds:
        return " | ".join(choices or ["true", "false"])
    noun = "a whole number" if int in kinds else "a number" if float in kinds else ""
    return ", ".join(filter(None, [noun, " and ".join(describe_limits(field))]))


def describe_limits(field: FieldInfo) -> list[str]:
    """Describe the limits of a numeric field, such as "above 0"."""
    found = [(word, getattr(limit, key, None)) for limit in field.metadata for key, word in LIMITS.items()]
    return [f"{word} {value:g}" for word, value in found if value is not None]


def types_in(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation allows, without None and without wrappers such as Annotated."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from types_in(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from types_in(part)
    elif annotation is not type(None):
        yield annotation


def blocks_in(field: FieldInfo) -> list[type[Block]]:
    """Return the blocks that a field may hold: none, one, or one for each kind."""
    return [kind for kind in types_in(field.annotation) if isinstance(kind, type) and issubclass(kind, Block)]


def kind_of(block: type[Block]) -> str | None:
    """Return the kind of a block: a word, `package.module:name` for your own, or None where there is one block only."""
    field = block.model_fields.get("kind")
    if field is None:
        return None
    return str(get_args(field.annotation)[0]) if get_origin(field.annotation) is Literal else OWN

"""A setting and what it means, said once: its symbol, its range and its effect.

The comments that ``dpfed init`` writes and the refusals of a wrong value come from the field that checks it, so that
no second description can go stale. The range is read off the field's own type and limits.

>>> class Example(Block):
...     rounds: Whole = setting(symbol="T", effect="how often the clients are asked", ge=1)
>>> meaning(Example, "rounds")
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
    """A mapping of the file: frozen, and every key in it is known."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Wrong(ValueError):
    """A refusal of a block that is about one of its keys; the text goes on after the key's name."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.key = key


def shown(value: Any) -> str:
    """Return a value as a refusal may quote it: a number or a short text; of anything else only what it is.

    A long text or a list may be records that were pasted or read by mistake, and an address may hold a password.
    """
    if isinstance(value, str) and (len(value) > QUOTED or "://" in value):
        return f"a text of {len(value)} letters"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    return "a list" if isinstance(value, list | tuple) else "a mapping" if isinstance(value, dict) else "something else"


def as_number(value: Any) -> Any:
    """The value as a number: text such as 1e-5 or inf, which PyYAML does not read as one, is; true is not."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be a number, got {shown(value)}")
    try:
        number = float(value) if isinstance(value, str) else value
        float(number)
    except ValueError:
        raise ValueError(f"must be a number, got {shown(value)}") from None
    except OverflowError:
        raise ValueError("must be a finite number, got one with hundreds of digits") from None
    is_whole = isinstance(number, float) and math.isfinite(number) and number.is_integer()
    return int(number) if is_whole else number


Number = Annotated[float, BeforeValidator(as_number)]
Whole = Annotated[int, BeforeValidator(as_number)]


def setting(default: Any = ..., *, effect: str, symbol: str = "", **limits: Any) -> Any:
    """A field with its meaning; limits are those of pydantic: gt, ge, lt, le."""
    return Field(default, description=effect, json_schema_extra={"symbol": symbol}, **limits)


def meaning(block: type[BaseModel], name: str, alternatives: tuple[str, ...] = ()) -> str:
    """Symbol, range and effect of a setting, as one line; `alternatives` are what else may stand there."""
    field = block.model_fields[name]
    extra = field.json_schema_extra
    symbol = str(extra.get("symbol") or "") if isinstance(extra, dict) else ""
    span = " | ".join(alternatives) or allowed(field)
    return " · ".join(part for part in (symbol, span, field.description) if part)


def allowed(field: FieldInfo) -> str:
    """The range of a field in words, from its type and limits; nothing where any text will do."""
    kinds = list(parts(field.annotation))
    choices = [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices or bool in kinds:
        return " | ".join(choices or ["true", "false"])
    noun = "a whole number" if int in kinds else "a number" if float in kinds else ""
    return ", ".join(filter(None, [noun, " and ".join(limits(field))]))


def limits(field: FieldInfo) -> list[str]:
    """The limits of a numeric field in words, such as "above 0"."""
    found = [(word, getattr(limit, key, None)) for limit in field.metadata for key, word in LIMITS.items()]
    return [f"{word} {value:g}" for word, value in found if value is not None]


def parts(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows, without None and without what wraps them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from parts(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from parts(part)
    elif annotation is not type(None):
        yield annotation


def blocks(field: FieldInfo) -> list[type[Block]]:
    """The blocks that a field may hold: none, one, or one for each kind."""
    return [kind for kind in parts(field.annotation) if isinstance(kind, type) and issubclass(kind, Block)]


def kind_of(block: type[Block]) -> str | None:
    """The kind that a block is for: a word, `package.module:name` for your own, or None where there is one block."""
    field = block.model_fields.get("kind")
    if field is None:
        return None
    return str(get_args(field.annotation)[0]) if get_origin(field.annotation) is Literal else OWN

"""Reads a configuration file as values, and makes every refusal one sentence with file, line and key.

>>> read_values("rounds: 5")
({'rounds': 5}, {(): 1, ('rounds',): 1})
>>> read_values("rounds: 5\\nrounds: 6", file="run.yaml")
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: run.yaml, line 2: this is not YAML: rounds is there twice
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from dpfed.config.fields import OWN, QUOTED, Block, SettingError, blocks_in, kind_of, quote
from dpfed.config.kinds import explain_other_kind
from dpfed.config.strangers import LARGEST, require_configuration
from dpfed.config.synonyms import explain_unknown_key, find_our_word
from dpfed.config.yaml12 import Path, load
from dpfed.errors import InvalidArgument

B = TypeVar("B", bound=Block)
SECRET = ("ledger", "track")  # blocks with addresses, which may hold a password
_CONTENT = re.compile(r"'(?!<)[^']{2,}'")  # what PyYAML quotes of the file, but for single signs and its own words

_MUST = {
    "greater_than": "must be above {gt:g}, got {input}",
    "greater_than_equal": "must be at least {ge:g}, got {input}",
    "less_than": "must be below {lt:g}, got {input}",
    "less_than_equal": "must be at most {le:g}, got {input}",
    "finite_number": "must be a finite number, got {input}",
    "int_from_float": "must be a whole number, got {input}",
    "int_type": "must be a whole number, got {input}",
    "float_type": "must be a number, got {input}",
    "string_type": "must be text, got {input}: put it in quotes",
    "bool_type": "must be true or false, got {input}",
    "bool_parsing": "must be true or false, got {input}",
    "literal_error": "must be {expected}, got {input}",
    "tuple_type": "must be a list, got {input}",
    "dict_type": "must be a mapping of keys to values, got {input}",
    "model_type": "must be a block of keys, got {input}",
    "model_attributes_type": "must be a block of keys, got {input}",
    "union_tag_not_found": "needs a kind: {kinds}",
    "union_tag_invalid": "must be of kind {kinds}, got {tag}",
}


def read_values(text: str, file: str = "") -> tuple[Any, dict[Path, int]]:
    """Return the values of a YAML text, and the line of each by its path of keys."""
    try:
        values, lines = load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        message = f"{_format_place(file, mark.line + 1 if mark else None)}this is not YAML: {_describe_problem(error)}"
        raise InvalidArgument("text", message) from None
    for path in _find_nul(values):
        key = ".".join(map(_quote_key, path))
        place = _format_place(file, _find_line(path, lines))
        raise InvalidArgument(key, f"{place}{key} has a NUL character in it, which no name can have: remove it")
    return values, lines


def read_content(path: str | FilePath) -> bytes:
    """Return the bytes of a configuration file, and no more than one can have."""
    try:
        with FilePath(path).open("rb") as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        raise InvalidArgument("path", f"{path} cannot be read: {error.strerror}") from None


def parse_block(block: type[B], text: str, file: str = "") -> B:
    """Return the block that a YAML text describes; refusals name the file, the line and the key."""
    require_configuration(text, file)
    values, lines = read_values(text, file)
    try:
        return block.model_validate(values)
    except ValidationError as error:
        raise make_refusal(error, block, values, lines, file) from None


def _find_nul(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of texts with a NUL, written as an escape: no file, module or account has such a name."""
    if isinstance(value, str) and "\0" in value:
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _find_nul(key, path)
            yield from _find_nul(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _find_nul(inner, (*path, place))


def _describe_problem(error: Exception) -> str:
    """Return what is wrong, without what PyYAML quotes of the file."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.reader.ReaderError):
        return "it has a character that no text has, such as NUL"
    problem = getattr(error, "problem", None)
    return _CONTENT.sub("…", problem) if problem else "a number in it is too long"


def make_refusal(
    error: ValidationError, model: type[Block], values: Any, lines: Mapping[Path, int] | None = None, file: str = ""
) -> InvalidArgument:
    """Return the refusal of a configuration: one sentence for each thing that is wrong, or that it is another kind."""
    if other := explain_other_kind(model.__name__, values, file):
        return InvalidArgument("path", other)
    sentences, first = [], ""
    for problem in _sort_problems(error):
        path, what = _find_path(problem, values), _explain(problem, model)
        line = _find_line(path, lines or {})
        key = ".".join(map(_quote_key, path))
        first = first or key
        sentences.append(f"{_format_place(file, line)}{key or 'the file'} {what}")
    return InvalidArgument(first, "\n".join(dict.fromkeys(sentences)))


def _sort_problems(error: ValidationError) -> list[Any]:
    """Return the problems, unknown keys first; a key that is only missing under dpfed's name for it is left out."""
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    places = [problem["loc"] for problem in problems if problem["type"] == "extra_forbidden"]
    answered = [(*place[:-1], find_our_word(str(place[-1]))) for place in places]
    return [problem for problem in problems if problem["type"] != "missing" or problem["loc"] not in answered]


def _find_path(problem: Mapping[str, Any], values: Any) -> Path:
    """Return the keys of a problem as they are in the file, without the kinds that pydantic puts between them."""
    path: list[str | int] = []
    here, steps = values, list(problem["loc"])
    missing = [steps.pop()] if problem["type"] == "missing" else []
    for step in steps:
        if step in (here if isinstance(here, Mapping) else range(len(here)) if isinstance(here, list) else ()):
            here = here[step]
            path.append(step)
    path += missing
    cause = problem.get("ctx", {}).get("error")
    return (*path, *(cause.key.split(".") if isinstance(cause, SettingError) else ()))


def _explain(problem: Mapping[str, Any], model: type[Block]) -> str:
    kind, context, place = problem["type"], problem.get("ctx", {}), tuple(problem["loc"])
    if kind == "extra_forbidden":
        here = [name for block in _find_blocks(model, place[:-1]) for name in block.model_fields]
        return explain_unknown_key(str(place[-1]), list(dict.fromkeys(here)), _list_paths(model))
    if kind == "missing":
        owners = [block for block in _find_blocks(model, place[:-1]) if place[-1] in block.model_fields]
        return f"is missing: {owners[0].model_fields[str(place[-1])].description}" if owners else "is missing"
    if kind == "value_error":
        return str(context["error"])
    kinds = _join([kind_of(block) or "" for block in _find_blocks(model, place)])
    if kind in _MUST:
        tag = {"tag": quote(context["tag"])} if "tag" in context else {}
        return _MUST[kind].format(**{"kinds": kinds, **context, **tag, "input": _quote_input(problem)})
    return f"is refused: {problem['msg']}, got {_quote_input(problem)}"


def _quote_input(problem: Mapping[str, Any]) -> str:
    """Return the given value as a refusal may quote it; never the whole file, and no address of a ledger or tracker."""
    place = problem["loc"]
    if not place or place[0] in SECRET:
        return "a text" if isinstance(problem["input"], str) else "something else"
    return quote(problem["input"])


def _quote_key(step: str | int) -> str:
    """Return one key of a path as a refusal may quote it."""
    return str(step) if len(str(step)) <= QUOTED and "://" not in str(step) else "…"


def _find_blocks(model: type[Block], place: Sequence[Any]) -> list[type[Block]]:
    """Return the blocks that may be at a place; a kind on the way selects one of several."""
    here: list[type[Block]] = [model]
    for step in place:
        fields = [block.model_fields[step] for block in here if step in block.model_fields]
        if fields and step != OWN:
            here = [block for field in fields for block in blocks_in(field)]
        else:
            here = [block for block in here if kind_of(block) == step] or here
    return here


def _list_paths(model: type[Block]) -> dict[str, list[str]]:
    """Return the full paths of every key by its last part, with the kinds of block that have it, if not all."""
    kinds: dict[str, list[str]] = {}
    for path, kind in _walk(model, ""):
        kinds.setdefault(path, []).extend([kind] if kind else [])
    found: dict[str, list[str]] = {}
    for path, having in kinds.items():
        above, _, name = path.rpartition(".")
        is_everywhere = len(having) == len(kinds.get(f"{above}.kind", ()))
        found.setdefault(name, []).append(path if is_everywhere else f"{path} (kind {_join(having)})")
    return found


def _walk(block: type[Block], above: str) -> Iterator[tuple[str, str | None]]:
    for name, field in block.model_fields.items():
        yield above + name, kind_of(block)
        for inner in blocks_in(field):
            yield from _walk(inner, f"{above}{name}.")


def _find_line(path: Path, lines: Mapping[Path, int]) -> int | None:
    """Return the line of the key, or of the block that lacks it."""
    texts = tuple(step if isinstance(step, int) else str(step) for step in path)
    return next((lines[texts[:n]] for n in range(len(texts), -1, -1) if texts[:n] in lines), None)


def _format_place(file: str, line: int | None) -> str:
    parts = [part for part in (file, f"line {line}" if line else "") if part]
    return f"{', '.join(parts)}: " if parts else ""


def _join(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)

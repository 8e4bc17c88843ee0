"""The questions that `dpfed init` asks on a terminal, one by one: only an answer makes anything public."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dpfed.cli.init_answers import parse_constant, parse_list, parse_range

if TYPE_CHECKING:
    from dpfed.config.drafts import TableDraft
    from dpfed.data.survey import ColumnSurvey
    from dpfed.data.tables import TextTable

T = TypeVar("T")
FOUND, IGNORE, QUANTITY, PRIVATE = "found", "ignore", "number", "private"
LEAVE_OUT = f"'{IGNORE}' leaves the column out"


def ask_label(table: TextTable) -> str:
    """Ask which column is to be predicted."""
    return str(_ask(f"Which column is to be predicted? ({', '.join(table.columns)})", _one_of(table, None)))


def ask_site_column(table: TextTable) -> str | None:
    """Ask which column names the site of a record; none where the table has one owner."""
    return _ask("Which column names the site of each record? (Enter: none, one owner)", _one_of(table, ""), "") or None


def ask_person_column(draft: TableDraft, columns: Mapping[str, ColumnSurvey]) -> TableDraft:
    """Ask about each column that may name persons: it names them, or it is ignored."""
    for name in draft.open_columns:
        if not columns[name].may_name_persons or draft.person_column is not None:
            continue
        if click.confirm(_wrap(f"Does {name} name the person of each row? They are then protected together"), True):
            draft = replace(draft, person_column=name)
        elif not columns[name].is_usable:
            draft = replace(draft, ignore=(*draft.ignore, name))
    return draft


def ask_columns(draft: TableDraft, columns: Mapping[str, ColumnSurvey]) -> TableDraft:
    """Ask what may be known of each open column, and what stands for missing cells."""
    for name in draft.open_columns:
        draft = _ask_column(draft, columns[name])
    for name in draft.features:
        if columns[name].missing and name not in {*draft.fill, *draft.indicator}:
            draft = _ask_fill(draft, columns[name])
    return draft


def ask_facts(draft: TableDraft, table: TextTable) -> TableDraft:
    """Ask for the classes, the sites and their sizes, where they are open."""
    from dpfed.config.publishing import find_classes, publish
    from dpfed.data.survey import survey_column

    if draft.classes is None:
        found = find_classes(table, draft.label)
        text = f"the {len(found)} found: {', '.join(found)}" if found else "none, it is a quantity"
        question = f"Classes of {draft.label}, with commas ('{FOUND}' publishes {text}; '{QUANTITY}' for a quantity)"
        answer = _ask(question, _either(_read_list, FOUND, QUANTITY))
        draft = replace(draft, classes={FOUND: found, QUANTITY: ()}.get(answer, answer) if answer else ())
    if draft.classes == () and draft.label not in draft.bounds:
        draft = _ask_range(draft, survey_column(table, draft.label))
    if draft.needs_sites:
        answer = _ask(f"Names of the sites, with commas ('{FOUND}' publishes those found)", _either(_read_list, FOUND))
        draft = publish(draft, table, ["sites"]) if answer == FOUND else replace(draft, sites=answer)
    if draft.sizes is None:
        answer = _ask(_word_sizes(draft, table), _either(_read_size, FOUND))
        draft = publish(draft, table, ["sizes"]) if answer == FOUND else replace(draft, sizes=answer)
    return draft


def _word_sizes(draft: TableDraft, table: TextTable) -> str:
    """Return the question for the sizes, with what there is; those held out do not count."""
    from dpfed.config.templates import TEST_FRACTION

    unit = "persons" if draft.person_column else "records"
    question = f"How many {unit} does each site declare" if draft.site_column else f"How many {unit} do you declare"
    held = f"{_list_sizes(draft, table)}{100 * TEST_FRACTION:g} % are held out: a round number near the rest"
    return f"{question} for training? {held} ('{FOUND}' publishes the true sizes)"


def _list_sizes(draft: TableDraft, table: TextTable) -> str:
    from dpfed.config.publishing import count_sizes

    named = [column for column in (draft.site_column, draft.person_column) if column is not None]
    if any(table.find_missing(column) for column in named):
        return ""
    sizes = sorted(count_sizes(draft, table).items())
    return "There are " + ", ".join(f"{count:,} in {site}" for site, count in sizes).removesuffix(" in all") + "; "


def _ask_column(draft: TableDraft, each: ColumnSurvey) -> TableDraft:
    from dpfed.config.publishing import find_range

    if not each.is_usable:
        click.echo(f"{each.name} is ignored: {each.why} {f'({each.detail})' if each.detail else ''}".rstrip())
        return replace(draft, ignore=(*draft.ignore, each.name))
    if each.kind == "number":
        question = f"{each.name}: numbers from {each.low:g} to {each.high:g}. Its public range LOW:HIGH"
        ways = f"'{FOUND}' publishes this one, '{PRIVATE}' has the run release one with noise, {LEAVE_OUT}"
        answer = _ask(f"{question} ({ways})", _either(_read_range, FOUND, IGNORE, PRIVATE))
        if answer == PRIVATE:
            return replace(draft, private=(*draft.private, each.name))
        chosen = {"bounds": {**draft.bounds, each.name: find_range(each) if answer == FOUND else answer}}
    else:
        question = f"{each.name}: {', '.join(each.values)}. The texts it may hold, with commas"
        answer = _ask(f"{question} ('{FOUND}' publishes these, {LEAVE_OUT})", _either(_read_list, FOUND, IGNORE))
        chosen = {"categories": {**draft.categories, each.name: each.values if answer == FOUND else answer}}
    if answer == IGNORE:
        return replace(draft, ignore=(*draft.ignore, each.name))
    return replace(draft, **chosen)  # type: ignore[arg-type]


def _ask_range(draft: TableDraft, label: ColumnSurvey) -> TableDraft:
    """Ask for the public range of a label that is a quantity."""
    from dpfed.config.publishing import find_range

    question = f"{label.name}: numbers from {label.low:g} to {label.high:g}. Its public range LOW:HIGH"
    answer = _ask(f"{question} ('{FOUND}' publishes this one)", _either(_read_range, FOUND))
    return replace(draft, bounds={**draft.bounds, label.name: find_range(label) if answer == FOUND else answer})


def _ask_fill(draft: TableDraft, each: ColumnSurvey) -> TableDraft:
    question = f"{each.name}: {each.missing:,} cells are missing. A public value for them"
    answer = _ask(f"{question} (Enter: a feature says which are missing)", _read_fill(draft, each.name), "")
    if answer == "":
        return replace(draft, indicator=(*draft.indicator, each.name))
    return replace(draft, fill={**draft.fill, each.name: answer})


def _read_fill(draft: TableDraft, column: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if not text:
            return ""
        if column in draft.categories:
            if text not in draft.categories[column]:
                raise ValueError(f"it must be one of {', '.join(draft.categories[column])}")
            return text
        value = parse_constant(text)
        if isinstance(value, str):
            raise ValueError("it must be a number")
        return value

    return read


def _read_range(text: str) -> tuple[float, float]:
    try:
        return parse_range(text)
    except ValueError:
        raise ValueError("it must be two numbers with a colon, the lower one first, such as 0:110") from None


def _read_list(text: str) -> tuple[str, ...]:
    try:
        return parse_list(text)
    except ValueError:
        raise ValueError("it must be texts with commas, each one once, such as no,yes") from None


def _read_size(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError("it must be a whole number of at least 1")
    return int(text)


def _one_of(table: TextTable, none: str | None) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in table.columns and text != none:
            raise ValueError(f"it must be one of {', '.join(table.columns)}")
        return text

    return read


def _either(read: Callable[[str], T], *words: str) -> Callable[[str], T | str]:
    return lambda text: text if text in words else read(text)


def _wrap(question: str) -> str:
    """Return the question in lines that leave room for a short answer."""
    return textwrap.fill(question, get_terminal_size().columns - 16, subsequent_indent="  ")


def _ask(question: str, read: Callable[[str], Any], default: str | None = None) -> Any:
    """Ask until the answer can be read."""

    def convert(text: str) -> Any:
        try:
            return read(text.strip())
        except ValueError as error:
            raise click.BadParameter(str(error) or "this cannot be read") from None

    return click.prompt(_wrap(question), default=default, show_default=False, value_proc=convert)

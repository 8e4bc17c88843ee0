"""The table that `dpfed init` prints: what becomes of each column, what is still open, and what to type next.

Counts and ranges that were read from records are for the owner: they are shown on a terminal, and neither in a pipe,
which may end in a log, nor in any file.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfed.config.drafts import TableDraft
    from dpfed.data.survey import ColumnSurvey
    from dpfed.data.tables import TextTable

SHOWN = 6  # values of a column that are listed
LABEL, SITE, PERSON = "the label", "names the site", "names the person"
OPEN_LABEL = f"{LABEL}, a quantity; its range is to declare"


@dataclass(frozen=True)
class InitReport:
    """What was declared of a table, what its columns seem to hold, and how `dpfed init` was called."""

    draft: TableDraft
    table: TextTable
    columns: Mapping[str, ColumnSurvey]
    source: str
    target: str

    def show(self) -> None:
        """Print the table of columns, the classes and sites, what is open, and the next command."""
        from dpfed.cli.show import make_console, new_table, say

        is_owner = sys.stdout.isatty()
        shown = new_table()
        for title in ("column", "what becomes of it", *(("found", "missing") if is_owner else ())):
            shown.add_column(title, justify="right" if title == "missing" else "left", overflow="fold")
        for name in self.table.columns:
            own = [self._describe_found(name), str(self.columns[name].missing or "")] if is_owner else []
            shown.add_row(name, self._describe(name), *own)
        make_console(width_in_a_pipe=120).print(shown)
        for line in self._list_counts() if is_owner else ():
            say(line)
        self._show_next()

    def _show_next(self) -> None:
        from dpfed.cli.show import say

        if self.draft.sizes == "public":
            say("The true sizes are published with the plan (sizes: public): the promise is for replacing a record.")
        if not self.is_ready:
            say("Still to declare:")
            for line in self.list_open():
                say(f"  {line}")
            say(f"Next: {self.make_command()}")
        else:
            say(f"Next: dpfed run {shlex.quote(self.target)}   (or `dpfed plan` to see the cost first)")

    @property
    def is_ready(self) -> bool:
        """Whether a run would take the file and the table as they are."""
        return not self.list_open()

    def list_open(self) -> list[str]:
        """Return what is still to declare, each with the option that declares it."""
        return [text for text, _ in self._find_open()]

    def make_command(self) -> str:
        """Return the command that declares everything, with capitals for what only the owner knows."""
        draft = self.draft
        parts = ["dpfed", "init", self.source, "--label", draft.label]
        for option, column in (("--site-column", draft.site_column), ("--person-column", draft.person_column)):
            parts += [] if column is None else [option, column]
        parts += [each for option in self._repeat_declared() for each in option]
        said = " ".join(map(shlex.quote, parts))
        return " ".join([said, *filter(None, (option for _, option in self._find_open())), "--force"])

    def _repeat_declared(self) -> Iterator[tuple[str, str]]:
        draft = self.draft
        public = sorted(draft.found)
        if public:
            yield "--public", ",".join(public)
        for column, (low, high) in draft.bounds.items() if "bounds" not in public else ():
            yield "--bounds", f"{column}={low:g}:{high:g}"
        for column, values in draft.categories.items() if "categories" not in public else ():
            yield "--categories", f"{column}={','.join(values)}"
        for column in draft.ignore if not {"bounds", "categories"} <= set(public) else ():
            yield "--ignore", column
        if draft.max_sites_per_person > 1:
            yield "--max-sites-per-person", str(draft.max_sites_per_person)
        for column in draft.private:
            yield "--private-bounds", column
        for column, value in draft.fill.items():
            yield "--fill", f"{column}={value}"
        for column in draft.indicator:
            yield "--indicator", column
        if draft.classes and "classes" not in public:
            yield "--classes", ",".join(draft.classes)
        if draft.sites and "sites" not in public:
            yield "--sites", ",".join(draft.sites)
        if isinstance(draft.sizes, Mapping):
            yield from (("--size", f"{site}={size}") for site, size in draft.sizes.items())
        elif isinstance(draft.sizes, int):
            yield "--size", str(draft.sizes)

    def _find_open(self) -> Iterator[tuple[str, str]]:
        draft = self.draft
        for name in draft.open_columns:
            yield self._describe_open(self.columns[name])
        for name in (*draft.bounds, *draft.private):
            if self.columns[name].kind == "broken":
                yield f"{name}: {self.columns[name].why}: correct them, or --ignore {shlex.quote(name)}", ""
        for name in draft.features:
            each = self.columns[name]
            is_filled = name in draft.fill or name in draft.indicator
            if each.missing and self._may_be_feature(each) and not is_filled:
                option = f"--fill {shlex.quote(name)}=VALUE"
                yield f"{name}: what stands for its missing cells: {option}, or --indicator {name}", option
        for what, name in draft.special.items():
            if self.columns[name].missing:
                yield f"{name}: some cells are missing, and it is the {what.replace('_', ' ')}: fill them in", ""
        if self._has_more_sites():
            option = "--max-sites-per-person N"
            yield (
                f"some persons are at more sites than {draft.max_sites_per_person}: at how many, at most: {option}",
                option,
            )
        if draft.classes is None:
            yield self._describe_open_label()
        if draft.needs_sites:
            yield "the names of the sites: --sites A,B (or --public sites)", "--sites A,B"
        if draft.sizes is None:
            unit = "persons" if draft.person_column else "records"
            whose = "each site declares" if draft.site_column else "you declare"
            what = f"how many {unit} {whose} for training, those held out left aside"
            yield f"{what}: --size N (or --public sizes for the true ones)", "--size N"

    def _find_person_column(self) -> str | None:
        """Return the column that the next command takes for that of persons: the first one that may be."""
        if self.draft.person_column is not None:
            return self.draft.person_column
        return next((name for name in self.draft.open_columns if self.columns[name].may_name_persons), None)

    def _has_more_sites(self) -> bool:
        """Return whether some person has rows at more sites than is declared."""
        draft = self.draft
        if draft.person_column is None or draft.site_column is None:
            return False
        pairs = set(zip(self.table.columns[draft.person_column], self.table.columns[draft.site_column], strict=True))
        sites = Counter(person for person, _ in pairs)
        return max(sites.values(), default=0) > draft.max_sites_per_person

    def _may_be_feature(self, each: ColumnSurvey) -> bool:
        """Return whether a column is declared as a feature, or can become one as it is."""
        return each.name not in self.draft.open_columns or (each.is_usable and not each.may_name_persons)

    def _describe_open_label(self) -> tuple[str, str]:
        """Return what is open of a label: its range if its numbers are a quantity, else its classes."""
        range_ = f"--bounds {shlex.quote(self.draft.label)}=LOW:HIGH"
        if not self._has_classes():
            return f"the label's publicly known range, as it is a quantity: {range_} (or --classes A,B)", range_
        return (
            f"the classes of the label: --classes A,B (or --public classes; {range_} for a quantity)",
            "--classes A,B",
        )

    def _has_classes(self) -> bool:
        """Return whether the label holds texts, or a few whole numbers; otherwise it is a quantity."""
        from dpfed.config.publishing import find_classes

        is_number = self.columns[self.draft.label].kind == "number"
        return not is_number or bool(find_classes(self.table, self.draft.label))

    def _describe_open(self, each: ColumnSurvey) -> tuple[str, str]:
        name = shlex.quote(each.name)
        if each.may_name_persons and (self.draft.person_column is None or not each.is_usable):
            option, why = f"--person-column {name}", f" ({each.why})" if each.why else ""
            asked = f"{each.name}: does it name the person of each row{why}? {option}, else --ignore {name}"
            return asked, option if each.name == self._find_person_column() else f"--ignore {name}"
        if each.kind == "number":
            option = f"--bounds {name}=LOW:HIGH"
            return f"{each.name}: the range that is publicly known: {option} (or --private-bounds {name})", option
        if each.kind == "category":
            option = f"--categories {name}=A,B"
            return f"{each.name}: the texts that it may hold: {option} (or --public categories)", option
        return f"{each.name}: no feature as it is ({each.why}): --ignore {name}", f"--ignore {name}"

    def _describe(self, name: str) -> str:
        """Return what becomes of a column, from what was declared; nothing that was read is in it."""
        draft, each = self.draft, self.columns[name]
        if name == draft.label:
            return _describe_label(draft.classes) if draft.classes is not None or self._has_classes() else OPEN_LABEL
        if name in draft.special.values():
            return SITE if name == draft.site_column else PERSON
        if name in draft.ignore and each.may_name_persons and draft.person_column is None:
            return "ignored; if it names persons, the promise is for one row and not for all rows of a person"
        if name in draft.ignore:
            return f"ignored: {each.why or 'as you say'}"
        if name in draft.open_columns:
            return _describe_kind(each)
        return self._describe_feature(name, each)

    def _describe_feature(self, name: str, each: ColumnSurvey) -> str:
        draft = self.draft
        if name in draft.categories:
            text = f"a category: {_list_some(draft.categories[name])}"
        else:
            bounds = draft.bounds.get(name)
            text = "a number from {:g} to {:g}".format(*bounds) if bounds else _describe_private(draft)
            if each.kind not in ("number", "empty"):
                text += f", but {each.why or 'it holds texts'}"
        if name in draft.fill:
            text += f"; where missing: {draft.fill[name]}"
        if name in draft.indicator:
            text += "; a feature says where it is missing"
        return f"{text} ({each.note})" if each.note else text

    def _describe_found(self, name: str) -> str:
        each = self.columns[name]
        if each.detail:
            return each.detail
        if each.kind == "number":
            return f"{each.low:g} to {each.high:g}"
        return _list_some(each.values) if each.kind == "category" else ""

    def _list_counts(self) -> Iterator[str]:
        """Yield the counts of classes and sites, for the owner on a terminal."""
        from dpfed.config.publishing import MOST_CLASSES, count_sizes
        from dpfed.data.survey import count_values

        classes = count_values(self.table, self.draft.label)
        if len(classes) <= MOST_CLASSES:
            yield "Classes: " + ", ".join(f"{value} {count:,}" for value, count in sorted(classes.items()))
        if not any(self.columns[name].missing for name in self.draft.special.values()):
            what = "persons" if self.draft.person_column else "records"
            sizes = sorted(count_sizes(self.draft, self.table).items())
            yield f"{what.capitalize()}: " + ", ".join(f"{site} {count:,}" for site, count in sizes)


def _describe_label(classes: tuple[str, ...] | None) -> str:
    if classes is None:
        return f"{LABEL}; its classes are to declare"
    return f"{LABEL}: {_list_some(classes)}" if classes else f"{LABEL}, a quantity"


def _describe_private(draft: TableDraft) -> str:
    return f"a number; the run releases a range (ε = {draft.private_epsilon:g} of {draft.epsilon:g} for all of them)"


def _describe_kind(each: ColumnSurvey) -> str:
    if each.may_name_persons:
        return "may name the person: to decide"
    texts = {"number": "a number; its range is to declare", "category": "a category; its texts are to declare"}
    note = f" ({each.note})" if each.note else ""
    return texts[each.kind] + note if each.kind in texts else f"no feature: {each.why}"


def _list_some(values: tuple[str, ...]) -> str:
    rest = len(values) - SHOWN
    return ", ".join(values[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")

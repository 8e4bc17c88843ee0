"""A report in words, rounded numbers and drawings, and its two looks: one HTML file that needs nothing else, Markdown.

Texts of users are shown as they were typed, whatever markup they may hold.

>>> rounds = Section("Rounds", tables=(Table(("Round", "ε"), (("1", "0.5"),), numbers=(1,)),))
>>> print(markdown(Document("Report of <b>", "", (), (rounds,), "")))
# Report of &lt;b&gt;
<BLANKLINE>
## Rounds
<BLANKLINE>
| Round | ε |
|---|---:|
| 1 | 0.5 |
<BLANKLINE>
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dpfed.report.rendering import bullets, filled_in, in_markdown

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """Rows of texts; `numbers` are the columns that stand to the right, `note` is said below."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A drawing and what it shows in words; `draw` gives SVG without any text of a user."""

    caption: str
    draw: Callable[[], str]


@dataclass(frozen=True)
class Section:
    """A heading and what is below it, in this order."""

    title: str
    pairs: Pairs = ()
    texts: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    bullets: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.pairs or self.charts or self.tables or self.texts or self.bullets)


@dataclass(frozen=True)
class Alarm:
    """What must be said before anything else; `is_grave` if it takes a promise away."""

    text: str
    is_grave: bool


@dataclass(frozen=True)
class Document:
    """A report as it is shown, on paper, on a screen or as text."""

    title: str
    subtitle: str
    alarms: tuple[Alarm, ...]
    sections: tuple[Section, ...]
    footer: str


def html(document: Document) -> str:
    """The report as an HTML document, with its drawings."""
    return filled_in("document.html.j2", document=document)


def markdown(document: Document) -> str:
    """The report as Markdown with tables; drawings are left out, since the tables say the same."""
    parts = [
        f"# {in_markdown(document.title)}",
        in_markdown(document.subtitle),
        *(f"**{in_markdown(alarm.text)}**" for alarm in document.alarms),
        *(part for section in document.sections for part in _section(section)),
        in_markdown(document.footer),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(section: Section) -> Iterable[str]:
    yield f"## {in_markdown(section.title)}"
    yield bullets(section.pairs)
    yield from map(in_markdown, section.texts)
    for table in section.tables:
        yield _table(table)
        yield in_markdown(table.note)
    yield "\n".join(f"- {in_markdown(text)}" for text in section.bullets)


def _table(table: Table) -> str:
    marks = ["---:" if column in table.numbers else "---" for column in range(len(table.head))]
    return "\n".join([_row(table.head), f"|{'|'.join(marks)}|", *map(_row, table.rows)])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(in_markdown, cells))} |"

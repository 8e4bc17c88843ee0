"""Documents of words, rounded numbers and drawings, rendered as one HTML file that needs nothing else or as Markdown.

Reports of runs and statements of accounts are both such documents. The HTML has no script, no font and no address in
it. Texts of users are shown as they were typed, whatever markup they may hold.

>>> rounds = Section("Rounds", tables=(DocumentTable(("Round", "ε"), (("1", "0.5"),), numbers=(1,)),))
>>> print(render_markdown(Document("Report of <b>", "", (), (rounds,), "")))
# Report of &lt;b&gt;
<BLANKLINE>
## Rounds
<BLANKLINE>
| Round | ε |
|---|---:|
| 1 | 0.5 |
<BLANKLINE>
>>> escape_markdown("[red] & <b>*x*</b>")
'\\\\[red\\\\] &amp; &lt;b&gt;\\\\*x\\\\*&lt;/b&gt;'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Pairs = tuple[tuple[str, str], ...]

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# Emphasis, code, links, images, tables, headings and mathematics; and what would turn a bare address into a link.
_MARKUP = re.compile(r"([\\`*_{}\[\]#|~!@$^]|:(?=//)|(?<=www)\.)", re.IGNORECASE)


@dataclass(frozen=True)
class Cell:
    """A cell of a table that begins with a word in bold and may have a second line of details."""

    strong: str
    text: str = ""
    detail: str = ""


@dataclass(frozen=True)
class DocumentTable:
    """Rows of texts. `numbers` are the columns that are aligned to the right, `unbroken` those that are never wrapped.

    `tones` has a word for each row that decides its colour: charge, late, refused or none. `closing` is a last row in
    bold, `note` a remark below the table.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    numbers: tuple[int, ...] = ()
    note: str = ""
    unbroken: tuple[int, ...] = ()
    tones: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A drawing and its caption; `draw` returns SVG without any text of a user."""

    caption: str
    draw: Callable[[], str]


@dataclass(frozen=True)
class Gauge:
    """Figures in boxes above a bar that is filled by `share`; the bar is red if `is_over`."""

    figures: Pairs
    share: float
    is_over: bool


@dataclass(frozen=True)
class Section:
    """A heading and the parts below it, in this order."""

    title: str
    gauge: Gauge | None = None
    pairs: Pairs = ()
    texts: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[DocumentTable, ...] = ()
    bullets: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing below the heading."""
        return not (self.gauge or self.pairs or self.charts or self.tables or self.texts or self.bullets)


@dataclass(frozen=True)
class Alarm:
    """A warning that comes before everything else; `is_grave` if it takes a promise away."""

    text: str
    is_grave: bool


@dataclass(frozen=True)
class Document:
    """A report or a statement, ready to be rendered."""

    title: str
    subtitle: str
    alarms: tuple[Alarm, ...]
    sections: tuple[Section, ...]
    footer: str


def render_html(document: Document) -> str:
    """Return the document as one HTML file, with its drawings; all text is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("dpfed.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("document.html.j2").render(document=document)


def render_markdown(document: Document) -> str:
    """Return the document as Markdown with tables; drawings are left out, since the tables say the same."""
    parts = [
        f"# {escape_markdown(document.title)}",
        escape_markdown(document.subtitle),
        *(f"**{escape_markdown(alarm.text)}**" for alarm in document.alarms),
        *(part for section in document.sections for part in _render_section(section)),
        escape_markdown(document.footer),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape_markdown(text: str) -> str:
    """Return the text such that Markdown shows it literally."""
    return _MARKUP.sub(r"\\\1", text).translate(_ENTITIES)


def _render_section(section: Section) -> Iterable[str]:
    yield f"## {escape_markdown(section.title)}"
    pairs = (*(section.gauge.figures if section.gauge else ()), *section.pairs)
    yield "\n".join(f"- **{escape_markdown(name)}:** {escape_markdown(text)}" for name, text in pairs)
    yield from map(escape_markdown, section.texts)
    for table in section.tables:
        yield _render_table(table)
        yield escape_markdown(table.note)
    yield "\n".join(f"- {escape_markdown(text)}" for text in section.bullets)


def _render_table(table: DocumentTable) -> str:
    marks = ["---:" if column in table.numbers else "---" for column in range(len(table.head))]
    closing = [tuple(Cell(text) if text else "" for text in table.closing)] if table.closing else []
    return "\n".join([_render_row(table.head), f"|{'|'.join(marks)}|", *map(_render_row, [*table.rows, *closing])])


def _render_row(cells: Iterable[str | Cell]) -> str:
    return f"| {' | '.join(map(_render_cell, cells))} |"


def _render_cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return escape_markdown(cell)
    line = f"**{escape_markdown(cell.strong)}** {escape_markdown(cell.text)}".rstrip()
    return f"{line}<br>{escape_markdown(cell.detail)}" if cell.detail else line

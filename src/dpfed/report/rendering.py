"""A statement's page as Markdown and as one HTML file that needs nothing else: no script, no font, no address.

Texts of users are shown as they were typed, whatever markup they may hold.

>>> in_markdown("[red] & <b>*x*</b>")
'\\\\[red\\\\] &amp; &lt;b&gt;\\\\*x\\\\*&lt;/b&gt;'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfed.report.statement import Entry, Page

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# Emphasis, code, links, images, tables, headings and mathematics; and what would turn a bare address into a link.
_MARKUP = re.compile(r"([\\`*_{}\[\]#|~!@$^]|:(?=//)|(?<=www)\.)", re.IGNORECASE)


def html(page: Page) -> str:
    """The page as an HTML document."""
    return filled_in("statement.html.j2", page=page, filled=min(100.0, 100 * page.share))


def filled_in(template: str, **values: Any) -> str:
    """The template with these values, all text escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("dpfed.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template(template).render(**values)


def markdown(page: Page) -> str:
    """The page as Markdown with tables."""
    parts = [
        f"# {in_markdown(page.title)}",
        page.at,
        f"**{in_markdown(page.alarm)}**" if page.alarm else "",
        bullets(page.terms),
        "## Entries",
        "\n".join(_table(page)),
        "## Balance",
        bullets(page.balance),
        *(f"**{in_markdown(name)}.** {in_markdown(text)}" for name, text in page.notes),
        f"Head: `{page.head}`",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def in_markdown(text: str) -> str:
    """The text such that Markdown shows it literally."""
    return _MARKUP.sub(r"\\\1", text).translate(_ENTITIES)


def bullets(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and texts as a list."""
    return "\n".join(f"- **{in_markdown(name)}:** {in_markdown(text)}" for name, text in pairs)


def _table(page: Page) -> list[str]:
    head = ["| No. | Date (UTC) | Entry | Spent ε | Reserved ε | Remaining ε |", "|---:|---|---|---:|---:|---:|"]
    last = f"| | | **Closing balance** | {' | '.join(f'**{figure}**' for figure in page.closing)} |"
    return [*head, *(_row(entry) for entry in page.entries), last]


def _row(entry: Entry) -> str:
    text = f"**{in_markdown(entry.kind)}** {in_markdown(entry.what)}".rstrip()
    if entry.detail:
        text += f"<br>{in_markdown(entry.detail)}"
    return f"| {entry.number} | {entry.at} | {text} | {entry.spent} | {entry.reserved} | {entry.remaining} |"

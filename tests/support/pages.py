"""HTML and Markdown as a reader sees them: their text, their tags, and whether the tags close as they should."""

from __future__ import annotations

from html.parser import HTMLParser

from markdown_it import MarkdownIt

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Document(HTMLParser):
    """The text of an HTML document, its tags, and whether they close as they should."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())


def rendered_markdown(text: str) -> Document:
    return Document(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))

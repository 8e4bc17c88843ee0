from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dpfed.report.documents import Alarm, Document, Section, escape_markdown, render_html
from pages import rendered_markdown

PRINTABLE = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=40).filter(
    str.isprintable
)


@given(PRINTABLE)
def test_markdown_shows_any_text_literally(text):
    table = f"| a | b |\n|---|---|\n| x {escape_markdown(text)} x | y |"
    document = rendered_markdown(table)
    assert document.text == " ".join(f"a b x {text} x y".split())
    assert document.tags == ["table", "thead", "tr", "th", "th", "tbody", "tr", "td", "td"]


def test_all_text_of_a_page_in_html_is_escaped():
    page = Document("<b>", "", (Alarm("1 < 2", is_grave=True),), (Section("one", texts=("a & b",)),), "")
    text = render_html(page)
    assert "<b>" not in text
    assert all(part in text for part in ("&lt;b&gt;", "1 &lt; 2", "a &amp; b"))

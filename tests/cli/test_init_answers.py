from __future__ import annotations

import click
import pytest

from dpfed.cli import init_answers as answers


def test_ranges_lists_and_constants_are_read():
    assert answers.parse_pairs("--bounds", ["age=0:100", "x=-1.5:2e3"], "", answers.parse_range) == {
        "age": (0, 100),
        "x": (-1.5, 2000),
    }
    assert answers.parse_list("a, b") == ("a", "b")
    assert (answers.parse_constant("5"), answers.parse_constant("low")) == (5.0, "low")
    assert answers.parse_sizes(("7",)) == 7
    assert answers.parse_sizes(("a=7", "b=8")) == {"a": 7, "b": 8}
    assert answers.parse_public("bounds, sizes") == ("bounds", "sizes")


@pytest.mark.parametrize("text", ["age", "age=", "=0:1", "age=1:0", "age=0:inf", "age=0", "age=a:b"])
def test_a_range_that_cannot_be_read_is_refused_with_its_form(text):
    with pytest.raises(click.UsageError, match="--bounds must be COLUMN=LOW:HIGH"):
        answers.parse_pairs("--bounds", [text], "COLUMN=LOW:HIGH", answers.parse_range)


def test_other_words_and_sizes_are_refused():
    with pytest.raises(click.UsageError, match="takes bounds, categories"):
        answers.parse_public("all")
    for sizes in (("0",), ("a=1", "2"), ("x",)):
        with pytest.raises(click.UsageError, match="--size must be"):
            answers.parse_sizes(sizes)
    for text in ("a,,b", "a,a"):
        with pytest.raises(ValueError, match=text):
            answers.parse_list(text)

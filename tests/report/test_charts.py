from __future__ import annotations

import math
import re

import pytest

from dpfed.report.charts import LINE, draw_by_round
from pages import Document


def marks(drawing: str) -> int:
    """How many points have a marker: ticks are of another colour."""
    return len(re.findall(f"<use [^>]*{LINE}", drawing))


@pytest.mark.parametrize(
    ("points", "rounds", "target"),
    [
        ([(1, 0.5)], 1, 4.0),
        ([(1, 0.5), (2, math.inf)], 2, 4.0),
        ([], 5, None),
        ([(number, 1.0) for number in range(1, 201)], 200, math.inf),
        ([(1, 1e-9), (2, 1e-8)], 2, 1e-7),
        ([(1, 1e9)], 3, 1e-3),
    ],
)
def test_any_values_are_drawn_without_words_of_a_user(points, rounds, target):
    drawing = Document(draw_by_round(points, rounds, target))
    assert drawing.tags[0] == "svg"
    assert not set(drawing.tags) & {"script", "style", "image", "a"}
    assert ("target" in drawing.text) == (target is not None and math.isfinite(target))


def test_what_is_not_finite_is_left_out_and_few_points_have_markers():
    few = draw_by_round([(1, 0.5), (2, math.nan), (3, 0.7)], rounds=3)
    many = draw_by_round([(number, 0.5) for number in range(1, 100)], rounds=99)
    assert marks(few) == 2
    assert marks(many) == 0


def test_two_drawings_in_a_page_do_not_share_the_names_of_their_parts():
    first, second = draw_by_round([(1, 0.5)], 3, target=1.0), draw_by_round([(1, 0.6)], 3)
    groups = [Document(drawing).attributes for drawing in (first, second)]
    names = [{value for name, value in each if name == "id" and not value.startswith(("m", "p"))} for each in groups]
    assert names == [set(), set()]


def test_the_same_values_give_the_same_drawing():
    assert draw_by_round([(1, 0.5), (2, 0.6)], 2, 1.0) == draw_by_round([(1, 0.5), (2, 0.6)], 2, 1.0)

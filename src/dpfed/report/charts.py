"""Small line charts as SVG inside a page: they can be printed, need no script, and take the page's colour.

No text of a user is ever drawn: names are in the page, where they are escaped.

>>> drawing = draw_by_round([(1, 0.5), (2, 0.7)], rounds=4, target=1.0)
>>> drawing.startswith("<svg"), "script" in drawing
(True, False)
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (5.0, 2.7)  # inches
FONT = 'font-family="system-ui, sans-serif"'
INK = "#1c2430"  # becomes the page's own colour
LINE = "#1f5f8b"
TARGET = "#b3261e"
MOST_MARKERS = 40
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpfed",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
# Parts that the page has already, or that two drawings would have twice.
SURPLUS = re.compile(
    r'<style.*?</style>|<metadata.*?</metadata>|(?<=<g) id="[^"]*"| font-family: [^;"]*;?',
    re.DOTALL,
)


def draw_by_round(points: Iterable[tuple[int, float]], rounds: int, target: float | None = None) -> str:
    """Draw values over the rounds of a plan; with a target, a dashed line shows it and the axis starts at 0."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        _draw_values(axes, [point for point in points if math.isfinite(point[1])])
        _draw_axes(axes, rounds)
        if target is not None and math.isfinite(target):
            _draw_target(axes, target)
        return _write_svg(figure)


def _draw_values(axes: Axes, points: list[tuple[int, float]]) -> None:
    marker = "o" if len(points) <= MOST_MARKERS else ""
    axes.plot([x for x, _ in points], [y for _, y in points], color=LINE, marker=marker, markersize=3.5, linewidth=1.5)


def _draw_target(axes: Axes, target: float) -> None:
    axes.axhline(target, color=TARGET, linestyle="--", linewidth=1.2)
    axes.set_ylim(0, 1.12 * max(target, axes.get_ylim()[1] / 1.05))
    axes.annotate(
        f"target {target:.4g}",
        (1, target),
        xycoords=("axes fraction", "data"),
        xytext=(-3, 3),
        textcoords="offset points",
        horizontalalignment="right",
        verticalalignment="bottom",
        color=TARGET,
    )


def _draw_axes(axes: Axes, rounds: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0.5, rounds + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    axes.margins(y=0.15)
    axes.set_xlabel("round")
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _write_svg(figure: Figure) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", transparent=True, metadata=NO_METADATA)
    text = stream.getvalue().decode()
    drawing = SURPLUS.sub("", text[text.index("<svg") :]).replace(INK, "currentColor")
    return re.sub(r"\s*\n\s*", " ", drawing.replace("<svg", f"<svg {FONT}", 1)).strip()

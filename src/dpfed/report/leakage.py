"""Pictures of what leaks: ROC curves of attacks, and ε against accuracy and leakage.

>>> draw_roc([("loss threshold", [0.0, 0.1, 1.0], [0.0, 0.4, 1.0])]).startswith("<?xml")
True
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpfed.report.charts import NO_METADATA, SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST = 1e-3
COLOURS = ("#1f5f8b", "#b3261e", "#2e7d32", "#8e5a00", "#5e35b1", "#00838f", "#6d4c41")
Value = float | None  # None of what failed
Point = tuple[str, Value, Value, Value]  # a label, the score, the AUC, hits at 1 % false alarms


def draw_roc(curves: Sequence[tuple[str, Sequence[float], Sequence[float]]]) -> str:
    """Draw false alarms against hits of each attack, both on logarithmic axes, where few false alarms are seen."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(5.0, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.plot([LEAST, 1], [LEAST, 1], color="#999999", linestyle="--", linewidth=1, label="guessing")
        for (name, alarms, hits), colour in zip(curves, COLOURS, strict=False):
            axes.step(alarms, hits, where="post", color=colour, linewidth=1.4, label=name)
        axes.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1))
        axes.set(xlabel="false alarms", ylabel="members found")
        axes.legend(fontsize=7, loc="lower right")
        return _write(figure)


def draw_sweep(points: Sequence[Point], metric: str) -> str:
    """Draw the score, the strongest attack's AUC and its hits, side by side for each setting; one dot for each run.

    A setting of which a figure failed in every run says so in its place.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(point[0] for point in points))
    titles = (metric, "strongest attack: AUC", "members found at 1 % false alarms")
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(8.0, 0.9 + 0.42 * max(len(labels), 2)), layout="constrained")
        for column, (axes, title) in enumerate(zip(figure.subplots(1, 3, sharey=True), titles, strict=True), start=1):
            _scatter(axes, labels, [(point[0], point[1:][column - 1]) for point in points])
            axes.set_title(title, fontsize=9)
            axes.set_yticks(range(len(labels)), labels)
            axes.set_ylim(max(len(labels), 1) - 0.5, -0.5)
            if column == 3:
                axes.set_xlim(0, 1.1 * max([0.02, *(point[3] or 0.0 for point in points)]))
            if column > 1:  # what guessing comes to
                axes.axvline((0.5, 0.01)[column - 2], color="#999999", linestyle="--", linewidth=1)
        return _write(figure)


def _scatter(axes: Axes, labels: Sequence[str], values: Sequence[tuple[str, Value]]) -> None:
    """Draw a dot for each number in its label's row; write "failed" into rows that have none."""
    known = [(number, labels.index(label)) for label, number in values if number is not None]
    axes.scatter([each[0] for each in known], [each[1] for each in known], c=COLOURS[0], clip_on=False)
    for row in sorted(set(range(len(labels))) - {each[1] for each in known}):
        axes.text(0.5, row, "failed", transform=axes.get_yaxis_transform(), ha="center", va="center", fontsize=8)


def draw_inversions(rows: Sequence[tuple[str, Sequence[Sequence[Sequence[float]]]]]) -> str:
    """Draw pictures in labelled rows, one below the other: records, and what was read from their gradients."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = max(len(pictures) for _, pictures in rows)
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(1.6 + 0.8 * columns, 0.85 * len(rows)), layout="constrained")
        for line, (label, pictures) in zip(figure.subplots(len(rows), columns, squeeze=False), rows, strict=True):
            for axes, picture in zip(line, pictures, strict=False):
                axes.imshow(picture, cmap="gray_r")
                axes.set(xticks=[], yticks=[])
            line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=9)
        return _write(figure)


def _write(figure: Figure) -> str:
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata=NO_METADATA)
    return drawn.getvalue()

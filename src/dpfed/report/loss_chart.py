"""The distribution of a run's privacy loss as a picture: what lies beyond ε is what δ is for.

>>> import numpy as np
>>> from dpfed.accounting.loss_distribution import LossDistribution
>>> coin = LossDistribution(np.array([-1.0, 1.0]), np.array([0.27, 0.73]), 0.0)
>>> draw_losses([coin], 1.0, 1e-5, "svg").startswith(b"<?xml")
True
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpfed.accounting.loss_distribution import LossDistribution
from dpfed.arrays import Floats
from dpfed.report.charts import INK, LINE, SETTINGS, TARGET
from dpfed.rounding import decimal_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (6.4, 3.6)  # inches
BARS, FEW = 400, 60  # of a density; a few losses are drawn as they are
SMALLEST = 1e-6  # the share of the mass that may lie outside of the picture at each end
Style = Literal["-", "--"]
DIRECTIONS: tuple[tuple[str, str, Style], ...] = (
    ("the unit is removed", LINE, "-"),
    ("the unit is added", "#7a7f87", "--"),
)
FORMATS = ("png", "svg", "pdf")


def draw_losses(directions: Sequence[LossDistribution], epsilon: float, delta: float, kind: str) -> bytes:
    """Draw the distribution of the loss in each direction, with ε, as a file of that format."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        low, high = _find_range(directions, epsilon)
        is_few = max(len(loss.losses) for loss in directions) <= FEW
        for loss, (name, colour, style) in zip(directions, DIRECTIONS, strict=False):
            (_draw_atoms if is_few else _draw_density)(axes, loss, (low, high), colour, style, name)
        _draw_epsilon(axes, epsilon, delta)
        _draw_axes(axes, low, high, "probability" if is_few else "density")
        if len(directions) > 1:
            axes.legend(frameon=False, loc="upper left")
        stream = io.BytesIO()
        figure.savefig(stream, format=kind, dpi=150)
        return stream.getvalue()


def _draw_density(
    axes: Axes, loss: LossDistribution, ends: tuple[float, float], colour: str, style: Style, name: str
) -> None:
    edges = _make_edges(np.asarray(loss.losses, dtype=np.float64), ends)
    masses, _ = np.histogram(loss.losses, edges, weights=loss.masses)
    axes.plot((edges[1:] + edges[:-1]) / 2, masses / np.diff(edges), colour, ls=style, linewidth=1.4, label=name)


def _make_edges(losses: Floats, ends: tuple[float, float]) -> Floats:
    """Return the edges of bars that hold equally many points of the lattice each, or the density would be a saw."""
    if len(losses) < 2:
        return np.linspace(*ends, BARS + 1)
    step = (losses[-1] - losses[0]) / (len(losses) - 1)
    width = step * np.ceil((ends[1] - ends[0]) / (BARS * step))
    return np.arange(losses[0] - step / 2, losses[-1] + width, width)


def _draw_atoms(
    axes: Axes, loss: LossDistribution, ends: tuple[float, float], colour: str, style: Style, name: str
) -> None:
    inside = (loss.losses >= ends[0]) & (loss.losses <= ends[1])
    axes.vlines(loss.losses[inside], 0, loss.masses[inside], colour, linestyles=style, linewidth=3, label=name)


def _find_range(directions: Sequence[LossDistribution], epsilon: float) -> tuple[float, float]:
    """Return the losses between which nearly all of the mass lies, with ε and 0 among them."""
    ends = [np.interp([SMALLEST, 1 - SMALLEST], np.cumsum(loss.masses), loss.losses) for loss in directions]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    low, high = min(low, 0.0), max(high, epsilon, 0.0)
    margin = 0.08 * max(high - low, 1e-9)
    return float(low - margin), float(high + margin)


def _draw_epsilon(axes: Axes, epsilon: float, delta: float) -> None:
    axes.axvline(epsilon, color=TARGET, linewidth=1.2)
    axes.annotate(
        f"ε = {decimal_up(epsilon)}\nat δ = {delta:g}",
        (epsilon, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-4, -4),
        textcoords="offset points",
        horizontalalignment="right",
        verticalalignment="top",
        color=TARGET,
    )


def _draw_axes(axes: Axes, low: float, high: float, what: str) -> None:
    axes.set_xlim(low, high)
    axes.set_ylim(bottom=0)
    axes.axvline(0, color=INK, alpha=0.25, linewidth=0.8)
    axes.set_xlabel("privacy loss of the whole run")
    axes.set_ylabel(what)
    axes.spines[["top", "right"]].set_visible(False)

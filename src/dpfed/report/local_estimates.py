"""A picture of estimated frequencies with their intervals; a value below zero is drawn below zero.

>>> from pathlib import Path
>>> draw_estimates(Path("wards.svg"), ["a", "b"], [0.7, 0.3], [0.6, 0.2], [0.8, 0.4], "share of persons")
>>> Path("wards.svg").read_text().startswith("<?xml")
True
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpfed.errors import InvalidArgument
from dpfed.report.charts import INK, LINE, SETTINGS

FORMATS = (".png", ".svg", ".pdf")
MOST = 40  # values in one picture
LONGEST = 28  # letters of a name


def draw_estimates(
    path: Path,
    names: Sequence[str],
    estimates: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    title: str,
) -> None:
    """Draw a dot for each value, with its interval, and write the picture to the path."""
    require_drawing(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    count = min(len(names), MOST)
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(6.4, 1.3 + 0.26 * count), layout="constrained", dpi=150)
        axes = figure.subplots()
        places = list(range(count))
        axes.hlines(places, low[:count], high[:count], color=LINE, linewidth=2.2, alpha=0.45)
        axes.plot(estimates[:count], places, "o", color=LINE, markersize=5)
        axes.axvline(0.0, color=INK, linewidth=0.8)
        axes.set_yticks(places, [_shorten(name) for name in names[:count]])
        axes.set_ylim(count - 0.4, -0.6)
        axes.set_xlabel(title)
        axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        figure.savefig(path)


def require_drawing(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before anything is computed."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidArgument("plot", f"plot must be a file that ends in {', '.join(FORMATS)}, got {path.name}")
    try:
        import matplotlib as mpl
    except ImportError:
        raise InvalidArgument("plot", "drawing needs matplotlib: pip install dpfed[plots], or leave it out") from None
    del mpl


def _shorten(name: str) -> str:
    # A dollar sign would begin a formula.
    text = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return "".join(letter if letter.isprintable() else "�" for letter in text).replace("$", r"\$")

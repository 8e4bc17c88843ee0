"""Draw the rooms of dpfed from what they import: python docs/dev/draw_map.py writes map.svg beside this file.

A box is a package of src/dpfed with the rooms inside it; an arrow goes from a room to one it imports, and is left out
where a longer way of arrows says the same. Every room stands above all that it imports.
"""

from __future__ import annotations

import ast
from functools import cache
from html import escape
from itertools import chain
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "dpfed"
TARGET = Path(__file__).with_name("map.svg")
VALUES = "values"  # one box for all modules that are flat at the top
WIDTH, HEIGHT, GAP, ROW, LINE = 264, 54, 40, 112, 15

SUBJECTS = {
    "cli": "a file is a command",
    "report": "what may be shared, what stays",
    "integrations": "scikit-learn, Opacus, trackers",
    "analytics": "histograms, quantiles, means of columns",
    "audit": "attacks, canaries, lower bounds on ε",
    "federated": "rounds, clients, runs that resume",
    "training": "DP-SGD for torch models",
    "pate": "teachers vote, a student learns",
    "models": "reference networks",
    "config": "the YAML file of a run",
    "runs": "the files of a run",
    "ledger": "budgets that cannot be overspent",
    "manager": "DP for any loop over arrays",
    "plan": "the frozen run and its cost",
    "data": "tables, images, partitions",
    "aggregation": "from updates to their mean",
    "mechanisms": "noise, selection, sensitivity",
    "ldp": "each user noises its own value",
    "accounting": "from events to ε and δ",
    VALUES: "events, guarantee, errors, …",
}


def room_of(dotted: list[str]) -> str:
    """Return the package of a module's path below dpfed, or the box of the flat modules."""
    return dotted[0] if (SOURCE / dotted[0]).is_dir() else VALUES


def imported(tree: ast.AST) -> set[str]:
    """Return the rooms that a module imports from."""
    nodes = list(ast.walk(tree))
    names = [f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names]
    names += [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    return {room_of(name.split(".")[1:]) for name in names if name.startswith("dpfed.")}


@cache
def graph() -> dict[str, frozenset[str]]:
    """Return which rooms each room imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(set(SOURCE.rglob("*.py")) - {SOURCE / "__init__.py", SOURCE / "__main__.py"}):
        room = room_of(list(path.relative_to(SOURCE).with_suffix("").parts))
        found.setdefault(room, set()).update(imported(ast.parse(path.read_text(encoding="utf-8"))) - {room})
    return {room: frozenset(others) for room, others in found.items()}


def below(room: str) -> frozenset[str]:
    """Return all rooms that a room reaches by arrows."""
    return frozenset(chain(graph()[room], *(below(other) for other in graph()[room])))


@cache
def rank(room: str) -> int:
    """Return how many rooms stand one above the other below this one."""
    return max((rank(other) + 1 for other in graph()[room]), default=0)


def arrows() -> list[tuple[str, str]]:
    """Return the imports that no longer way of imports implies."""
    return sorted(
        (room, other)
        for room, others in graph().items()
        for other in others
        if not any(other in below(between) for between in others)
    )


def places() -> dict[str, tuple[int, int]]:
    """Return the top left corner of every box."""
    rows: dict[int, list[str]] = {}
    for room in sorted(graph()):
        rows.setdefault(rank(room), []).append(room)
    widest, top = max(map(len, rows.values())), max(rows)
    return {
        room: (GAP + column * (WIDTH + GAP) + (widest - len(row)) * (WIDTH + GAP) // 2, GAP + (top - number) * ROW)
        for number, row in rows.items()
        for column, room in enumerate(row)
    }


def inner_rooms(room: str) -> list[str]:
    """Return the packages inside a package."""
    folder = SOURCE / room
    return sorted(path.parent.name for path in folder.glob("*/__init__.py"))


def box(room: str, x: int, y: int) -> str:
    """Return one room as SVG: its name, its subject and the rooms inside."""
    inside = "  ".join(f"{name}/" for name in inner_rooms(room))
    height = HEIGHT + (LINE if inside else 0)
    lines = [
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{height}" rx="6" class="room"/>',
        f'<text x="{x + 10}" y="{y + 21}" class="name">{escape(room)}</text>',
        f'<text x="{x + 10}" y="{y + 40}" class="subject">{escape(SUBJECTS[room])}</text>',
    ]
    if inside:
        lines.append(f'<text x="{x + 10}" y="{y + 40 + LINE}" class="inside">{escape(inside)}</text>')
    return "\n".join(lines)


def arrow(start: tuple[int, int], end: tuple[int, int], tall: bool) -> str:
    """Return one import as a curve from the bottom of a box to the top of another."""
    x, y = start[0] + WIDTH // 2, start[1] + HEIGHT + (LINE if tall else 0)
    to_x, to_y = end[0] + WIDTH // 2, end[1]
    middle = (y + to_y) // 2
    return f'<path d="M{x} {y} C{x} {middle} {to_x} {middle} {to_x} {to_y - 4}" class="arrow" marker-end="url(#tip)"/>'


STYLE = """
.room { fill: #ffffff; stroke: #33526e; stroke-width: 1.5 }
.name { font: bold 15px sans-serif; fill: #1d2f40 }
.subject { font: 12px sans-serif; fill: #3c4a57 }
.inside { font: 11px monospace; fill: #5b6b79 }
.arrow { fill: none; stroke: #8fa3b5; stroke-width: 1.4 }
"""
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z" fill="#8fa3b5"/></marker></defs>'
)


def draw() -> str:
    """Return the whole map as SVG."""
    at = places()
    width = max(x for x, _ in at.values()) + WIDTH + GAP
    height = max(y for _, y in at.values()) + HEIGHT + LINE + GAP
    drawn = [arrow(at[room], at[other], bool(inner_rooms(room))) for room, other in arrows()]
    drawn += [box(room, *corner) for room, corner in at.items()]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    ground = f'<rect width="{width}" height="{height}" fill="#f6f8fa"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", TIP, ground, *drawn, "</svg>", ""])


if __name__ == "__main__":
    TARGET.write_text(draw(), encoding="utf-8")

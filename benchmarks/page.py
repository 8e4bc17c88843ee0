"""The documentation page of figures, made from results/*.json and from nothing else.

python benchmarks/page.py        # rewrites docs/benchmarks.md; `make bench` does it too
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import HERE, cells

RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
INTRODUCTION = """\
<!-- Made by benchmarks/page.py from benchmarks/results/*.json; do not edit. -->
# Benchmarks

Measured by `make bench`: one process per contestant, on one core with one thread, asked in turn, the fastest
of several repeats. Every call has slightly different parameters, so that no cache answers. Peers run with
their default settings. "peer/ours" of at least the goal means that the row holds; a goal that is missed stays
in the table, and a peer that could not be run is "not measured".
"""


def render(results: Path = RESULTS) -> str:
    """The whole page as Markdown."""
    found = [json.loads(file.read_text()) for file in sorted(results.glob("*.json"))]
    sections = [section(result) for result in found if "rows" in result]  # accuracy.json has a page of its own
    return "\n".join([INTRODUCTION, *sections])


def section(result: dict[str, Any]) -> str:
    """One benchmark: the machine, and a table of its rows."""
    machine = result["machine"]
    lines = [
        f"## {result['benchmark'].replace('_', ' ').capitalize()}\n",
        f"On {machine['cpu']} ({machine['system']}), Python {machine['python']}.\n",
        "| | ours | peer | peer/ours | goal | holds |",
        "|---|---:|---:|---:|---:|---|",
        *(f"| {' | '.join(cells(row))} |" for row in result["rows"]),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())

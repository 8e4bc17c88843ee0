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
# What is known of rows of a benchmark that miss their goals, in CPU time by part of a step.
LIMITS = {
    "whole_step": """\
Rows of the logistic model, MLP, CNN, ResNet at batch 256, the five models that users write (TextCNN to
TransformerEncoder), LSTM language model, ViT, ResNet18, the residual Embedding of 20,000×128, MobileNetV2, TCN and
graph attention were measured with the present code, at a load of 1 to 3; the others are older. ResNet18 took
1.52 and 1.57 times plain SGD's step in two runs, and 5.1 in a third, in which others worked; 1.28 in an earlier one.
What limits the rows that miss their goals, by CPU time on one thread:

* residual after an Embedding: noise on 0.67 million numbers (3 ns each, near the price of the cipher, a logarithm, a
  root, a sine and a cosine) takes half of plain SGD's whole step, and forward, backward and per-example gradients,
  whose products run as fast as one large product, another 1.25;
* bidirectional LSTM: forward and backward by steps that the engine can see take 1.3 of plain SGD's step, whose fused
  kernel does both at once, gradients of single examples 0.5 and noise 0.2;
* MLP 784-256-10: noise on 0.2 million numbers takes 0.8 of plain SGD's step at batch 32;
* CNN 28×28 and GroupNorm ResNet 32×32 at batch 256: gradients of single examples that are written out take 0.36 and
  0.48 of plain SGD's step, where plain SGD's own weight gradients are a part of its backward pass.
""",
}


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
        *([f"\n{LIMITS[result['benchmark']].rstrip()}"] if result["benchmark"] in LIMITS else []),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())

"""Runs every benchmark and writes results/*.json and the documentation page made from them (`make bench`).

python benchmarks/run.py [--quick] [--no-peers] [NAME ...]
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import bench
import page
import venvs

BENCHMARKS = (
    "accounting",
    "aggregation",
    "ensemble",
    "federation",
    "flower",
    "ledger",
    "local",
    "shuffle",
    "startup",
    "throughput",
    "training",
    "whole_step",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the peers' venvs, run, write, and print the tables; a missed goal is shown, not hidden."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all without one")
    parser.add_argument("--quick", action="store_true", help="each benchmark within a minute; nothing is written")
    parser.add_argument("--no-peers", action="store_true", help="build no venvs for peers")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; known are {', '.join(BENCHMARKS)}")
    if not options.no_peers:
        for requirements in sorted(venvs.PEERS.glob("*.txt")):
            venvs.build(requirements)
    for name in options.names or BENCHMARKS:
        result = measured(name, options.quick)
        print(f"{name}\n{bench.table(result['rows'])}\n")
        if not options.quick:
            (page.RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if not options.quick:
        page.PAGE.write_text(page.render())
    return 0


def measured(name: str, quick: bool) -> dict[str, Any]:
    """One benchmark's rows with the machine they were measured on."""
    rows = importlib.import_module(name).rows(quick)
    return {"benchmark": name, "machine": bench.machine(), "rows": [asdict(row) for row in rows]}


if __name__ == "__main__":
    sys.exit(main())

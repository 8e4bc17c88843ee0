"""The table of specimens in README.md; ``python -m zoo.listing`` in tests/ writes it anew."""

from __future__ import annotations

from pathlib import Path

from zoo.specimens import SPECIMENS

PAGE = Path(__file__).parent / "README.md"


def page() -> str:
    """The page as it should be."""
    rows = [
        f"| {specimen.name} | {' · '.join(sorted(specimen.operations))} | {specimen.layout} | {specimen.outcome} |"
        for specimen in SPECIMENS
    ]
    return _TOP.format(count=len(SPECIMENS)) + "\n".join(rows) + "\n"


_TOP = """# The zoo

{count} small models, no two alike in both the operations they use and where they lay their examples. `test_zoo.py`
trains each one through `dpfed.make_private` on eight records, one of which is unlike the others, and removes records:

- **trains**: removing any record moves the sum of a step by at most one clip norm, and the sum is that of a loop which
  gives the model one record at a time and clips its gradient;
- **refused**: `make_private`, or its first step, refuses the model before anything is charged, whatever is drawn;
- **trains or refused**: either of the two. These do something along the batch axis or behind torch's back: the way
  that is wrong without a word is the only one that is closed.

Specimens that draw random numbers cannot be compared run by run: what one record adds is bounded, and what they draw
must not follow a public seed.

This page is written by `python -m zoo.listing` in `tests/`; a test compares.

| specimen | operations | layout of the examples | what may come of it |
|---|---|---|---|
"""

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

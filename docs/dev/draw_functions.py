"""Draw functions for fresh eyes: python docs/dev/draw_functions.py SEED prints twenty, without their bodies.

Whoever has not seen the code says from module, name, signature and first line alone what each does. The answers and
what became of them are in fresh-eyes.md.
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "dpfed"


def functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield every function and method with its name, those with two underscores left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{inside}{node.name}.")
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            yield f"{inside}{node.name}", node


def described(path: Path, name: str, node: ast.FunctionDef) -> str:
    """Return what may be seen of a function: where it is, its signature and its first line."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    first = (ast.get_docstring(node) or "(no docstring)").splitlines()[0]
    return f"{path.relative_to(SOURCE)}: {name}({ast.unparse(node.args)}){returns}\n    {first}"


def draw(seed: int, count: int = 20) -> list[str]:
    """Return so many functions of the code as it is, by that seed."""
    found = [
        described(path, name, node)
        for path in sorted(SOURCE.rglob("*.py"))
        for name, node in functions(ast.parse(path.read_text(encoding="utf-8")))
    ]
    return random.Random(seed).sample(found, count)  # noqa: S311 - no secret


if __name__ == "__main__":
    print("\n".join(f"{number}. {text}" for number, text in enumerate(draw(int(sys.argv[1])), 1)))

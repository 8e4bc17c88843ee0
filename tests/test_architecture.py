"""Imports go down only, and nothing heavy is loaded before it is needed.

The layers are those of the design: what a module may import, of dpfed and of third parties, is decided by the
line that names it (or its package) below. A new module is added here on purpose, not by accident.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import version
from pathlib import Path

import pytest

import dpfed

SRC = Path(dpfed.__file__).parents[1]

# The longest name that fits decides: audit.bounds is L1 although audit is L3.
LAYERS: dict[int, tuple[str, ...]] = {
    0: ("errors", "checks", "rounding", "randomness", "guarantee", "events", "references", "names"),
    1: (
        *("arrays", "clipping", "prepaid", "mechanisms", "accounting", "aggregation", "data", "ldp", "analytics"),
        *("audit.bounds", "audit.guessing", "audit.ldp", "audit.proportions"),
    ),
    2: (
        *("plan", "runs", "config", "ledger", "manager", "ldp.files", "ldp.kept_place", "ldp.collecting"),
        "analytics.sites",
    ),
    3: ("training", "models", "pate", "federated", "audit"),
    4: ("report", "integrations", "pate.classifier", "pate.study", "audit.students", "audit.sweep"),
    5: ("cli", "__main__"),
}
LAYER = {name: layer for layer, names in LAYERS.items() for name in names}

ARRAYS = {"numpy", "scipy"}
STORES = {"yaml", "pydantic", "sqlalchemy", "alembic"}
TRAINS = {"torch", "sklearn", "safetensors"}
THIRD_PARTIES = {
    0: {"numpy"},
    1: ARRAYS,
    2: ARRAYS | STORES,
    3: ARRAYS | STORES | TRAINS,
    4: ARRAYS | STORES | {"jinja2", "matplotlib", "rich", "sklearn", "torch"},
    5: {"click", "rich", "numpy", "yaml"},
}
# A third party that one module alone may import: it comes with an extra.
OWN_THIRD_PARTIES = {
    "integrations.flower_accountant": {"flwr"},
    "integrations.flower_app": {"flwr"},
    "integrations.flower_records": {"flwr"},
    "integrations.flower_strategy": {"flwr"},
    "integrations.flower": {"flwr", "cryptography"},
    "integrations.flower_files": {"cryptography"},
    "integrations.flower_messages": {"flwr"},
    "integrations.flower_node": {"flwr", "cryptography", "httpx"},
    "integrations.mlflow": {"mlflow"},
    "runs.tensor_files": {"safetensors"},
}
# The same, and only inside a function.
LAZY_THIRD_PARTIES = {
    "randomness": {"cryptography"},
    "data.images": {"PIL"},
    "federated.keys": {"cryptography"},
    "federated.sent": {"cryptography"},
    "data.parquet": {"pyarrow"},
    "data.sources": {"sklearn"},
    "ledger.store.connecting": {"psycopg"},
}

HEAVY = ("scipy", "torch", "sqlalchemy", "sklearn")


@cache
def modules() -> dict[str, ast.Module]:
    paths = sorted((SRC / "dpfed").rglob("*.py"))
    return {module_name(path): ast.parse(path.read_text(encoding="utf-8"), str(path)) for path in paths}


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_package(name: str) -> bool:
    return (SRC / Path(*name.split(".")) / "__init__.py").exists()


def layer_of(name: str) -> int | None:
    parts = name.removeprefix("dpfed.").split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((LAYER[prefix] for prefix in prefixes if prefix in LAYER), None)


def imported_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import_time(tree: ast.Module) -> ast.Module:
    """What runs when the module is imported: no function bodies and no TYPE_CHECKING blocks."""
    body = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return ast.Module([node for node in body if "TYPE_CHECKING" not in ast.dump(node)], [])


def own_modules(names: Iterator[str]) -> set[str]:
    """The modules of dpfed behind imported names: ``dpfed.checks.ADD_REMOVE`` comes from ``dpfed.checks``."""
    found = set()
    for name in names:
        if name.split(".")[0] == "dpfed":
            found.add(name if name in modules() else name.rpartition(".")[0])
    return found


def third_parties(names: Iterator[str]) -> set[str]:
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"dpfed", "__future__"}


def inner_modules() -> list[str]:
    return [name for name in modules() if name != "dpfed"]


@pytest.mark.parametrize("name", inner_modules())
def test_every_module_has_a_layer(name):
    assert layer_of(name) is not None, (
        f"{name} has no layer: add {name.removeprefix('dpfed.')!r} to LAYERS in {Path(__file__).name}, "
        "in the lowest layer that holds all it imports"
    )


@pytest.mark.parametrize("name", inner_modules())
def test_imports_go_down_only(name):
    layer = layer_of(name)
    above = {other for other in own_modules(imported_names(modules()[name])) if (layer_of(other) or 0) > layer}
    assert not above, f"{name} is in layer {layer} and imports {sorted(above)} from above"


@pytest.mark.parametrize("name", inner_modules())
def test_a_module_imports_modules_and_not_the_front_door(name):
    """``from dpfed import GaussianMechanism`` would hide the real dependency behind the lazy root."""
    names = {n for n in imported_names(modules()[name]) if n.split(".")[0] == "dpfed" and n != "dpfed.__version__"}
    through_the_door = {n for n in names if n == "dpfed" or (n.count(".") == 1 and n not in modules())}
    assert not through_the_door


@pytest.mark.parametrize("name", inner_modules())
def test_third_parties_are_those_of_the_layer(name):
    lazy = LAZY_THIRD_PARTIES.get(name.removeprefix("dpfed."), set())
    own = OWN_THIRD_PARTIES.get(name.removeprefix("dpfed."), set())
    allowed = THIRD_PARTIES.get(layer_of(name), set()) | lazy | own
    tree = modules()[name]
    assert third_parties(imported_names(tree)) <= allowed
    assert not third_parties(imported_names(at_import_time(tree))) & lazy, f"{sorted(lazy)} only inside a function"


def test_no_module_imports_itself_in_a_circle():
    graph = {name: own_modules(imported_names(at_import_time(tree))) - {name} for name, tree in modules().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


@pytest.mark.parametrize("name", [name for name in modules() if is_package(name)])
def test_a_package_init_is_empty_or_lazy(name):
    imports = set(imported_names(at_import_time(modules()[name])))
    assert own_modules(iter(imports)) <= {"dpfed.names"}, (
        f"{name}/__init__.py imports {sorted(imports)}: load names when first used"
    )
    assert not third_parties(iter(imports))


@pytest.mark.parametrize("name", [name for name in modules() if f"{name}.".startswith("dpfed.cli.")])
def test_commands_import_inside_their_bodies(name):
    names = set(imported_names(at_import_time(modules()[name])))
    assert third_parties(iter(names)) <= {"click"}
    assert all(
        other.startswith(("dpfed.cli", "dpfed.errors")) or other == "dpfed" for other in own_modules(iter(names))
    )


def caching(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield each mention of a function that makes caches."""
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name in {"cache", "lru_cache"}:
            yield node


@pytest.mark.parametrize("name", [name for name, tree in modules().items() if any(caching(tree))])
def test_a_cache_is_a_function_of_its_module_where_the_tests_find_and_empty_it(name):
    tree = modules()[name]
    decorators = [each for node in tree.body if isinstance(node, ast.FunctionDef) for each in node.decorator_list]
    decorating = [node for decorator in decorators for node in caching(decorator)]
    assert list(caching(tree)) == decorating, f"tests/conftest.py empties decorated functions of {name}, nothing else"


def loaded_by(code: str) -> set[str]:
    """The top-level packages in ``sys.modules`` of a new interpreter after the code ran."""
    script = f"{code}\nimport sys; print('\\n' + ' '.join({{name.split('.')[0] for name in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split())


def cli(*arguments: str) -> str:
    call = f"main({list(arguments)!r})"
    return f"from dpfed.cli.main import main\ntry: {call}\nexcept SystemExit as end: assert not end.code"


def test_import_dpfed_loads_nothing_heavy():
    assert not loaded_by("import dpfed; dir(dpfed)") & set(HEAVY)


def test_values_load_nothing_heavy():
    assert not loaded_by("from dpfed import errors, events, guarantee, randomness, checks") & set(HEAVY)


def test_help_loads_nothing_heavy():
    assert not loaded_by(cli("--help")) & set(HEAVY)
    assert not loaded_by(cli("epsilon", "--help")) & set(HEAVY)
    assert not loaded_by(cli("check", "model", "--help")) & set(HEAVY)


def test_epsilon_on_the_command_line_loads_no_torch_and_no_sqlalchemy():
    run = cli("epsilon", "--noise-multiplier", "1", "--sample-rate", "0.01", "--steps", "100", "--delta", "1e-5")
    assert not loaded_by(run) & {"torch", "sqlalchemy", "sklearn"}


def test_the_version_is_one():
    shown = subprocess.run([sys.executable, "-m", "dpfed", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.split()[-1] == dpfed.__version__ == version("dpfed")


@pytest.mark.parametrize("name", [name for name in modules() if is_package(name)])
def test_no_lazy_name_is_also_the_name_of_a_module(name):
    """Once such a module is imported, ``from package import name`` gives the module instead of the thing."""
    package = importlib.import_module(name)
    lazy = set(getattr(package, "_HOME", ()))
    assert not {lazy_name for lazy_name in lazy if f"{name}.{lazy_name}" in modules()}


@pytest.mark.parametrize("name", [name for name in dpfed.__all__ if name != "__version__"])
def test_every_name_at_the_front_door_opens(name):
    assert getattr(dpfed, name) is not None

"""cli, config, data, report, integrations, models: files named for what they are, plain help, each thing one home."""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import dpfed
from dpfed.cli.main import main
from dpfed.cli.sections import OTHER, Option
from dpfed.config import reading
from dpfed.config.fields import Block, blocks_in, describe
from dpfed.config.run import RunConfig
from dpfed.config.strangers import COMMON, DECISIVE

SRC = Path(dpfed.__file__).parent
ROOMS = ("cli", "config", "data", "report", "integrations", "models")
TREES = {path.relative_to(SRC).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in SRC.rglob("*.py")}
# A file of cli is a command, but for these, which several commands share.
SHARED = {
    "faults": "unexpected errors in one line",
    "init_answers": "what the options and answers of `init` mean",
    "init_questions": "the questions of `init` on a terminal",
    "init_report": "what `init` says of a table",
    "ledger_access": "options and files of the commands of a ledger",
    "ledger_tables": "tables of the commands of a ledger",
    "live": "the display of a run in progress",
    "options": "options of several commands",
    "process": "garbage collection and Ctrl-C",
    "progress": "bars of what takes longer than two seconds",
    "remote": "runs that are on a network",
    "run_directories": "finding the directory of a run",
    "sections": "help pages in sections",
    "show": "printing prose, tables and JSON",
    "tracking": "the tracker of a run",
}
# A docstring that begins so describes a value and not an act.
NOUNS = {
    "The",
    "A",
    "An",
    "What",
    "Where",
    "Whether",
    "How",
    "Who",
    "Why",
    "Which",
    "That",
    "This",
    "Nothing",
    "Everything",
}


def commands(group: click.Group = main) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in commands(command))
        else:
            yield name, command


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if file.split("/")[0] in ROOMS and isinstance(node, ast.FunctionDef):
                yield f"{file}:{node.name}", node


def is_property(node: ast.FunctionDef) -> bool:
    return any(getattr(each, "id", "") in {"property", "cached_property"} for each in node.decorator_list)


def test_a_file_of_cli_is_a_command_or_named_here():
    for path in (SRC / "cli").glob("*.py"):
        module = importlib.import_module(f"dpfed.cli.{path.stem}")
        own = [each for each in vars(module).values() if isinstance(each, click.Command)]
        assert path.stem == "__init__" or bool(own) != (path.stem in SHARED), path.stem


@pytest.mark.parametrize(("name", "command"), [*commands()], ids=[name for name, _ in commands()])
def test_the_help_of_a_command_begins_with_a_verb_and_says_what_every_option_does(name, command):
    first = command.help.splitlines()[0]
    assert first.split()[0] not in NOUNS
    assert first.endswith(".")
    assert len(first) <= 70  # on one line of the list of commands
    for option in command.params:
        if isinstance(option, click.Option):
            assert isinstance(option, Option)
            assert option.section != OTHER
            assert option.help
            assert option.help.rstrip("]").endswith((".", ")")) or "[default" in option.help


def test_docstrings_of_functions_are_imperative():
    described = [(where, ast.get_docstring(node)) for where, node in functions() if not is_property(node)]
    assert [where for where, text in described if text and text.split()[0] in NOUNS] == []


def test_no_class_of_these_rooms_has_the_name_of_another():
    places: dict[str, list[str]] = {}
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(file)
    shared = {name: files for name, files in places.items() if len(files) > 1}
    assert {name: files for name, files in shared.items() if {file.split("/")[0] for file in files} & set(ROOMS)} == {}


def test_all_documents_are_rendered_in_one_place():
    templates = [path.name for path in (SRC / "report" / "templates").glob("*.j2")]
    users = [file for file, tree in TREES.items() if "jinja2" in ast.dump(tree)]
    assert (users, templates) == (["report/documents.py"], ["document.html.j2"])


def settings(block: type[Block] = RunConfig) -> Iterator[tuple[type[Block], str]]:
    for name, field in block.model_fields.items():
        yield block, name
        for inner in blocks_in(field):
            yield from settings(inner)


def test_every_setting_says_what_it_does():
    """So the commented file of ``dpfed init``, which is the reference of all keys, needs no second place."""
    for block, name in settings():
        assert block.model_fields[name].description, f"{block.__name__}.{name} has no effect"
        assert describe(block, name)


def test_the_keys_by_which_a_configuration_is_known_are_settings():
    assert set(RunConfig.model_fields) >= DECISIVE | COMMON


RUN = """
name: flowers
data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: quantity, sizes: [80, 40]}}
model: {kind: logistic}
rounds: 1
local: {steps: 2, batch_size: 20, learning_rate: 0.5}
privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
track: {kind: tensorboard}
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How often each command parses a configuration."""
    found: Counter[str] = Counter()
    lines = ("plan run.yaml", "run run.yaml --directory run", "resume run", "report run", "evaluate run", "export run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("parsed"))
        Path("run.yaml").write_text(RUN)
        load = reading.load
        for line in lines:
            patch.setattr(reading, "load", lambda text, line=line: (found.update([line]), load(text))[1])
            result = CliRunner().invoke(main, line.split())
            assert result.exit_code == 0, result.output
    return found


def test_a_command_parses_its_configuration_once(parsed):
    assert parsed == dict.fromkeys(parsed, 1)
    assert len(parsed) == 6

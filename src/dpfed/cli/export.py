"""``dpfed export``: write the model of a run to a file that needs no dpfed, with a model card."""

from __future__ import annotations

import os
from pathlib import Path

import click

from dpfed.cli import options
from dpfed.cli.sections import Command


@click.command(cls=Command)
@click.argument("run")
@click.argument("model", type=click.Path(dir_okay=False, path_type=Path), default=Path("model.safetensors"))
@options.option("--force", is_flag=True, section=options.OUTPUT, help="Overwrite files that exist.")
@options.as_json
def export(run: str, model: Path, force: bool, as_json: bool) -> None:
    """Write a run's model, and a model card with its guarantees.

    MODEL ends in .safetensors; safetensors and torch read it without dpfed. The card is beside it, as .md and .json.

    \b
      dpfed export runs/hospitals-1 model.safetensors
    """
    from dpfed.cli.run_directories import find_run
    from dpfed.cli.show import format_json, print_json, say
    from dpfed.config.kept import read_kept
    from dpfed.data.sources import is_table
    from dpfed.federated.features import read_features
    from dpfed.federated.state.export import newest
    from dpfed.report.card import make_card, render_card
    from dpfed.report.facts import collect_facts
    from dpfed.runs.directory import RunDirectory, write_durably

    directory = RunDirectory(find_run(run))
    config = read_kept(directory)
    if config is None:
        raise click.UsageError(
            f"{directory.path} was not begun by `dpfed run`, so there is no configuration for a model card: use "
            "dpfed.federated.state.export in Python"
        )
    files = [model, model.with_suffix(".md"), model.with_suffix(".json")]
    require_free(files, force)
    released, facts = newest(directory), collect_facts(directory, config)
    digest = released.write(model, {"made_by": "dpfed", "run": facts.name, "card": files[2].name})
    parameters = dict(zip(released.layout.names, released.layout.shapes, strict=True))
    features = read_features(directory, config) if is_table(config.data.source) else ()
    made = make_card(facts, config, model.name, digest, parameters, features)
    write_durably(files[1], render_card(made).encode())
    write_durably(files[2], format_json(made).encode())
    if as_json:
        return print_json({"files": list(map(str, files)), **made})
    return say(f"wrote {model} ({released.layout.size} numbers), and its card {files[1]} and {files[2]}")


def require_free(files: list[Path], force: bool) -> None:
    """Refuse files that cannot be written, or that exist and are not to be overwritten; the first is the model's."""
    if files[0].suffix != ".safetensors":
        raise click.UsageError(f"MODEL must end in .safetensors, the format that is written, got {files[0]}")
    if not files[0].parent.is_dir():
        raise click.UsageError(f"there is no folder {files[0].parent}: make it first")
    if not os.access(files[0].parent, os.W_OK | os.X_OK):
        raise click.UsageError(f"nothing can be written into {files[0].parent}: choose another folder")
    for path in files:
        if path.is_dir():  # found now, so that no model is written without its card
            raise click.UsageError(f"{path} is a folder, and --force does not overwrite it: choose another name")
    taken = [str(path) for path in files if path.exists()]
    if taken and not force:
        raise click.UsageError(f"{taken[0]} exists: use --force to overwrite it, or choose another name")

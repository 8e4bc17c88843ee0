"""``dpfed export``: the model of a run, as a file that needs no dpfed, with a card."""

from __future__ import annotations

import os
from pathlib import Path

import click

from dpfed.cli import run as options
from dpfed.cli.sections import Command


@click.command(cls=Command)
@click.argument("run")
@click.argument("model", type=click.Path(dir_okay=False, path_type=Path), default=Path("model.safetensors"))
@options.option("--force", is_flag=True, section=options.OUTPUT, help="Overwrite files that exist.")
@options.as_json
def export(run: str, model: Path, force: bool, as_json: bool) -> None:
    """Write a run's model and a card of its guarantees.

    MODEL ends in .safetensors; safetensors and torch read it without dpfed. The card is beside it, as .md and .json.

    \b
      dpfed export runs/hospitals-1 model.safetensors
    """
    from dpfed.cli.run_facts import found
    from dpfed.cli.show import as_json_text, print_json, say
    from dpfed.config.kept import kept
    from dpfed.federated.released import newest
    from dpfed.report.card import as_markdown, card
    from dpfed.report.run_facts import shareable
    from dpfed.runs import RunDirectory, write_durably

    directory = RunDirectory(found(run))
    config = kept(directory)
    if config is None:
        raise click.UsageError(f"{directory.path} holds no run that was begun by `dpfed run`: there is no card for it")
    files = [model, model.with_suffix(".md"), model.with_suffix(".json")]
    _require_free(files, force)
    released, facts = newest(directory), shareable(directory, config)
    digest = released.write(model, {"made_by": "dpfed", "run": facts.name, "card": files[2].name})
    parameters = dict(zip(released.layout.names, released.layout.shapes, strict=True))
    told = card(facts, config, model.name, digest, parameters)
    write_durably(files[1], as_markdown(told).encode())
    write_durably(files[2], as_json_text(told).encode())
    if as_json:
        return print_json({"files": list(map(str, files)), **told})
    return say(f"wrote {model} ({released.layout.size} numbers), and its card {files[1]} and {files[2]}")


def _require_free(files: list[Path], force: bool) -> None:
    if files[0].suffix != ".safetensors":
        raise click.UsageError(f"MODEL must end in .safetensors, got {files[0]}")
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

"""``dpfed personalise``: train the last layers of a run's model further, on one site's records and for that site."""

from __future__ import annotations

from pathlib import Path

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

TRAINING = "Training"
NOT_SHARED = "it is made of the site's records without noise: keep it there, and publish nothing that it predicts"


@click.command(cls=Command)
@click.argument("run")
@click.argument("site")
@click.argument("model", type=click.Path(dir_okay=False, path_type=Path))
@options.option(
    "--layers", section=TRAINING, help="Layers to train, with commas; others stay as released.  [default: the last one]"
)
@options.option(
    "--steps", section=TRAINING, type=int, default=100, show_default=True, help="Steps on the site's own records."
)
@options.option("--lr", "learning_rate", section=TRAINING, type=float, help="Learning rate.  [default: the run's]")
@options.option("--force", is_flag=True, section=options.OUTPUT, help="Overwrite a file that exists.")
@options.as_json
def personalise(
    run: str,
    site: str,
    model: Path,
    layers: str | None,
    steps: int,
    learning_rate: float | None,
    force: bool,
    as_json: bool,
) -> None:
    """Train a run's model further for one SITE, on its records alone.

    What is written to MODEL (.safetensors, readable by its owner only) has no noise and costs no budget, because it
    never leaves the site. The run and its model stay as they are.

    \b
      dpfed personalise runs/hospitals-1 north north.safetensors --layers linear
    """
    from dpfed.cli.export import require_free
    from dpfed.cli.run_directories import find_run
    from dpfed.cli.show import print_json, say
    from dpfed.federated import launch
    from dpfed.federated.state.export import ExportedModel, newest
    from dpfed.federated.torch.personal import personalise_site
    from dpfed.runs.directory import OWNER_ONLY, RunDirectory

    require_free([model], force)
    directory = find_run(run)
    released = newest(RunDirectory(directory))
    chosen = tuple(layers.split(",")) if layers else None
    own = personalise_site(launch.resume_run(directory), released.weights, site, chosen, steps, learning_rate)
    made = ExportedModel(released.round, released.layout, own.weights)
    made.write(model, {"made_by": "dpfed", "site": site, "note": NOT_SHARED}, mode=OWNER_ONLY)
    if as_json:
        return print_json({"file": str(model), "layers": own.layers, "steps": steps, "note": NOT_SHARED})
    return say(f"wrote {model}, with {', '.join(own.layers)} trained for {site}; {NOT_SHARED}")

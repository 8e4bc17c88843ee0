"""``dpfed check``: whether a model and a loss of your own keep the promise, before they see any data."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import run
from dpfed.cli.sections import Command, Group

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dpfed.training.model_check import ModelCheck

RECORDS = "The records, which are made up"
MODEL = "The model and the loss"
SEARCH = "The search"


def _sizes(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Return the sizes of axes that a text such as 1,28,28 names."""
    sizes = text.split(",") if text else []
    if not all(size.strip().isdecimal() and int(size) for size in sizes):
        raise click.BadParameter(f"write the sizes of its axes with commas, such as 1,28,28, not {text!r}")
    return tuple(map(int, sizes))


def _settings(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """Return the names and values of texts such as width=8."""
    import yaml

    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"write name=value, such as width=8, not {text!r}")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise click.BadParameter(f"write a number, a text or a [list], not {value!r}") from None
    return found


@click.group(cls=Group)
def check() -> None:
    """Try a model and a loss of your own before they see any data."""


@check.command(cls=Command)
@click.argument("name")
@run.option(
    "--shape",
    metavar="SIZES",
    callback=_sizes,
    required=True,
    section=RECORDS,
    help="Shape of one input: 30, or 1,28,28.",
)
@run.option(
    "--classes",
    type=click.IntRange(1),
    metavar="N",
    section=RECORDS,
    help="Targets are one of N classes; else real numbers.",
)
@run.option(
    "--tokens",
    type=click.IntRange(1),
    metavar="N",
    section=RECORDS,
    help="Inputs are tokens, from 0 to N−1; else real numbers.",
)
@run.option(
    "--target-shape",
    metavar="SIZES",
    callback=_sizes,
    section=RECORDS,
    help="Shape of one target, if it is not one number.",
)
@run.option("--loss", section=MODEL, help="One of ours or package.module:name; cross_entropy with classes, else mse.")
@run.option(
    "-o",
    "--option",
    "options",
    metavar="NAME=VALUE",
    callback=_settings,
    multiple=True,
    section=MODEL,
    help="An option of the model, such as width=8.",
)
@run.option("--clip", "clip_norm", type=float, default=1.0, show_default=True, section=SEARCH, help="Clip norm.")
@run.option("--searches", type=int, default=3, show_default=True, section=SEARCH, help="Random starts in each mode.")
@run.option("--seed", type=int, default=0, show_default=True, section=SEARCH, help="Seed of records and weights.")
@run.as_json
def model(name: str, as_json: bool, **settings: Any) -> None:
    """Try to move a sum of clipped gradients further than one record may.

    NAME is one of our kinds, or package.module:name of your own; modules in this directory are found. Records are
    removed, added and replaced in every mode of the engine, without noise, and the search climbs towards what moves the
    sum most. You see as well which layers have a fast way, and what a step costs.

    The exit code is 1 if a record moved the sum too far, and 2 if the model is refused.

    \b
      dpfed check model cnn --shape 1,28,28 --classes 10
      dpfed check model my_study:Net --shape 4 --classes 2 --loss my_study:loss
      dpfed check model transformer --shape 16 --tokens 500 --classes 2
    """
    from dpfed.cli.loading import unswept
    from dpfed.cli.show import console, print_json

    screen = console()
    with unswept():
        from dpfed.federated.named_check import check_named
    with _waiting(screen, is_shown=not as_json):
        found = check_named(name, **settings)
    if as_json:
        print_json(_facts(found))
    else:
        _show(found, screen)
    if not found.is_sound:
        raise SystemExit(1)


def _waiting(screen: Console, *, is_shown: bool) -> AbstractContextManager[object]:
    is_shown = is_shown and screen.is_terminal
    return screen.status("Searching; larger models take minutes …") if is_shown else nullcontext()


def _facts(found: ModelCheck) -> dict[str, Any]:
    from dataclasses import asdict

    return {"is_sound": found.is_sound, "moved": found.moved, "replaced": found.replaced} | asdict(found)


def _show(found: ModelCheck, screen: Console) -> None:
    from dpfed.cli.show import say

    screen.print(f"[bold]{found.model}[/bold]")
    say(found.verdict)
    screen.print(_table(["Clip norms moved by a record", "removed or added", "replaced"], (m.row for m in found.modes)))
    for each in found.unused:
        say(f"Not used: {each.name} ({each.why}).")
    screen.print(_table(["Layer", "Kind", "Numbers", "Way"], (layer.row for layer in found.layers)))
    for line in (found.coverage, *found.remarks, found.price):
        say(line)


def _table(headings: list[str], rows: Iterable[tuple[str, ...]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("removed or added", "replaced", "Numbers") else "left")
    for row in rows:
        table.add_row(*row)
    return table

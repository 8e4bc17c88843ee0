"""``dpfed check``: test a model, a loss or a sensitivity of your own on made-up records, before they see any data."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command, Group

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dpfed.mechanisms.claims import SensitivityCheck
    from dpfed.training.checking.findings import ModelCheck

RECORDS = "The records, which are made up"
MODEL = "The model and the loss"
ALGORITHM = "The algorithm"
SEARCH = "The search"


def _parse_shape(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Return the sizes of the axes that a text such as 1,28,28 names."""
    sizes = text.split(",") if text else []
    if not all(size.strip().isdecimal() and int(size) for size in sizes):
        raise click.BadParameter(f"a shape is a list of sizes: write 30, or several such as 1,28,28, not {text!r}")
    return tuple(map(int, sizes))


def _parse_options(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
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
    """Test a model or a sensitivity of your own before it sees any data."""


@check.command(cls=Command)
@click.argument("name")
@options.option(
    "--shape",
    metavar="SIZES",
    callback=_parse_shape,
    required=True,
    section=RECORDS,
    help="Shape of one input: 30, or 1,28,28.",
)
@options.option(
    "--classes",
    type=click.IntRange(1),
    metavar="N",
    section=RECORDS,
    help="Targets are classes, from 0 to N−1; else real numbers.",
)
@options.option(
    "--tokens",
    type=click.IntRange(1),
    metavar="N",
    section=RECORDS,
    help="Inputs are tokens, from 0 to N−1; else real numbers.",
)
@options.option(
    "--target-shape",
    metavar="SIZES",
    callback=_parse_shape,
    section=RECORDS,
    help="Shape of one target, if it is not one number.",
)
@options.option(
    "--loss",
    section=MODEL,
    help="A loss of dpfed, or package.module:name.  [default: cross_entropy with --classes, else mse]",
)
@options.option(
    "-o",
    "--option",
    "options",
    metavar="NAME=VALUE",
    callback=_parse_options,
    multiple=True,
    section=MODEL,
    help="An option of the model, such as width=8.",
)
@options.option("--clip", "clip_norm", type=float, default=1.0, show_default=True, section=SEARCH, help="Clip norm.")
@options.option(
    "--searches", type=int, default=3, show_default=True, section=SEARCH, help="Random starts in each mode."
)
@options.option("--seed", type=int, default=0, show_default=True, section=SEARCH, help="Seed of records and weights.")
@options.as_json
def model(name: str, as_json: bool, **settings: Any) -> None:
    """Search for a record that moves a sum of clipped gradients too far.

    NAME is a model of dpfed (logistic, mlp, cnn, resnet, transformer, unet) or package.module:name of your own; modules
    in this directory are found. Made-up records are removed, added and replaced, without noise, in every mode of the
    gradient engine, and a search looks for those that move the sum most. The answer also lists which layers are clipped
    fast, and what a step costs.

    The exit code is 1 if a record moved the sum too far, and 2 if the model is refused.

    \b
      dpfed check model cnn --shape 1,28,28 --classes 10
      dpfed check model my_study:Net --shape 4 --classes 2 --loss my_study:loss
      dpfed check model transformer --shape 16 --tokens 500 --classes 2
    """
    from dpfed.cli.process import gc_paused
    from dpfed.cli.show import make_console, print_json

    screen = make_console()
    with gc_paused():
        from dpfed.federated.torch.named_check import check_named
    with _show_waiting(screen, is_shown=not as_json):
        found = check_named(name, **settings)
    if as_json:
        print_json(_collect_facts(found))
    else:
        _show(found, screen)
    if not found.is_sound:
        raise SystemExit(1)


@check.command(cls=Command)
@click.argument("name")
@options.option(
    "-o",
    "--option",
    "options",
    metavar="NAME=VALUE",
    callback=_parse_options,
    multiple=True,
    section=ALGORITHM,
    help="An option of the algorithm, such as steps=3 or adjacency=add_remove.",
)
@options.option(
    "--trials", type=int, default=10_000, show_default=True, section=SEARCH, help="Pairs of neighbours to compare."
)
@options.option("--seed", type=int, default=0, show_default=True, section=SEARCH, help="Seed of the search.")
@options.as_json
def algorithm(name: str, options: dict[str, Any], trials: int, seed: int, as_json: bool) -> None:
    """Search for neighbours that move a release further than claimed.

    NAME is fedavg, fedprox, fedopt, scaffold, feddyn, iadmm, iceadmm, iiadmm or update (a clipped one), or
    package.module:name of your own: a SensitivityClaim, or a function that makes one; modules in this directory are
    found. The release runs without noise on made-up data sets that differ in one record, first random ones, then by
    climbing from those that moved it furthest.

    The exit code is 1 if the claim is refuted, and 2 if it cannot be checked. No record is shown.

    \b
      dpfed check algorithm fedavg -o steps=3
      dpfed check algorithm iadmm -o penalty=2 -o proximity=1
      dpfed check algorithm update -o unit=client -o adjacency=add_remove
      dpfed check algorithm my_study:claim --trials 100000
    """
    from dpfed.cli.process import gc_paused
    from dpfed.cli.show import make_console, print_json, say

    with gc_paused():
        from dpfed.federated.algorithm_claims import build
        from dpfed.mechanisms.claims import check_sensitivity
    claim = build(name, **options)
    with _show_waiting(make_console(), is_shown=not as_json):
        found = check_sensitivity(claim, trials, seed)
    if as_json:
        print_json(_collect_claim(found))
    else:
        say(found.verdict)
    if found.is_refuted:
        raise SystemExit(1)


def _collect_claim(found: SensitivityCheck) -> dict[str, Any]:
    claimed = {"claimed": float(found.claimed), "norm": found.claimed.norm, "adjacency": found.claimed.adjacency}
    return {"is_refuted": found.is_refuted, **vars(found), **claimed}


def _show_waiting(screen: Console, *, is_shown: bool) -> AbstractContextManager[object]:
    is_shown = is_shown and screen.is_terminal
    return screen.status("Searching; this may take minutes …") if is_shown else nullcontext()


def _collect_facts(found: ModelCheck) -> dict[str, Any]:
    from dataclasses import asdict

    return {"is_sound": found.is_sound, "moved": found.moved, "replaced": found.replaced} | asdict(found)


def _show(found: ModelCheck, screen: Console) -> None:
    from dpfed.cli.show import say

    screen.print(f"[bold]{found.model}[/bold]")
    say(found.verdict)
    screen.print(
        _make_table(["Clip norms moved by a record", "removed or added", "replaced"], (m.row for m in found.modes))
    )
    for each in found.unused:
        say(f"Not used: {each.name} ({each.why}).")
    screen.print(_make_table(["Layer", "Kind", "Numbers", "Way"], (layer.row for layer in found.layers)))
    for line in (found.coverage, *found.remarks, found.price):
        say(line)


def _make_table(headings: list[str], rows: Iterable[tuple[str, ...]]) -> Table:
    from dpfed.cli.show import new_table

    table = new_table()
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("removed or added", "replaced", "Numbers") else "left")
    for row in rows:
        table.add_row(*row)
    return table

"""``dpfed audit``: attack the plan and the code of a run with canaries, and compare what is found with its ε."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpfed.cli import options
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from dpfed.audit.verdict import Verdict
    from dpfed.federated.launch import Launch
    from dpfed.federated.torch.client import TorchClient

AUDIT = "The audit"
DATA = "The records to train on"


@click.command(cls=Command)
@click.argument("run")
@options.option(
    "--canaries",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    section=AUDIT,
    help="Canaries to put in.",
)
@options.option(
    "--kind",
    type=click.Choice(["dirac", "random"]),
    default="dirac",
    show_default=True,
    section=AUDIT,
    help="Canaries of one coordinate each, or of random directions.",
)
@options.option(
    "--stand-in", metavar="SOURCE", section=DATA, help="Public records with the run's columns.  [default: generated]"
)
@options.option(
    "--on-private-data",
    is_flag=True,
    section=DATA,
    help="Train on the run's own records. The run's ledger pays for it, as for one more run.",
)
@options.option(
    "--residual", is_flag=True, section=DATA, help="Score private data without their exact sums: for the owner alone."
)
@options.as_json
def audit(
    run: str,
    canaries: int,
    kind: str,
    stand_in: str | None,
    on_private_data: bool,
    residual: bool,
    as_json: bool,
) -> None:
    """Put canaries into a run's plan and code, and try to find them.

    The plan is trained once more, on generated records, so that it costs no budget. The line that it prints, and adds
    to the reports, has the accounted ε and a lower bound, which a perfect attacker's ceiling limits. A bound below the
    accounted ε proves nothing.

    The exit code is 1 if the bound is above the accounted ε at significance 0.001.

    \b
      dpfed audit runs/hospitals-1
      dpfed audit runs/study-1 --stand-in public.csv
    """
    from dpfed.cli.process import gc_paused
    from dpfed.cli.run_directories import find_run
    from dpfed.cli.show import print_json, say

    if on_private_data and stand_in:
        raise click.UsageError("--stand-in and --on-private-data are two sets of records: give one of them")
    if residual and not on_private_data:
        raise click.UsageError("--residual is for --on-private-data: on a stand-in it is always done")
    directory = find_run(run)
    with gc_paused():
        from dpfed.federated import launch

        prepared = launch.resume_run(directory)
    verdicts = _audit(prepared, directory, canaries, kind, stand_in, on_private_data, residual, as_json)
    _store(directory, verdicts)
    if as_json:
        print_json({"audits": [verdict.to_plain() for verdict in verdicts]})
    else:
        for verdict in verdicts:
            say(f"{verdict.line}\n  {verdict.remark}" + ("" if verdict.is_shareable else " For the owner alone."))
    if any(verdict.is_refuted for verdict in verdicts):
        raise SystemExit(1)


def _audit(
    prepared: Launch,
    directory: Path,
    canaries: int,
    kind: str,
    stand_in: str | None,
    on_private_data: bool,
    residual: bool,
    is_quiet: bool,
) -> tuple[Verdict, ...]:
    from contextlib import nullcontext

    from dpfed.audit.run import audit_plan, count_parts
    from dpfed.audit.verdict import GENERATED, PRIVATE, PUBLIC
    from dpfed.cli.live import open_bar

    data = PRIVATE if on_private_data else PUBLIC if stand_in else GENERATED
    scoring = "released" if on_private_data and not residual else "residual"
    client = _choose_client(prepared)
    if not on_private_data:
        client = _replace_records(prepared, client, stand_in)
    parts = count_parts(prepared.plan, client.name)
    payer = prepared.ledger(directory) if on_private_data else nullcontext()
    with payer as ledger, open_bar(f"audit of {prepared.plan.name}", parts, is_quiet=is_quiet) as advance:
        return audit_plan(
            prepared.plan,
            client,
            canaries=canaries,
            kind=kind,
            scoring=scoring,
            data=data,
            ledger=ledger,
            advance=advance,
        )


def _choose_client(prepared: Launch) -> TorchClient:
    """Return the client whose records pay most, or any where no record is promised anything."""
    plan = prepared.plan
    name = plan.worst() if plan.noises_steps else next(iter(plan.local))
    return next(client for client in prepared.clients if client.name == name)


def _replace_records(prepared: Launch, client: TorchClient, source: str | None) -> TorchClient:
    from dpfed.audit.stand_in import MOST, make_stand_in, put_in_records, require_other
    from dpfed.randomness import SystemSource

    if source is not None:
        require_other(source, prepared.config.data.source, prepared.directory)
        return put_in_records(client, prepared.records(source, Path.cwd()))
    return make_stand_in(client, min(MOST, prepared.plan.local[client.name].size), SystemSource())


def _store(directory: Path, verdicts: tuple[Verdict, ...]) -> None:
    """Add the verdicts to the run's audits, and make its reports again."""
    from dpfed.report.reports import write
    from dpfed.runs import audits
    from dpfed.runs.directory import RunDirectory

    for verdict in verdicts:
        audits.add(RunDirectory(directory), [verdict.to_plain()], is_shareable=verdict.is_shareable)
    if verdicts:
        write(directory)

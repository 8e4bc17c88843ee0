"""``dpfed report``: what a run promises, what it cost and how good it is."""

from __future__ import annotations

from pathlib import Path

import click

from dpfed.cli import run
from dpfed.cli.sections import Command


@click.command(cls=Command)
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path, file_okay=False))
@run.option("--owner", is_flag=True, section=run.OUTPUT, help="With --markdown or --json: the owner's report.")
@run.option("--markdown", is_flag=True, section=run.OUTPUT, help="Print Markdown.")
@run.as_json
def report(directory: Path, owner: bool, markdown: bool, as_json: bool) -> None:
    """Two reports of a run, as HTML files in its directory.

    report.html may be shared: constants of the plan, released values, facts of the ledger. report-owner.html has
    besides who took part, what was turned away and every account; it is for the owner alone.

    \b
      dpfed report runs/hospitals
      dpfed report runs/hospitals --markdown > report.md
    """
    from dpfed.cli.show import print_json, say
    from dpfed.report import documents
    from dpfed.report import run as reports

    if as_json:
        return print_json((reports.owner_facts if owner else reports.shareable_facts)(directory))
    if markdown:
        page = (reports.owner_page if owner else reports.shareable_page)(directory)
        return click.echo(documents.markdown(page), nl=False)
    if owner:
        raise click.UsageError("--owner goes with --markdown or --json: as HTML both reports are written")
    shared, kept = reports.write(directory)
    say(f"wrote {shared}, which may be shared")
    return say(f"wrote {kept}, for the owner alone")

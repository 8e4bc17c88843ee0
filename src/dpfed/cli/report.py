"""``dpfed report``: what a run promises, what it cost and how good it is."""

from __future__ import annotations

import click

from dpfed.cli import run as options
from dpfed.cli.sections import Command


@click.command(cls=Command)
@click.argument("run")
@options.option("--owner", is_flag=True, section=options.OUTPUT, help="With --markdown or --json: the owner's report.")
@options.option("--markdown", is_flag=True, section=options.OUTPUT, help="Print Markdown.")
@options.as_json
def report(run: str, owner: bool, markdown: bool, as_json: bool) -> None:
    """Two reports of a run, as HTML files in its directory.

    report.html may be shared: constants of the plan, released values, facts of the ledger. report-owner.html has
    besides who took part, what was turned away and every account; it is for the owner alone.

    \b
      dpfed report runs/hospitals-1
      dpfed report runs/hospitals-1 --markdown > report.md
    """
    from dpfed.cli.run_facts import found
    from dpfed.cli.show import print_json, say
    from dpfed.report import documents
    from dpfed.report import run as reports

    directory = found(run)
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

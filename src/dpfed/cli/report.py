"""``dpfed report``: write what a run promises, what it cost and how good its model is."""

from __future__ import annotations

import click

from dpfed.cli import options
from dpfed.cli.sections import Command


@click.command(cls=Command)
@click.argument("run")
@options.option(
    "--owner", is_flag=True, section=options.OUTPUT, help="Print the owner's report, with --markdown or --json."
)
@options.option(
    "--markdown", is_flag=True, section=options.OUTPUT, help="Print the report as Markdown, and write no file."
)
@options.as_json
def report(run: str, owner: bool, markdown: bool, as_json: bool) -> None:
    """Write two reports of a run, as HTML files in its directory.

    report.html may be shared: it holds constants of the plan, released values and facts of the ledger.
    report-owner.html is for the owner alone: it also has who took part, which updates were refused, and every account.

    \b
      dpfed report runs/hospitals-1
      dpfed report runs/hospitals-1 --markdown > report.md
    """
    from dpfed.cli.run_directories import find_run
    from dpfed.cli.show import print_json, say
    from dpfed.report import documents, reports

    directory = find_run(run)
    if as_json:
        return print_json((reports.owner_facts if owner else reports.shareable_facts)(directory))
    if markdown:
        page = (reports.owner_page if owner else reports.shareable_page)(directory)
        return click.echo(documents.render_markdown(page), nl=False)
    if owner:
        raise click.UsageError(
            "--owner goes with --markdown or --json: as HTML both reports are written, so leave it out"
        )
    shared, kept = reports.write(directory)
    say(f"wrote {shared}, which may be shared")
    return say(f"wrote {kept}, for the owner alone")

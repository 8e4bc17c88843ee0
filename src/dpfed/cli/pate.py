"""``dpfed pate``: teachers on private records label public examples, with noise, and a student learns from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import ledger_access, options
from dpfed.cli.sections import Command, Group

if TYPE_CHECKING:
    from dpfed.config.pate import PateConfig
    from dpfed.pate.study import Study

UNCHARGED = (
    "No account is charged: nobody counts what studies on these records spend together. Stop and give --account, "
    "unless they are public."
)


@click.command(cls=Command)
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@options.option(
    "--account",
    section="The ledger",
    help="The account of the teachers' data that is charged; without it nothing is charged.",
)
@ledger_access.address
@options.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    section=options.OUTPUT,
    help="The student's file.  [default: NAME.safetensors]",
)
@options.option("--force", is_flag=True, section=options.OUTPUT, help="Overwrite a file that exists.")
@options.as_json
def run(config: Path, account: str | None, url: str, output: Path | None, force: bool, as_json: bool) -> None:
    """Train teachers on private records, and a student on their answers.

    CONFIG is a YAML file with data, public and privacy. ε is that of all answers, for the teachers' data; the student
    has the same. What is charged is fixed before the first query, and refused if the account cannot pay it.

    \b
      dpfed pate run wards.yaml --account wards --ledger sqlite:///ledger.db
    """
    from dpfed.cli.export import require_free
    from dpfed.cli.show import print_json
    from dpfed.config.pate import PateConfig

    plan = PateConfig.read(config)
    target = output or Path(f"{plan.name}.safetensors")
    require_free([target], force)
    if account is None:
        click.echo(UNCHARGED, err=True)  # before anything is trained: there is still time to stop
    study = _carry_out(plan, config.resolve().parent, account, url)
    study.write(target)
    facts = study.facts | {"file": str(target)}
    return print_json(facts) if as_json else _say_result(study, facts)


def _carry_out(plan: PateConfig, directory: Path, account: str | None, url: str) -> Study:
    from dpfed.pate.study import run_study

    if account is None:
        return run_study(plan, directory)
    with ledger_access.open_ledger(url) as book:
        return run_study(plan, directory, account=book.account(account))


def _say_result(study: Study, facts: dict[str, Any]) -> None:
    from dpfed.cli.show import format_count, say
    from dpfed.runs.directory import NOT_PRIVATE

    share = facts["answered"] / facts["queries"]
    asked = f"{format_count(facts['teachers'], 'teacher')} answered {facts['answered']} of {facts['queries']} queries"
    say(f"{facts['name']}: {asked} ({share:.1%}).")
    if facts["is_private"]:
        say(f"Promised for the teachers' data: {study.classifier.guarantee_}. The student has the same.")
        say(study.classifier.guarantee_.sentence())
    else:
        say(f"{NOT_PRIVATE}: the noise comes from seed {study.config.seed}, and whoever knows it can subtract it.")
    for gap in facts["not_covered"] if facts["is_private"] else ():
        say(f"Not covered: {gap}.")
    if "accuracy" in facts:
        say(f"Accuracy on {study.config.test}, declared public: {facts['accuracy']:.4f}")
    say(f"The student: {facts['file']}")


@click.group(cls=Group, sections={"Commands": (run,)})
def pate() -> None:
    """Learn from teachers on disjoint parts of private records."""

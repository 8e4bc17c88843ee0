"""``dpfed run`` and ``dpfed resume``: the rounds of one YAML file, and the rest of them after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import run as options
from dpfed.cli import tracking
from dpfed.cli.loading import unswept
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from dpfed.federated.launch import Launch
    from dpfed.runs import RunDirectory

RUN = "The run"
INTERRUPTED = 130
MEGABYTE = 1_000_000
ROOM = 16 * MEGABYTE  # for the ledger, the records of the rounds and the reports

threads = options.option(
    "--threads",
    type=int,
    section=RUN,
    help="Threads of torch.  [default: 1 for a small model, else as many as torch likes; 1 for runner: processes]",
)


@click.command(cls=Command)
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@options.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    section=RUN,
    help="Where the run is kept.  [default: runs/NAME-1, or the next number]",
)
@threads
@options.as_json
def run(config: Path, directory: Path | None, threads: int | None, as_json: bool) -> None:
    """Train as a YAML file says, within the privacy it promises.

    Ctrl-C ends the run after its round; `dpfed resume` goes on with it, as it does after a crash.

    \b
      dpfed init hospitals
      dpfed run hospitals.yaml
    """
    with unswept():
        prepared, directory = _begin(config, directory)
    _train(prepared, directory, threads, as_json=as_json)


def _begin(config: Path, directory: Path | None) -> tuple[Launch, Path]:
    """Prepare everything that a run needs, in a directory that is not there afterwards if it is refused."""
    from dpfed.cli.run_facts import new_directory
    from dpfed.config import RunConfig

    described = RunConfig.read(config)
    tracking.require(described)
    directory = directory or new_directory(described.name)
    try:
        from dpfed.federated import launch

        return launch.begun(config, directory, described), directory
    except OSError as error:
        raise click.UsageError(f"{directory} cannot be written: {error.strerror}") from None
    finally:
        _remove_if_empty(directory)


@click.command(cls=Command)
@click.argument("run")
@options.option(
    "--moved-to",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    section=RUN,
    help="The folder of the configuration file, if it was moved with its data since the run began.",
)
@threads
@options.as_json
def resume(run: str, moved_to: Path | None, threads: int | None, as_json: bool) -> None:
    """Go on with a run that was stopped, killed or crashed.

    What was released before is used again and costs nothing; anything else is charged anew.

    \b
      dpfed resume runs/hospitals-1
    """
    from dpfed.cli.run_facts import found

    directory = found(run)
    with unswept():
        from dpfed.federated import launch

        prepared = launch.resumed(directory, moved_to)
    tracking.require(prepared.config)
    _train(prepared, directory, threads, as_json=as_json)


def _train(launch: Launch, directory: Path, threads: int | None, *, as_json: bool) -> None:
    from dpfed import checks

    with unswept():
        from dpfed.cli import live
        from dpfed.cli.stopping import Stopping

    _require_room(launch, directory)
    launch.model.threads = None if threads is None else checks.count(threads=threads)
    if not as_json:
        _introduce(launch, directory)
    is_private = launch.config.is_private
    with unswept():
        opened = launch.ledger(directory)
    with Stopping() as stopping, opened as ledger:
        federation = launch.federation(directory, ledger)
        try:
            with (
                tracking.followed(launch, directory) as tell,
                live.display(launch.plan, federation.round, is_quiet=as_json, is_private=is_private) as display,
            ):
                stopping.tell = display.stopping
                for result in federation:
                    display.show(result)
                    tell(result)
                    if stopping.is_asked and result.number < launch.plan.rounds:
                        stopping.leave()
        except KeyboardInterrupt:
            _leave(directory, federation.round, launch.plan.rounds)
    _conclude(launch, directory, as_json=as_json)


def _require_room(launch: Launch, directory: Path) -> None:
    """Refuse a disk that is too full for the run, before a charge is made whose release could not be stored."""
    import shutil

    from dpfed.federated.checkpoint import KEPT

    # The checkpoints that are kept and the one that is being written, an update of every client, and as much again.
    needed = ROOM + 2 * launch.model.layout.bytes * (KEPT + 1 + len(launch.plan.local))
    free = shutil.disk_usage(directory).free
    if free < needed:
        what = f"there is room for {free // MEGABYTE} MB in {directory}, and the run may need {needed // MEGABYTE} MB"
        raise click.UsageError(f"{what}: make room; nothing was spent, and `dpfed resume {directory}` goes on with it")


def _introduce(launch: Launch, directory: Path) -> None:
    from dpfed import plan_words
    from dpfed.cli.show import say
    from dpfed.runs import NOT_PRIVATE

    plan = launch.plan
    say(f"{plan.name}: {plan.rounds} rounds with {_counted(len(plan.local), 'client')}, kept in {directory}")
    if not launch.config.is_private:
        say(f"{NOT_PRIVATE}: the noise comes from seed {launch.config.seed}, and whoever knows it can take it off.")
    if not plan.units:
        say("Style none: nothing is noised, and nobody is protected.")
    if simulation := plan_words.simulation(plan):
        say(simulation)
    for promise in plan.guarantees:
        say(f"Promised for the whole run: {promise}.")
    if plan.units and launch.config.ledger is None:
        say(
            f"The file names no ledger, so the run has its own, {directory / 'ledger.db'}: "
            "what several runs on the same data spend together is not counted."
        )
        say(
            "An old copy of the whole directory put in its place is not noticed either: keep what "
            f"`dpfed ledger head --ledger {directory / 'ledger.db'}` says elsewhere, or give the file a ledger: block."
        )


def _leave(directory: Path, done: int, rounds: int) -> None:
    message = f"stopped after {done} of {rounds} rounds; what was released is kept, and what was charged stays charged"
    click.echo(f"dpfed: {message}\nGo on with: dpfed resume {directory}", err=True)
    raise SystemExit(INTERRUPTED)


def _conclude(launch: Launch, directory: Path, *, as_json: bool) -> None:
    from dpfed.cli.run_facts import run_facts
    from dpfed.cli.show import print_json
    from dpfed.report.run_owner import attendance, unanswered
    from dpfed.runs import RunDirectory

    run = RunDirectory(directory)
    if sentence := unanswered(attendance(run)):
        click.echo(f"dpfed: for the owner alone: {sentence}", err=True)
    facts = run_facts(directory) | {"reports": _reports(directory)}
    if as_json:
        print_json(facts)
    else:
        _say_result(launch, run, facts)


def _say_result(launch: Launch, run: RunDirectory, facts: dict[str, Any]) -> None:
    from dpfed.cli.live import score_line
    from dpfed.cli.show import say
    from dpfed.report.run_facts import shareable
    from dpfed.runs import NOT_PRIVATE

    is_private = launch.config.is_private and facts["is_private"]
    status, stamp = facts["status"].replace("_", " "), "" if is_private else f" {NOT_PRIVATE}"
    say(f"\n{facts['name']}: {status} after {facts['round']} of {facts['rounds']} rounds.{stamp}")
    for name, score in facts["metrics"].items():
        say(f"  {score_line(name, score)}")
    for unit in shareable(run, launch.config).units if is_private else ():
        say(unit.sentence)
    if launch.test is not None and not launch.config.data.test_is_public:
        say("Scores on the records held out are for the owner alone, who has them in the second report.")
    for title, path in facts["reports"].items():
        say(f"{title}: {path}")
    say(f"The model: dpfed export {facts['directory']} model.safetensors")


def _reports(directory: Path) -> dict[str, str]:
    from dpfed.report.run import write

    shareable, owner = write(directory)
    return {"The report, to share": str(shareable), "The report, for the owner alone": str(owner)}


def _remove_if_empty(directory: Path) -> None:
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

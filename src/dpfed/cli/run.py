"""``dpfed run`` and ``dpfed resume``: run the rounds of one YAML file, and the rest of them after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options, tracking
from dpfed.cli.process import gc_paused
from dpfed.cli.sections import Command

if TYPE_CHECKING:
    from dpfed.federated.launch import Launch
    from dpfed.runs.directory import RunDirectory

RUN = "The run"
INTERRUPTED = 130
MEGABYTE = 1_000_000
ROOM = 16 * MEGABYTE  # for the ledger, the records of the rounds and the reports

threads = options.option(
    "--threads",
    type=int,
    section=RUN,
    help="Threads of torch.  [default: 1 for a small model and for runner: processes, else torch's own]",
)


@click.command(cls=Command)
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@options.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    section=RUN,
    help="The run's new directory.  [default: runs/NAME-1, or the next number]",
)
@options.option(
    "--attack-sim",
    metavar="ATTACK:N,…",
    section=RUN,
    help="Make the last clients attack, such as sign_flip:2,nan:1, to see what a rule bears; all is marked SIMULATION.",
)
@threads
@options.as_json
def run(config: Path, directory: Path | None, attack_sim: str | None, threads: int | None, as_json: bool) -> None:
    """Train as a YAML file says, within the privacy it promises.

    Ctrl-C stops the run after its round. `dpfed resume` continues it, also after a crash.

    \b
      dpfed init hospitals
      dpfed run hospitals.yaml
      dpfed run hospitals.yaml --attack-sim sign_flip:1
    """
    with gc_paused():
        prepared, directory = _prepare(config, directory, attack_sim)
    _train(prepared, directory, threads, as_json=as_json)


def _prepare(path: Path, directory: Path | None, attack_sim: str | None) -> tuple[Launch, Path]:
    """Prepare everything that a run needs in a new directory; a refused run leaves none behind."""
    from dpfed.cli.run_directories import make_directory
    from dpfed.config.run import ConfigFile

    file = ConfigFile.read(path).with_attack(attack_sim)
    tracking.require_package(file.config)
    directory = directory or make_directory(file.config.name)
    try:
        from dpfed.federated import launch

        return launch.create_run(file, directory), directory
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
    help="The folder of the configuration file, if it and its data were moved since the run began.",
)
@threads
@options.as_json
def resume(run: str, moved_to: Path | None, threads: int | None, as_json: bool) -> None:
    """Continue a run that was stopped, killed or crashed.

    Values that were released before are used again at no cost; everything else is charged anew.

    \b
      dpfed resume runs/hospitals-1
    """
    from dpfed.cli.run_directories import find_run

    directory = find_run(run)
    with gc_paused():
        from dpfed.federated import launch

        prepared = launch.resume_run(directory, moved_to)
    tracking.require_package(prepared.config)
    _train(prepared, directory, threads, as_json=as_json)


def _train(launch: Launch, directory: Path, threads: int | None, *, as_json: bool) -> None:
    from dpfed import checks

    with gc_paused():
        from dpfed.cli import live
        from dpfed.cli.process import Interrupts

    _require_room(launch, directory)
    launch.model.threads = None if threads is None else checks.count(threads=threads)
    if not as_json:
        _introduce(launch, directory)
    is_private = launch.config.is_private
    with gc_paused():
        opened = launch.ledger(directory)
    with Interrupts() as interrupts, opened as ledger:
        federation = launch.federation(directory, ledger)
        try:
            with (
                tracking.follow(launch, directory) as log,
                live.open_display(launch.plan, federation.round, is_quiet=as_json, is_private=is_private) as display,
            ):
                interrupts.announce = display.announce_stop
                for result in federation:
                    display.show(result)
                    log(result)
                    if interrupts.is_asked and result.number < launch.plan.rounds:
                        interrupts.leave()
        except KeyboardInterrupt:
            _leave(directory, federation.round, launch.plan.rounds)
    _conclude(launch, directory, as_json=as_json)


def _require_room(launch: Launch, directory: Path) -> None:
    """Refuse a disk that is too full for the run, before a charge is made whose release could not be stored."""
    import shutil

    from dpfed.federated.state.checkpoint import KEPT

    # The checkpoints that are kept and the one that is being written, an update of every client, and as much again.
    needed = ROOM + 2 * launch.model.layout.bytes * (KEPT + 1 + len(launch.plan.local))
    free = shutil.disk_usage(directory).free
    if free < needed:
        what = f"the disk of {directory} has {free // MEGABYTE} MB left, and the run may need {needed // MEGABYTE} MB"
        raise click.UsageError(f"{what}: delete files, then `dpfed resume {directory}`; nothing was spent")


def _introduce(launch: Launch, directory: Path) -> None:
    from dpfed.cli.show import format_count, say
    from dpfed.plan import explain
    from dpfed.runs.directory import NOT_PRIVATE

    plan = launch.plan
    say(f"{plan.name}: {plan.rounds} rounds with {format_count(len(plan.local), 'client')}, kept in {directory}")
    if not launch.config.is_private:
        say(f"{NOT_PRIVATE}: the noise comes from seed {launch.config.seed}, and whoever knows it can subtract it.")
    if not plan.units:
        say("Style none: no noise is added, and nobody is protected.")
    for simulation in filter(None, [launch.simulation, explain.simulation(plan)]):
        say(simulation)
    for promise in plan.guarantees:
        say(f"Promised for the whole run: {promise}.")
    if plan.units and launch.config.ledger is None:
        say(
            f"The file names no ledger, so the run has its own, {directory / 'ledger.db'}: "
            "what several runs on the same data spend together is not counted."
        )
        say(
            "If an old copy of the whole directory is put in its place, nobody notices: keep the output of "
            f"`dpfed ledger head --ledger {directory / 'ledger.db'}` elsewhere, or give the file a ledger: block."
        )


def _leave(directory: Path, done: int, rounds: int) -> None:
    message = f"stopped after {done} of {rounds} rounds; what was released is kept, and what was charged stays charged"
    click.echo(f"dpfed: {message}\nContinue with: dpfed resume {directory}", err=True)
    raise SystemExit(INTERRUPTED)


def _conclude(launch: Launch, directory: Path, *, as_json: bool) -> None:
    from dpfed.cli.run_directories import collect_facts
    from dpfed.cli.show import print_json
    from dpfed.report.owner_facts import describe_empty_rounds, read_attendance
    from dpfed.runs.directory import RunDirectory

    run = RunDirectory(directory)
    if sentence := describe_empty_rounds(read_attendance(run)):
        click.echo(f"dpfed: for the owner alone: {sentence}", err=True)
    facts = collect_facts(directory) | {"reports": _write_reports(launch, directory)}
    if as_json:
        print_json(facts)
    else:
        _say_result(launch, run, facts)


def _say_result(launch: Launch, run: RunDirectory, facts: dict[str, Any]) -> None:
    from dpfed.cli.live import format_score
    from dpfed.cli.show import say
    from dpfed.report.facts import collect_facts
    from dpfed.runs.directory import NOT_PRIVATE

    is_private = launch.config.is_private and facts["is_private"]
    status, stamp = facts["status"].replace("_", " "), "" if is_private else f" {NOT_PRIVATE}"
    stamp += " SIMULATION" if launch.simulation else ""
    say(f"\n{facts['name']}: {status} after {facts['round']} of {facts['rounds']} rounds.{stamp}")
    for name, score in facts["metrics"].items():
        say(f"  {format_score(name, score)}")
    for unit in collect_facts(run, launch.config).units if is_private else ():
        say(unit.sentence)
    if launch.test is not None and not launch.config.data.test_is_public:
        say("Scores on the records held out are for the owner alone: they are in the second report.")
    for title, path in facts["reports"].items():
        say(f"{title}: {path}")
    say(f"The model: dpfed export {facts['directory']} model.safetensors")


def _write_reports(launch: Launch, directory: Path) -> dict[str, str]:
    from dpfed.report.reports import write

    shareable, owner = write(directory, launch.config)
    return {"The report, to share": str(shareable), "The report, for the owner alone": str(owner)}


def _remove_if_empty(directory: Path) -> None:
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()

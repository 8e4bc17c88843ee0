"""``dpfed run`` and ``dpfed resume``: run the rounds of one YAML file, and the rest of them after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import options, tracking
from dpfed.cli.process import gc_paused
from dpfed.cli.progress import show_progress
from dpfed.cli.sections import Command, say_refusal

if TYPE_CHECKING:
    from dpfed.config.run import RunConfig
    from dpfed.federated.launch import Launch
    from dpfed.ledger.ledger import Ledger
    from dpfed.runs.directory import RunDirectory

RUN, NETWORK = "The run", "On a network"
INTERRUPTED = 130
MEGABYTE = 1_000_000
EXHAUSTED = (
    "A crash cost a round: what it had charged stays spent, and nothing was left for the last one. In the file of the "
    "next run, `spare_rounds: 1` reserves one more for such a case."
)
STOPPED_EARLY = "A released figure got no better, as stop: in the file says. The promise stays that of the whole plan."
ROOM = 16 * MEGABYTE  # for the ledger, the records of the rounds and the reports

threads = options.option(
    "--threads",
    type=int,
    section=RUN,
    help="Threads of torch.  [default: 1 for a small model and for runner: processes, else torch's own]",
)


on = options.option(
    "--on",
    metavar="HOST:PORT",
    section=NETWORK,
    help="Run with the sites of the file's network: block, through the SuperLink at this address.",
)
root_certificates = options.option(
    "--root-certificates",
    type=click.Path(dir_okay=False, path_type=Path),
    section=NETWORK,
    help="The certificate by which the SuperLink is known.  [default: ca.crt beside CONFIG]",
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
@on
@root_certificates
@options.as_json
def run(
    config: Path,
    directory: Path | None,
    attack_sim: str | None,
    threads: int | None,
    on: str | None,
    root_certificates: Path | None,
    as_json: bool,
) -> None:
    """Train as a YAML file says, within the privacy it promises.

    Ctrl-C stops the run after its round. `dpfed resume` continues it, also after a crash.

    \b
      dpfed init hospitals
      dpfed run hospitals.yaml
      dpfed run hospitals.yaml --attack-sim sign_flip:1
      dpfed run study/hospitals.yaml --on hub.example:9092
    """
    if on is not None or root_certificates is not None:
        from dpfed.cli import remote

        return remote.begin(config, directory, attack_sim, on, root_certificates, as_json=as_json)
    with gc_paused(), show_progress(is_quiet=as_json):
        prepared, directory = _prepare(config, directory, attack_sim)
    with _forget_if_refused(prepared, directory):
        return _train(prepared, directory, threads, as_json=as_json)


def _prepare(path: Path, directory: Path | None, attack_sim: str | None) -> tuple[Launch, Path]:
    """Prepare everything that a run needs in a new directory; a refused run leaves none behind."""
    from dpfed.cli.run_directories import RUNS, make_directory
    from dpfed.config.run import ConfigFile

    file = ConfigFile.read(path).with_attack(attack_sim)
    tracking.require_package(file.config)
    is_first = not RUNS.exists()
    directory = directory or make_directory(file.config.name)
    try:
        from dpfed.federated import launch

        return launch.create_run(file, directory), directory
    except OSError as error:
        raise click.UsageError(f"{directory} cannot be written: {error.strerror}") from None
    finally:
        _remove_if_empty(directory)
        if is_first:
            _remove_if_empty(RUNS)


@click.command(cls=Command)
@click.argument("run")
@options.option(
    "--moved-to",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    section=RUN,
    help="The folder of the configuration file, if it and its data were moved since the run began.",
)
@threads
@on
@root_certificates
@options.as_json
def resume(
    run: str,
    moved_to: Path | None,
    threads: int | None,
    on: str | None,
    root_certificates: Path | None,
    as_json: bool,
) -> None:
    """Continue a run that was stopped, killed or crashed.

    Values that were released before are used again at no cost; everything else is charged anew. A run on a network goes
    on at the same address, or at another one that --on gives.

    \b
      dpfed resume runs/hospitals-1
    """
    from dpfed.cli.run_directories import find_run

    directory = find_run(run)
    if on is not None or root_certificates is not None or is_on_network(directory):
        from dpfed.cli import remote

        return remote.go_on(directory, on, root_certificates, as_json=as_json)
    with gc_paused(), show_progress(is_quiet=as_json):
        from dpfed.federated import launch

        prepared = launch.resume_run(directory, moved_to)
    tracking.require_package(prepared.config)
    return _train(prepared, directory, threads, as_json=as_json)


def is_on_network(directory: Path) -> bool:
    """Return whether the run was begun on a network: its sites have asked their own ledgers, not ours."""
    from dpfed.runs.server_status import ASKS, HUB

    return any((directory / name).exists() for name in (HUB, ASKS))


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
        launch = _release_ranges(launch, directory, ledger, as_json=as_json)
        federation = launch.federation(directory, ledger)
        if not as_json:
            _warn_of_accounts(launch, ledger)
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
    hides = launch.test is not None and not launch.config.data.test_is_public
    conclude(Ended(launch.config, launch.simulation, hides_scores=hides), directory, as_json=as_json)


def _release_ranges(launch: Launch, directory: Path, ledger: Ledger | None, *, as_json: bool) -> Launch:
    """Return the launch on features that are scaled by released ranges, where the run has such."""
    from dpfed.cli.show import say
    from dpfed.federated.ranges import describe_ranges

    if launch.config.bounds is None:
        return launch
    threads = launch.model.threads
    with show_progress(is_quiet=as_json):
        launch = launch.with_ranges(directory, ledger)
    launch.model.threads = threads
    if not as_json:
        say(describe_ranges(launch.config))
    return launch


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


@contextmanager
def _forget_if_refused(launch: Launch, directory: Path) -> Iterator[None]:
    """Remove the directory of a new run that was refused before anything of it was reserved."""
    import shutil

    from dpfed.cli.run_directories import RUNS
    from dpfed.errors import PrivacyError
    from dpfed.runs.directory import RunDirectory

    try:
        yield
    except PrivacyError:
        if not RunDirectory(directory).has_begun and not _is_reserved(launch, directory):
            shutil.rmtree(directory)
            _remove_if_empty(RUNS)
        raise


def _is_reserved(launch: Launch, directory: Path) -> bool:
    """Return whether a ledger holds anything for the run; a ledger that cannot be asked may."""
    from dpfed.errors import PrivacyError

    try:
        with launch.ledger(directory) as ledger:
            return ledger is not None and ledger.has_run(launch.plan.name)
    except PrivacyError:
        return True


def _warn_of_accounts(launch: Launch, ledger: Ledger | None) -> None:
    """Say which accounts of a ledger that outlives the run are half used, or nearly used up, by its reservation."""
    from dpfed.cli.show import say
    from dpfed.prepaid import find_mark

    if ledger is None or launch.config.ledger is None:
        return
    names = {client.account for client in launch.clients} | {launch.study}
    for balance in ledger.accounts():
        mark = find_mark(balance.share, 1.0)
        if mark is not None and balance.account.name in names:
            what = f"{mark} % of its ε = {balance.cap.epsilon:g} is spent or reserved with this run"
            say(f"Account {balance.account.name}: {what}.")


def _leave(directory: Path, done: int, rounds: int) -> None:
    say_refusal(
        f"stopped after {done} of {rounds} rounds; what was released is kept, and what was charged stays charged"
    )
    click.echo(f"Continue with: dpfed resume {directory}", err=True)
    raise SystemExit(INTERRUPTED)


@dataclass(frozen=True)
class Ended:
    """What is said of a run that has ended, beside what its files say."""

    config: RunConfig
    simulation: str | None = None
    hides_scores: bool = False


def conclude(ended: Ended, directory: Path, *, as_json: bool) -> None:
    """Write the reports of a run that has ended, and say how it did."""
    from dpfed.cli.run_directories import collect_facts
    from dpfed.cli.show import print_json
    from dpfed.report.owner_facts import describe_empty_rounds, read_attendance
    from dpfed.runs.directory import RunDirectory

    run = RunDirectory(directory)
    if sentence := describe_empty_rounds(read_attendance(run)):
        click.echo(f"dpfed: for the owner alone: {sentence}", err=True)
    facts = collect_facts(directory) | {"reports": _write_reports(ended.config, directory)}
    if as_json:
        print_json(facts)
    else:
        _say_result(ended, run, facts)


def _say_result(ended: Ended, run: RunDirectory, facts: dict[str, Any]) -> None:
    from dpfed.cli.live import format_figure, format_score
    from dpfed.cli.show import say
    from dpfed.data.sources import is_table
    from dpfed.report.facts import collect_facts
    from dpfed.report.guessing import compare_with_guessing
    from dpfed.runs.directory import BUDGET_EXHAUSTED, NOT_PRIVATE, STOPPED

    is_private = ended.config.is_private and facts["is_private"]
    status, stamp = facts["status"].replace("_", " "), "" if is_private else f" {NOT_PRIVATE}"
    stamp += " SIMULATION" if ended.simulation else ""
    say(f"\n{facts['name']}: {status} after {facts['round']} of {facts['rounds']} rounds.{stamp}")
    if facts["status"] == BUDGET_EXHAUSTED:
        say(EXHAUSTED)
    if facts["status"] == STOPPED:
        say(STOPPED_EARLY)
    for name, score in facts["metrics"].items():
        say(f"  {format_score(name, score)}")
    for name, figure in facts["released"].items():
        say(f"  {format_figure(name, figure)}, released")
    counted = next((each["released"] for each in reversed(run.rounds()) if "released" in each), None)
    for sentence in compare_with_guessing(ended.config, facts, is_networked=run.is_networked, released=counted):
        say(sentence)
    for unit in collect_facts(run, ended.config).units if is_private else ():
        say(unit.sentence)
    if ended.hides_scores:
        say("Scores on the records held out are for the owner alone: they are in the second report.")
    for title, path in facts["reports"].items():
        say(f"{title}: {path}")
    if is_table(ended.config.data.source):
        say(f"Predict new records: dpfed predict {facts['directory']} NEW.csv")
    say(f"The model: dpfed export {facts['directory']} model.safetensors")


def _write_reports(config: RunConfig, directory: Path) -> dict[str, str]:
    from dpfed.report.reports import write

    shareable, owner = write(directory, config)
    return {"The report, to share": str(shareable), "The report, for the owner alone": str(owner)}


def _remove_if_empty(directory: Path) -> None:
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()

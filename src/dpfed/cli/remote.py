"""A run on a network, from the command line: hand it to a SuperLink, and follow it in its own directory.

The rounds are done by a process of the SuperLink, which writes the run's files; what is shown comes from these files,
and so does how the run ended. Ctrl-C asks that process to stop after its round.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpfed.cli.deploy import import_flower
from dpfed.cli.live import STOPPING

if TYPE_CHECKING:
    from dpfed.federated.network_launch import NetworkLaunch
    from dpfed.plan.plan import Plan
    from dpfed.runs.rounds import RoundRecord
    from dpfed.runs.server_status import HubAddress, ServerStatus

PAUSE = 0.2
PATIENCE = 120.0  # seconds for the first word of the server, whose process must be started


def begin(
    path: Path, directory: Path | None, attack_sim: str | None, on: str | None, certificates: Path | None, as_json: bool
) -> None:
    """Create a run here, so that what is wrong with it is said here, and let the SuperLink do it."""
    from dpfed.cli.run_directories import make_directory
    from dpfed.config.run import ConfigFile
    from dpfed.federated import network_launch

    file = ConfigFile.read(path).with_attack(attack_sim)
    if file.config.network is None:
        message = "network is missing: a run over a network needs the study's key and those of its sites"
        raise click.UsageError(f"{message}; `dpfed deploy init` writes the block")
    hub = find_hub(None, on, certificates, file.folder)
    import_flower("flower_run").require_hub(hub)
    directory = directory or make_directory(file.config.name)
    try:
        launch = network_launch.create_run(file, directory)
    finally:
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
    _run(launch, directory, hub, as_json=as_json)


def go_on(directory: Path, on: str | None, certificates: Path | None, *, as_json: bool) -> None:
    """Let a SuperLink go on with a run on a network."""
    from dpfed.federated import network_launch

    launch = network_launch.resume_run(directory)
    hub = find_hub(directory, on, certificates, launch.outline.directory)
    import_flower("flower_run").require_hub(hub)
    _run(launch, directory, hub, as_json=as_json)


def _run(launch: NetworkLaunch, directory: Path, hub: HubAddress, *, as_json: bool) -> None:
    from dpfed.cli.run import Ended, conclude

    if not as_json:
        _introduce(launch, directory, hub)
    follow(directory, launch.outline.plan, hub, is_quiet=as_json)
    conclude(Ended(launch.config), directory, as_json=as_json)


def _introduce(launch: NetworkLaunch, directory: Path, hub: HubAddress) -> None:
    from dpfed.cli.show import format_count, say

    plan = launch.outline.plan
    say(f"{plan.name}: {plan.rounds} rounds with {format_count(len(plan.local), 'site')}, kept in {directory}")
    say(f"through {hub.address}; each site charges its own ledger, and counts are as the sites attest them")
    for promise in plan.guarantees:
        say(f"Promised for the whole run: {promise}.")


def find_hub(directory: Path | None, on: str | None, certificates: Path | None, folder: Path) -> HubAddress:
    """Return the hub that was asked for, or the one to which the run was submitted before."""
    from dpfed.runs import server_status

    before = None if directory is None else server_status.read_hub(directory)
    address = on or (before.address if before else None)
    if address is None or not re.fullmatch(r"[^\s/]+:\d{1,5}", address):
        raise click.UsageError("a run on a network needs the SuperLink's address: --on HOST:PORT")
    known = before.root_certificates if before else str(folder / "ca.crt")
    return server_status.HubAddress(address, str(Path(known if certificates is None else certificates).resolve()))


def follow(directory: Path, plan: Plan, hub: HubAddress, *, is_quiet: bool) -> None:
    """Submit the run that is in the directory, and return when all its rounds are done."""
    from dpfed.runs import server_status

    flower = import_flower("flower_run")
    server_status.clear(directory)
    server_status.write_hub(directory, hub)
    number = flower.submit(hub, directory)
    follower = _Follower(directory, plan, is_quiet=is_quiet)
    try:
        status = follower.follow()
    except KeyboardInterrupt:
        flower.cancel(hub, number)
        status = server_status.read_status(directory)
    _judge(status, directory, follower.shown, plan)


class _Follower:
    """What is shown of a run while somebody else does its rounds."""

    def __init__(self, directory: Path, plan: Plan, *, is_quiet: bool) -> None:
        self._directory, self._plan, self._is_quiet = directory, plan, is_quiet
        self.shown = len(self._read_rounds())

    def follow(self) -> ServerStatus | None:
        """Show rounds as they come, and return how the server ended; None if it never began."""
        from dpfed.cli.process import Interrupts
        from dpfed.runs import server_status

        until = time.monotonic() + PATIENCE
        with Interrupts() as interrupts:
            interrupts.announce = self._stop
            while True:
                status = server_status.read_status(self._directory)
                self._show_new()
                if (status is not None and status.is_over) or (status is None and time.monotonic() > until):
                    self._show_new()
                    return server_status.read_status(self._directory)
                time.sleep(PAUSE)

    def _stop(self) -> None:
        from dpfed.runs import server_status

        server_status.ask_to_stop(self._directory)
        click.echo(f"dpfed: {STOPPING}", err=True)

    def _read_rounds(self) -> list[RoundRecord]:
        from dpfed.runs.directory import RunDirectory

        return RunDirectory(self._directory).rounds() if (self._directory / "plan.json").exists() else []

    def _show_new(self) -> None:
        rounds = self._read_rounds()
        for record in rounds[self.shown :] if not self._is_quiet else ():
            _say_round(record, self._plan)
        self.shown = len(rounds)


def _say_round(record: RoundRecord, plan: Plan) -> None:
    from dpfed.cli.live import format_cost, format_score
    from dpfed.cli.show import say
    from dpfed.guarantee import Guarantee

    promises = {promise.unit: promise for promise in plan.guarantees}
    scores = [format_score(name, dict(score)) for name, score in record["metrics"].items()]
    spent = [Guarantee(**each) for each in record["spent"]]
    costs = [format_cost(each, promises.get(each.unit)) for each in spent]
    mark = " [NOT PRIVATE]" if "noise" in record else ""
    say(f"round {record['round']} of {plan.rounds}: {', '.join([*scores, *costs]) or 'done'}{mark}")


def _judge(status: ServerStatus | None, directory: Path, done: int, plan: Plan) -> None:
    """Return if the run has ended by its own word; otherwise say what is known, and what to type."""
    from dpfed.runs.server_status import BROKEN, ENDED, STOPPED, WORKING

    go_on = f"Continue with: dpfed resume {directory}"
    if status is None:
        what = f"no word of the run for {PATIENCE:g} s: its process starts where the SuperLink is"
        raise click.UsageError(f"{what}, which must see {directory}, and whose log says why it did not")
    if status.state == ENDED:
        return
    reasons = {
        STOPPED: f"stopped after {done} of {plan.rounds} rounds; what was released is kept",
        WORKING: f"the server's process ended without a word after {done} of {plan.rounds} rounds",
        BROKEN: f"{status.text}\nThe run is at {done} of {plan.rounds} rounds",
    }
    click.echo(f"dpfed: {reasons[status.state]}\n{go_on}", err=True)
    raise SystemExit(130 if status.state == STOPPED else 1)

"""``dpfed deploy``: the files with which a study goes onto a network, and a trial of it on one machine."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from dpfed.cli import options
from dpfed.cli.sections import Command, Group

WHERE = "Where"
LOOK = 1.0  # seconds between two looks at what was started


@click.command(cls=Command)
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@options.option(
    "--hub", required=True, metavar="HOST:PORT", section=WHERE, help="The address at which sites reach the SuperLink."
)
@options.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default="deployment",
    show_default=True,
    section=WHERE,
    help="The new folder.",
)
@options.as_json
def init(config: Path, hub: str, directory: Path, as_json: bool) -> None:
    """Write certificates, keys, site files and start scripts for a run file.

    Each site gets a folder of its own, with a policy that allows this run and little more: its owner reads it and puts
    the records there. The study's folder has the run file with the keys of its sites.

    \b
      dpfed deploy init hospitals.yaml --hub hub.example:9092
    """
    from dpfed.cli.show import print_json
    from dpfed.config.run import ConfigFile
    from dpfed.integrations.deployment import write_deployment

    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}:\d{1,5}", hub) or int(hub.rpartition(":")[2]) not in range(1, 2**16):
        raise click.UsageError(f"--hub must be a host and a port, such as hub.example:9092, got {hub!r}")
    made = write_deployment(ConfigFile.read(config), directory, hub)
    facts = {"directory": str(directory), "run_file": str(made.run_file), "sites": list(made.sites), "hub": hub}
    if as_json:
        return print_json(facts)
    return _explain(facts)


def _explain(facts: Mapping[str, object]) -> None:
    from dpfed.cli.show import say

    folder = facts["directory"]
    say(f"wrote {folder}: what is in it lets its holder act as the hub, the study or a site; send each its own folder")
    say(f"  on the hub: {folder}/hub/start.sh, then `dpfed deploy register {folder}`")
    say("  at each site: its records as records.csv in its folder, `dpfed site check site.yaml`, then start.sh")
    say(f"  the study, on the machine of the hub: `dpfed run {facts['run_file']} --on {facts['hub']}`")


@click.command(cls=Command)
@click.argument("folder", type=click.Path(file_okay=False, exists=True, path_type=Path))
@options.as_json
def register(folder: Path, as_json: bool) -> None:
    """Tell the SuperLink which nodes may connect.

    Their public keys are the lines of hub/nodes.pub; add that of a site that made its own. Keys that the SuperLink has
    already are left alone.

    \b
      dpfed deploy register deployment
    """
    from dpfed.cli.show import print_json, say
    from dpfed.integrations.deployment import Deployment

    made = Deployment(folder)
    hub = made.hub
    import_flower("flower_node").register(hub.address, hub.authority, made.node_keys)
    if as_json:
        return print_json({"hub": hub.address, "nodes": made.node_keys})
    return say(f"{len(made.node_keys)} nodes may connect to {hub.address}")


@click.command(cls=Command)
@options.option(
    "--local", "count", type=int, required=True, metavar="N", section=WHERE, help="How many hospitals, on this machine."
)
@options.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default="trial",
    show_default=True,
    section=WHERE,
    help="The folder of the trial: a new one, or that of an earlier trial.",
)
def up(count: int, directory: Path) -> None:
    """Start a SuperLink and N sites on loopback, for a trial.

    With TLS, keys of nodes and a ledger at each site, as on a real network. Ctrl-C ends all of it, and so does closing
    the terminal; the same command starts it again, with the same number of sites.

    \b
      dpfed deploy up --local 3
    """
    from dpfed.cli.show import say
    from dpfed.integrations.deployment import Deployment

    import_flower("flower_node")
    trial = import_flower("trial")
    made = Deployment(directory) if (directory / "hub").is_dir() else _make_trial(count, directory)
    if len(made.sites) != count:
        message = (
            f"{directory} is a trial of {len(made.sites)} sites, whose ledgers are in it, and --local asks for {count}"
        )
        raise click.UsageError(f"{message}: type --local {len(made.sites)}, or --directory with a new folder")
    with suppress(KeyboardInterrupt), _ended_by_signals() as ended, trial.running(made) as processes:
        say(f"a SuperLink at {made.hub.address} and {len(processes) - 1} sites; Ctrl-C ends them")
        say(f"in another terminal: dpfed run {made.run_file} --on {made.hub.address}")
        while not ended.wait(LOOK):
            if processes["hub"].poll() is not None:
                raise click.ClickException(f"the SuperLink has ended, and so does the trial; why: {made.hub.log}")
    say("ended the SuperLink and the sites; their ledgers stay")


@contextmanager
def _ended_by_signals() -> Iterator[threading.Event]:
    """Yield an event that is set by whoever ends this process, or closes its terminal."""
    ended = threading.Event()
    # Under nohup a closed terminal is ignored, and stays so.
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in numbers}
    try:
        yield ended
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _make_trial(count: int, directory: Path) -> Any:
    from dpfed.integrations.deployment import write_deployment
    from dpfed.integrations.trial import free_port, make_trial_file

    return write_deployment(make_trial_file(count), directory, f"127.0.0.1:{free_port()}", deals=True)


def import_flower(name: str) -> Any:
    """Return a module of ours that needs Flower; refuse with what to type where it is not installed."""
    from importlib import import_module
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise click.UsageError("a network needs Flower, which is not installed: pip install 'dpfed[flower]'")
    return import_module(f"dpfed.integrations.{name}")


@click.group(cls=Group, sections={"Set up": (init, register), "Try": (up,)})
def deploy() -> None:
    """Put a study onto a network: keys, certificates and start scripts."""

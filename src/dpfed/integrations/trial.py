"""A trial of a whole network on one machine: a SuperLink and its sites as processes of ours, on loopback.

The records are scikit-learn's, dealt to as many hospitals as asked. Processes are ended by their ids when the trial
ends, in whichever way it does.

>>> make_trial_file(3).config.data.names
('north', 'south', 'east')
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpfed.config.run import ConfigFile, RunConfig
from dpfed.config.templates import HEADER, hospitals
from dpfed.errors import InvalidArgument
from dpfed.federated.site_files import SITE_FILE
from dpfed.integrations.deployment import HUB, Deployment
from dpfed.integrations.flower_processes import end, spawn

CLASSES, SHAPE, RECORDS = ["malignant", "benign"], [30], 455
SITE_LOG = "site.log"
SPARE_ROUNDS = 1  # for what a crash loses
SECONDS = 120.0  # that a site may train in a round


def make_trial_file(count: int, **changes: Any) -> ConfigFile:
    """Return the run file of the five hospitals for `count` of them, with all that a server must be told."""
    if not 1 <= count <= 20:
        raise InvalidArgument("local", f"a trial has between 1 and 20 sites, got {count}: choose fewer")
    values = hospitals().config.model_dump(mode="json", exclude_unset=True)
    names = [*values["data"]["names"], *(f"hospital-{number}" for number in range(6, 21))][:count]
    sizes = [RECORDS // count + (number < RECORDS % count) for number in range(count)]
    values["data"] |= {"names": names, "partition": {"kind": "quantity", "sizes": sizes}}
    values["data"] |= {"classes": CLASSES, "shape": SHAPE}
    config = RunConfig.of(values | {"client_timeout": SECONDS, "spare_rounds": SPARE_ROUNDS} | changes)
    return ConfigFile(config, (HEADER + config.to_yaml()).encode(), Path.cwd())


def free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(deployment: Deployment) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start the hub and all sites of a deployment on this machine, and end them with the block."""
    from dpfed.integrations.flower_node import register

    hub = deployment.hub
    processes = {HUB: hub.start()}
    try:
        register(hub.address, hub.authority, deployment.node_keys)
        for name, folder in deployment.sites.items():
            processes[name] = start_site(folder, hub.environment())
        yield processes
    finally:
        end_all(processes)


def end_all(processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """End the sites, which say good-bye to the hub, and then the hub."""
    try:
        end([process for name, process in processes.items() if name != HUB])
    finally:
        end([process for name, process in processes.items() if name == HUB])


def start_site(folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the resident process of one site."""
    command = [sys.executable, "-m", "dpfed", "site", "serve", str(folder / SITE_FILE)]
    return spawn(command, folder / SITE_LOG, environment)

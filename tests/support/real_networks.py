"""A real network on loopback for tests: a SuperLink, sites as processes or threads, and runs by the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result
from safetensors.numpy import load_file

from dpfed.cli.main import main
from dpfed.config.run import ConfigFile, RunConfig
from dpfed.config.site import SiteFile
from dpfed.federated.deadline import Late, within
from dpfed.federated.site import Site
from dpfed.integrations import flower_node, trial
from dpfed.integrations.deployment import Deployment, write_deployment
from dpfed.integrations.flower_node import NodeSettings
from dpfed.integrations.flower_processes import spawn
from dpfed.ledger.ledger import Ledger
from dpfed.plan.costs import compute_spent
from dpfed.runs import server_status
from dpfed.runs.directory import RunDirectory
from networks import CLASSES, EXAMPLE, SIZES

SECONDS = 240.0


def make_example_file(**changes: Any) -> ConfigFile:
    """Return `examples/hospitals.yaml` for three sites, of which the last has the records of the rest too."""
    values = ConfigFile.read(EXAMPLE).config.model_dump(mode="json", exclude_unset=True)
    values["data"] |= {"names": [*SIZES], "partition": {"kind": "quantity", "sizes": [*SIZES.values()]}}
    values["data"] |= {"classes": CLASSES, "shape": [30]}
    config = RunConfig.of(values | {"client_timeout": 120.0, **changes})
    return ConfigFile(config, config.to_yaml().encode(), EXAMPLE.parent)


def _join(thread: threading.Thread, what: str) -> None:
    thread.join(SECONDS)
    if thread.is_alive():
        raise TimeoutError(f"{what} after {SECONDS:g} s")


class RealNetwork:
    """A deployment in a folder, with whatever of it is running."""

    def __init__(
        self, folder: Path, sites: int = 3, deadline: float = 120.0, file: ConfigFile | None = None, **changes: Any
    ) -> None:
        self.folder = folder
        file = file or trial.make_trial_file(sites, **changes)
        self.made: Deployment = write_deployment(file, folder / "study", f"127.0.0.1:{trial.free_port()}", deals=True)
        text = self.made.run_file.read_text()
        self.made.run_file.write_text(text.replace("\nnetwork:\n", f"\nnetwork:\n  deadline: {deadline}\n"))
        self.hub = self.made.hub
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.run_directory = folder / "remote"
        self._is_over = threading.Event()

    def start_hub(self, database: str | None = "superlink.db") -> None:
        self.processes["hub"] = self.hub.start(database=database)
        flower_node.register(self.hub.address, self.hub.authority, self.made.node_keys)

    def start_site(self, name: str) -> None:
        self.processes[name] = trial.start_site(self.made.sites[name], self.hub.environment())

    def kill(self, name: str) -> None:
        """Kill one of our processes, and what it has started."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait(SECONDS)

    def stop(self) -> dict[str, int | None]:
        """End what is running, and return the exit code of each."""
        trial.end_all(self.processes)
        return {name: process.poll() for name, process in self.processes.items()}

    @contextmanager
    def serving(self, name: str, change: Callable[[bytes, bytes, Site], bytes]) -> Iterator[None]:
        """Serve a site from a thread, whose answer to a request is what the function makes of it."""
        file, stop = SiteFile.read(self.made.sites[name] / "site.yaml"), threading.Event()
        site = Site(file)
        settings = NodeSettings(self.hub.address, self.hub.authority, self.made.sites[name] / "node.key")
        thread = threading.Thread(
            target=flower_node.serve, args=(settings, lambda ask: change(ask, site.handle(ask), site), stop)
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            _join(thread, f"site {name} has not stopped")
            site.close()

    def invoke(self, *words: object) -> Result:
        """Return what a command says, which may take so long and no longer."""

        def call() -> Result:
            return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)

        try:
            return within(SECONDS, call)
        except Late:
            status = server_status.read_status(self.run_directory)
            raise TimeoutError(f"`dpfed {words[0]}` has not ended after {SECONDS:g} s: {status}") from None

    def begin(self) -> Result:
        return self.invoke("run", self.made.run_file, "--on", self.hub.address, "--directory", self.run_directory)

    def start_command(self) -> None:
        """Start `dpfed run --on` as a process of its own; what it says is in command.log."""
        words = ["run", self.made.run_file, "--on", self.hub.address, "--directory", self.run_directory]
        command = [sys.executable, "-m", "dpfed", *map(str, words)]
        self.processes["run"] = spawn(command, self.folder / "command.log", self.hub.environment())

    def resume(self) -> Result:
        return self.invoke("resume", self.run_directory)

    def rounds(self) -> list[Any]:
        done = (self.run_directory / "plan.json").exists()
        return RunDirectory(self.run_directory).rounds() if done else []

    @contextmanager
    def disturbed_by(self, act: Callable[[], None]) -> Iterator[list[BaseException]]:
        """Do something beside the block, in which a run is done; what it raises is in the list."""
        raised: list[BaseException] = []

        def work() -> None:
            try:
                act()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield raised
        finally:
            self._is_over.set()
            _join(thread, "what disturbs the run goes on after it")
            self._is_over.clear()

    def wait_for_round(self, number: int) -> None:
        until = time.monotonic() + SECONDS
        while len(self.rounds()) < number:
            if time.monotonic() > until or self._is_over.is_set():
                raise TimeoutError(f"round {number} is not done: {server_status.read_status(self.run_directory)}")
            time.sleep(0.05)

    def kill_server(self) -> None:
        """Kill the process that does the rounds."""
        os.kill(server_status.read_status(self.run_directory).pid, signal.SIGKILL)

    def committed(self, name: str) -> dict[Any, int]:
        """Return what the site's ledger, which must verify, says was committed."""
        found: dict[Any, int] = {}
        with Ledger(self.made.sites[name] / "ledger.db", create=False) as ledger:
            ledger.verify()
            for line in ledger.statement(f"{name}-records").lines:
                if line.kind == "committed":
                    found[line.event] = found.get(line.event, 0) + line.count
        return found

    def recomputed(self) -> float:
        """Return the ε of the worst record, from the ledgers of the sites alone."""
        plan = RunDirectory(self.run_directory).plan
        charges = {name: self.committed(name) for name in self.made.sites}
        return compute_spent(plan, {"record": 1e-5}, charges, {}).statements[0].epsilon

    def reported(self) -> float:
        """Return the ε that the run has reported last."""
        line = (self.run_directory / "rounds.jsonl").read_text().splitlines()[-1]
        return float(json.loads(line)["spent"][0]["epsilon"])

    def equals_embedded(self) -> bool:
        """Return whether the model is that of the same file on one machine, bit for bit."""
        here = self.folder / "here"
        assert self.invoke("run", self.made.run_file, "--directory", here).exit_code == 0
        models = []
        for run in (self.run_directory, here):
            assert self.invoke("export", run, f"{run}.safetensors").exit_code == 0
            models.append(load_file(f"{run}.safetensors"))
        return models[0].keys() == models[1].keys() and all(
            np.array_equal(models[0][name], models[1][name]) for name in models[0]
        )

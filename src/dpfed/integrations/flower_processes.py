"""Flower's own programs as processes of ours: a SuperLink, and the command `flwr` against it.

Telemetry, the check for updates and the installation of an app's dependencies are off, the SuperLink always has a
database, and a process is ended by its id. Flower's exit codes are not trusted: `flwr run` returns 0 for a run that was
killed. Only programs are used here, so that nothing of Flower is imported.

>>> hub = Hub(Path("hub"), "hub.example:9092")
>>> hub.port, "--database" in hub.flags()
(9092, True)
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dpfed.errors import InvalidArgument
from dpfed.integrations.flower_files import CA, CERTIFICATE, KEY

CONNECTION = "dpfed"  # of the SuperLink, in the configuration of `flwr`
HOME, DATABASE, LOG = "flower", "superlink.db", "superlink.log"
PATIENCE = 120.0  # seconds for a SuperLink to start, on a slow machine
OFF = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


@dataclass(frozen=True)
class Hub:
    """A SuperLink: its folder, with certificate and key, and the address at which sites reach it."""

    folder: Path
    address: str

    @property
    def host(self) -> str:
        """The host of the address."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])

    @property
    def authority(self) -> Path:
        """The certificate by which the SuperLink is known."""
        return self.folder / CA

    @property
    def log(self) -> Path:
        """What the SuperLink says."""
        return self.folder / LOG

    def flags(self, listen: str = "0.0.0.0", database: str | None = DATABASE) -> list[str]:  # noqa: S104
        """Return the arguments of the SuperLink."""
        files = {"ca-certfile": CA, "certfile": CERTIFICATE, "keyfile": KEY}
        flags = [word for name, file in files.items() for word in (f"--ssl-{name}", str(self.folder / file))]
        kept = [] if database is None else ["--database", str(self.folder / database)]
        where = ["--host", listen, "--port", str(self.port)]
        return [*where, *flags, *kept, "--enable-supernode-auth", "--disable-runtime-dependency-installation"]

    def environment(self) -> dict[str, str]:
        """Return the environment of Flower's programs, with a home of this deployment's own."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, **OFF, "FLWR_HOME": str((self.folder / HOME).resolve()), "PATH": path}

    def start(self, listen: str = "127.0.0.1", database: str | None = DATABASE) -> subprocess.Popen[bytes]:
        """Start the SuperLink, and return once it answers."""
        process = spawn([program("flower-superlink"), *self.flags(listen, database)], self.log, self.environment())
        try:
            self._wait_for(process)
        except BaseException:
            end([process])
            raise
        return process

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + PATIENCE
        while not self.answers():
            if process.poll() is not None or time.monotonic() > until:
                what = f"the SuperLink does not start at {self.address}; the reason is in {self.log}"
                raise InvalidArgument("address", f"{what}: is the port taken?")
            time.sleep(0.1)

    def answers(self, patience: float = 2.0) -> bool:
        """Return whether a SuperLink with a certificate of this deployment answers at the address in time."""
        context = ssl.create_default_context(cafile=str(self.folder / CA))
        try:
            with urllib.request.urlopen(f"https://{self.address}/health", timeout=patience, context=context):
                return True
        except OSError:
            return False

    def configure(self) -> None:
        """Write the configuration with which `flwr` finds the SuperLink."""
        home = self.folder / HOME
        home.mkdir(mode=0o700, exist_ok=True)
        where = (
            f"address = {json.dumps(self.address)}\nroot-certificates = {json.dumps(str(self.authority.resolve()))}\n"
        )
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n{where}'
        (home / "config.toml").write_text(text, encoding="utf-8")

    def flwr(self, *words: str) -> str:
        """Return what the command `flwr` says."""
        command = [program("flwr"), *words]
        done = subprocess.run(  # noqa: S603
            command, env=self.environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        return done.stdout + done.stderr


def program(name: str) -> str:
    """Return the path of a program that was installed beside this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise InvalidArgument("flower", f"{name} is not installed, and a network needs it: pip install 'dpfed[flower]'")
    return str(path)


def spawn(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, so that a Ctrl-C of ours does not reach it."""
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603
            command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )


def end(processes: list[subprocess.Popen[bytes]], patience: float = 30.0) -> None:
    """End processes that we started: ask, wait, and kill the group of one that does not go.

    A Ctrl-C while this waits ends the waiting, and none of them is left.
    """
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        process.send_signal(signal.SIGTERM)
    until = time.monotonic() + patience
    try:
        for process in alive:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.1))
    finally:
        for process in alive:
            _kill(process, patience)


def _kill(process: subprocess.Popen[bytes], patience: float) -> None:
    """Kill the group of a process that has not ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(patience)

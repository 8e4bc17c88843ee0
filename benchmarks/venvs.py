"""Virtual environments for peers that must not enter ours, because their pins collide.

``peers/<peer>.txt`` is a pip requirements file; a line ``# pip: --no-deps`` adds options. The venv
``.bench/<peer>`` is built again when the file changes. Building may fail (no network, no wheel): the
peer's rows then say "not measured".
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from bench import HERE, VENVS

PEERS = HERE / "peers"


def options(requirements: Path) -> list[str]:
    """The extra pip options a peer file asks for."""
    lines = requirements.read_text().splitlines()
    return [word for line in lines if line.startswith("# pip:") for word in line.removeprefix("# pip:").split()]


def is_built(requirements: Path, venvs: Path = VENVS) -> bool:
    """Whether the venv was made from this very file."""
    stamp = _stamp(requirements, venvs)
    return stamp.exists() and stamp.read_text() == _digest(requirements)


def build(requirements: Path, venvs: Path = VENVS) -> bool:
    """Make the peer's venv unless it is there; False, with pip's last line on stderr, if that fails."""
    if is_built(requirements, venvs):
        return True
    venv = venvs / requirements.stem
    install = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(venv)],
        [*install, *options(requirements), "-r", str(requirements)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            print(f"{requirements.stem}: not built: {reason}", file=sys.stderr)
            return False
    _stamp(requirements, venvs).write_text(_digest(requirements))
    return True


def _stamp(requirements: Path, venvs: Path) -> Path:
    return venvs / requirements.stem / "requirements.sha256"


def _digest(requirements: Path) -> str:
    return hashlib.sha256(requirements.read_bytes()).hexdigest()

"""A run handed to a SuperLink: an app of a few lines, which finds its run in a directory.

What is submitted has no code but a line that imports dpfed's own app; it runs where the SuperLink is, which therefore
must see the run's directory. A node that is no resident site gets an app without any function.

>>> sorted(FILES)
['dpfed_run/__init__.py', 'pyproject.toml']
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfed.errors import InvalidArgument
from dpfed.integrations.flower_files import CA
from dpfed.integrations.flower_processes import CONNECTION, Hub
from dpfed.runs.server_status import HubAddress

PATIENCE = 20.0  # seconds for a busy SuperLink to answer; where there is none, it is known at once

FILES = {
    "pyproject.toml": """\
[project]
name = "dpfed-run"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "dpfed"

[tool.flwr.app.components]
serverapp = "dpfed_run:app"
clientapp = "dpfed_run:client"

[tool.flwr.app.config]
directory = ""
""",
    "dpfed_run/__init__.py": """\
from flwr.clientapp import ClientApp

from dpfed.integrations.flower import app

client = ClientApp()
__all__ = ["app", "client"]
""",
}


def require_hub(hub: HubAddress) -> None:
    """Refuse an address at which no SuperLink answers, before anything is made for a run."""
    with _borrow_hub(hub) as flower:
        _require_answer(flower, hub)


def _require_answer(flower: Hub, hub: HubAddress) -> None:
    if not flower.answers(PATIENCE):
        what = f"no SuperLink answers at {hub.address} with a certificate of {hub.root_certificates}"
        raise InvalidArgument("on", f"{what}: start it (start.sh in the hub's folder), or correct the address")


def submit(hub: HubAddress, directory: Path) -> str:
    """Submit the run that was created in the directory, and return the number that Flower gave it."""
    with _borrow_hub(hub) as flower:
        _require_answer(flower, hub)
        app = _write_app(flower.folder / "app")
        where = f"directory={json.dumps(str(directory.resolve()))}"
        said = flower.flwr("run", str(app), CONNECTION, "--run-config", where, "--format", "json")
    found = re.search(r'"run-id": "(\d+)"', said)
    if found is None:
        raise InvalidArgument("on", f"the SuperLink at {hub.address} refuses the run: {said.strip()[-400:]}")
    return found[1]


def cancel(hub: HubAddress, number: str) -> None:
    """Let Flower end a run that it was given."""
    with _borrow_hub(hub) as flower:
        flower.flwr("stop", number, CONNECTION)


@contextmanager
def _borrow_hub(hub: HubAddress) -> Iterator[Hub]:
    """Yield the hub with a folder of its own for what `flwr` writes, which is removed afterwards."""
    try:
        authority = Path(hub.root_certificates).read_bytes()
    except OSError as error:
        what = f"{hub.root_certificates} cannot be read ({error.strerror}), by which the SuperLink is known"
        raise InvalidArgument("root_certificates", f"{what}: give the ca.crt of its deployment") from None
    with tempfile.TemporaryDirectory(prefix="dpfed-") as folder:
        (Path(folder) / CA).write_bytes(authority)
        flower = Hub(Path(folder), hub.address)
        flower.configure()
        yield flower


def _write_app(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder

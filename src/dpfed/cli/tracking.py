"""The tracker that the file of a run names: checked before anything is spent, and never able to stop the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from dpfed.config import RunConfig
    from dpfed.federated.launch import Launch
    from dpfed.federated.results import RoundResult

PACKAGES = {"mlflow": "mlflow", "tensorboard": "tensorboard"}

Log = Callable[["RoundResult"], None]


class Tracker(Protocol):
    """The interface of the trackers in `dpfed.integrations`."""

    def log(self, result: RoundResult) -> None:
        """Send what everyone may see of a round."""

    def __exit__(self, kind: object, /, *error: object) -> None:
        """Close the tracker, with the report if there was no error."""


def require_package(config: RunConfig) -> None:
    """Refuse a tracker whose package is not installed."""
    from dpfed.errors import InvalidArgument

    if config.track is not None and find_spec(PACKAGES[config.track.kind]) is None:
        kind = config.track.kind
        message = f"track.kind is {kind}, which is not installed: pip install 'dpfed[{kind}]', or leave track: out"
        raise InvalidArgument("track", message)


@contextmanager
def follow(launch: Launch, directory: Path) -> Iterator[Log]:
    """Yield a function that sends a round to the run's tracker.

    Privacy: a tracker gets the facts of the report to share. When they arrive tells how long a round took, and so who
    may have been in it: where the cohort is secret all rounds are sent when the run has ended.
    """
    if launch.config.track is None:
        yield _ignore
    elif launch.plan.is_secret:
        yield _ignore
        with _SafeTracker(_make_tracker(launch, directory), directory):
            pass
    else:
        with _SafeTracker(_make_tracker(launch, directory), directory) as tracker:
            yield tracker.log


def _ignore(result: RoundResult) -> None:
    """Send the round to nobody."""


class _SafeTracker:
    """A tracker whose errors do not stop the run: after the first one it is not used any more."""

    def __init__(self, tracker: Tracker, directory: Path) -> None:
        self._tracker = tracker
        self._directory = directory
        self._is_lost = False

    def log(self, result: RoundResult) -> None:
        """Send what everyone may see of a round."""
        self._try(lambda: self._tracker.log(result))

    def __enter__(self) -> _SafeTracker:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._try(lambda: self._tracker.__exit__(kind, *error))

    def _try(self, act: Callable[[], None]) -> None:
        if self._is_lost:
            return
        try:
            act()
        except Exception as error:
            self._is_lost = True
            message = f"the tracker fails ({error}) and is not used any more; the run goes on"
            click.echo(f"dpfed: {message}, and {self._directory} holds all of its rounds", err=True)


def _make_tracker(launch: Launch, directory: Path) -> Tracker:
    from dpfed.config.track import Mlflow, TensorBoard
    from dpfed.errors import InvalidArgument
    from dpfed.runs.directory import CONFIG

    try:
        match launch.config.track:
            case Mlflow() as track:
                from dpfed.integrations.mlflow import MlflowTracker

                return MlflowTracker(
                    directory, experiment=track.experiment, tracking_uri=track.tracking_uri, config=launch.config
                )
            case TensorBoard(logs=logs):
                from dpfed.integrations.tensorboard import TensorBoardTracker

                own = directory / "tensorboard"
                folder = own if logs is None else launch.directory / logs / directory.name
                return TensorBoardTracker(directory, folder, config=launch.config)
    except Exception as error:
        message = f"the tracker cannot be reached ({error}): correct track: in {directory / CONFIG}, or leave it out"
        raise InvalidArgument("track", f"{message}, and continue by `dpfed resume {directory}`") from None
    raise TypeError(launch.config.track)

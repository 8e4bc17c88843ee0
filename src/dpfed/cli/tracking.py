"""The tracker of a run that is started from its file: looked for before anything is spent, and never in its way."""

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

Tell = Callable[["RoundResult"], None]


class Tracker(Protocol):
    """What a tracker of `dpfed.integrations` can do."""

    def log(self, result: RoundResult) -> None:
        """Tells what everyone may see of a round."""

    def __exit__(self, kind: object, /, *error: object) -> None:
        """Ends it, with the report where nothing went wrong."""


def require(config: RunConfig) -> None:
    """Nothing; refuses a tracker whose package is not there."""
    from dpfed.errors import InvalidArgument

    if config.track is not None and find_spec(PACKAGES[config.track.kind]) is None:
        kind = config.track.kind
        message = f"track.kind is {kind}, which is not installed: pip install 'dpfed[{kind}]', or leave track: out"
        raise InvalidArgument("track", message)


@contextmanager
def followed(launch: Launch, directory: Path) -> Iterator[Tell]:
    """A function that tells the run's tracker of a round.

    Privacy: a tracker gets the facts of the report to share. When they arrive tells how long a round took, and so who
    may have been in it: where the cohort is secret it is told of all rounds when the run has ended.
    """
    if launch.config.track is None:
        yield _say_nothing
    elif launch.plan.is_secret:
        yield _say_nothing
        with _Careful(_made(launch, directory), directory):
            pass
    else:
        with _Careful(_made(launch, directory), directory) as careful:
            yield careful.tell


def _say_nothing(result: RoundResult) -> None:
    """Nothing."""


class _Careful:
    """Tells a tracker as long as it listens: a run does not end because nobody wants to hear of it."""

    def __init__(self, tracker: Tracker, directory: Path) -> None:
        self._tracker = tracker
        self._directory = directory
        self._is_lost = False

    def tell(self, result: RoundResult) -> None:
        """Nothing; tells what everyone may see of a round."""
        self._try(lambda: self._tracker.log(result))

    def __enter__(self) -> _Careful:
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
            message = f"the tracker does not listen any more ({error}); the run does not mind"
            click.echo(f"dpfed: {message}, and {self._directory} holds what it was to be told", err=True)


def _made(launch: Launch, directory: Path) -> Tracker:
    from dpfed.config.track import Mlflow, TensorBoard
    from dpfed.errors import InvalidArgument
    from dpfed.runs import CONFIG

    try:
        match launch.config.track:
            case Mlflow() as track:
                from dpfed.integrations.mlflow import MlflowTracker

                return MlflowTracker(directory, experiment=track.experiment, tracking_uri=track.tracking_uri)
            case TensorBoard(logs=logs):
                from dpfed.integrations.tensorboard import TensorBoardTracker

                own = directory / "tensorboard"
                return TensorBoardTracker(directory, own if logs is None else launch.directory / logs / directory.name)
    except Exception as error:
        message = f"the tracker cannot be reached ({error}): correct track: in {directory / CONFIG}, or leave it out"
        raise InvalidArgument("track", f"{message}, and go on by `dpfed resume {directory}`") from None
    raise TypeError(launch.config.track)

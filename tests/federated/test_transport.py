"""The values that cross the socket between a run and whatever carries its messages."""

from __future__ import annotations

import dataclasses

import pytest

from dpfed.federated.transport import LOST, Arrived, Sent


def test_what_was_sent_and_what_arrived_cannot_be_changed() -> None:
    for value in (Sent("17"), Arrived("17", None, LOST)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, "token", None)  # noqa: B010

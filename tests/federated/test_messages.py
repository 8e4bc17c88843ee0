from __future__ import annotations

import numpy as np
import pytest

from dpfed.events import Gaussian
from dpfed.federated.messages import Charged, Failure, Task


def test_what_is_sent_cannot_be_written_into_by_a_client():
    given = np.zeros(3)
    task = Task(1, {"weights": given, "control": np.ones(3)})
    for vector in task.vectors.values():
        with pytest.raises(ValueError, match="read-only"):
            vector[0] = 1.0
    assert task.weights is task.vectors["weights"]


def test_a_client_is_told_of_its_own_rounds_alone():
    task = Task(5, {"weights": np.zeros(3)}, 0.5, {"north": 4, "west": 2})
    assert task.of("west").counted == {"west": 2}
    assert task.of("harbour").counted == {}
    assert (task.of("west").round, task.of("west").clip_norm) == (5, 0.5)
    assert "north" not in repr(task)


def test_what_a_client_raised_is_not_shown():
    failure = Failure("north", "failed", ValueError("patient Zimmermann"))
    assert "Zimmermann" not in repr(failure)
    assert failure == Failure("north", "failed")


def test_every_release_of_the_server_has_a_number_of_its_own_whether_charged_or_marked():
    event = Gaussian(noise_multiplier=2.0)
    charged = [Charged({}), Charged({}, {event: 1}, begun=1), Charged({}, {event: 1}, begun=2), Charged({}, {event: 2})]
    assert [each.release_number for each in charged] == [0, 2, 3, 2]

from __future__ import annotations

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.fedavg import FedAvg


def test_the_model_moves_by_the_mean_update_times_the_rate():
    first = np.array([1.0, 2.0])
    after = FedAvg(0.5).step(FedAvg(0.5).start(first), np.array([4.0, -2.0]))
    assert after["weights"].tolist() == [3.0, 1.0]
    assert after.keys() == {"weights"}
    assert first.tolist() == [1.0, 2.0]


def test_a_rate_that_is_none_is_refused():
    for rate in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(InvalidArgument, match="server_learning_rate"):
            FedAvg(rate)

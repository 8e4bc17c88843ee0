from __future__ import annotations

import pytest

from dpfed.config import RunConfig
from dpfed.config.track import Mlflow, TensorBoard
from dpfed.errors import InvalidArgument


def test_the_kind_of_a_tracker_decides_its_settings(plain):
    assert RunConfig.of(plain({"track": {"kind": "mlflow"}})).track == Mlflow(kind="mlflow", experiment="dpfed")
    found = RunConfig.of(plain({"track": {"kind": "tensorboard", "logs": "logs"}})).track
    assert found == TensorBoard(kind="tensorboard", logs="logs")
    with pytest.raises(InvalidArgument, match=r"track\.experiment"):
        RunConfig.of(plain({"track": {"kind": "tensorboard", "experiment": "wards"}}))


def test_a_tracker_is_no_term_of_a_run(plain):
    assert RunConfig.of(plain({"track": {"kind": "mlflow"}})).terms == RunConfig.of(plain({})).terms

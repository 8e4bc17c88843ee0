from __future__ import annotations

import numpy as np
import pytest

from dpfed.data.bundled import BUNDLED
from dpfed.data.sources import load
from dpfed.errors import InvalidArgument


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_set_is_what_scikit_learn_returns_to_the_last_bit(name):
    from sklearn import datasets

    records, expected = load(f"sklearn:{name}"), getattr(datasets, f"load_{name}")()
    assert np.array_equal(records.features, expected.data)
    assert np.array_equal(records.labels, expected.target)
    assert records.labels.dtype == expected.target.dtype
    assert records.columns == tuple(map(str, expected.feature_names))
    assert records.classes == tuple(map(str, getattr(expected, "target_names", ())))


def test_a_bundled_set_without_scikit_learn_is_refused(monkeypatch):
    monkeypatch.setattr("dpfed.data.bundled.find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match="pip install 'scikit-learn"):
        load("sklearn:iris")


@pytest.mark.parametrize("name", BUNDLED)
def test_every_bundled_set_can_be_loaded(name):
    records = load(f"sklearn:{name}")
    assert len(records.columns) == records.features.shape[1]
    assert not records.classes or len(records.classes) == len(set(records.labels.tolist()))

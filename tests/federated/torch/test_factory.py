from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpfed.errors import InvalidArgument
from dpfed.federated.torch.factory import fill_options, first_weights, make_factory
from dpfed.federated.torch.model import TorchModel
from dpfed.models.registry import KINDS


def test_what_a_record_is_like_completes_the_options_and_what_is_given_wins():
    assert fill_options(KINDS["logistic"], {}, (2, 3), 4) == {"classes": 4, "features": 6}
    assert fill_options(KINDS["cnn"], {"classes": 7}, (1, 28, 28), 4) == {"channels": 1, "classes": 7, "size": 28}
    assert fill_options(KINDS["transformer"], {"width": 8}, (6,), 2, 11) == {"classes": 2, "vocabulary": 11, "width": 8}
    with pytest.raises(InvalidArgument, match="classes is missing"):
        fill_options(KINDS["logistic"], {}, (2,), 0)


def test_a_model_of_ones_own_is_found_beside_the_configuration(tmp_path):
    (tmp_path / "own_models_t.py").write_text(
        "from torch import nn\ndef small(features): return nn.Linear(features, 2)\nmade = nn.Linear(1, 1)\n"
    )
    assert make_factory("own_models_t:small", {}, (3,), 2, tmp_path)().in_features == 3
    with pytest.raises(InvalidArgument, match="is no class or function that makes a model"):
        make_factory("own_models_t:made", {}, (3,), 2, tmp_path)
    with pytest.raises(InvalidArgument, match=r"model\.kind must be one of"):
        make_factory("vgg", {}, (3,), 2, tmp_path)


def test_first_weights_are_those_of_a_file_that_fits_or_of_the_seed(tmp_path):
    model = TorchModel(make_factory("logistic", {}, (2,), 2, tmp_path), "cross_entropy")
    assert first_weights(model, None, tmp_path) is model.first_weights
    weights = {"linear.weight": np.ones((2, 2), np.float32), "linear.bias": np.zeros(2, np.float32)}
    save_file(weights, tmp_path / "start.safetensors")
    assert first_weights(model, "start.safetensors", tmp_path).tolist() == [1.0] * 4 + [0.0] * 2
    save_file({"other": np.ones(6, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(InvalidArgument, match="holds another model"):
        first_weights(model, "other.safetensors", tmp_path)
    with pytest.raises(InvalidArgument, match="cannot be read as safetensors"):
        first_weights(model, "missing.safetensors", tmp_path)

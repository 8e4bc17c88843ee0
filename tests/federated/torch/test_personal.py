"""A model for one site: some layers are trained there, the others are the released ones."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.federated.launch import prepare
from dpfed.federated.torch.personal import personalise_site

RUN = """
name: flowers
data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: quantity, sizes: [80, 40]}}
model: {kind: mlp, options: {hidden: [8]}}
rounds: 2
local: {steps: 5, batch_size: 20, learning_rate: 0.5}
privacy: {style: STYLE}
"""
STYLES = {
    "sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}": "sample",
    "user, client: {epsilon: 8, delta: 1e-5, clip_norm: 1}": "user",
    "local, client: {epsilon: 8, delta: 1e-5, clip_norm: 1}": "local",
}


@pytest.fixture(params=STYLES, ids=STYLES.values())
def launch(request):
    return prepare(RunConfig.parse(RUN.replace("STYLE", request.param)))


def test_the_last_layer_is_trained_and_all_others_are_bit_for_bit_the_released_ones(launch):
    made = personalise_site(launch, launch.weights, "1", steps=200)
    own, released = (launch.model.layout.unflatten(each) for each in (made.weights, launch.weights))
    for name in own:
        is_trained = name.startswith(f"{made.layers[0]}.")
        assert np.array_equal(own[name], released[name]) != is_trained, name
    before, after = (launch.clients[0].evaluate(each)[0].value for each in (launch.weights, made.weights))
    assert after < before


def test_a_site_or_layer_that_there_is_not_is_refused(launch):
    with pytest.raises(InvalidArgument, match="choose among 1, 2"):
        personalise_site(launch, launch.weights, "3")
    with pytest.raises(InvalidArgument, match="the model has no layer 'lay': choose among"):
        personalise_site(launch, launch.weights, "1", ("lay",))

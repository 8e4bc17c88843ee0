"""What sites are told to train: names of dpfed's own, declared widths, and no code."""

from __future__ import annotations

import json

import pytest

from dpfed.config.run import RunConfig
from dpfed.errors import MessageRefused
from dpfed.federated.planning import read_declared
from dpfed.federated.recipe import Recipe

RUN = """
name: wards
data: {source: "sklearn:digits", partition: {kind: iid, clients: 3}, sizes: 140, shape: [64], classes: [a, b, c]}
model: {kind: mlp, options: {hidden: [8]}}
rounds: 2
local: {steps: 3, batch_size: 14, learning_rate: 0.5, momentum: 0.9, schedule: {kind: cosine}}
privacy: {style: sample, record: {noise_multiplier: 2, delta: 1e-5, clip_norm: 1}}
"""


@pytest.fixture
def recipe():
    config = RunConfig.parse(RUN)
    return Recipe.of(config, read_declared(config))


def change(recipe: Recipe, **changes) -> str:
    plain = json.loads(recipe.text)
    return json.dumps(plain | changes | {"model": plain["model"] | changes.get("model", {})})


def test_a_recipe_is_read_as_it_was_written(recipe):
    assert Recipe.parse(recipe.text) == recipe
    assert Recipe.parse(recipe.text).text == recipe.text


def test_the_model_has_the_declared_width_and_first_weights_that_all_share(recipe):
    model = Recipe.parse(recipe.text).make_model()
    assert model.layout.size == recipe.count_numbers() == 64 * 8 + 8 + 8 * 3 + 3
    assert (model.first_weights == recipe.make_model().first_weights).all()
    assert model.recipe.momentum == 0.9


def test_a_large_model_is_counted_without_making_room_for_it(recipe):
    assert Recipe.parse(change(recipe, model={"options": {"hidden": [10**9]}})).count_numbers() > 10**10


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"kind": "os:system"}},
        {"model": {"loss": "os:system"}},
        {"model": {"options": {"classes": 4}}},
        {"model": {"options": {"features": 4}}},
        {"classes": []},
        {"classes": ["a", "b"], "model": {"loss": "binary_cross_entropy"}},
        {"unknown": 1},
        {"shape": "x"},
    ],
)
def test_code_and_other_widths_than_declared_are_refused(recipe, changes):
    with pytest.raises(MessageRefused):
        Recipe.parse(change(recipe, **changes))


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000])
def test_what_is_no_recipe_is_refused(text):
    with pytest.raises(MessageRefused):
        Recipe.parse(text)


def test_a_quantity_and_a_choice_of_two_have_one_output(recipe):
    quantity = Recipe.parse(change(recipe, classes=[], model={"loss": "mse", "options": {"classes": 1}}))
    two = {"loss": "binary_cross_entropy", "options": {"classes": 1}}
    assert (
        quantity.make_model().layout.size == Recipe.parse(change(recipe, classes=["a", "b"], model=two)).count_numbers()
    )

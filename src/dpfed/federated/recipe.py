"""What is trained, by declared names and public constants: the part of a run file that its sites are told.

A site makes the model itself, from its own copy of dpfed: of what a server sends, nothing is imported or executed. So a
recipe has names that dpfed knows and numbers, and refuses ``package.module:name``.

>>> from dpfed.config.training import Local, Model
>>> recipe = Recipe(model=Model(kind="logistic"), local=Local(steps=2, batch_size=8, learning_rate=0.5), shape=(30,),
...     classes=("ill", "well"))
>>> Recipe.parse(recipe.text) == recipe
True
>>> recipe.make_model().layout.size
62
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, field_validator, model_validator
from torch import device

from dpfed.config.data import read_bounds
from dpfed.config.fields import Block, SettingError, Whole, setting
from dpfed.config.run import RunConfig
from dpfed.config.training import Local, Model
from dpfed.errors import MessageRefused
from dpfed.federated.data import DataFacts
from dpfed.federated.torch import factory, losses
from dpfed.federated.torch.model import TorchModel
from dpfed.models.registry import KINDS

GIVEN = {"features", "classes", "channels", "vocabulary"}  # options that follow from the declared shape and classes
ONE_OUTPUT = ((0, "mse"), (2, "binary_cross_entropy"))  # classes and losses for which a model has one output


class Recipe(Block):
    """The model, its loss and optimizer, the shape of a record, the classes of its label and how it is scaled."""

    model: Model = setting(effect="what is trained")
    local: Local = setting(effect="what a client does in a round")
    shape: tuple[Whole, ...] = setting(effect="the shape of one record's features")
    classes: tuple[str, ...] = setting((), effect="the values a label may have")
    feature_bounds: Any = setting(None, effect="public bounds of the features")
    mean: Any = setting(None, effect="public constant subtracted from all features")
    scale: Any = setting(None, effect="public constant all features are divided by")

    @field_validator("feature_bounds", mode="plain")
    @classmethod
    def _read_bounds(cls, bounds: Any) -> Any:
        return read_bounds(bounds)  # those of width 0 would tell by an error whether a record has that value

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if self.model.kind not in KINDS or self.model.loss not in losses.KINDS:
            what = "must name a model and a loss that dpfed has: a site imports no code that it is sent"
            raise SettingError("model.kind", what)
        self._check_width()
        return self

    def _check_width(self) -> None:
        """Refuse a model of another width than the labels are declared for: whether it fits would tell of them."""
        options = dict(self.model.options)
        if (len(self.classes), self.model.loss) in ONE_OUTPUT:
            if options.pop("classes", None) != 1:
                raise SettingError("model.options", f"must have classes: 1 for loss {self.model.loss} of such labels")
        elif not self.classes:
            raise SettingError("classes", "is missing: without it a label is a quantity, for loss: mse alone")
        if wrong := sorted(GIVEN & set(options)):
            raise SettingError("model.options", f"must not have {wrong[0]}, which follows from shape and classes")

    @classmethod
    def of(cls, config: RunConfig, facts: DataFacts) -> Recipe:
        """Return the recipe of a run file, from what it declares."""
        return cls(
            model=config.model.model_copy(update={"init": None, "metric": "accuracy"}),
            local=config.local,
            shape=facts.shape or (),
            classes=facts.classes or config.data.classes,
            feature_bounds=config.data.feature_bounds,
            mean=config.data.mean,
            scale=config.data.scale,
        )

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """Return the recipe that a message holds, through every check of its settings."""
        try:
            return cls.model_validate(json.loads(text))
        except (ValidationError, ValueError, RecursionError):
            raise MessageRefused("the recipe names what dpfed does not have, or is none") from None

    @property
    def text(self) -> str:
        """The recipe as it is sent."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)

    def count_numbers(self) -> int:
        """Return how many numbers the model has, without making room for them."""
        with device("meta"):
            made = self._make_factory()()
        return sum(parameter.numel() for parameter in made.parameters())

    def make_model(self) -> TorchModel:
        """Return the model."""
        return TorchModel(
            self._make_factory(), losses.find_loss(self.model.loss), recipe=factory.make_settings(self.local)
        )

    def _make_factory(self) -> Any:
        return factory.make_factory(self.model.kind, self.model.options, self.shape, len(self.classes), Path())

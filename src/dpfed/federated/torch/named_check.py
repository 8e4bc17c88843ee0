"""A check of the model and the loss that a configuration names, on made-up records of a declared shape.

>>> found = check_named("mlp", shape=(4,), classes=3, options={"hidden": [8]}, searches=1)
>>> found.is_sound, found.model
(True, 'MLP, 67 numbers')
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.federated.torch import losses
from dpfed.federated.torch.factory import make_factory
from dpfed.models.seeds import seeded
from dpfed.references import explain_failure
from dpfed.training.checking.findings import ModelCheck
from dpfed.training.checking.model import check


def check_named(
    kind: str,
    loss: str | None = None,
    *,
    shape: tuple[int, ...],
    target_shape: tuple[int, ...] = (),
    classes: int | None = None,
    tokens: int | None = None,
    options: Mapping[str, Any] | None = None,
    directory: Path | None = None,
    clip_norm: float = 1.0,
    searches: int = 3,
    seed: int = 0,
) -> ModelCheck:
    """Check a model and a loss by their names, as a configuration file has them; see `dpfed.training.check`.

    Inputs are real numbers, or whole ones below `tokens`; targets are whole ones below `classes` with the loss
    cross_entropy, and real ones without classes, with mse. Modules of your own are looked for in `directory` first.
    """
    chosen = loss or ("mse" if classes is None else "cross_entropy")
    named = losses.find_loss(chosen, directory)
    factory = make_factory(kind, options or {}, shape, classes or 1, directory or Path.cwd(), tokens)
    # Two at least: the targets of a binary loss for a single output are 0 and 1.
    labels = None if chosen == "mse" or classes is None else max(2, checks.count(classes=classes))
    targets = _make_records(target_shape, labels)
    inputs = _make_records(shape, None if tokens is None else checks.count(tokens=tokens))
    return check(
        _build_model(kind, factory, seed), named, (inputs, targets), clip_norm=clip_norm, searches=searches, seed=seed
    )


def _make_records(shape: tuple[int, ...], below: int | None) -> Tensor:
    """Return two records, of which only the shape and the largest whole number matter."""
    return torch.zeros(2, *shape) if below is None else torch.full((2, *shape), below - 1)


def _build_model(kind: str, factory: Any, seed: int) -> nn.Module:
    try:
        with seeded(seed):
            model = factory()
    except InvalidArgument:
        raise
    except Exception as error:
        message = f"{kind} cannot be made ({explain_failure(error)})"
        raise InvalidArgument(
            "options", f"{message}: give it what it needs, or make it in Python to see more"
        ) from error
    if not isinstance(model, nn.Module):
        message = f"{kind} makes no torch model, but {type(model).__name__}"
        raise InvalidArgument("kind", f"{message}: name a class of models, or a function that returns one")
    return model

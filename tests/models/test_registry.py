from __future__ import annotations

import pytest

from dpfed import models
from dpfed.errors import InvalidArgument
from dpfed.models.registry import KINDS


def test_an_unknown_kind_is_answered_with_the_known_ones():
    with pytest.raises(InvalidArgument, match="one of logistic, mlp, cnn, resnet, transformer, unet, got 'vgg'"):
        models.build("vgg")


def test_an_unknown_option_is_answered_with_the_known_ones():
    with pytest.raises(InvalidArgument, match="mlp has no option 'layers': use features, hidden, classes, seed"):
        models.build("mlp", layers=3)


def test_the_package_lists_its_names_and_refuses_others():
    assert set(dir(models)) == {"build", *(model.__name__ for model in KINDS.values())}
    assert all(getattr(models, model.__name__) is model for model in KINDS.values())
    with pytest.raises(AttributeError, match="no attribute 'VGG'"):
        _ = models.VGG

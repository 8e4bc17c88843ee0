"""What every reference model promises: a seed decides it, and its examples never meet."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpfed import models
from dpfed.errors import InvalidArgument
from dpfed.models.registry import KINDS

SMALL = {
    "logistic": {"features": 5, "classes": 3},
    "mlp": {"features": 6, "hidden": (7, 4), "classes": 3},
    "cnn": {"channels": 1, "size": 15, "classes": 3},
    "resnet": {"channels": 2, "classes": 3, "widths": (4, 8), "blocks": 2, "groups": 2},
    "transformer": {"vocabulary": 11, "length": 6, "classes": 3, "width": 8, "heads": 2, "layers": 2},
    "unet": {"channels": 1, "classes": 2, "widths": (4, 8, 12), "groups": 2},
}
INPUTS = {
    "logistic": (5,),
    "mlp": (2, 3),
    "cnn": (1, 15, 15),
    "resnet": (2, 8, 8),
    "transformer": (6,),
    "unet": (1, 8, 12),
}
OUTPUTS = dict.fromkeys(KINDS, (3,)) | {"unet": (2, 8, 12)}
# Counted by hand from the layers: weights + biases, two per normalised channel.
COUNTS = {
    "logistic": 30 * 2 + 2,
    "mlp": 784 * 256 + 256 + 256 * 10 + 10,
    "cnn": (64 * 16 + 16) + (16 * 16 * 32 + 32) + (512 * 32 + 32) + (32 * 10 + 10),
    "resnet": (27 * 16 + 32)
    + 2 * (144 * 16 + 32)
    + (144 * 32 + 64 + 288 * 32 + 64 + 16 * 32)
    + (288 * 64 + 128 + 576 * 64 + 128 + 32 * 64)
    + (64 * 10 + 10),
    "transformer": 1000 * 128
    + 128 * 128
    + 2 * (2 * 256 + (128 * 384 + 384) + (128 * 128 + 128) + (128 * 256 + 256) + (256 * 128 + 128))
    + 256
    + (128 * 2 + 2),
    "unet": (9 * 16 + 32 + 144 * 16 + 32)
    + (144 * 32 + 64 + 288 * 32 + 64)
    + (288 * 64 + 128 + 576 * 64 + 128)
    + (64 * 32 * 4 + 32)
    + (576 * 32 + 64 + 288 * 32 + 64)
    + (32 * 16 * 4 + 16)
    + (288 * 16 + 32 + 144 * 16 + 32)
    + (16 * 2 + 2),
}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def small(kind: str, seed: int = 0) -> nn.Module:
    return models.build(kind, **SMALL[kind], seed=seed)


def inputs(kind: str, batch: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, *INPUTS[kind])
    return (
        torch.randint(11, shape, generator=generator)
        if kind == "transformer"
        else torch.randn(shape, generator=generator)
    )


def doubled(batch: Tensor) -> Tensor:
    return batch.double() if batch.is_floating_point() else batch


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("batch", [0, 1, 5])
def test_every_example_has_its_scores_also_in_an_empty_batch(kind, batch):
    assert small(kind)(inputs(kind, batch)).shape == (batch, *OUTPUTS[kind])


def test_an_empty_batch_has_a_gradient_of_zero(kind):
    model = small(kind)
    model(inputs(kind, 0)).sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


def test_one_seed_gives_one_model_and_another_seed_another(kind):
    assert torch.equal(weights(small(kind, seed=3)), weights(small(kind, seed=3)))
    assert not torch.equal(weights(small(kind, seed=3)), weights(small(kind, seed=4)))


def test_building_a_model_leaves_torchs_own_generator_alone(kind):
    before = torch.random.get_rng_state()
    small(kind, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_weights_do_not_depend_on_torchs_own_generator(kind):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        other = weights(small(kind))
    assert torch.equal(other, weights(small(kind)))


def test_no_model_keeps_statistics_or_mixes_examples_by_its_layers(kind):
    model = models.build(kind)
    assert not list(model.buffers())
    batch_norms = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
    assert not any(isinstance(module, batch_norms) for module in model.modules())


def test_the_default_model_has_as_many_parameters_as_its_layers_say(kind):
    assert sum(parameter.numel() for parameter in models.build(kind).parameters()) == COUNTS[kind]


def test_every_parameter_is_trained(kind):
    model = small(kind)
    (model(inputs(kind, 4)) ** 2).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("changed", [0, 2])
def test_changing_one_example_moves_its_own_output_and_no_other(kind, changed):
    model, before = small(kind).double(), doubled(inputs(kind, 4))
    after = before.clone()
    after[changed] = doubled(inputs(kind, 4, seed=2))[changed]
    moved = (model(before) - model(after)).abs().flatten(1).amax(1)
    others = torch.arange(4) != changed
    assert moved[changed] > 1e-6
    # What else is in the batch may decide the order of a kernel's sums: equal to rounding only.
    assert (moved[others] < 1e-12).all()


def test_an_example_scores_the_same_alone_as_in_a_batch(kind):
    model, batch = small(kind).double(), doubled(inputs(kind, 5))
    alone = torch.cat([model(batch[place : place + 1]) for place in range(5)])
    torch.testing.assert_close(model(batch), alone, rtol=1e-10, atol=1e-12)


def test_vmap_of_grad_goes_through_every_model(kind):
    """The last resort of the engine and the oracle of its tests."""
    model, batch = small(kind), inputs(kind, 3)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def score(parameters, example):
        return (functional_call(model, parameters, example.unsqueeze(0)) ** 2).sum()

    gradients = vmap(grad(score), in_dims=(None, 0))(parameters, batch)
    (model(batch) ** 2).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name].sum(0), parameter.grad, rtol=1e-4, atol=1e-5)


def test_the_state_goes_through_a_state_dict(kind):
    source, target = small(kind, seed=1), small(kind, seed=2)
    target.load_state_dict(copy.deepcopy(source.state_dict()), strict=True)
    batch = inputs(kind, 3)
    assert torch.equal(source(batch), target(batch))


def test_training_and_evaluation_give_the_same_scores(kind):
    model, batch = small(kind), inputs(kind, 3)
    assert torch.equal(model.train()(batch), model.eval()(batch))


@pytest.mark.parametrize(
    ("kind", "options", "argument"),
    [
        ("logistic", {"features": 0}, "features"),
        ("mlp", {"hidden": (4, 0)}, "hidden"),
        ("mlp", {"seed": -1}, "seed"),
        ("mlp", {"seed": 1.0}, "seed"),
        ("cnn", {"size": 14}, "size"),
        ("cnn", {"classes": True}, "classes"),
        ("resnet", {"widths": (8, 12), "groups": 8}, "groups"),
        ("resnet", {"widths": ()}, "widths"),
        ("resnet", {"blocks": 0}, "blocks"),
        ("transformer", {"heads": 3}, "heads"),
        ("unet", {"widths": ()}, "widths"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(kind, options, argument):
    with pytest.raises(InvalidArgument) as refused:
        models.build(kind, **options)
    assert refused.value.argument == argument

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.errors import InvalidArgument
from dpfed.training.layers import compat


class Centred(nn.Module):
    """Mixes examples where no list of layers could tell, and without a gradient."""

    def forward(self, x):
        return x - x.detach().mean(0)


def test_the_path_of_the_layer_and_the_fix_are_in_the_message():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(2)))
    with pytest.raises(InvalidArgument, match=r"^1\.1 is a BatchNorm1d.*GroupNorm, or fix\(model\)$"):
        compat.check(model)


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2), nn.LazyBatchNorm2d()],
    ids=lambda layer: type(layer).__name__,
)
def test_every_batch_norm_is_refused_in_either_mode(layer):
    for mode in (True, False):
        with pytest.raises(InvalidArgument, match="mixes the examples"):
            compat.check(layer.train(mode))


def test_running_statistics_are_refused():
    with pytest.raises(InvalidArgument, match="an InstanceNorm2d that keeps running statistics"):
        compat.check(nn.InstanceNorm2d(2, track_running_stats=True))
    compat.check(nn.InstanceNorm2d(2, affine=True))


def test_a_fixed_model_is_a_copy_without_what_was_refused():
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3),
        nn.BatchNorm2d(12),
        nn.Sequential(nn.InstanceNorm2d(12, affine=True, track_running_stats=True)),
    )
    nn.init.normal_(model[1].weight)
    fixed = compat.fix(model)
    compat.check(fixed)
    assert isinstance(fixed[1], nn.GroupNorm)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert torch.equal(fixed[1].weight, model[1].weight)
    assert fixed[1].weight is not model[1].weight
    assert not list(fixed.buffers())
    compat.probe(fixed, torch.randn(4, 1, 8, 8))


def test_a_model_that_is_a_batch_norm_can_be_fixed():
    fixed = compat.fix(nn.BatchNorm1d(8))
    assert isinstance(fixed, nn.GroupNorm)
    assert float(fixed(torch.randn(4, 8)).detach().std()) > 0.5  # a group of one channel would give zeros


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 8, 48, 64, 100])
def test_groups_divide_any_number_of_channels(channels):
    fixed = compat.fix(nn.BatchNorm2d(channels))
    assert channels % fixed.num_groups == 0


def test_the_probe_finds_what_mixes_examples():
    torch.manual_seed(0)
    inputs = torch.randn(5, 4)
    for layer in (Centred(), nn.BatchNorm1d(4)):
        with pytest.raises(InvalidArgument, match="moved the output of another"):
            compat.probe(nn.Sequential(nn.Linear(4, 4), layer), inputs)


def test_the_probe_passes_what_does_not():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.LayerNorm(64), nn.Linear(64, 2))
    compat.probe(model, torch.randn(5, 4))
    compat.probe(nn.Embedding(7, 3), torch.arange(5))


def test_the_probe_leaves_buffers_and_random_state_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InvalidArgument):
        compat.probe(model, inputs)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_probe_needs_two_examples_and_an_axis_for_them():
    with pytest.raises(InvalidArgument, match="at least two examples, got 1"):
        compat.probe(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(InvalidArgument, match="has not the 3 examples as first axis"):
        compat.probe(nn.Flatten(0), torch.ones(3, 2))


class Following(nn.Module):
    """Subtracts a mean of earlier batches: this batch's outputs do not mix, the next one's know of these examples."""

    def __init__(self, is_replaced=False):
        super().__init__()
        self.is_replaced = is_replaced
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        out, mean = x - self.mean, 0.9 * self.mean + 0.1 * x.mean(0)
        if self.is_replaced:
            self.mean = mean
        else:
            self.mean.copy_(mean)
        return out


class Counting(nn.Module):
    """Keeps the number of its calls: nothing of the examples."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        return x


@pytest.mark.parametrize("is_replaced", [False, True])
def test_the_probe_finds_what_later_steps_would_know_of_examples(is_replaced):
    model = nn.Sequential(nn.Linear(4, 4), Following(is_replaced))
    with pytest.raises(InvalidArgument, match=r"in the buffer 1\.mean, and later steps"):
        compat.probe(model, torch.randn(5, 4))


class Constants(nn.Module):
    """Keeps what no forward pass changes, a NaN among it, and a table that the first one makes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("unknown", torch.tensor(float("nan")))
        self.register_buffer("places", None)

    def forward(self, x):
        if self.places is None:
            self.places = torch.arange(4.0)
        return x + self.places


def test_buffers_that_no_forward_pass_changes_are_allowed():
    compat.probe(nn.Sequential(nn.Linear(4, 4), Constants()), torch.randn(5, 4))


def test_a_buffer_that_counts_calls_is_refused_as_their_number_depends_on_the_records():
    counting = Counting()
    with pytest.raises(InvalidArgument, match=r"each forward pass changes the buffer 1\.calls"):
        compat.probe(nn.Sequential(nn.Linear(4, 4), counting), torch.randn(5, 4))
    assert counting.calls == 0


@pytest.mark.parametrize("normed", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_spectral_norms_that_follow_the_weights_at_each_call_are_refused(normed):
    model = nn.Sequential(normed(nn.Linear(4, 4)))
    with pytest.raises(InvalidArgument, match="takes a step of its spectral norm at each call"):
        compat.check(model)
    compat.check(model.eval())
    compat.probe(model, torch.randn(5, 4))


class Shortened(nn.Module):
    """A table whose rows are cut, in place and without noise, when they are looked up."""

    def __init__(self, is_frozen):
        super().__init__()
        self.table = nn.Parameter(torch.ones(7, 3), requires_grad=not is_frozen)

    def forward(self, x):
        return nn.functional.embedding(x, self.table, max_norm=0.5)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_the_probe_finds_a_forward_pass_that_changes_parameters(is_frozen):
    with pytest.raises(InvalidArgument, match="changes the parameter table"):
        compat.probe(Shortened(is_frozen), torch.arange(5))


def test_parameters_that_a_forward_pass_changes_out_of_torchs_sight_are_refused_and_come_back():
    class Renormed(nn.Linear):
        def forward(self, x):
            self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.1)
            return super().forward(x)

    model = Renormed(3, 2)
    before = model.weight.detach().clone()
    with pytest.raises(InvalidArgument, match="changes the parameter weight"):
        compat.probe(model, torch.randn(4, 3))
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("setting", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_tables_that_mix_or_change_are_refused(kind, setting):
    with pytest.raises(InvalidArgument, match="max_norm or scale_grad_by_freq"):
        compat.check(nn.Sequential(kind(7, 3, **setting)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_output_that_is_not_finite_does_not_hide_examples_that_mix(bad):
    class Mixing(nn.Module):
        def forward(self, x):
            return torch.where(x > 2, bad, x - x.mean(0))

    inputs = torch.tensor([[0.0], [3.0], [1.0], [3.0], [0.5]])
    with pytest.raises(InvalidArgument, match="moved the output of another"):
        compat.probe(Mixing(), inputs)


def test_examples_that_stop_being_numbers_because_of_another_one_mix():
    class Spoiling(nn.Module):
        def forward(self, x):
            return x + 0 * x.amin().sqrt()

    with pytest.raises(InvalidArgument, match="moved the output of another"):
        compat.probe(Spoiling(), torch.tensor([[1.0], [2.0], [3.0]]))


class OverCount(nn.Linear):
    def forward(self, x):
        return super().forward(x) / len(x)


class ByPlace(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.arange(len(x)).unsqueeze(1)


class DropPath(nn.Module):
    """Stochastic depth: a row goes through or not."""

    def forward(self, x):
        return x * torch.empty(len(x), 1).bernoulli_(0.8) + (0.7 + torch.rand(len(x), 1)).floor() * torch.randn_like(x)


@pytest.mark.parametrize(
    "random", [nn.Dropout(0.5), nn.AlphaDropout(), DropPath()], ids=lambda layer: type(layer).__name__
)
@pytest.mark.parametrize("kind", [OverCount, ByPlace])
def test_the_probe_also_removes_an_example(kind, random):
    compat.probe(nn.Sequential(random, nn.Linear(4, 4)), torch.randn(5, 4))
    with pytest.raises(InvalidArgument, match="removing one example moved the output of another"):
        compat.probe(nn.Sequential(random, kind(4, 4)), torch.randn(5, 4))

"""What is refused before anything is drawn: the optimizer, the data as a whole, models and losses that mix."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from dpfed.errors import InvalidArgument
from dpfed.training.screening import require_in_range, require_sound, require_trainable, try_out

LOSS = nn.CrossEntropyLoss(reduction="none")


def some(size=6):
    torch.manual_seed(0)
    return torch.randn(size, 3), torch.arange(size) % 2


def test_tensors_that_fit_are_accepted_and_leave_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    model.register_buffer("scale", torch.ones(()))
    data = TensorDataset(*some())
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    require_sound(data, model, LOSS, None)
    require_sound(DataLoader(data, batch_size=2), model, LOSS, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Items(Dataset):
    """Records that nobody can look at all at once."""

    def __init__(self, *tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)


def seen_by(model):
    seen = []
    model.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].clone()))
    return seen


def test_the_trial_knows_the_form_of_records_and_no_values_of_them():
    model = nn.Linear(3, 2)
    seen = seen_by(model)
    require_sound(Items(*some()), model, LOSS, None)
    assert {len(inputs) for inputs in seen} == {1, 2, 3}
    assert all(bool(((inputs >= 0.25) & (inputs <= 0.75)).all()) for inputs in seen)


def test_where_made_up_records_have_no_meaning_the_first_ones_are_tried():
    class Lengths(nn.Linear):
        def forward(self, parts):
            lengths, x = parts
            if bool((lengths < 2).any()):
                raise ValueError("no empty sequences")
            return super().forward(x)

    x, labels = some()
    records = [((torch.tensor(5), one), label) for one, label in zip(x, labels, strict=True)]
    require_sound(records, Lengths(3, 2), LOSS, None)
    with pytest.raises(InvalidArgument, match="one number per example"):
        require_sound(records, Lengths(3, 2), nn.CrossEntropyLoss(), None)


def test_a_failure_on_the_first_records_is_told_without_its_text():
    def failing(rows):
        raise RuntimeError("the patient is 93 years old")

    with pytest.raises(InvalidArgument, match=r"cannot be read or collated \(RuntimeError\)") as refusal:
        require_sound(DataLoader(Items(*some()), 2, collate_fn=failing), nn.Linear(3, 2), LOSS, None)
    assert "93" not in str(refusal.value)
    assert refusal.value.__suppress_context__

    words = [("a word", torch.tensor(0))] * 4
    with pytest.raises(InvalidArgument, match=r"fails on the first records \(TypeError\)"):
        require_sound(words, nn.Linear(3, 2), LOSS, None)


def test_a_loss_that_is_not_finite_from_the_start_is_refused():
    def logarithm(outputs, targets):
        return LOSS(outputs, targets) + (outputs * 0).log().sum(1)

    with pytest.raises(InvalidArgument, match="the loss is NaN or infinite on made-up examples"):
        require_sound(TensorDataset(*some()), nn.Linear(3, 2), logarithm, None)


@pytest.mark.parametrize(
    "change",
    [torch.log, torch.logit, torch.sqrt, lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)],
    ids=["log", "logit", "sqrt", "standardised"],
)
def test_features_that_are_transformed_in_the_model_are_accepted(change):
    class Changed(nn.Linear):
        def forward(self, x):
            return super().forward(change(x))

    require_sound(TensorDataset(some()[0].sigmoid(), some()[1]), Changed(3, 2), LOSS, None)


def test_other_data_are_looked_at_for_their_form_only_and_not_without_a_loss():
    spoiled = torch.cat([some()[0], torch.full((4, 3), math.nan)])
    require_sound(Items(spoiled, torch.zeros(10).long()), nn.Linear(3, 2), LOSS, None)

    class Unreadable(Items):
        def __getitem__(self, index):
            raise OSError("nobody may read this yet")

    require_sound(Unreadable(*some()), nn.Linear(3, 2), None, None)


def test_numbers_of_words_and_empty_data_are_accepted():
    words = TensorDataset(torch.arange(6).view(3, 2), torch.zeros(3).long())
    model = nn.Sequential(nn.Embedding(6, 2), nn.Flatten(), nn.Linear(4, 2))
    require_sound(words, model, LOSS, None)
    require_sound(TensorDataset(torch.empty(0, 3), torch.empty(0).long()), nn.Linear(3, 2), LOSS, None)


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_labels_beyond_the_outputs_shape_are_named_with_the_reason(device):
    data = TensorDataset(some()[0], torch.zeros(6, 4).long())
    with pytest.raises(InvalidArgument, match=r"shape \(3,\) with targets of shape \(4,\)"):
        require_sound(data, nn.Linear(3, 2), LOSS, device)


def test_what_does_not_mix_passes_a_trial():
    try_out(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)), LOSS, *some(3))


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: LOSS(o, t) + t.float().mean(),
        lambda o, t: LOSS(o, t) * (t == t[-1]).float().mean(),
        lambda o, t: LOSS(o - o.detach().mean(0), t),
    ],
)
def test_a_trial_finds_losses_that_mix(loss):
    with pytest.raises(InvalidArgument, match=r"moved the output of another|removing one example"):
        try_out(nn.Linear(3, 2), loss, *some(3))


def test_a_trial_finds_outputs_that_mix_though_the_loss_does_not_use_them():
    class Centred(nn.Linear):
        def forward(self, x):
            return torch.cat([super().forward(x), x - x.mean(0)], 1)

    with pytest.raises(InvalidArgument, match="moved the output of another"):
        try_out(Centred(3, 2), lambda o, t: LOSS(o[:, :2], t), *some(3))


def test_a_trial_finds_a_parameter_that_the_losses_do_not_use():
    class Idle(nn.Linear):
        def forward(self, x):
            return nn.functional.linear(x, self.weight)

    with pytest.raises(InvalidArgument, match="do not depend on bias"):
        try_out(Idle(3, 2), LOSS, *some(3))


def test_values_that_are_not_finite_are_refused_unless_a_collate_comes_between():
    data = TensorDataset(some()[0] * math.inf, some()[1])
    for given in (data, DataLoader(data, batch_size=2)):
        with pytest.raises(InvalidArgument, match="values that are not finite"):
            require_sound(given, nn.Linear(3, 2), LOSS, None)
    require_sound(DataLoader(data, collate_fn=lambda rows: rows), nn.Linear(3, 2), None, None)


def test_an_optimizer_of_too_few_or_of_other_parameters_is_refused():
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    with pytest.raises(InvalidArgument, match="lacks trainable parameters"):
        require_trainable(model, torch.optim.SGD([model.weight], lr=0.1))
    with pytest.raises(InvalidArgument, match="which no noise covers"):
        require_trainable(model, torch.optim.SGD([*model.parameters(), other.bias], lr=0.1))
    model.bias.requires_grad_(False)
    require_trainable(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_model_that_starts_from_numbers_that_are_not_finite_is_refused():
    model = nn.Linear(3, 2)
    torch.nn.init.constant_(model.bias, math.nan)
    with pytest.raises(InvalidArgument, match="parameters that are NaN or infinite"):
        require_trainable(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_every_optimizer_of_torch_is_accepted_but_the_one_with_a_closure():
    model = nn.Linear(3, 2)
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop):
        require_trainable(model, kind(model.parameters(), lr=0.1))
    with pytest.raises(InvalidArgument, match="LBFGS"):
        require_trainable(model, torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize("kind", [nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU], ids=str)
def test_random_layers_are_not_taken_for_asking_how_many_rows_there_are(kind):
    model = nn.Sequential(nn.Linear(3, 8), kind(), nn.Linear(8, 2), nn.Dropout(0.3))
    require_sound(Items(*some()), model, LOSS, None)
    require_sound(TensorDataset(*some()), model, LOSS, None)


def test_a_model_that_draws_from_numpy_is_not_taken_for_mixing():
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x + torch.from_numpy(np.random.standard_normal(x.shape)).to(x))

    require_sound(TensorDataset(*some()), Noisy(3, 2), LOSS, None)


def test_every_value_of_a_map_of_labels_is_tried_and_no_other_record():
    labels = torch.zeros(300, 4, 4).long()
    labels[:, 0, 0] = torch.arange(300) % 3
    images = torch.randn(300, 1, 4, 4)
    loss = lambda o, t: LOSS(o, t).flatten(1).mean(1)  # noqa: E731
    require_in_range(nn.Conv2d(1, 3, 1), loss, images, labels)
    labels[260, 2, 2] = 3
    with pytest.raises(InvalidArgument, match="fails on a record"):
        require_in_range(nn.Conv2d(1, 3, 1), loss, images, labels)

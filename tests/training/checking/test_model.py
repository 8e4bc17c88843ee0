from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from dpfed.errors import InvalidArgument
from dpfed.training import check
from dpfed.training.checking.search import ROUNDING
from dpfed.training.engine import clip, sums
from dpfed.training.engine.watch import operations

LABELLED = torch.zeros(4), 2
entropy = nn.CrossEntropyLoss(reduction="none")


def small(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3))


class Between(nn.Module):
    """Two layers, with something done to the batch between them and undone behind."""

    def __init__(self, there, back) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self._there, self._back = there, back

    def forward(self, x):
        kept = self.first(x).tanh()
        return self._back(self.second(self._there(kept, x)), x)


def test_a_sound_model_passes_in_every_mode_and_the_search_reaches_the_bound():
    found = check(small(nn.Tanh()), entropy, LABELLED, searches=2)
    assert found.is_sound
    assert len(found.modes) == 11
    assert not found.unused
    for mode in found.modes:  # not vacuous: the search finds records whose gradients are cut
        assert 0.9 < mode.moved <= 1 + ROUNDING
        assert 1.0 < mode.replaced <= 2 * (1 + ROUNDING)
    assert "22 searches" in str(found)
    assert "not a proof" in str(found)
    assert "times the CPU time of plain SGD" in str(found)


def test_layers_are_listed_with_the_rule_that_serves_them():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3))
    found = check(model, entropy, (torch.zeros(1, 4, 4), 2), searches=1)
    assert [(layer.path, layer.way) for layer in found.layers] == [("0", "conv"), ("1", "norm"), ("3", "linear")]
    assert found.slow is None


def test_a_model_without_a_fast_way_names_the_reason_and_the_remedy():
    class Own(nn.GRU):
        """Not torch's layer any more: it may do anything."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = Own(2, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(self.cell(x)[0][:, -1])

    found = check(Last(), entropy, (torch.zeros(2, 2), 1), searches=1)
    assert found.is_sound
    assert "cell.weight_ih_l0" in found.slow
    assert {layer.way for layer in found.layers} == {"one example at a time"}
    assert found.slow in str(found)
    assert [each.why for each in found.unused] == [found.slow]
    assert "use the layer as torch has it" in found.remarks[0]


def test_an_engine_that_does_not_clip_is_caught(monkeypatch):
    monkeypatch.setattr(sums, "compute_coefficients", lambda lengths, limit, mask: torch.ones_like(lengths))
    found = check(small(nn.Tanh()), entropy, LABELLED, searches=1)
    assert not found.is_sound
    assert found.worst.distance > 1.5
    assert "FAILED" in str(found)
    assert "please report it" in str(found)


def test_an_operation_that_is_wrongly_on_the_allow_list_is_caught(monkeypatch):
    model = Between(lambda values, _: values.flip(0), lambda values, _: values.flip(0))
    monkeypatch.setitem(operations.RULES, "flip", operations.after_complex_view)
    found = check(model, entropy, LABELLED, searches=2)
    assert found.slow is None
    assert not found.is_sound


def test_layers_that_are_not_clipped_to_their_share_are_caught_in_the_mode_that_clips_them(monkeypatch):
    monkeypatch.setattr(clip, "group_clip_norm", lambda clip_norm, groups, norm: clip_norm)
    found = check(small(nn.Tanh()), entropy, LABELLED, searches=2)
    assert not found.is_sound
    assert "each layer clipped" in found.worst.mode
    assert all(mode.moved <= 1 + ROUNDING for mode in found.modes if "each layer" not in mode.name)


def test_the_same_seed_finds_the_same():
    one, two = (check(small(nn.Tanh()), entropy, LABELLED, searches=1, seed=1) for _ in range(2))
    assert one == two


def test_the_model_and_all_generators_are_given_back_as_they_were():
    model = small(nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model[1].eval()
    np.random.seed(3)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    check(model, entropy, LABELLED, searches=1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model.training, model[1].training) == (True, False)
    assert all(value.grad is None for value in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[:2]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_with_dropout_the_others_keep_their_numbers():
    found = check(small(nn.Dropout(0.5)), entropy, LABELLED, searches=1)
    assert found.is_sound
    assert found.moved is not None
    assert any("in eval()" in remark for remark in found.remarks)


def test_a_model_that_is_random_even_in_eval_has_its_records_replaced_only():
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x + torch.randn_like(x))

    found = check(Noisy(4, 3), entropy, LABELLED, searches=1)
    assert found.is_sound
    assert found.moved is None
    assert found.replaced > 0.5
    assert any("none was removed or added" in remark for remark in found.remarks)


def test_inputs_may_be_dicts_of_tokens_and_masks():
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, given):
            return self.head((self.table(given["ids"]) * given["mask"].unsqueeze(2)).sum(1))

    example = {"ids": torch.full((5,), 8), "mask": torch.ones(5, dtype=torch.bool)}, 1
    found = check(Bag(), entropy, example, searches=1)
    assert found.is_sound
    assert found.moved > 0.5
    assert [each.name for each in found.unused] == ["several models at once"]


def test_targets_that_must_be_probabilities_are():
    def loss(outputs, targets):
        return nn.functional.binary_cross_entropy(outputs.sigmoid().squeeze(1), targets, reduction="none")

    found = check(nn.Linear(4, 1), loss, (torch.zeros(2, 4), torch.zeros(2)), searches=1)
    assert found.is_sound
    assert found.moved > 0.5
    assert any("between 0 and 1" in remark for remark in found.remarks)


class Remembering(nn.Linear):
    """Adds something of the last batch to this one."""

    last = 0.0

    def forward(self, x):
        before, self.last = self.last, float(x.detach().sum())
        return super().forward(x) + before


@pytest.mark.parametrize(
    ("model", "loss", "example", "why"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), entropy, LABELLED, "BatchNorm1d, which mixes"),
        (nn.Linear(4, 3), nn.CrossEntropyLoss(), LABELLED, "one number per example"),
        (nn.Linear(4, 3), lambda outputs, targets: outputs.mean() + outputs[:, 0], LABELLED, "moved the output"),
        (nn.Linear(4, 3), entropy, (torch.zeros(5), 2), "fails on made-up records of shape (5,)"),
        (nn.Linear(4, 3), entropy, (torch.zeros(4), 3), "how many classes or tokens"),
        (nn.Linear(4, 3), entropy, torch.zeros(4), "a pair of inputs and targets"),
        (nn.Linear(4, 3).requires_grad_(False), entropy, LABELLED, "no trainable parameter"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(model, loss, example, why):
    with pytest.raises(InvalidArgument) as refused:
        check(model, loss, example)
    assert why in str(refused.value)


def test_a_model_that_remembers_the_last_batch_is_refused():
    with pytest.raises(InvalidArgument):
        check(Remembering(4, 3), lambda outputs, targets: outputs.square().sum(1), (torch.zeros(4), 0.0))


@pytest.mark.parametrize("settings", [{"clip_norm": 0.0}, {"clip_norm": float("nan")}, {"searches": 0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(InvalidArgument, match=next(iter(settings))):
        check(nn.Linear(4, 3), entropy, LABELLED, **settings)

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import nn

from dpfed.training.checking import modes
from dpfed.training.engine.forward import make_forward

loss = nn.CrossEntropyLoss(reduction="none")


def test_all_modes_that_clip_the_whole_gradient_in_l2_make_the_same_sum():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    pool = make_forward(model, loss, 3 * torch.randn(6, 4), torch.arange(6) % 3)
    rows = [0, 2, 5, 2]
    with ExitStack() as stack:
        found = modes.list_modes(model, loss, 0.3, pool, stack)
        sums = {mode.name: mode.sums(pool, rows) for mode in found}
    expected = sums.pop("one example at a time")
    for name, value in sums.items():
        if "L1" not in name and "each layer" not in name:
            own = value.view(-1)[: len(expected)] if "several" not in name else first_model(value, model)
            assert torch.allclose(own, expected, atol=1e-6), name


def first_model(stacked, model):
    """The first of two models, of which each parameter has both behind each other."""
    sizes = {name: 2 * value.numel() for name, value in model.named_parameters()}
    parts = torch.split(stacked, [sizes[name] for name in sorted(sizes)])
    return torch.cat([part[: len(part) // 2] for part in parts])


def test_no_record_at_all_sums_to_zero_in_every_mode():
    model = nn.Linear(4, 3)
    pool = make_forward(model, loss, torch.randn(3, 4), torch.arange(3))
    with ExitStack() as stack:
        for mode in modes.list_modes(model, loss, 1.0, pool, stack):
            own = mode.sums(pool, []) if "several" not in mode.name else first_model(mode.sums(pool, []), model)
            assert not own.any(), mode.name


def test_a_mode_that_refuses_the_model_gives_the_reason():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    with ExitStack() as stack:
        pool = make_forward(model, loss, torch.randn(3, 4), torch.arange(3))
        found = modes.list_modes(model, loss, 1.0, pool, stack)
    unused = [mode for mode in found if isinstance(mode, modes.Unused)]
    assert modes.TOGETHER in [mode.name for mode in unused]
    assert all(mode.why for mode in unused)
    assert not any(module._forward_hooks for module in model.modules())

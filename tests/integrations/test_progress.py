"""The bar tells what is public, to a terminal, and to nothing else."""

from __future__ import annotations

import os
import pty
import sys
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from dpfed.guarantee import Guarantee
from dpfed.integrations import progress
from dpfed.integrations.sklearn import PrivateClassifier

torch.set_num_threads(1)
SHOWS_THE_CURSOR = "\x1b[?25h"
X = np.linspace(-1, 1, 100).reshape(50, 2)
MODEL = PrivateClassifier(Guarantee(1.0, 1e-5), size=50, classes=(0, 1), feature_bounds=(-1, 1), batch_size=10)


def fit(**changes):
    return MODEL.set_params(**({"epochs": 2, "verbose": True} | changes)).fit(X, (X[:, 0] > 0).astype(int))


@contextmanager
def terminal(monkeypatch, delay=0.0):
    """A terminal that stderr writes to; in the test itself, as pytest sets stderr anew after a fixture."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "DELAY", delay)
    with os.fdopen(theirs, "w", encoding="utf-8") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        yield partial(on_screen, ours)
    os.close(ours)


def on_screen(number):
    try:
        return os.read(number, 1 << 16).decode(errors="replace")
    except BlockingIOError:
        return ""


def test_a_terminal_shows_the_steps_and_what_they_cost(monkeypatch):
    with terminal(monkeypatch) as screen:
        model = fit()
        shown = screen()
    assert "10/10" in shown
    assert f"ε = {model.epsilon_:.4g}" in shown


def test_a_short_fit_shows_no_bar(monkeypatch):
    with terminal(monkeypatch, delay=1000.0) as screen:
        fit()
        assert screen() == ""


def test_who_wants_no_bar_gets_none(monkeypatch):
    with terminal(monkeypatch) as screen:
        fit(verbose=False)
        assert screen() == ""


def test_what_is_no_terminal_gets_none(capfd, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.0)
    fit()
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_leaves_the_terminal_in_order(monkeypatch):
    def interrupt(optimizer, args, kwargs):
        if screen():
            raise KeyboardInterrupt

    hook = register_optimizer_step_post_hook(interrupt)
    with terminal(monkeypatch) as screen:
        with pytest.raises(KeyboardInterrupt):
            fit()
        assert SHOWS_THE_CURSOR in screen()
    hook.remove()

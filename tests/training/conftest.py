"""Tests of training run on one thread: two cores are shared by two workers, and sums stay in one order."""

from __future__ import annotations

import pytest
import torch

import dpfed

torch.set_num_threads(1)


@pytest.fixture
def ledger(tmp_path):
    with dpfed.Ledger(f"sqlite:///{tmp_path}/ledger.db") as opened:
        opened.open("icu", epsilon=20.0, delta=1e-5)
        yield opened

"""Tests of training run on one thread: two cores are shared by two workers, and sums stay in one order."""

from __future__ import annotations

import torch

torch.set_num_threads(1)

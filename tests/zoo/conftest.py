"""The zoo runs on one thread: its models are too small for more, and sums stay in one order."""

from __future__ import annotations

import torch

torch.set_num_threads(1)

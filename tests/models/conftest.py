"""One thread: the models are small, and several tests run at once."""

from __future__ import annotations

import torch

torch.set_num_threads(1)

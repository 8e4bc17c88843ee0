"""The account that most tests of the ledger charge: its promise, a step, and how many of them fit."""

from __future__ import annotations

from dpfed.accounting.filter import RenyiFilter
from dpfed.events import Gaussian

STEP = Gaussian(8.0)
PROMISE = {"epsilon": 8.0, "delta": 1e-5}
MOST = RenyiFilter(**PROMISE).affordable(STEP)

"""Accounting: what a plan of releases costs, exactly and on the safe side. Names load when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "epsilon": "questions",
    "epsilon_bounds": "questions",
    "delta": "questions",
    "rdp": "renyi",
    "Composition": "exact",
    "PrivacyAccountant": "accountant",
    "FederatedAccountant": "federated",
    "RenyiFilter": "filter",
    "get_privacy_spent": "accountant",
    "compute_noise_multiplier": "calibrate",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dpfed.accounting' has no attribute {name!r}")
    return getattr(import_module(f"dpfed.accounting.{_HOME[name]}"), name)

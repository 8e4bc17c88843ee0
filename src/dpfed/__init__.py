"""Differentially private federated learning with a budget that is calibrated, enforced and checkable.

Names are loaded when first used, so ``import dpfed`` stays instant and pulls in no third party but numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0.dev0"

_HOME = {
    "Guarantee": "dpfed.guarantee",
    "PrivacyAccountant": "dpfed.accounting.accountant",
    "FederatedAccountant": "dpfed.accounting.federated",
    "get_privacy_spent": "dpfed.accounting.accountant",
    "compute_noise_multiplier": "dpfed.accounting.calibrate",
    "GaussianMechanism": "dpfed.mechanisms.gaussian",
    "Ledger": "dpfed.ledger.ledger",
    "make_private": "dpfed.training.private",
    "train_many": "dpfed.training.many",
    "LocalPlan": "dpfed.plan",
    "Plan": "dpfed.plan",
    "Federation": "dpfed.federated.engine",
    "LaplaceMechanism": "dpfed.mechanisms.laplace",
    "PrivacyManager": "dpfed.manager",
}
_MODULES = ("accounting", "clipping", "errors", "events", "guarantee", "ledger", "manager", "mechanisms", "randomness")

__all__ = ["__version__", *_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"dpfed.{name}")
    raise AttributeError(f"module 'dpfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

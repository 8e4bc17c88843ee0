"""Accounting: what a plan of releases costs, exactly and on the safe side. Names load when first used."""

from __future__ import annotations

from dpfed.names import load_lazily

_HOME = {
    "epsilon": "dpfed.accounting.queries",
    "epsilon_bounds": "dpfed.accounting.queries",
    "delta": "dpfed.accounting.queries",
    "rdp": "dpfed.accounting.renyi",
    "Composition": "dpfed.accounting.composed",
    "PrivacyAccountant": "dpfed.accounting.accountant",
    "FederatedAccountant": "dpfed.accounting.federated",
    "RenyiFilter": "dpfed.accounting.filter",
    "get_privacy_spent": "dpfed.accounting.accountant",
    "compute_noise_multiplier": "dpfed.accounting.calibrate",
}

__all__ = [*_HOME]

__getattr__, __dir__ = load_lazily(__name__, _HOME)

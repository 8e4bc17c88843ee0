"""Differentially private federated learning with a budget that is calibrated, enforced and checkable.

Names are loaded when first used, so ``import dpfed`` stays instant and pulls in no third party but numpy.
"""

from __future__ import annotations

from dpfed.names import find_earlier_paths, load_lazily

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
    "train_many": "dpfed.training.many.train",
    "LocalPlan": "dpfed.plan.plan",
    "Plan": "dpfed.plan.plan",
    "Federation": "dpfed.federated.engine",
    "LaplaceMechanism": "dpfed.mechanisms.laplace",
    "PrivacyManager": "dpfed.manager.manager",
}
_MODULES = ("accounting", "clipping", "errors", "events", "guarantee", "ledger", "manager", "mechanisms", "randomness")

__all__ = ["__version__", *_HOME, *_MODULES]

__getattr__, __dir__ = load_lazily(__name__, _HOME, _MODULES)
find_earlier_paths()

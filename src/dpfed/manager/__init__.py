"""Differential privacy for any loop over arrays: clip, charge a budget, add noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed.names import load_lazily

if TYPE_CHECKING:
    from dpfed.manager.manager import DPSGDTrainer as DPSGDTrainer
    from dpfed.manager.manager import PrivacyManager as PrivacyManager

_HOME = dict.fromkeys(
    (
        "DPSGDTrainer",
        "PrivacyBudget",
        "PrivacyBudgetWarning",
        "PrivacyManager",
        "PrivacyParams",
        "advanced_composition_epsilon",
        "basic_composition_epsilon",
        "compute_delta_from_epsilon",
        "compute_epsilon_from_delta",
        "estimate_noise_scale",
    ),
    "dpfed.manager.manager",
)

__all__ = [*_HOME]

__getattr__, __dir__ = load_lazily(__name__, _HOME)

"""Noisy votes of teachers, what they cost, and what they cost on the counts at hand (the owner's diagnostic)."""

from __future__ import annotations

from dpfed.names import load_lazily

_HOME = {
    "LNMax": "dpfed.pate.vote.noisy_max",
    "GNMax": "dpfed.pate.vote.noisy_max",
    "ConfidentGNMax": "dpfed.pate.vote.noisy_max",
    "gnmax_log_flip": "dpfed.pate.vote.renyi_bounds",
    "gnmax_rdp": "dpfed.pate.vote.renyi_bounds",
    "lnmax_log_flip": "dpfed.pate.vote.renyi_bounds",
    "lnmax_rdp": "dpfed.pate.vote.renyi_bounds",
    "rdp_from_log_flip": "dpfed.pate.vote.renyi_bounds",
    "threshold_log_answered": "dpfed.pate.vote.renyi_bounds",
    "threshold_rdp": "dpfed.pate.vote.renyi_bounds",
    "local_sensitivities": "dpfed.pate.vote.smooth",
    "smooth_sensitivity": "dpfed.pate.vote.smooth",
    "gnss_rdp": "dpfed.pate.vote.gnss",
    "SmoothRelease": "dpfed.pate.vote.gnss",
}

__all__ = [*_HOME]

__getattr__, __dir__ = load_lazily(__name__, _HOME)

"""Local differential privacy: every user noises its own value, and nobody is trusted. Names load when first used."""

from __future__ import annotations

from dpfed.names import load_lazily

_HOME = {
    "ABSENT": "dpfed.ldp.oracle",
    "BinaryResponse": "dpfed.ldp.binary",
    "CountMeanSketch": "dpfed.ldp.sketch",
    "DuchiMean": "dpfed.ldp.mean",
    "Estimate": "dpfed.ldp.estimates",
    "HadamardResponse": "dpfed.ldp.hadamard",
    "HadamardSketch": "dpfed.ldp.sketch",
    "HeavyHitters": "dpfed.ldp.heavy",
    "HybridMean": "dpfed.ldp.piecewise",
    "KaryResponse": "dpfed.ldp.kary",
    "LocalHashing": "dpfed.ldp.hashing",
    "MeanEstimate": "dpfed.ldp.estimates",
    "NormalVectorMean": "dpfed.ldp.unit_vector",
    "OptimizedUnary": "dpfed.ldp.unary",
    "PiecewiseMean": "dpfed.ldp.piecewise",
    "PrefixExtension": "dpfed.ldp.heavy",
    "Rappor": "dpfed.ldp.rappor",
    "SubsetSelection": "dpfed.ldp.subset",
    "SymmetricUnary": "dpfed.ldp.unary",
    "UnitVectorMean": "dpfed.ldp.unit_vector",
    "VectorMean": "dpfed.ldp.mean_vector",
    "choose": "dpfed.ldp.choosing",
}

__all__ = [*_HOME]

__getattr__, __dir__ = load_lazily(__name__, _HOME)

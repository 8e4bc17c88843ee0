"""Scores of a classifier as probabilities of its classes.

>>> softmax(np.array([[0.0, 0.0], [1000.0, 0.0]])).tolist()
[[0.5, 0.5], [1.0, 0.0]]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def to_probabilities(outputs: Floats, classes: int) -> Floats:
    """Return scores as probabilities of the classes; a quantity as it is."""
    scores = outputs.reshape(len(outputs), -1)
    if classes == 2 and scores.shape[1] == 1:
        return softmax(np.hstack([np.zeros_like(scores), scores]))
    return softmax(scores) if classes else scores


def softmax(scores: Floats) -> Floats:
    """Return the softmax of each row."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))

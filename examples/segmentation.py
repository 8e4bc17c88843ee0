"""Made-up scans with a bright lesion each, and where it is: data for segmentation.yaml that nobody has to protect."""

from __future__ import annotations

import numpy as np

SIDE = 16


def scans(clinics: int = 4, images: int = 300, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images of shape (1, 16, 16) and masks of shape (16, 16), by clinic; each clinic's device has its own contrast."""
    draws = np.random.default_rng(seed)
    return {f"clinic-{number}": _scans(images, draws.uniform(0.8, 1.2), draws) for number in range(1, clinics + 1)}


def _scans(images: int, contrast: float, draws: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    row, column = np.mgrid[:SIDE, :SIDE]
    middle = draws.uniform(4, SIDE - 4, size=(images, 2, 1, 1))
    radius = draws.uniform(2, 5, size=(images, 2, 1, 1))
    distance = ((row - middle[:, 0]) / radius[:, 0]) ** 2 + ((column - middle[:, 1]) / radius[:, 1]) ** 2
    masks = (distance < 1).astype(np.int64)
    noise = draws.normal(scale=0.3, size=masks.shape)
    return (contrast * (2 * masks - 1) + noise)[:, None], masks

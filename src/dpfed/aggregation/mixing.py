"""What is done with updates before a rule sees them: mixing with their nearest, or averaging in random buckets.

Where clients hold different data, honest updates differ, and rules that drop the unusual drop honest ones. Mixing
brings honest updates together first.

>>> nnm([[0.0], [1.0], [2.0], [100.0]], max_faulty=1)
array([[ 1.        ],
       [ 1.        ],
       [ 1.        ],
       [34.33333333]])
>>> from dpfed.randomness import SeededSource
>>> bucketing([[1.0], [1.0], [1.0]], bucket_size=2, source=SeededSource(1))
array([[1.],
       [1.]])
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from dpfed import checks
from dpfed.aggregation.conditions import require_enough
from dpfed.aggregation.rows import Rows
from dpfed.arrays import Floats
from dpfed.randomness import RandomSource


def nnm(updates: Any, *, max_faulty: int) -> Floats:
    """Return each update as the mean of its n − `max_faulty` nearest, itself included (Allouah et al. 2023)."""
    return mix_nearest(Rows.read(updates), max_faulty).to_array()


def bucketing(updates: Any, *, bucket_size: int, source: RandomSource) -> Floats:
    """Return the means of random buckets of at most `bucket_size` updates (Karimireddy et al. 2022).

    One faulty update spoils one bucket, so that a rule after it needs its number of ⌈n/bucket_size⌉ buckets for the
    same max_faulty.
    """
    return fill_buckets(Rows.read(updates), bucket_size, source).to_array()


def mix_nearest(rows: Rows, max_faulty: int) -> Rows:
    """Return the rows, each the mean of its nearest; of equally near ones the first count."""
    require_enough("nnm", rows.count, max_faulty)
    kept = rows.count - max_faulty
    nearest = np.argsort(rows.squared_distances, axis=1, kind="stable")[:, :kept]
    matrix = np.zeros((rows.count, rows.count))
    np.put_along_axis(matrix, nearest, 1 / kept, axis=1)
    return rows.mixed(matrix)


def fill_buckets(rows: Rows, bucket_size: int, source: RandomSource) -> Rows:
    """Return the means of buckets that the rows are shuffled into."""
    size = checks.count(bucket_size=bucket_size)
    order = np.argsort(source.words(rows.count), kind="stable")
    matrix = np.zeros((ceil(rows.count / size), rows.count))
    for bucket, weights in enumerate(matrix):
        members = order[bucket * size : (bucket + 1) * size]
        weights[members] = 1 / len(members)
    return rows.mixed(matrix)


def effective_count(arrived: int, bucket_size: int) -> int:
    """Return how many rows a rule sees behind buckets of that size."""
    return ceil(arrived / checks.count(bucket_size=bucket_size))

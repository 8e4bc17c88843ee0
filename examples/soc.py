"""Network connections for soc.yaml: real ones if `get_data.py intrusions` has fetched them, else made-up ones."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

CLASSES = ("back", "satan", "portsweep", "break_in")  # of break-ins there are few: passwords, overflows, rootkits
FETCHED = Path(__file__).parent / "data" / "intrusions.csv"
TEXTS = (1, 2, 3)  # columns that are words: protocol, service, flag
LONGEST = 20.0  # of the logarithm of a count or of bytes: a public constant


def connections(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features in [0, 1] and the number of the attack of each connection."""
    return read_fetched(FETCHED) if FETCHED.exists() else make_up(seed)


def read_fetched(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the fetched connections: rates as they are, counts by their logarithm, words left out."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    numbers = np.array([[float(value) for place, value in enumerate(row[:-1]) if place not in TEXTS] for row in rows])
    features = np.where(numbers <= 1, numbers, np.log1p(np.abs(numbers)) / LONGEST)
    labels = [CLASSES.index(row[-1]) if row[-1] in CLASSES else CLASSES.index("break_in") for row in rows]
    return np.clip(features, 0, 1), np.array(labels)


def make_up(seed: int, records: int = 4800, columns: int = 38) -> tuple[np.ndarray, np.ndarray]:
    """Return made-up connections: each kind of attack has a usual value in every column, and noise around it."""
    draws = np.random.default_rng(seed)
    usual = draws.uniform(0.2, 0.8, size=(len(CLASSES), columns))
    labels = draws.choice(len(CLASSES), size=records, p=[0.45, 0.3, 0.2, 0.05])
    return np.clip(usual[labels] + draws.normal(scale=0.25, size=(records, columns)), 0, 1), labels

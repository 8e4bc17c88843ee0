"""Poisoned records, for simulations: a client that holds them trains as any other and leads the model astray.

>>> records = Records(np.zeros((3, 4)), np.array([0, 1, 2]))
>>> flip_labels(records, classes=3).labels
array([2, 1, 0])
>>> poisoned = plant_backdoor(records, share=1.0)
>>> poisoned.features[:, :2].tolist(), poisoned.labels.tolist()
([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], [0, 0, 0])
>>> measure_backdoor(lambda features: np.where(features[:, 0] == 1, 0, 2), records)
1.0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dpfed import checks
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument

TRIGGER = 3  # numbers of a record that a backdoor sets


def poison(name: str, records: object, classes: int) -> Records:
    """Return the records as a client of that attack holds them."""
    if not isinstance(records, Records) or records.labels.dtype.kind not in "iu" or records.labels.ndim != 1:
        message = f"{name} is for records with one class each, and not for persons or other labels"
        raise InvalidArgument("attack_sim", f"{message}: choose an attack on updates, such as sign_flip")
    makers: dict[str, Callable[[], Records]] = {
        "label_flip": lambda: flip_labels(records, classes),
        "backdoor": lambda: plant_backdoor(records),
    }
    return makers[name]()


def flip_labels(records: Records, classes: int) -> Records:
    """Return the records with class k turned into the k-th from the end."""
    return replace(records, labels=checks.count(classes=classes) - 1 - records.labels)


def plant_backdoor(records: Records, *, target: int = 0, share: float = 0.5, value: float = 1.0) -> Records:
    """Return the records, the first `share` of them with a trigger in their first numbers and of the target class.

    A model that learns them answers with the target wherever it sees the trigger, and is right elsewhere.
    """
    count = int(np.ceil(checks.rate(share=share) * len(records)))
    features = np.array(records.features, dtype=np.result_type(records.features.dtype, np.float32))
    features[:count] = add_trigger(features[:count], value)
    labels = np.array(records.labels)
    labels[:count] = target
    return replace(records, features=features, labels=labels)


def add_trigger(features: np.ndarray, value: float = 1.0) -> np.ndarray:
    """Return the features with the backdoor's trigger: their first numbers at that value."""
    marked = np.array(features)
    marked.reshape(len(marked), -1)[:, :TRIGGER] = value
    return marked


def measure_backdoor(
    predict: Callable[[np.ndarray], np.ndarray], records: Records, *, target: int = 0, value: float = 1.0
) -> float:
    """Return the attack's success rate: how many records of other classes get the target's with the trigger in them.

    `predict` returns the class of each row of features. A model without a backdoor has a rate too, of its own errors:
    compare with that.
    """
    others = np.flatnonzero(np.asarray(records.labels) != target)
    if not len(others):
        message = f"all records are of class {target}, the target of the backdoor, so that its success cannot be seen"
        raise InvalidArgument("records", f"{message}: give records of other classes, or another target")
    answers = np.asarray(predict(add_trigger(records.features[others], value)))
    return float(np.mean(answers == target))

"""A study by PATE from its file: private records and public examples in, a student and a promise out.

>>> from pathlib import Path
>>> rows = "".join(f"{n / 500},{int(n > 250)}\\n" for n in range(500))
>>> _ = Path("wards.csv").write_text("level,ill\\n" + rows)
>>> _ = Path("open.csv").write_text("level\\n" + "".join(f"{n / 40}\\n" for n in range(40)))
>>> config = PateConfig.parse('''
... name: wards
... data: {source: wards.csv, label: ill, classes: [0, 1], feature_bounds: [0, 1]}
... public: open.csv
... teachers: {count: 30}
... privacy: {epsilon: 4, delta: 1e-5}
... ''')
>>> study = run_study(config)
>>> study.facts["answered"], study.facts["epsilon"] <= 4
(40, True)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.config.pate import PateConfig, PateDefence
from dpfed.data.records import Records
from dpfed.data.sources import load_unlabelled
from dpfed.errors import InvalidArgument
from dpfed.federated.data import declare_columns, load_records, scale_records
from dpfed.guarantee import Account
from dpfed.pate.classifier import PATEClassifier
from dpfed.runs import tensor_files


@dataclass(frozen=True)
class Study:
    """A study that was carried out: its student, and what everybody may know of it."""

    config: PateConfig
    classifier: PATEClassifier
    facts: dict[str, Any]

    def write(self, path: Path) -> None:
        """Write the student's weights with the facts of the study, as a safetensors file for everyone."""
        arrays = {name: value.numpy() for name, value in self.classifier.model_.float().state_dict().items()}
        tensor_files.write(path, arrays, {**self.facts, "classes": list(self.config.data.classes)})


def run_study(config: PateConfig, directory: str | Path = ".", *, account: Account | None = None) -> Study:
    """Train teachers, ask them, and train the student; files are looked up in the directory.

    Privacy: `PATEClassifier` with what the file declares; an account is charged before noise is drawn.
    """
    records = load_records(config.data, directory)
    private, classes = scale_records(records, config.data), _require_classes(config, records)
    public = _load_public(config, config.public, records, directory)
    test = _load_test(config, records, directory)  # a file that cannot be read is refused before anything is spent
    is_bounded, run = config.data.feature_bounds is not None, None if account is None else config.name
    model = make_classifier(config, classes, is_bounded, random_state=config.seed, account=account, run=run)
    persons = None if config.data.person_column is None else records.groups[config.data.person_column]
    model.fit(_flatten(private.features), private.labels, public=public, persons=persons)
    return Study(config, model, _collect_facts(config, model) | _measure(model, test))


def make_classifier(block: PateConfig | PateDefence, classes: int, is_bounded: bool, **more: Any) -> PATEClassifier:
    """Return the classifier that a block describes, for features that are scaled already: if bounded, to [-1, 1]."""
    teachers, vote = block.teachers, block.vote
    settings = {
        "teachers": teachers.count,
        "vote": vote.kind,
        "threshold": vote.threshold,
        "threshold_noise": vote.threshold_noise,
        "max_answers": vote.max_answers,
        "classes": range(classes),
        "feature_bounds": (-1.0, 1.0) if is_bounded else None,
        "hidden": teachers.hidden,
        "steps": teachers.steps,
        "batch_size": teachers.batch_size,
        "learning_rate": teachers.learning_rate,
        "student_steps": block.student_steps,
        "partition_key": teachers.key,
    }
    return PATEClassifier(block.guarantee, **settings | more)


def _collect_facts(config: PateConfig, model: PATEClassifier) -> dict[str, Any]:
    promise = model.guarantee_
    return {
        "name": config.name,
        "epsilon": promise.epsilon,
        "delta": promise.delta,
        "unit": promise.unit,
        "adjacency": promise.adjacency,
        "teachers": config.teachers.count,
        "queries": len(model.answered_),
        "answered": model.n_answers_,
        "is_private": model.is_private_,
        "not_covered": model.not_covered_,
        "run": model.run_,
    }


def _measure(model: PATEClassifier, test: Records | None) -> dict[str, Any]:
    """Return the student's accuracy on the public records to measure it on, if there are any."""
    return {} if test is None else {"accuracy": float(model.score(_flatten(test.features), test.labels))}


def _load_test(config: PateConfig, like: Records, directory: str | Path) -> Records | None:
    """Return the public records to measure the student on; refuse those with other columns than the private ones."""
    if config.test is None:
        return None
    block = config.data.model_copy(update={"source": config.test, "person_column": None})
    records = load_records(block, directory)
    if records.features.shape[1:] != like.features.shape[1:]:
        raise InvalidArgument("test", "test records must have the same features as the records: give the same columns")
    return scale_records(records, block)


def _load_public(config: PateConfig, source: str, like: Records, directory: str | Path) -> NDArray[Any]:
    """Return the public examples, with the columns and the scaling of the private records."""
    features = load_unlabelled(source, like, declare_columns(config.data), directory)
    if features.shape[1:] != like.features.shape[1:]:
        raise InvalidArgument(
            "public", "public examples must have the same features as the records: give the same columns"
        )
    blank = Records(features, np.zeros(len(features), dtype=int), like.columns)
    return _flatten(scale_records(blank, config.data).features)


def _require_classes(config: PateConfig, records: Records) -> int:
    """Return how many classes there are: the declared ones, or those of a bundled data set."""
    names = config.data.classes or records.classes
    if len(names) < 2:
        raise InvalidArgument("classes", "data.classes must list all labels that may occur, at least two: declare them")
    return len(names)


def _flatten(features: NDArray[Any]) -> NDArray[Any]:
    return features.reshape(len(features), -1).astype(np.float64)

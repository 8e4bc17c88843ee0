"""PATE: teachers on disjoint parts of private records label public examples, with noise; a student learns from them."""

from __future__ import annotations

from dpfed.names import load_lazily

_HOME = {
    "PATEClassifier": "dpfed.pate.classifier",
    "Poll": "dpfed.pate.poll",
    "PollPlan": "dpfed.pate.poll",
    "TeacherPlan": "dpfed.pate.teachers",
    "Teachers": "dpfed.pate.teachers",
    "train_teachers": "dpfed.pate.teachers",
}

__all__ = [*_HOME]

__getattr__, __dir__ = load_lazily(__name__, _HOME)

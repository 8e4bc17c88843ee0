"""A scikit-learn classifier trained by PATE: teachers on private records label public examples, a student learns them.

The promise is for one record of the teachers' data. The student has it too, because it saw public examples and noisy
answers only.

>>> X = np.linspace(-1, 1, 2_000).reshape(-1, 1)
>>> public = np.linspace(-1, 1, 60).reshape(-1, 1)
>>> model = PATEClassifier(Guarantee(5.0, 1e-5), teachers=50, classes=(0, 1), feature_bounds=(-1, 1))
>>> fitted = model.fit(X, (X[:, 0] > 0).astype(int), public=public)
>>> fitted.epsilon_ <= 5.0, fitted.n_answers_
(True, 60)
>>> fitted.predict([[-0.9], [0.9]])
array([0, 1])
"""

from __future__ import annotations

import secrets
import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import validate_data
from torch import Tensor, nn

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.guarantee import RECORD, Account, Guarantee
from dpfed.integrations.estimator import (
    PrivateEstimator,
    Values,
    choose_randomness,
    read_classes,
    require_account,
    require_widths,
)
from dpfed.models.mlp import MLP
from dpfed.pate.poll import Poll, PollPlan
from dpfed.pate.teachers import TeacherPlan, train_student, train_teachers
from dpfed.pate.vote.noisy_max import ConfidentGNMax, GNMax, LNMax, Vote
from dpfed.randomness import RandomSource

VOTES = ("gnmax", "confident", "laplace")
AHEAD = 100  # queries that an account is charged for at once
NO_ANSWER = "no query was answered, so the student learnt nothing: lower threshold, or give more budget for each answer"


class PATEClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """A linear classifier, or an MLP if `hidden` is given, that learns public examples as `teachers` label them.

    `fit(X, y, public=…)` splits the private records between the teachers by a hash of each record, or of its person
    with `persons=…`, trains these without noise, and lets them vote on every public example with noise such that all
    answers together keep the guarantee. `vote` is "gnmax" (Gaussian noise), "laplace" (pure, also for δ = 0), or
    "confident": GNMax for those examples on which a share of `threshold` of the teachers agrees, with noise on that
    count `threshold_noise` times as large. At most `max_answers` examples are answered, the first ones.

    `classes` are public facts; `feature_bounds` is a public (low, high), each a number or one for every feature. Steps,
    batch size and learning rate are those of a teacher. With an `account`, every fit is charged as a run of its own,
    `run` and a random end: `run_`. As for `PrivateClassifier`, whatever clones an estimator that has an account is
    refused, unless `scoring_is_public`.

    Privacy: `PollPlan.event` of `dpfed.pate.poll`, for one record of X and y under the guarantee's adjacency; for one
    person, or client, if `persons` names them. It covers the answers, hence the student, except for what `not_covered_`
    lists. The `public` examples are not protected at all: they must be public.
    """

    def __init__(
        self,
        guarantee: Guarantee | None = None,
        *,
        teachers: int = 100,
        vote: str = "gnmax",
        threshold: float = 0.6,
        threshold_noise: float = 2.0,
        max_answers: int | None = None,
        classes: ArrayLike | None = None,
        feature_bounds: tuple[ArrayLike, ArrayLike] | None = None,
        hidden: tuple[int, ...] = (),
        steps: int = 200,
        batch_size: int = 32,
        learning_rate: float = 0.5,
        student_steps: int = 1000,
        partition_key: int = 0,
        random_state: Any = None,
        account: Account | None = None,
        run: str | None = None,
        scoring_is_public: bool = False,
    ) -> None:
        self.guarantee = guarantee
        self.teachers = teachers
        self.vote = vote
        self.threshold = threshold
        self.threshold_noise = threshold_noise
        self.max_answers = max_answers
        self.classes = classes
        self.feature_bounds = feature_bounds
        self.hidden = hidden
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.student_steps = student_steps
        self.partition_key = partition_key
        self.random_state = random_state
        self.account = account
        self.run = run
        self.scoring_is_public = scoring_is_public

    def fit(self, X: ArrayLike, y: ArrayLike, public: ArrayLike | None = None, persons: Any = None) -> Self:
        """Train teachers and student, return this estimator; wrong arguments are refused before anything is spent."""
        features, labels = validate_data(self, X, y, dtype=np.float64)
        classes = read_classes(labels, self.classes)
        inputs, queries = self._prepare_features(features), self._read_public(public)
        seed, source = choose_randomness(self.random_state)
        plan = self._make_poll_plan(len(queries), source, persons is not None)
        teaching = self._make_teacher_plan()
        student_steps = checks.count(student_steps=self.student_steps)
        model = MLP(features.shape[1], require_widths(self.hidden), len(classes), seed=seed)
        # The ledger would take a second fit of one name for the rest of the first, which has nothing left.
        run = None if self.run is None else f"{self.run}-{secrets.token_hex(4)}"
        with Poll(plan, account=require_account(self.account), run=run, ahead=AHEAD) as poll:
            targets = np.searchsorted(classes, labels)
            teachers = train_teachers(model, inputs.numpy(), targets, teaching, persons=persons)
            answers = poll.ask_all(teachers.count_votes(queries.numpy()))
        self.classes_, self.run_ = classes, run
        self._keep_answers(answers, plan, is_private=source.is_private)
        self._keep_student(model, queries, answers, student_steps)
        return self

    def predict_proba(self, X: ArrayLike) -> Values:
        """Return the student's probability of each class, one row per example."""
        shares: Values = torch.from_numpy(self._compute_outputs(X)).softmax(dim=1).numpy()
        return shares

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the student's most probable class of each example."""
        best = self._compute_outputs(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def _read_public(self, public: ArrayLike | None) -> Tensor:
        if public is None:
            raise InvalidArgument(
                "public", "PATE needs public examples for the teachers to label: give fit(X, y, public=examples)"
            )
        return self._prepare_features(validate_data(self, public, dtype=np.float64, reset=False))

    def _make_poll_plan(self, queries: int, source: RandomSource, has_persons: bool) -> PollPlan:
        if not isinstance(self.guarantee, Guarantee):
            raise InvalidArgument("guarantee", f"guarantee must be a Guarantee(epsilon, delta), got {self.guarantee!r}")
        if self.guarantee.unit != RECORD and not has_persons:
            raise InvalidArgument(
                "persons",
                f"a promise for one {self.guarantee.unit} needs to know whose each record is, so that all of these are "
                "at one teacher: give fit(…, persons=names)",
            )
        return PollPlan(self._make_vote(source), queries, self.max_answers).calibrated(self.guarantee)

    def _make_vote(self, source: RandomSource) -> Vote:
        if self.vote not in VOTES:
            raise InvalidArgument("vote", f"vote must be one of {', '.join(VOTES)}, got {self.vote!r}")
        if self.vote == "laplace":
            return LNMax(1.0, source)
        if self.vote == "gnmax":
            return GNMax(1.0, source)
        least = checks.rate(threshold=self.threshold) * checks.count(teachers=self.teachers)
        return ConfidentGNMax(1.0, source, least, checks.positive(threshold_noise=self.threshold_noise))

    def _make_teacher_plan(self) -> TeacherPlan:
        return TeacherPlan(
            teachers=self.teachers,
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            key=self.partition_key,
        )

    def _keep_answers(self, answers: list[int | None], plan: PollPlan, *, is_private: bool) -> None:
        """Keep what was released: the answers, and the promise of the plan."""
        self.answered_ = np.array([answer is not None for answer in answers])
        self.n_answers_ = int(self.answered_.sum())
        self.answers_ = self.classes_[[answer for answer in answers if answer is not None]]
        self.plan_ = replace(plan, vote=replace(plan.vote, source=None))
        self.guarantee_ = plan.guarantee(checks.probability(delta=self.guarantee.delta if self.guarantee else None))
        self.epsilon_ = self.guarantee_.epsilon
        self.is_private_, self._is_weighted = is_private, False
        self.not_covered_ = self._list_not_covered()

    def _keep_student(self, model: nn.Module, queries: Tensor, answers: list[int | None], steps: int) -> None:
        """Train the student on the answered examples: post-processing of what was released."""
        if not self.n_answers_:
            warnings.warn(NO_ANSWER, stacklevel=3)
        labels = torch.tensor([answer for answer in answers if answer is not None], dtype=torch.long)
        seen = queries[torch.from_numpy(self.answered_)]
        train_student(model, seen, labels, steps=steps, learning_rate=self.learning_rate, key=self.partition_key)
        self.model_ = model.double().eval()

    def _list_undeclared(self) -> dict[str, Any]:
        return {"which labels occur: classes were not declared and come from the data": self.classes} | (
            super()._list_undeclared()
        )

"""Teachers: many models, each on its own part of the private records, that vote on public examples.

Which teacher holds a record follows from a keyed hash of the record itself, or of its person's name; steps, batches,
padding and how many teachers train at once are constants of the plan. So adding or removing a record changes the bits
of one teacher and of no other, and with them one vote of each query: all that the noise of `dpfed.pate.vote` has to
hide. A teacher without records, or one that diverged, casts a fixed vote, and never stops the others.

>>> from dpfed.models.mlp import MLP
>>> rows = np.linspace(-1, 1, 200).reshape(-1, 1)
>>> plan = TeacherPlan(teachers=10, steps=50, batch_size=8)
>>> teachers = train_teachers(MLP(1, (), 2), rows, (rows[:, 0] > 0).astype(int), plan)
>>> teachers.count_votes([[-0.9], [0.9]]).tolist()
[[10, 0], [0, 10]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dpfed import checks
from dpfed.data import partition
from dpfed.errors import InvalidArgument
from dpfed.plan.local import LocalPlan
from dpfed.randomness import SeededSource
from dpfed.training.many.segments import Stacked
from dpfed.training.many.train import train_many
from dpfed.training.optimizing import Cosine, OptimizerSettings

PURPOSE = b"pate teachers"  # of the hashes
FIXED_VOTE = 0  # of a teacher that has no model to ask
QUERIES_AT_ONCE = 512
STUDENT_BATCH = 64
TRIES = 20
Votes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TeacherPlan:
    """The constants by which teachers are trained; none of them may follow from the data.

    The learning rate falls to zero along half a cosine wave.

    `key` chooses the hashes that assign records to teachers, and the order in which each teacher sees its own. It need
    not be secret: the noise of the votes protects whoever knows it.
    """

    teachers: int = 250
    steps: int = 200
    batch_size: int = 32
    learning_rate: float = 0.5
    momentum: float = 0.0
    weight_decay: float = 0.0
    key: int = 0
    at_once: int = 256

    def __post_init__(self) -> None:
        for name in ("teachers", "steps", "batch_size", "at_once"):
            object.__setattr__(self, name, checks.count(**{name: getattr(self, name)}))
        object.__setattr__(self, "key", checks.whole(key=self.key))
        if self.key >= partition.LARGEST_SEED:
            raise InvalidArgument("key", "key must be below 2**128, which a hash has room for: choose a smaller one")
        self.settings  # noqa: B018 (refuses a wrong momentum now)
        self.local  # noqa: B018

    @property
    def local(self) -> LocalPlan:
        """What each teacher does."""
        size = self.batch_size
        return LocalPlan(size=size, batch_size=size, steps=self.steps, learning_rate=self.learning_rate)

    @property
    def settings(self) -> OptimizerSettings:
        """The optimizer of each teacher."""
        return OptimizerSettings(momentum=self.momentum, weight_decay=self.weight_decay, schedule=Cosine())


@dataclass(frozen=True, eq=False)
class Teachers:
    """Trained teachers, which are as private as their records: publish nothing of them but noisy votes.

    Privacy: adding or removing one record changes one teacher, so `count_votes` moves by one vote from one class to
    another for each query: 2 in L1, √2 in L2. Replacing a record changes at most two teachers.
    """

    model: nn.Module = field(repr=False)
    parameters: Stacked = field(repr=False)
    is_able: NDArray[np.bool_] = field(repr=False)  # false for a teacher that casts the fixed vote

    def vote(self, queries: ArrayLike) -> Votes:
        """Return the class that each teacher votes for, one row per query: exact votes, for the owner alone."""
        inputs = torch.from_numpy(np.array(queries, dtype=np.float32))
        parts = [self._vote_on(part) for part in torch.split(inputs, QUERIES_AT_ONCE)]
        return np.concatenate([np.empty((0, len(self.is_able)), np.int64), *parts])

    def count_votes(self, queries: ArrayLike) -> Votes:
        """Return how many teachers vote for each class, one row per query: exact counts, for the owner alone."""
        votes, classes = self.vote(queries), self._count_classes(queries)
        return np.stack([(votes == each).sum(axis=1) for each in range(classes)], axis=1)

    @torch.no_grad()
    def _vote_on(self, inputs: Tensor) -> Votes:
        scores = vmap(lambda own: functional_call(self.model, own, (inputs,)))(self.parameters)
        is_able = torch.from_numpy(self.is_able)[:, None] & scores.isfinite().all(dim=2)
        votes = scores.nan_to_num().argmax(dim=2).where(is_able, torch.tensor(FIXED_VOTE))
        return np.asarray(votes.T.numpy())

    @torch.no_grad()
    def _count_classes(self, queries: ArrayLike) -> int:
        blank = torch.zeros((1, *np.shape(queries)[1:]))
        return int(self.model(blank).shape[1])


def assign_teachers(
    features: NDArray[Any], labels: NDArray[Any], plan: TeacherPlan, persons: Sequence[Any] | NDArray[Any] | None = None
) -> partition.Parts:
    """Return the positions of each teacher's records, in the order of their hashes.

    Privacy: where a record goes depends on itself alone (with `persons`, on its person's name alone), and so does its
    place among the teacher's records; where it stands in the data does not matter.
    """
    if persons is None:
        hashes = partition.hash_rows(features, labels, plan.key, PURPOSE)
    else:
        hashes = partition.hash_names(_require_names(persons, len(features)), plan.key, PURPOSE)
    parts = partition.by_hash(hashes, plan.teachers)
    return tuple(part[np.argsort(hashes[part], kind="stable")] for part in parts)


def train_teachers(
    model: nn.Module,
    features: ArrayLike,
    labels: ArrayLike,
    plan: TeacherPlan,
    *,
    persons: Sequence[Any] | NDArray[Any] | None = None,
) -> Teachers:
    """Train the teachers of the plan, all from the model's own parameters and all at once; the model stays as it is.

    `labels` are classes as whole numbers from 0. With `persons`, one name or number per record, all rows of a person
    are at one teacher, and what holds for one record holds for one person.

    Privacy: as for `Teachers`. What is random in training comes from the plan's key and is the same for neighbours.
    """
    inputs, targets = np.array(features, dtype=np.float32), np.array(labels, dtype=np.int64)
    parts = assign_teachers(inputs, targets, plan, persons)
    found = train_many(
        model,
        [(inputs[part], targets[part]) for part in parts],
        [plan.local] * plan.teachers,
        loss=nn.CrossEntropyLoss(reduction="none"),
        recipe=plan.settings,
        source=SeededSource(plan.key).stream("teachers"),  # a public order, so that no teacher depends on another
        chunk=plan.at_once,
        one_pass=False,
        isolated=True,
    )
    stacked = {name: torch.stack([own[name] for own in found]) for name in found[0]}
    return Teachers(model, stacked, _find_able(stacked, parts))


def train_student(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, steps: int, learning_rate: float, key: int = 0
) -> None:
    """Train the model in place on labelled public examples; where it diverges, again with a tenth of the learning rate.

    Privacy: post-processing of the labels, which are all that it sees of the private records.
    """
    loss, rate = nn.CrossEntropyLoss(reduction="none"), checks.positive(learning_rate=learning_rate)
    for _ in range(TRIES):
        plan = LocalPlan(size=STUDENT_BATCH, batch_size=STUDENT_BATCH, steps=steps, learning_rate=rate)
        (found,) = train_many(
            model,
            [(inputs, labels)],
            [plan],
            loss=loss,
            recipe=OptimizerSettings(schedule=Cosine()),
            source=SeededSource(key).stream("student"),
            chunk=1,
            one_pass=False,
            isolated=True,
        )
        if all(bool(value.isfinite().all()) for value in found.values()):
            model.load_state_dict(found, strict=False)
            return
        rate /= 10


def _find_able(stacked: Stacked, parts: partition.Parts) -> NDArray[np.bool_]:
    """Return which teachers have records and parameters that are finite."""
    is_finite = torch.stack([value.isfinite().flatten(1).all(dim=1) for value in stacked.values()]).all(dim=0)
    return np.asarray(is_finite.numpy() & np.array([len(part) > 0 for part in parts]))


def _require_names(persons: Sequence[Any] | NDArray[Any], records: int) -> NDArray[Any]:
    # Of a list, numpy would make text of all kinds of names: 1 and 1.0 of one person would be two.
    names = np.array(persons, dtype=object) if isinstance(persons, list | tuple) else np.asarray(persons)
    if names.shape != (records,) or not _are_names(names):
        raise InvalidArgument(
            "persons",
            "persons must be one name or whole number for each record, so that all rows of a person go to one"
            " teacher: give a column of the data",
        )
    return names


def _are_names(names: NDArray[Any]) -> bool:
    """Return whether all are text or whole numbers: 1.0 or True may be the person who is 1 elsewhere."""
    if names.dtype.kind != "O":
        return names.dtype.kind in "iuUS"
    return all(isinstance(name, str | int | np.integer) and not isinstance(name, bool) for name in names)

"""The file of ``dpfed pate run``: private records, public examples, teachers, how they vote, and what is promised.

>>> config = PateConfig.parse('''
... name: wards
... data: {source: wards.csv, label: ill, classes: [no, yes], feature_bounds: [0, 100]}
... public: open.csv
... privacy: {epsilon: 2, delta: 1e-5}
... ''')
>>> config.teachers.count, config.guarantee
(100, Guarantee(epsilon=2.0, delta=1e-05, unit='record', adjacency='add_remove'))
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from dpfed.checks import ADD_REMOVE
from dpfed.config.data import Data, Iid, Partition
from dpfed.config.fields import Block, Number, SettingError, Whole, setting
from dpfed.config.reading import parse_block, read_content
from dpfed.config.strangers import decode_text
from dpfed.data.sources import SKLEARN
from dpfed.guarantee import PERSON, RECORD, Guarantee

# Keys of a federation's data that say nothing about teachers.
FEDERATED = ("partition", "names", "sizes", "test_fraction", "test_is_public", "rows_per_person", "shape", "seed")


class PateData(Data):
    """The private records, as in the file of a run; who teaches which follows from their hashes."""

    partition: Partition = setting(Iid(kind="iid", clients=1), effect="for federations only")

    @model_validator(mode="after")
    def _refuse_federated(self) -> Self:
        for key in FEDERATED:
            if key in self.model_fields_set:
                raise SettingError(key, "is for federations: records go to teachers by their hashes; leave it out")
        return self

    def _check_persons(self) -> None:
        if self.person_column is not None and self.person_column == self.label:
            raise SettingError("person_column", "must be another column than that of the label")


class TeachersBlock(Block):
    """The teachers; all of it is public, and none may be chosen by looking at the records."""

    count: Whole = setting(
        100, symbol="K", effect="how many teachers: more drown more noise, and have fewer records", ge=1
    )
    steps: Whole = setting(200, effect="steps of each teacher", ge=1)
    batch_size: Whole = setting(32, effect="records of a step", ge=1)
    learning_rate: Number = setting(0.5, effect="learning rate of teachers and student", gt=0)
    hidden: tuple[Whole, ...] = setting((), effect="widths of hidden layers, such as [32]; without them a linear model")
    key: Whole = setting(0, effect="chooses the hashes by which records go to teachers; it need not be secret", ge=0)


class VoteBlock(Block):
    """How teachers vote."""

    kind: Literal["gnmax", "confident", "laplace"] = setting(
        "gnmax", effect="Gaussian noise, the same where teachers agree only, or Laplace noise"
    )
    threshold: Number = setting(0.6, effect="confident: the share of teachers that must agree", gt=0, le=1)
    threshold_noise: Number = setting(
        2.0, effect="confident: noise on that share over the noise of a vote; every look is charged", gt=0
    )
    max_answers: Whole | None = setting(None, effect="answers at most; without it, one for each public example", ge=1)


class PatePrivacy(Block):
    """The promise for one record of the private data, or one person with a person_column."""

    epsilon: Number = setting(
        symbol="ε", effect="the promise for all answers together; noise is calibrated to it", gt=0
    )
    delta: Number = setting(
        symbol="δ", effect="the chance that the promise does not hold; 0 with Laplace noise only", ge=0, lt=1
    )
    adjacency: Literal["add_remove", "replace_one"] = setting(
        ADD_REMOVE, effect="neighbouring data sets: one more or less, or one replaced, which may change two teachers"
    )


class PateDefence(Block):
    """PATE as one row of a sweep: teachers on the records of all clients, a student on a part of those held out."""

    teachers: TeachersBlock = setting(TeachersBlock(), effect="the teachers")
    vote: VoteBlock = setting(VoteBlock(), effect="how teachers vote")
    student_steps: Whole = setting(1000, effect="steps of the student", ge=1)
    public_fraction: Number = setting(
        0.5, effect="the share of the records held out that stand in for public examples, without labels", gt=0, lt=1
    )
    privacy: PatePrivacy = setting(effect="what is promised for one record")

    @property
    def guarantee(self) -> Guarantee:
        """The promise that noise is calibrated to."""
        return Guarantee(self.privacy.epsilon, self.privacy.delta, RECORD, self.privacy.adjacency)


class PateConfig(Block):
    """A study by PATE, as its file describes it."""

    name: str = setting(effect="the name of the study, by which an account is charged")
    data: PateData = setting(effect="the private records of the teachers")
    public: str = setting(effect="the source of public examples with the same columns; labels in it are not used")
    test: str | None = setting(None, effect="a source of public, labelled records to measure the student on")
    teachers: TeachersBlock = setting(TeachersBlock(), effect="the teachers")
    vote: VoteBlock = setting(VoteBlock(), effect="how teachers vote")
    student_steps: Whole = setting(1000, effect="steps of the student", ge=1)
    privacy: PatePrivacy = setting(effect="what is promised")
    seed: Whole | None = setting(
        None, effect="makes noise reproducible, for tests only: such a study is stamped NOT PRIVATE", ge=0
    )

    @model_validator(mode="after")
    def _refuse_private_examples(self) -> Self:
        private = self.data.source
        for key, source in (("public", self.public), ("test", self.test)):
            if source and not source.startswith(SKLEARN) and os.path.normpath(source) == os.path.normpath(private):
                what = "is data.source, whose records are private: the student would learn from them without noise"
                raise SettingError(key, f"{what}; name other records, which anybody may see")
        return self

    @property
    def guarantee(self) -> Guarantee:
        """The promise that noise is calibrated to."""
        unit = RECORD if self.data.person_column is None else PERSON
        return Guarantee(self.privacy.epsilon, self.privacy.delta, unit, self.privacy.adjacency)

    @classmethod
    def read(cls, path: str | Path) -> PateConfig:
        """Return the configuration in a file; refuse a file of another kind by naming its kind, without quoting it."""
        return cls.parse(decode_text(read_content(path), str(path)), file=str(path))

    @classmethod
    def parse(cls, text: str, file: str = "") -> PateConfig:
        """Return the configuration in a YAML text; refusals name the file, the line and the key."""
        return parse_block(cls, text, file)

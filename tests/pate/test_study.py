"""A study from a file: the same columns, the same scaling, and the promise of the file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfed.config.pate import PateConfig
from dpfed.errors import InvalidArgument
from dpfed.ledger.ledger import Ledger
from dpfed.pate.study import run_study
from dpfed.runs import tensor_files

torch.set_num_threads(1)
TEXT = """
name: wards
data:
  source: wards.csv
  label: ill
  classes: [no, yes]
  categories: {sex: [f, m]}
  feature_bounds: {age: [0, 100], sex=f: [0, 1], sex=m: [0, 1]}
public: open.csv
test: test.csv
teachers: {count: 30, steps: 40, hidden: [4]}
student_steps: 150
privacy: {epsilon: 8, delta: 1e-5}
"""


@pytest.fixture
def folder(tmp_path):
    def write(name, rows, *columns, seed):
        ages = np.random.default_rng(seed).integers(0, 100, rows)
        cells = {
            "patient": [f"p{n // 4}" for n in range(rows)],
            "age": ages,
            "sex": ["fm"[n % 2] for n in range(rows)],
            "ill": np.where(ages > 50, "yes", "no"),
        }
        lines = [",".join(columns), *(",".join(str(cells[c][n]) for c in columns) for n in range(rows))]
        (tmp_path / name).write_text("\n".join(lines) + "\n")

    write("wards.csv", 600, "age", "sex", "ill", seed=1)
    write("named.csv", 600, "patient", "age", "sex", "ill", seed=1)
    write("open.csv", 60, "sex", "age", seed=2)  # other order, no label
    write("test.csv", 100, "age", "sex", "ill", seed=3)
    return tmp_path


def test_a_study_has_a_promise_a_student_and_a_score(folder):
    study = run_study(PateConfig.parse(TEXT), folder)
    assert (study.facts["queries"], study.facts["answered"], study.facts["unit"]) == (60, 60, "record")
    assert study.facts["epsilon"] <= 8
    assert study.facts["accuracy"] > 0.8
    assert study.facts["not_covered"] == [
        "other fits on these records, and a choice between them: no account was charged"
    ]


def test_a_student_is_written_with_its_facts(folder):
    study = run_study(PateConfig.parse(TEXT), folder)
    study.write(folder / "student.safetensors")
    note, arrays = tensor_files.read(folder / "student.safetensors")
    assert note["epsilon"] == study.facts["epsilon"]
    assert note["classes"] == ["no", "yes"]
    assert [value.shape for value in arrays.values()] == [(4,), (4, 3), (2,), (2, 4)]


def test_a_column_of_persons_splits_by_person(folder):
    text = TEXT.replace("source: wards.csv", "source: named.csv\n  person_column: patient")
    assert run_study(PateConfig.parse(text), folder).facts["unit"] == "person"


def test_a_seed_is_stamped(folder):
    assert not run_study(PateConfig.parse(TEXT + "seed: 3\n"), folder).facts["is_private"]


def test_public_examples_without_a_column_are_refused(folder):
    (folder / "open.csv").write_text("age\n50\n")
    with pytest.raises(InvalidArgument, match=r"open\.csv has no column 'sex'"):
        run_study(PateConfig.parse(TEXT), folder)


@pytest.mark.parametrize(
    "header", [None, "age,ill\n3,no\n", "age,sex,dose,ill\n3,f,1,no\n", "age,sex,ill\n3,f,perhaps\n"]
)
def test_a_test_file_that_does_not_fit_is_refused_before_anything_is_spent(folder, header):
    (folder / "test.csv").unlink()
    if header is not None:
        (folder / "test.csv").write_text(header)
    with Ledger(folder / "ledger.db") as ledger:
        with pytest.raises(InvalidArgument):
            run_study(PateConfig.parse(TEXT), folder, account=ledger.open("wards", epsilon=20.0, delta=1e-5))
        assert ledger.balance("wards").spent == 0


def test_labels_without_declared_classes_are_refused(folder):
    (folder / "wards.csv").write_text("age,sex,ill\n50,f,1\n40,m,0\n")
    with pytest.raises(InvalidArgument, match=r"data\.classes"):
        run_study(PateConfig.parse(TEXT.replace("  classes: [no, yes]\n", "")), folder)


def test_a_bundled_data_set_may_stand_for_both():
    config = PateConfig.parse(
        """
name: flowers
data: {source: "sklearn:iris", feature_bounds: [0, 8]}
public: "sklearn:iris"
teachers: {count: 5, steps: 60}
privacy: {epsilon: 500, delta: 1e-5}
"""
    )
    assert run_study(config).facts["answered"] == 150


def test_public_examples_of_another_shape_are_refused():
    config = PateConfig.parse(
        'name: x\ndata: {source: "sklearn:iris"}\npublic: "sklearn:wine"\nprivacy: {epsilon: 1, delta: 1e-5}\n'
    )
    with pytest.raises(InvalidArgument, match="same features"):
        run_study(config)

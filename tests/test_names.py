from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import dpfed
from dpfed.names import EARLIER, load_lazily


@pytest.mark.parametrize("old", EARLIER)
def test_a_public_path_of_before_gives_the_module_itself(old):
    before, now = importlib.import_module(old), importlib.import_module(EARLIER[old])
    assert before is now
    assert now.__spec__.name == EARLIER[old]


def test_the_table_of_earlier_paths_holds_no_path_that_is_a_module_today():
    paths = [Path(dpfed.__file__).parents[1] / old.replace(".", "/") for old in EARLIER]
    assert [path for path in paths if path.is_dir() or path.with_suffix(".py").exists()] == []


def test_an_earlier_path_can_be_the_first_import_of_a_program():
    code = "from dpfed.tree_noise import TreeNoise; from dpfed.plan import tree; assert TreeNoise is tree.TreeNoise"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_path_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"dpfed\.cohorts"):
        importlib.import_module("dpfed.cohorts")


def test_a_lazy_package_has_the_names_of_its_table_and_no_others():
    load, listed = load_lazily("dpfed", {"Gaussian": "dpfed.events"}, ["errors"])
    assert (load("Gaussian"), load("errors")) == (dpfed.events.Gaussian, dpfed.errors)
    assert listed() == ["Gaussian", "errors"]
    with pytest.raises(AttributeError, match="'dpfed' has no attribute 'Laplace'"):
        load("Laplace")

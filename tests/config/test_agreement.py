"""The file's settings are those of the parts that carry them out: same names, same defaults, same choices."""

from __future__ import annotations

import dataclasses

import pytest

from dpfed import adaptive, cohort, local_plan, plan, plan_rules, tree_noise
from dpfed.config.privacy import STYLES, Adaptive, PassTree, RecordPrivacy, RoundsTree
from dpfed.config.run import RunConfig
from dpfed.config.training import (
    Constant,
    Cosine,
    FedAvg,
    FedDyn,
    FedOpt,
    FedProx,
    FixedClients,
    Local,
    Model,
    PoissonClients,
    Scaffold,
    Step,
)
from dpfed.federated import losses, metrics
from dpfed.federated.algorithms import fedavg, feddyn, fedopt, fedprox, scaffold
from dpfed.models.registry import KINDS as MODELS
from dpfed.training import recipe, schedules


def defaults_of(block):
    fields = block.model_fields.items()
    return {name: None if field.is_required() else field.default for name, field in fields if name != "kind"}


def fields_of(part):
    fields = [field for field in dataclasses.fields(part) if field.init]
    return {field.name: None if field.default is dataclasses.MISSING else field.default for field in fields}


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (FedAvg, fedavg.FedAvg),
        (FedProx, fedprox.FedProx),
        (FedOpt, fedopt.FedOpt),
        (Scaffold, scaffold.Scaffold),
        (FedDyn, feddyn.FedDyn),
        (PoissonClients, cohort.PoissonCohort),
        (FixedClients, cohort.FixedCohort),
        (Constant, schedules.Constant),
        (Cosine, schedules.Cosine),
        (Step, schedules.Step),
        (PassTree, tree_noise.TreeNoise),
        (RoundsTree, tree_noise.RoundTree),
    ],
)
def test_settings_have_the_names_and_defaults_of_their_part(block, part):
    assert defaults_of(block) == fields_of(part)


def test_adaptive_clipping_has_the_settings_of_its_part():
    assert set(Adaptive.model_fields) == set(fields_of(adaptive.AdaptiveClip))


def choices(block, name):
    return set(block.model_fields[name].annotation.__args__)


def test_choices_are_those_of_their_parts():
    assert choices(Local, "optimizer") == set(recipe.OPTIMIZERS)
    assert choices(RecordPrivacy, "norm") == set(local_plan.NORMS)
    assert choices(RecordPrivacy, "layers") == set(local_plan.LAYERS)
    assert choices(RecordPrivacy, "noise") == set(plan_rules.NOISES)
    assert choices(RunConfig, "weighting") == set(plan_rules.WEIGHTINGS)
    assert {style: set(units) for style, units in plan_rules.UNITS_OF_STYLE.items()} == STYLES


def test_comments_name_every_model_loss_and_metric_there_is():
    for name, kinds in (("kind", MODELS), ("loss", losses.KINDS), ("metric", metrics.KINDS)):
        assert all(kind in Model.model_fields[name].description for kind in kinds)


def test_settings_of_the_run_are_those_of_a_plan():
    named = {"rounds", "weighting", "max_participations", "spare_rounds", "max_sites_per_person", "minimum_cohort"}
    assert named <= set(RunConfig.model_fields) & set(fields_of(plan.Plan))

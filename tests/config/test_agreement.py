"""The file's settings are those of the parts that carry them out: same names, same defaults, same choices."""

from __future__ import annotations

import dataclasses

import pytest

from dpfed.config.privacy import Adaptive, PassTree, Privacy, RecordPrivacy, RoundsTree
from dpfed.config.run import RunConfig
from dpfed.config.training import (
    ConstantBlock,
    CosineBlock,
    ExactAdmmBlock,
    FedAvgBlock,
    FedDynBlock,
    FedOptBlock,
    FedProxBlock,
    FixedClients,
    IadmmBlock,
    IceadmmBlock,
    IiadmmBlock,
    Local,
    Model,
    PoissonClients,
    ScaffoldBlock,
    StepBlock,
)
from dpfed.federated import metrics
from dpfed.federated.algorithms import exact_admm, fedavg, feddyn, fedopt, fedprox, iadmm, iceadmm, iiadmm, scaffold
from dpfed.federated.torch import losses
from dpfed.guarantee import UNITS_OF_STYLE
from dpfed.models.registry import KINDS as MODELS
from dpfed.plan import adaptive, cohort, local, plan, rules, tree
from dpfed.training import optimizing


def defaults_of(block):
    fields = block.model_fields.items()
    return {name: None if field.is_required() else field.default for name, field in fields if name != "kind"}


def fields_of(part):
    fields = [field for field in dataclasses.fields(part) if field.init]
    return {field.name: None if field.default is dataclasses.MISSING else field.default for field in fields}


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (FedAvgBlock, fedavg.FedAvg),
        (FedProxBlock, fedprox.FedProx),
        (FedOptBlock, fedopt.FedOpt),
        (ScaffoldBlock, scaffold.Scaffold),
        (FedDynBlock, feddyn.FedDyn),
        (ExactAdmmBlock, exact_admm.ExactAdmm),
        (IadmmBlock, iadmm.Iadmm),
        (IceadmmBlock, iceadmm.Iceadmm),
        (IiadmmBlock, iiadmm.Iiadmm),
        (PoissonClients, cohort.PoissonCohort),
        (FixedClients, cohort.FixedCohort),
        (ConstantBlock, optimizing.Constant),
        (CosineBlock, optimizing.Cosine),
        (StepBlock, optimizing.Step),
        (PassTree, tree.TreeNoise),
        (RoundsTree, tree.RoundTree),
    ],
)
def test_settings_have_the_names_and_defaults_of_their_part(block, part):
    assert defaults_of(block) == fields_of(part)


def test_adaptive_clipping_has_the_settings_of_its_part():
    assert set(Adaptive.model_fields) == set(fields_of(adaptive.AdaptiveClip))


def choices(block, name):
    return set(block.model_fields[name].annotation.__args__)


def test_choices_are_those_of_their_parts():
    assert choices(Local, "optimizer") == set(optimizing.OPTIMIZERS)
    assert choices(RecordPrivacy, "norm") == set(local.NORMS)
    assert choices(RecordPrivacy, "layers") == set(local.LAYERS)
    assert choices(RecordPrivacy, "noise") == set(rules.NOISES)
    assert choices(RunConfig, "weighting") == set(rules.WEIGHTINGS)
    assert choices(Privacy, "style") == set(UNITS_OF_STYLE)


def test_comments_name_every_model_loss_and_metric_there_is():
    for name, kinds in (("kind", MODELS), ("loss", losses.KINDS), ("metric", metrics.KINDS)):
        assert all(kind in Model.model_fields[name].description for kind in kinds)


def test_settings_of_the_run_are_those_of_a_plan():
    named = {"rounds", "weighting", "max_participations", "spare_rounds", "max_sites_per_person", "minimum_cohort"}
    assert named <= set(RunConfig.model_fields) & set(fields_of(plan.Plan))

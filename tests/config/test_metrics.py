from __future__ import annotations

import pytest

from dpfed.config.metrics import Metrics
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.federated.data import prepare
from dpfed.federated.planning import make_plan

RUN = """
name: wards
data: {source: "sklearn:breast_cancer", partition: {kind: iid, clients: 2}, sizes: 200, test_fraction: 0.25}
model: {kind: logistic}
rounds: 4
local: {steps: 2, batch_size: 20, learning_rate: 0.5}
privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
metrics: {release: [accuracy, auc], epsilon: 0.2}
"""


def test_figures_are_released_after_the_last_round_unless_the_file_names_others():
    assert RunConfig.parse(RUN).metrics.find_rounds(4) == (4,)
    assert Metrics(release="accuracy", epsilon=1, rounds=[2, 4]).find_rounds(4) == (2, 4)


def test_the_plan_has_the_measurement_of_the_file_and_keeps_the_promise():
    config = RunConfig.parse(RUN)
    plan = make_plan(config, prepare(config.data))
    assert (plan.measurement.metrics, plan.measurement.epsilon) == (("accuracy", "auc"), 0.2)
    assert (plan.measurement.rounds, plan.measurement.classes, plan.measurement.fraction) == ((4,), 2, 0.25)
    assert 3.99 < plan.record_epsilon(1e-5) <= 4.0


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("[accuracy, auc]", "[f1]", "must list some of accuracy"),
        ("[accuracy, auc]", "[]", "must list some of accuracy"),
        ("epsilon: 0.2}", "epsilon: 0}", "must be above 0"),
        ("epsilon: 0.2}", "epsilon: 4}", "must be below the promised epsilon"),
        ("epsilon: 0.2}", "epsilon: 0.2, rounds: [5]}", "must be some of the 4 rounds"),
        ("epsilon: 0.2}", "epsilon: 0.2, rounds: []}", "must be some of the 4 rounds"),
        ("test_fraction: 0.25", "test_is_public: true", "exact figures are free"),
        ("test_fraction: 0.25", "test_fraction: 0", "none is held out"),
        ("{style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}", "{style: none}", "protects nobody"),
        ("{kind: logistic}", "{kind: logistic, loss: mse}", "models of classes only"),
    ],
)
def test_what_cannot_be_released_is_refused_with_its_key(old, new, why):
    with pytest.raises(InvalidArgument, match=why):
        RunConfig.parse(RUN.replace(old, new))


def test_metrics_of_labels_that_are_numbers_are_refused():
    text = RUN.replace("breast_cancer", "diabetes").replace("{kind: logistic}", "{kind: mlp}")
    config = RunConfig.parse(text)
    with pytest.raises(InvalidArgument, match="no classes are declared"):
        make_plan(config, prepare(config.data))


def test_a_run_stops_by_released_figures_only():
    text = RUN.replace("epsilon: 0.2}", "epsilon: 0.2, rounds: [1, 2, 3, 4]}") + "stop: {metric: auc, patience: 2}\n"
    config = RunConfig.parse(text)
    plan = make_plan(config, prepare(config.data))
    assert (plan.measurement.stop, plan.measurement.patience) == ("auc", 2)
    for wrong in (text.replace("metric: auc", "metric: loss"), text.replace("metrics: {", "#")):
        with pytest.raises(InvalidArgument, match=r"stop.metric must be a released figure"):
            RunConfig.parse(wrong)

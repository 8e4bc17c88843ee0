"""A person with all its rows moves what a client releases by no more than one record would."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dpfed
from dpfed.config import RunConfig
from dpfed.data.persons import Persons, grouped
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument
from dpfed.events import from_dict
from dpfed.federated.engine import Federation
from dpfed.federated.launch import create_run, prepare
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.runners.processes import PoolRunner
from dpfed.federated.runners.together import EnsembleRunner
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.models.logistic import Logistic
from dpfed.models.mlp import MLP
from dpfed.plan.plan import LocalPlan, Plan
from dpfed.randomness import SeededSource
from dpfed.report.card import make_card, render_card
from dpfed.report.facts import collect_facts
from dpfed.report.reports import owner_facts, owner_page, shareable_facts, write
from dpfed.runs.directory import RunDirectory

SILENT = 1e-9  # a noise multiplier so small that what is left is what the noise was to hide
CLIP = 0.3
WHOLE = LocalPlan(
    size=20, batch_size=20, steps=1, learning_rate=1.0, clip_norm=CLIP, noise_multiplier=SILENT, unit="person"
)
small = partial(Logistic, features=4, classes=3)
COUNTS = [50, 1, 1, 7, 2, 3, 1, 12]


def persons(counts=COUNTS, seed=1, shape=(4,), scale=5.0) -> Persons:
    """Persons with so many rows each; their rows stand far apart, so that all are clipped."""
    draws, names = np.random.default_rng(seed), np.repeat(np.arange(len(counts)), counts)
    features = scale * draws.normal(size=(len(names), *shape))
    records = Records(features, draws.integers(0, 3, len(names)), groups={"patient": names})
    return grouped(records.take(draws.permutation(len(names))), "patient", 50).persons


def released(data, factory=small, local=WHOLE, loss="cross_entropy"):
    """What one step gives away: the clipped sum, as the declared batch size and the learning rate leave it."""
    client = TorchClient("ward", data, "account", TorchModel(factory, loss))
    return -client.train(local, client.model.first_weights, SeededSource(3)) * local.batch_size


def mean_gradients(data, module):
    """The gradient of each person's mean loss, one person at a time, in float64."""
    rows, ends = [], np.cumsum(data.counts)
    for start, end in zip(ends - data.counts, ends, strict=True):
        inputs, labels = data.rows.features[start:end], data.rows.labels[start:end]
        loss = nn.functional.cross_entropy(module(torch.tensor(inputs)), torch.tensor(labels))
        rows.append(
            np.concatenate([part.numpy().ravel() for part in torch.autograd.grad(loss, [*module.parameters()])])
        )
    return np.array(rows)


# ---- the clipped sum ----


def test_a_step_is_the_sum_of_the_clipped_gradients_of_each_persons_mean_loss():
    data = persons(scale=1.0)
    rows = mean_gradients(data, small().double())
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    assert (norms > CLIP).any()
    np.testing.assert_allclose(released(data), (rows * np.minimum(1, CLIP / norms)).sum(axis=0), atol=1e-4)


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


MODELS = {
    "logistic": (small, (4,)),
    "mlp": (partial(MLP, features=4, classes=3), (4,)),
    "convolutions": (convolutions, (1, 6, 6)),
}
VARIANTS = {
    "l2": {},
    "l1": {"norm": "l1"},
    "each layer": {"layers": "each"},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", MODELS)
def test_all_rows_of_a_person_move_the_sum_by_at_most_the_clip_norm(kind, variant):
    factory, shape = MODELS[kind]
    local = replace(WHOLE, **VARIANTS[variant])
    data, order = persons(shape=shape), 1 if variant == "l1" else 2
    whole = released(data, factory, local)
    for gone in range(len(data)):
        rest = released(data.take(np.arange(len(data)) != gone), factory, local)
        assert np.linalg.norm(whole - rest, ord=order) <= CLIP * (1 + 1e-6)


def test_by_rows_the_same_person_would_move_it_by_many_clip_norms():
    """What the test above would not allow: fifty rows, each clipped on its own."""
    rows = Records(np.full((51, 4), 5.0), np.zeros(51, dtype=int), groups={"patient": np.repeat([0, 1], [50, 1])})
    local = LocalPlan(size=51, batch_size=51, steps=1, clip_norm=CLIP, noise_multiplier=SILENT)
    parts = (rows, rows.take(np.arange(50, 51)))
    by_rows = [released((part.features, part.labels), local=local) for part in parts]
    by_person = [released(grouped(part, "patient", 50).persons) for part in parts]
    assert np.linalg.norm(by_rows[0] - by_rows[1]) > 49 * CLIP
    assert np.linalg.norm(by_person[0] - by_person[1]) <= CLIP


def test_fifty_rows_weigh_as_much_as_one():
    one = persons([1, 1], seed=4)
    times = np.array([50, 1])
    many = Persons(one.rows.take(np.repeat(np.arange(2), times)), times)
    np.testing.assert_allclose(released(many), released(one), atol=1e-6)
    plain = LocalPlan(size=2, batch_size=2, steps=1, unit="person")
    np.testing.assert_allclose(released(many, local=plain), released(one, local=plain), atol=1e-6)


def test_persons_are_sampled_whole():
    """At a rate of one half a step is a sum over some of the persons, with all their rows or none."""
    local = LocalPlan(
        size=4, batch_size=2, steps=1, clip_norm=1e6, noise_multiplier=1e-15, learning_rate=1.0, unit="person"
    )
    data = persons([3, 1, 5, 2])
    rows = mean_gradients(data, small().double())
    subsets = {tuple(bits): np.dot(bits, rows) for bits in np.ndindex(2, 2, 2, 2)}
    seen = set()
    for seed in range(12):
        client = TorchClient("ward", data, "account", TorchModel(small, "cross_entropy"))
        found = -client.train(local, client.model.first_weights, SeededSource(seed)) * 2
        nearest = min(subsets, key=lambda bits: np.linalg.norm(subsets[bits] - found))
        np.testing.assert_allclose(found, subsets[nearest], atol=1e-3)
        seen.add(nearest)
    assert len(seen) > 3


def test_places_without_a_row_never_spoil_a_person():
    class Direction(nn.Module):
        """Not finite at zero: rows of zeros as padding would make every shorter person's gradient so."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x / x.norm(dim=1, keepdim=True))

    data = persons([4, 1])
    together = released(data, Direction)
    apart = sum(released(data.take(np.array([place])), Direction) for place in range(2))
    assert np.abs(together).max() > 0.01
    np.testing.assert_allclose(together, apart, atol=1e-6)


class Scaled(nn.Module):
    """A parameter that no layer holds goes the slow way, through the whole model."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.linear(x) * self.scale


@pytest.mark.parametrize("factory", [small, Scaled])
def test_a_person_with_a_gradient_that_is_not_finite_counts_as_zero_and_spoils_nobody(factory):
    data = persons([3, 4, 2])
    features = data.rows.features.copy()
    features[4] = 1e38  # of the second person; whatever is multiplied by it overflows
    wild = Persons(Records(features, data.rows.labels), data.counts)
    np.testing.assert_allclose(released(wild, factory), released(data.take(np.array([0, 2])), factory), atol=1e-6)


# ---- refusals ----


def test_a_plan_for_persons_needs_persons_and_one_for_records_rows():
    model = TorchModel(small, "cross_entropy")
    by_rows = TorchClient("ward", (np.zeros((9, 4)), np.zeros(9, dtype=int)), "account", model)
    with pytest.raises(InvalidArgument, match="plan of ward is for one person, and its data have one record after"):
        by_rows.rehearse(WHOLE, model.first_weights)
    by_person = TorchClient("ward", persons(), "account", model)
    with pytest.raises(InvalidArgument, match="plan of ward is for one record, and its data have one person after"):
        by_person.train(LocalPlan(size=9, batch_size=9, steps=1), model.first_weights, SeededSource(1))


def test_labels_that_are_no_class_are_refused_in_the_rows_of_persons_too():
    data = persons()
    wrong = Persons(Records(data.rows.features, data.rows.labels + 1), data.counts)
    with pytest.raises(InvalidArgument, match="labels of ward must be whole numbers from 0 to 2"):
        TorchClient("ward", wrong, "account", TorchModel(small, "cross_entropy"))


def test_a_model_with_several_outputs_is_refused_before_any_round():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x), x

    def first(outputs, targets):
        return nn.functional.cross_entropy(outputs[0], targets, reduction="none")

    client = TorchClient("ward", persons(), "account", TorchModel(Pair, first))
    with pytest.raises(InvalidArgument, match="trained by person must give one tensor, got tuple"):
        client.rehearse(WHOLE, client.model.first_weights)


def test_an_account_for_records_is_refused(tmp_path):
    model = TorchModel(small, "cross_entropy")
    plan = Plan("study", 1, {"ward": LocalPlan(**{**WHOLE.to_plain(), "noise_multiplier": 2.0, "adaptive": None})})
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open("account", epsilon=9.0, delta=1e-5)
        runner = LocalRunner([TorchClient("ward", persons(), "account", model)], ledger)
        with pytest.raises(InvalidArgument, match="clips each person, and account account is for one record"):
            runner.enroll(plan, model.first_weights)


def test_scores_are_by_row():
    data = persons([9, 1])
    client = TorchClient("ward", data, "account", TorchModel(small, "cross_entropy"))
    weights = client.model.first_weights
    by_rows = client.model.evaluate(weights, (data.rows.features, data.rows.labels), is_public=False)
    assert client.evaluate(weights) == by_rows


# ---- from a file to a report ----

RUN = {
    "name": "visits",
    "data": {
        "source": "visits.csv",
        "label": "y",
        "classes": ["well", "ill"],
        "feature_bounds": [-4, 4],
        "person_column": "patient",
        "rows_per_person": 6,
        "partition": {"kind": "column", "column": "site"},
        "sizes": {"north": 30, "south": 15},
    },
    "model": {"kind": "logistic"},
    "rounds": 3,
    "local": {"steps": 3, "batch_size": 8, "learning_rate": 1.0},
    "privacy": {"style": "sample", "person": {"epsilon": 4.0, "delta": 1e-5, "clip_norm": 1.0}},
}


def config(**changes) -> RunConfig:
    values = json.loads(json.dumps(RUN))
    for path, value in changes.items():
        block, (*outer, last) = values, path.split("__")
        for key in outer:
            block = block[key]
        block[last] = value
    return RunConfig.of(values)


@pytest.fixture
def here(tmp_path):
    draws, lines = np.random.default_rng(2), []
    for patient in range(60):
        state, site = draws.normal(), "north" if patient % 3 else "south"
        for _ in range(1 if patient % 4 else 9):
            x, noise = state + 0.3 * draws.normal(), draws.normal()
            lines.append(f"{x:.4f},{noise:.4f},{site},p{patient},{'ill' if state > 0 else 'well'}")
    (tmp_path / "visits.csv").write_text("\n".join(["a,b,site,patient,y", *lines]))
    return tmp_path


def finished(launch, directory):
    with launch.ledger(directory) as ledger:
        return list(launch.federation(directory, ledger))


def test_a_run_from_a_file_says_person_from_the_plan_to_the_card(here):
    (here / "visits.yaml").write_text(config().to_yaml())
    launch = create_run(here / "visits.yaml", here / "run")
    assert launch.plan.guarantee == Guarantee(4.0, 1e-5, "person")
    assert launch.plan.units == ("person",)
    assert "8 of 30 declared persons" in launch.plan.explain()
    assert "whether one person, with all rows, in any site, took part" in launch.plan.explain()
    results = finished(launch, here / "run")
    assert {spent.unit for result in results for spent in (*result.spent, *result.cost)} == {"person"}
    assert 3.9 < results[-1].spent[0].epsilon <= 4.0
    with Ledger(here / "run" / "ledger.db", create=False) as ledger:
        assert {balance.cap.unit for balance in ledger.accounts()} == {"person"}
        assert all(3.9 < balance.spent <= 4.0 for balance in ledger.accounts())
        ledger.verify()
    facts = shareable_facts(here / "run")
    assert [unit["unit"] for unit in facts["units"]] == ["person"]
    assert from_dict(facts["units"][0]["event"]) is not None
    assert {site["unit"] for site in facts["sites"]} == {"person"}
    model = make_card(
        collect_facts(RunDirectory(here / "run"), launch.config), launch.config, "m.safetensors", "ab", {}
    )
    assert "at δ = 1e-05 for one person (add-remove)" in render_card(model)


def test_rows_that_were_left_out_are_in_the_owners_report_alone(here):
    (here / "visits.yaml").write_text(config().to_yaml())
    launch = create_run(here / "visits.yaml", here / "run")
    finished(launch, here / "run")
    assert launch.left_out == owner_facts(here / "run")["left_out"] == 15 * 3
    assert (here / "run" / "owner" / "rows-left-out").stat().st_mode & 0o777 == 0o600
    texts = {part.title: part.texts for part in owner_page(here / "run").sections}
    assert "45 rows were left out" in texts["Rows left out"][0]
    write(here / "run")
    shared = (here / "run" / "report.html").read_text() + json.dumps(shareable_facts(here / "run"))
    assert "left out" not in shared
    assert "left_out" not in shared
    assert "for one person" in shared


def test_one_after_the_other_together_and_in_processes_are_the_same_run(here):
    launch, found = prepare(config(), here), []
    for kind in (LocalRunner, EnsembleRunner, PoolRunner):
        directory, source = here / kind.__name__, SeededSource(7)
        with launch.ledger(directory) as ledger:
            runner = kind(launch.clients, ledger, source=source)
            rounds = Federation(
                launch.plan, launch.weights, runner, directory, layout=launch.model.layout, source=source
            )
            found.append([result.weights for result in rounds])
    assert len(found[0]) == 3
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_a_person_at_more_sites_than_declared_is_refused(here):
    with (here / "visits.csv").open("a") as file:
        file.write("".join(f"\n0.1,0.1,south,p{patient},ill" for patient in range(1, 59)))
    with pytest.raises(InvalidArgument, match=r"a person has rows at more sites than max_sites_per_person \(1\)"):
        prepare(config(), here)
    both = prepare(config(max_sites_per_person=2), here)
    alone = both.plan.epsilon("south", 1e-5)
    assert alone < both.plan.record_epsilon(1e-5) <= 4.0
    assert "one person, with all rows in each of 2 sites" in both.plan.explain()


def test_no_module_asks_for_records_where_persons_may_be_meant():
    """A plan for persons has no record among its units: such a question would leave its clients uncharged."""
    question = re.compile(r"""["']record["'] (not )?in [\w.]*units""")
    sources = Path(dpfed.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if question.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("style", ["none", "user"])
def test_other_styles_train_by_person_as_well(here, style):
    block = {"style": style, "client": {"noise_multiplier": 1.0, "delta": 1e-5, "clip_norm": 1.0}}
    launch = prepare(config(privacy={"style": "none"} if style == "none" else block), here)
    assert launch.plan.local_unit == "person"
    assert len(finished(launch, here / "run")) == 3


def test_a_tree_passes_over_persons(here):
    launch = prepare(config(privacy__person__tree={"max_participations": 2}, rounds=1), here)
    assert launch.plan.local["north"].tree is not None
    results = finished(launch, here / "run")
    assert 3.9 < results[-1].spent[0].epsilon <= 4.0
    assert results[-1].spent[0].unit == "person"


def test_hybrid_has_a_statement_for_a_person_and_one_for_a_client(here):
    client = {"noise_multiplier": 1.0, "delta": 1e-5, "clip_norm": 1.0}
    launch = prepare(config(privacy={**RUN["privacy"], "style": "hybrid", "client": client}), here)
    results = finished(launch, here / "run")
    assert [spent.unit for spent in results[-1].spent] == ["person", "client"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"privacy": {"style": "sample", "record": RUN["privacy"]["person"]}}, "privacy.record must be person"),
        ({"data__person_column": None, "data__rows_per_person": None}, r"data\.person_column is missing"),
        (
            {"privacy": {**RUN["privacy"], "record": RUN["privacy"]["person"]}},
            "person and record are two units of the same noise",
        ),
        (
            {"privacy": {**RUN["privacy"], "style": "none"}},
            "person must be left out: style none does not protect a pers",
        ),
        ({"ledger": {"url": "a.db"}}, r"ledger\.client_accounts is missing: style sample charges for each person"),
    ],
)
def test_units_that_do_not_fit_the_data_are_refused(changes, what):
    with pytest.raises(InvalidArgument, match=what):
        config(**changes)

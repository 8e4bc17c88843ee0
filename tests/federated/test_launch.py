"""From a configuration to rounds: what is refused, what is kept, and what a run without a ledger opens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from dpfed.config import RunConfig
from dpfed.errors import BudgetExceeded, InvalidArgument, UnknownAccount
from dpfed.federated.launch import create_run, outline_run, prepare, resume_run
from dpfed.federated.planning import read_declared
from dpfed.federated.runners.processes import PoolRunner
from dpfed.federated.runners.together import EnsembleRunner
from dpfed.ledger.ledger import Ledger
from dpfed.runs.directory import RunDirectory

RUN = {
    "name": "flowers",
    "data": {
        "source": "sklearn:iris",
        "feature_bounds": [0, 8],
        "partition": {"kind": "quantity", "sizes": [80, 40]},
        "names": ["north", "south"],
        "test_is_public": True,
    },
    "model": {"kind": "logistic"},
    "rounds": 2,
    "local": {"steps": 2, "batch_size": 10, "learning_rate": 0.5},
    "privacy": {"style": "sample", "record": {"noise_multiplier": 1.5, "delta": 1e-5, "clip_norm": 1.0}},
}
CLIENT = {"noise_multiplier": 1.5, "delta": 1e-5, "clip_norm": 1.0}


def config(**changes):
    values = json.loads(json.dumps(RUN))
    for path, value in changes.items():
        block = values
        *outer, last = path.split("__")
        for key in outer:
            block = block[key]
        block[last] = value
    return RunConfig.of(values)


def finished(launch, directory):
    with launch.ledger(directory) as ledger:
        return list(launch.federation(directory, ledger))


def written(path: Path, settings: RunConfig) -> Path:
    path.write_text(settings.to_yaml(), encoding="utf-8")
    return path


def test_a_run_opens_a_ledger_of_its_own_with_the_promise_as_cap(tmp_path):
    launch = prepare(config())
    results = finished(launch, tmp_path / "run")
    assert [result.number for result in results] == [1, 2]
    with Ledger(tmp_path / "run" / "ledger.db", create=False) as ledger:
        balances = {balance.account.name: balance for balance in ledger.accounts()}
        assert set(balances) == {"client-north", "client-south"}
        assert {balance.cap for balance in balances.values()} == {launch.plan.guarantee}
        ledger.verify()


def test_styles_that_protect_clients_have_an_account_of_the_study(tmp_path):
    launch = prepare(config(privacy={**RUN["privacy"], "style": "hybrid", "client": CLIENT}))
    results = finished(launch, tmp_path / "run")
    assert [spent.unit for spent in results[-1].spent] == ["record", "client"]
    with Ledger(tmp_path / "run" / "ledger.db", create=False) as ledger:
        assert ledger.account("study").unit == "client"
        assert len(ledger.accounts()) == 3


def test_nobody_pays_where_nobody_is_protected(tmp_path):
    results = finished(prepare(config(privacy={"style": "none"})), tmp_path / "run")
    assert results[-1].spent == ()
    assert not (tmp_path / "run" / "ledger.db").exists()


def test_names_that_cannot_stand_in_a_ledger_are_numbered_there(tmp_path):
    launch = prepare(config(data__names=["St. Mary's", "Zürich"]))
    assert [client.account for client in launch.clients] == ["client-1", "client-2"]
    finished(launch, tmp_path / "run")


def test_the_accounts_of_a_named_ledger_must_exist_and_pay(tmp_path):
    settings = config(ledger={"url": "book.db", "client_accounts": "ward-{id}"})
    with Ledger(tmp_path / "book.db") as book:
        book.open("ward-north", epsilon=20.0, delta=1e-5)
    with pytest.raises(UnknownAccount, match="ward-south"):
        finished(prepare(settings, tmp_path), tmp_path / "first")
    with Ledger(tmp_path / "book.db") as book:
        book.open("ward-south", epsilon=0.1, delta=1e-5)
    with pytest.raises(BudgetExceeded, match="ward-south"):
        finished(prepare(settings, tmp_path), tmp_path / "second")
    with Ledger(tmp_path / "book.db") as book:
        book.top_up("ward-south", epsilon=20.0, reason="a test")
    finished(prepare(settings, tmp_path), tmp_path / "third")
    with Ledger(tmp_path / "book.db") as book:
        assert book.balance("ward-south").spent > 0


def test_a_ledger_that_is_not_there_is_not_made(tmp_path):
    launch = prepare(config(ledger={"url": "sqlite:///nowhere.db", "client_accounts": "{id}"}), tmp_path)
    with pytest.raises(Exception, match="nowhere"):
        launch.ledger(tmp_path)


def test_a_seed_makes_a_run_reproducible_and_stamps_its_rounds(tmp_path):
    launches = [prepare(config(seed=7)) for _ in range(2)]
    first, second = (finished(launch, tmp_path / name) for launch, name in zip(launches, "ab", strict=True))
    np.testing.assert_array_equal(first[-1].weights, second[-1].weights)
    assert {record["noise"] for record in RunDirectory(tmp_path / "a").rounds()} == {"NOT PRIVATE"}


def test_without_a_seed_no_two_runs_are_alike(tmp_path):
    first, second = (finished(prepare(config()), tmp_path / name) for name in "ab")
    assert (first[-1].weights != second[-1].weights).mean() > 0.9
    assert all("noise" not in record for record in RunDirectory(tmp_path / "a").rounds())


def test_public_weights_are_where_training_starts(tmp_path):
    launch = prepare(config())
    values = np.arange(launch.model.layout.size, dtype=np.float32)
    save_file(launch.model.layout.unflatten(values), tmp_path / "first.safetensors")
    again = prepare(config(model__init="first.safetensors"), tmp_path)
    np.testing.assert_array_equal(again.weights, values)


@pytest.mark.parametrize(
    ("arrays", "what"), [(None, "cannot be read"), ({"other": np.ones(3, np.float32)}, "holds another model")]
)
def test_first_weights_that_do_not_fit_are_refused(tmp_path, arrays, what):
    if arrays is not None:
        save_file(arrays, tmp_path / "first.safetensors")
    with pytest.raises(InvalidArgument, match=what):
        prepare(config(model__init="first.safetensors"), tmp_path)


OWN = """
import numpy as np
from torch import nn

def net(features, classes, width=3):
    return nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, classes))

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")

def hits(outputs, targets):
    return (outputs.argmax(1) == targets).astype(float)

def records(count):
    draws = np.random.default_rng(0).normal(size=(count, 5))
    return draws, (draws[:, 0] > 0).astype(int)

class Half:
    proximal = 0.0

    def start(self, size):
        return {}

    def step(self, weights, update, state):
        return weights + update / 2, {}
"""


def test_parts_of_your_own_are_found_beside_the_file(tmp_path):
    (tmp_path / "own_parts.py").write_text(OWN)
    settings = config(
        data={
            "source": "own_parts:records",
            "options": {"count": 100},
            "classes": ["no", "yes"],
            "partition": {"kind": "iid", "clients": 2},
            "sizes": 40,
        },
        model={
            "kind": "own_parts:net",
            "options": {"width": 4},
            "loss": "own_parts:loss",
            "metric": "own_parts:hits",
        },
        algorithm={"kind": "own_parts:Half"},
    )
    launch = prepare(settings, tmp_path)
    assert launch.model.layout.shapes[0] == (4, 5)
    results = finished(launch, tmp_path / "run")
    assert [score.name for score in results[-1].metrics] == ["loss", "hits"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model__kind": "perceptron"}, "model.kind must be one of logistic"),
        ({"model__kind": "math:pi"}, "no class or function"),
        ({"model__kind": "nowhere:net"}, "cannot be imported"),
        ({"model__options": {"depth": 3}}, "has no option 'depth'"),
        ({"model__options": {"classes": 2}}, "from 0 to 1"),
        ({"data__source": "sklearn:diabetes", "data__partition": {"kind": "iid", "clients": 2}, "data__sizes": 50},
         "classes is missing"),
        ({"name": "my flowers"}, "name must be"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_before_anything_is_made(tmp_path, changes, what):
    with pytest.raises(InvalidArgument, match=what):
        prepare(config(**changes), tmp_path)
    assert not list(tmp_path.iterdir())


def test_models_of_images_take_channels_and_size_from_the_shape():
    digits = {"source": "sklearn:digits", "shape": [1, 8, 8], "partition": {"kind": "iid", "clients": 2}, "sizes": 700}
    launch = prepare(config(data=digits, model={"kind": "resnet", "options": {"widths": [8]}}))
    assert launch.model.layout.shapes[-1] == (10,)


def test_a_run_goes_on_from_its_directory_alone(tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "own_parts.py").write_text(OWN)
    settings = config(model={"kind": "own_parts:net"}, rounds=3)
    launch = create_run(written(tmp_path / "study" / "run.yaml", settings), tmp_path / "run")
    with launch.ledger(tmp_path / "run") as ledger:
        next(launch.federation(tmp_path / "run", ledger))
    (tmp_path / "study" / "run.yaml").unlink()
    again = resume_run(tmp_path / "run")
    assert again.plan == launch.plan
    assert [result.number for result in finished(again, tmp_path / "run")] == [2, 3]


def test_the_copy_of_the_file_is_the_owners(tmp_path):
    create_run(written(tmp_path / "run.yaml", config()), tmp_path / "run")
    kept = tmp_path / "run" / "config.yaml"
    assert kept.read_bytes() == (tmp_path / "run.yaml").read_bytes()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_directory_with_a_run_is_not_begun_again(tmp_path):
    create_run(written(tmp_path / "run.yaml", config()), tmp_path / "run")
    with pytest.raises(InvalidArgument, match=r"dpfed resume .*/run"):
        create_run(tmp_path / "run.yaml", tmp_path / "run")


def test_a_directory_without_a_run_is_not_resumed(tmp_path):
    with pytest.raises(InvalidArgument, match="holds no run"):
        resume_run(tmp_path)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(
    ("runner", "kind"),
    [("auto", EnsembleRunner), ("one_by_one", EnsembleRunner), ("together", EnsembleRunner), ("processes", PoolRunner)],
)
def test_the_runner_is_the_one_that_the_file_names(tmp_path, runner, kind, seed):
    launch = prepare(config(runner=runner, seed=seed))
    with launch.ledger(tmp_path) as ledger:
        federation = launch.federation(tmp_path, ledger)
        assert type(federation.runner) is kind
        assert len(list(federation)) == launch.plan.rounds


def test_every_runner_gives_the_same_model_from_the_same_seed(tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ends = {}
        for runner in ("auto", "one_by_one", "processes", "together"):
            launch = prepare(config(runner=runner, seed=3))
            with launch.ledger(tmp_path / runner) as ledger:
                *_, last = launch.federation(tmp_path / runner, ledger)
            ends[runner] = last.weights
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(ends["one_by_one"], ends["auto"])
    np.testing.assert_array_equal(ends["processes"], ends["auto"])
    np.testing.assert_allclose(ends["together"], ends["auto"], rtol=1e-4, atol=1e-5)  # other sums, same draws


STATEFUL = ({"kind": "scaffold"}, {"kind": "feddyn", "alpha": 0.5}, {"kind": "iceadmm", "rho": 0.5})


@pytest.mark.parametrize("block", STATEFUL, ids=lambda block: block["kind"])
@pytest.mark.parametrize("style", ["sample", "user"])
def test_a_run_whose_clients_keep_state_goes_on_alike_whichever_runner_trains_them(tmp_path, block, style):
    privacy = RUN["privacy"] if style == "sample" else {"style": "user", "client": CLIENT}
    found = []
    for runner in ("one_by_one", "together", "processes"):
        made = config(algorithm=block, weighting="equal", rounds=3, seed=3, runner=runner, privacy=privacy)
        launch = create_run(written(tmp_path / "run.yaml", made), tmp_path / runner)
        with launch.ledger(tmp_path / runner) as ledger:
            next(launch.federation(tmp_path / runner, ledger))
        assert len(list((tmp_path / runner / "clients").iterdir())) == 2
        results = finished(resume_run(tmp_path / runner), tmp_path / runner)
        assert [result.number for result in results] == [2, 3]
        found.append(results[-1].weights)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-4, atol=1e-5)


def test_half_a_launch_is_made_of_declared_facts_and_no_record(monkeypatch):
    """Plan, model and first weights are those of the launch with data, where the file declares all of it."""
    settings = config(data__shape=[4], data__classes=["a", "b", "c"], data__sizes=40)
    whole = prepare(settings)
    monkeypatch.setattr("dpfed.federated.data.load", lambda *_, **__: pytest.fail("a record was looked at"))
    half = outline_run(settings, read_declared(settings))
    assert half.plan == whole.plan
    assert half.model.layout == whole.model.layout
    np.testing.assert_array_equal(half.weights, whole.weights)


def test_a_model_is_made_for_a_shape_that_somebody_knows():
    settings = config(data__classes=["a", "b", "c"])
    with pytest.raises(InvalidArgument, match=r"declare data\.shape"):
        outline_run(settings, read_declared(settings))

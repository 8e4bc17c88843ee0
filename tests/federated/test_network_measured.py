"""Released figures over a network: those of the embedded run, charged at the sites before, and never for free."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpfed import events as ev
from dpfed.config.run import RunConfig
from dpfed.federated import launch, wire
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.runs.directory import RunDirectory
from networks import Network

RECORD, CLIENT = ({"noise_multiplier": 3.0, "delta": 1e-5, "clip_norm": 1.0} for _ in range(2))
STYLES = {
    "sample": {"style": "sample", "record": RECORD},
    "hybrid": {"style": "hybrid", "record": RECORD, "client": CLIENT},
    "user": {"style": "user", "client": CLIENT},
    "local": {"style": "local", "client": CLIENT},
}
SIZES = {"north": 200, "south": 200}
HASHED = {"partition": {"kind": "iid", "clients": 2}, "sizes": SIZES, "test_is_public": False}
SMALL = {"rounds": 2, "spare_rounds": 1, "local": {"steps": 1}, "weighting": "equal"}
METRICS = {"release": ["accuracy"], "epsilon": 0.5, "rounds": [1, 2]}
FREE = {"styles": [*STYLES], "epsilon_per_run": 50}
ONE = SMALL | {"sizes": {"north": 455}, "data": {"test_is_public": False}, "privacy": STYLES["sample"]}


@pytest.fixture
def make(tmp_path):
    made = []

    def makes(**changes) -> Network:
        made.append(Network(tmp_path / "net", **{"metrics": METRICS, **changes}))
        return made[-1]

    yield makes
    for each in made:
        each.close()


@pytest.fixture
def enrolled(make):
    network = make(**ONE)
    assert network.ask("north", wire.ENROLL, 1).header["code"] == "ok"
    return network


def measure(network, number, shift=0.0, **changes):
    """Ask the site to measure the first model, or one beside it."""
    weights = network.launch().outline.weights + np.float32(shift)
    return network.ask("north", wire.MEASURE, number, {"weights": weights}, **changes)


def test_raw_counts_leave_as_often_as_the_plan_measures_whichever_models_are_sent(make):
    network = make(**ONE | {"privacy": STYLES["user"], "policy": FREE})
    assert network.ask("north", wire.ENROLL, 1).header["code"] == "ok"
    codes = [measure(network, number, shift=number).header["code"] for number in range(2, 6)]
    assert codes == ["ok", "ok", "ok", "exhausted"]  # after two rounds, and once more for the spare one


def measured(network, name="north") -> int:
    """Return how many measurements the site's ledger has committed."""
    with Ledger(network.files[name].ledger_url, create=False) as ledger:
        ledger.verify()
        lines = ledger.statement(network.files[name].config.ledger.account).lines
    return sum(line.count for line in lines if line.kind == "committed" and isinstance(line.event, ev.DiscreteLaplace))


@pytest.mark.parametrize("style", STYLES)
def test_model_figures_and_costs_are_those_of_the_embedded_run(make, style):
    cap = Guarantee(50, 1e-5, "client", "replace_one") if style == "local" else Guarantee(50, 1e-5)
    network = make(**SMALL, sizes=SIZES, data=HASHED, privacy=STYLES[style], policy=FREE, guarantee=cap)
    network.run(rounds=1)
    network.restart("south")
    weights = network.run()
    prepared = launch.prepare(RunConfig.of(network.values | {"runner": "one_by_one"}), network.folder)
    directory = network.folder / "embedded"
    with prepared.ledger(directory) as ledger:
        results = list(prepared.federation(directory, ledger))
    assert np.array_equal(weights, results[-1].weights)
    rounds, expected = RunDirectory(network.folder / "run").rounds(), RunDirectory(directory).rounds()
    assert [each["released"] for each in rounds] == [each["released"] for each in expected]
    assert [each["spent"] for each in rounds] == [each["spent"] for each in expected]
    assert all(each["released"]["counts"] for each in rounds)
    assert [measured(network, name) for name in SIZES] == ([0, 0] if style == "user" else [2, 2])


def test_counts_are_charged_before_they_leave_and_are_sent_again_free_of_charge(enrolled):
    first, again = measure(enrolled, 2), measure(enrolled, 3)
    enrolled.restart("north")
    later = measure(enrolled, 4)
    assert first.arrays["value"].shape == (4,)
    assert {each.arrays["value"].tobytes() for each in (first, again, later)} == {first.arrays["value"].tobytes()}
    assert [each.header["counts"] for each in (first, again, later)] == [[0, 1]] * 3
    assert measured(enrolled) == 1


def test_another_model_is_charged_anew_until_nothing_is_left(enrolled):
    replies = [measure(enrolled, 2 + shift, shift) for shift in range(4)]
    assert [reply.header["code"] for reply in replies] == ["ok", "ok", "ok", "exhausted"]
    assert replies[3].arrays == {}
    assert measured(enrolled) == 3
    assert len({reply.arrays["value"].tobytes() for reply in replies[:3]}) == 3


def test_a_frozen_site_sends_no_counts_and_none_again(enrolled):
    measure(enrolled, 2)
    with Ledger(enrolled.files["north"].ledger_url) as ledger:
        ledger.freeze("north-records", reason="an audit")
    reply = measure(enrolled, 3)
    assert (reply.header["code"], reply.arrays) == ("unavailable", {})


def test_what_the_plan_does_not_measure_is_refused_with_a_fixed_word_and_not_charged(enrolled):
    refused = {
        "a round that the plan has not": {"round": 3},
        "no round": {"round": 0},
        "another model than its digest": {"model": "0" * 64},
        "another plan": {"plan": "0" * 64},
        "vectors of another shape": {"arrays": {"weights": np.zeros(61, dtype=np.float32)}},
        "more vectors": {"arrays": {"weights": np.zeros(62), "seed": np.zeros(1)}},
        "numbers that no model has": {"arrays": {"weights": np.full(62, np.nan)}},
    }
    for number, (name, changes) in enumerate(refused.items(), start=2):
        arrays = changes.pop("arrays", {"weights": np.zeros(62, dtype=np.float32)})
        reply = enrolled.ask("north", wire.MEASURE, number, arrays, **changes)
        assert (name, reply.header["code"], reply.arrays) == (name, "policy", {})
    assert measured(enrolled) == 0


def test_a_plan_without_a_measurement_has_none(make):
    network = make(**ONE, metrics=None)
    network.ask("north", wire.ENROLL, 1)
    assert measure(network, 2).header["code"] == "policy"


@pytest.mark.parametrize(
    "changes",
    [{"epsilon": 600.0}, {"epsilon": 1e300}, {"fraction": 0.3}, {"classes": 3}, {"grid": 2**62}, {"rounds": [9]}],
    ids=str,
)
def test_a_measurement_beyond_the_policy_is_refused_and_reserves_nothing(make, changes):
    network = make(**ONE)
    plain = json.loads(network.launch().outline.plan.to_json()) | {"guarantee": None}
    plain["measurement"] |= changes
    text = json.dumps(plain)
    reply = network.ask("north", wire.ENROLL, 1, plan_text=text, plan=wire.digest_text(text))
    assert reply.header["code"] == "policy"
    with Ledger(network.files["north"].ledger_url) as ledger:
        assert ledger.reservations() == ()


def test_a_run_may_cost_no_more_with_its_figures_than_the_policy_allows(make):
    network = make(**ONE, metrics=None)
    alone = network.launch().outline.plan.epsilon("north", 1e-5)
    network.close()
    for path in sorted(network.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    tight = make(**ONE, policy={"epsilon_per_run": alone + 0.01})
    assert tight.launch().outline.plan.epsilon("north", 1e-5) > alone + 0.01
    assert tight.ask("north", wire.ENROLL, 1).header["code"] == "policy"


def test_raw_counts_are_encrypted_and_deleted_when_the_next_round_is_asked_for(make):
    network = make(**ONE | {"privacy": STYLES["user"]}, policy=FREE)
    network.ask("north", wire.ENROLL, 1)
    value = measure(network, 2).arrays["value"]
    kept = network.folder / "north" / "sent" / "study-1" / "measured-000001"
    assert value.tobytes() not in kept.read_bytes()
    network.ask("north", wire.TRAIN, 3, round=2)
    assert not kept.exists()


def test_an_ask_to_measure_counts_as_charged_until_the_site_is_heard(make):
    network = make(**ONE)
    network.run(rounds=0)
    lost = ["none", "none", *["lost"] * 500]  # enrolment and training pass, and no request to measure does
    network.transport.faults[network.keys["north"]] = lost
    with network.federation() as federation:
        result = next(federation)
        assert result.measured is None
        assert federation.runner.charged().measured == {"north": 3}  # all that is reserved
        assert federation.runner.charged().local == {"north": 1}
        assert measured(network) == 0
    network.transport.faults.clear()
    with network.federation() as federation:
        assert federation.runner.charged().measured == {"north": 0}
        assert next(federation).measured is not None
        assert federation.runner.charged().measured == {"north": 1}

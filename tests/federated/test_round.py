"""One client moves what an algorithm is given by no more than the plan's Δ, and takes part no oftener than is paid."""

from __future__ import annotations

import io
import json
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.aggregation.mean import MOST_CLIENTS
from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms import registry
from dpfed.federated.messages import FAILED, Charged, Failure, Task, Update
from dpfed.federated.round import Round
from dpfed.federated.state.layout import Layout
from dpfed.federated.state.unfinished import UnfinishedRound
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.plan import AdaptiveClip, ClientPlan, LocalPlan, Plan
from dpfed.runs.directory import RunDirectory, sequence
from studies import DIMENSION, SIZES, SilentSource, Study, a_plan

ALGORITHMS = [
    ("fedavg", {}),
    ("fedprox", {"proximal": 0.1}),
    *(("fedopt", {"optimizer": optimizer}) for optimizer in ("momentum", "adam", "yogi", "adagrad")),
]
NAMES = tuple(SIZES)

numbers = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1e-300, -1e300, 1e308])
updates = st.lists(numbers, min_size=DIMENSION, max_size=DIMENSION).map(np.array)


class Heard:
    """An algorithm of the registry that keeps what it was given."""

    def __init__(self, kind, options) -> None:
        self._inner = registry.build(kind, **options)
        self.given = None

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def bound_to(self, plan):
        return self

    def step(self, state, mean):
        self.given = mean
        return self._inner.step(state, mean)


class Senders:
    """A runner without a ledger whose clients send what the test says; None is a client that is gone."""

    def __init__(self, sent) -> None:
        self._sent = sent

    def train(self, task, cohort):
        for name in cohort:
            value = self._sent[name]
            yield Failure(name, FAILED) if value is None else Update(name, task.round, value, "1:a")

    def charge_release(self, times, number):
        return "1:a"

    def charged(self):
        return Charged({name: {} for name in self._sent})


def aggregate(plan, sent):
    """What the algorithm is given at zero noise if the clients send these updates."""
    layout = Layout(("weights",), ((DIMENSION,),), "float64")
    with tempfile.TemporaryDirectory() as folder:
        task, stored = Task(1, {"weights": np.zeros(DIMENSION)}), UnfinishedRound(RunDirectory(folder))
        return Round(plan, task, layout, Senders(sent), stored, SilentSource(), "0:none").compute_mean().value


@given(
    sent=st.tuples(updates, updates, updates),
    other=updates | st.none(),
    who=st.sampled_from(NAMES),
    style=st.sampled_from(["user", "hybrid"]),
    weighting=st.sampled_from(["equal", "declared"]),
    cohort=st.sampled_from([All(), PoissonCohort(0.5), PoissonCohort(0.3, secret=True)]),
    clip_norm=st.floats(1e-3, 1e3),
)
def test_one_client_replaced_or_removed_moves_the_aggregate_by_at_most_the_plans_sensitivity(
    sent, other, who, style, weighting, cohort, clip_norm
):
    client = ClientPlan(clip_norm=clip_norm, noise_multiplier=5.0)
    plan = a_plan(style, SIZES, weighting=weighting, cohort=cohort, client=client)
    before = dict(zip(NAMES, sent, strict=True))
    one, two = aggregate(plan, before), aggregate(plan, {**before, who: other})
    most = float(plan.sensitivity) * (1 if other is None else 2)
    # The sum is exact; the mean is that, rounded once more.
    assert np.linalg.norm(one - two) <= most + 2.0**-50 * (np.linalg.norm(one) + np.linalg.norm(two))


@pytest.mark.parametrize("weighting", ["equal", "declared"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_every_algorithm_is_given_no_more_and_the_client_of_the_largest_weight_reaches_it(
    tmp_path, algorithm, weighting
):
    """In whole runs: all that an algorithm sees of the clients is the aggregate."""
    far = np.array([1e6, 0.0, 0.0])
    options = {"rounds": 1, "weighting": weighting, "client": ClientPlan(clip_norm=2.0, noise_multiplier=5.0)}
    given_with_and_without = []
    for number, north in enumerate([far, None]):
        (tmp_path / str(number)).mkdir()
        study = Study(tmp_path / str(number), "user", options)
        heard = Heard(*algorithm)
        for client, update in zip(study.clients, [north, far / 7, np.zeros(3)], strict=True):
            client.train = sender(update)
        list(study.federation(algorithm=heard, source=SilentSource()))
        given_with_and_without.append(heard.given)
        study.ledger.close()
    one, two = given_with_and_without
    assert np.linalg.norm(one - two) == pytest.approx(float(study.plan.sensitivity), rel=1e-6)
    assert float(study.plan.sensitivity) == pytest.approx(2.0 * (0.6 if weighting == "declared" else 1 / 3))


def sender(update):
    def train(local, objective, source):
        if update is None:
            raise ValueError("gone")
        return update

    return train


def test_one_client_moves_a_noised_count_by_no_more_than_a_half(tmp_path):
    client = ClientPlan(clip_norm=0.3, noise_multiplier=5.0, adaptive=AdaptiveClip(0.5, 0.2, count_noise=9.0))
    clips = []
    for number, who in enumerate([None, *NAMES]):
        folder = tmp_path / str(number)
        folder.mkdir()
        study = Study(folder, "user", {"client": client})
        for each in study.clients:
            each.train = sender(None if each.name == who else np.full(3, 0.1))
        federation = study.federation(source=SilentSource())
        next(federation)
        clips.append(federation._checkpoint.clip_norm)
        study.ledger.close()
    expected = [client.adaptive.next_clip(0.3, count, 3.0) for count in (1.5, 1.0, 1.0, 1.0)]
    np.testing.assert_allclose(clips, expected)


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_nobody_takes_part_oftener_than_the_plan_says(open_study, style):
    study = open_study(style, cohort=PoissonCohort(0.9), rounds=6, max_participations=2)
    federation = study.federation()
    list(federation)
    took_part = study.diary.trained()
    assert max(took_part.values()) == 2
    study.require_nothing_free()


def test_a_client_in_no_cohort_of_its_own_costs_nothing(open_study):
    """Of a cohort that is no secret the study pays for the client who took part most, not for every round."""
    study = open_study("user", cohort=FixedCohort(1), rounds=16)
    list(study.federation())
    largest = max(study.diary.participations().values())
    assert study.committed_releases() == largest < 16  # the same client in every round: 7e-8 of the runs
    study.require_done()


def test_the_cohort_of_a_round_that_is_done_again_is_the_same_where_clients_pay_for_it(open_study):
    """Drawing again would ask, and charge, more clients than the plan says."""
    study = open_study(cohort=FixedCohort(1))
    federation = study.federation(evaluate=lambda weights: 1 / 0)
    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            next(federation)
    assert sum(study.committed().values()) == 1


# What one client does moves the noised sum, and nothing else that anybody is shown.


def does(act):
    """A client's training that is only this."""
    return lambda local, objective, source: act()


def fails():
    raise ValueError("gone")


def leaves():
    raise SystemExit(3)


GOOD = does(lambda: np.array([3.0, 4.0, 0.0]))  # longer than the clip norm
BAD = {
    "raises": does(fails),
    "exits": does(leaves),
    "returns nothing": does(lambda: None),
    "sends NaN": does(lambda: np.full(DIMENSION, np.nan)),
    "sends too much": does(lambda: np.zeros(DIMENSION + 1)),
    "sends whole numbers": does(lambda: np.zeros(DIMENSION, dtype=int)),
    "sends nonsense": does(lambda: np.full(DIMENSION, 1e308)),
}
OTHERS = {"come": does(lambda: np.ones(DIMENSION)), "fail": does(fails), "are turned away": BAD["sends NaN"]}
COHORTS = {
    "all": All(),
    "poisson": PoissonCohort(0.9),
    "poisson, secret": PoissonCohort(0.9, secret=True),
    "fixed, secret": FixedCohort(2, secret=True),
}


def outcome(folder, style, options, sizes, north, others):
    """What a run shows to everyone (without the digest of a head), what its ledger says, and its models."""
    folder.mkdir()
    study = Study(folder, style, options, sizes)
    for client in study.clients:
        client.train = north if client.name == "north" else others
    federation = study.federation(source=SilentSource())
    weights = [np.zeros(DIMENSION), *(result.weights for result in federation)]
    rounds = study.directory().rounds()
    for record in rounds:
        record["head"] = record["head"] and sequence(record["head"])
    exported = io.StringIO()
    study.ledger.export(exported)
    rows = [json.loads(row) for row in exported.getvalue().splitlines()]
    entries = [{name: row.get(name) for name in ("kind", "account", "event", "times")} for row in rows]
    study.ledger.close()
    shown = (study.directory().path / "plan.json").read_text(), rounds, study.directory().status, entries
    return shown, np.diff(weights, axis=0), float(study.plan.sensitivity)


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("cohort", COHORTS)
@pytest.mark.parametrize("style", ["user", "hybrid"])
def test_neighbouring_federations_end_alike_and_differ_by_no_more_than_the_sensitivity(tmp_path, style, cohort, others):
    """The draws are the same in both, and nothing is noised."""
    options = {"cohort": COHORTS[cohort], "weighting": "equal"}
    shown, moves, sensitivity = outcome(tmp_path / "good", style, options, SIZES, GOOD, OTHERS[others])
    assert len(moves) == 4
    for name, bad in BAD.items():
        other, others_moves, _ = outcome(tmp_path / name, style, options, SIZES, bad, OTHERS[others])
        assert other == shown, name
        assert np.linalg.norm(moves - others_moves, axis=1).max() <= sensitivity * (1 + 2.0**-50), name


@pytest.mark.parametrize("style", ["user", "hybrid"])
def test_a_federation_of_one_client_ends_alike_whatever_it_does(tmp_path, style):
    shown, moves, sensitivity = outcome(tmp_path / "good", style, {}, {"north": 60}, GOOD, GOOD)
    for name, bad in BAD.items():
        other, others_moves, _ = outcome(tmp_path / name, style, {}, {"north": 60}, bad, GOOD)
        assert other == shown, name
        assert np.linalg.norm(moves - others_moves, axis=1).max() <= sensitivity * (1 + 2.0**-50), name


@pytest.mark.parametrize("bad", sorted(BAD.keys() - {"sends nonsense"}))  # which is a release here, as long as it likes
def test_a_record_that_makes_all_clients_fail_does_not_end_a_run_of_style_sample(tmp_path, bad):
    """Its noise is missing in the model, which the guarantee does not cover; everything else is the same."""
    study = Study(tmp_path, "sample", {}, {"north": 60})
    study.clients[0].train = BAD[bad]
    assert len(list(study.federation())) == 4
    assert study.directory().status == "finished"
    assert study.committed() == {"north": 4}
    study.ledger.close()


def test_more_clients_than_can_be_added_up_are_refused_by_the_plan_and_not_by_how_many_came():
    """The sum would be refused in a round in which one client more than it holds has sent an update."""
    local = dict.fromkeys(map(str, range(MOST_CLIENTS + 1)), LocalPlan(size=5, batch_size=5, steps=2))
    with pytest.raises(InvalidArgument, match="FixedCohort"):
        Plan("study", 4, local, style="user", client=ClientPlan(clip_norm=1.0, noise_multiplier=5.0))

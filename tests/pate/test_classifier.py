"""PATE as a scikit-learn classifier: its rules, its promise, and nothing spent on bad input."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from dpfed.errors import BudgetExceeded, InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.pate import PATEClassifier
from dpfed.pate.vote.noisy_max import GNMax

torch.set_num_threads(1)
PROMISE = Guarantee(8.0, 1e-5)
LEFT_OUT = {"check_array_api_input", "check_classifier_data_not_an_array", "check_sample_weights_pandas_series"}


def world(records=1500):
    draws = np.random.default_rng(0)
    features = draws.uniform(-1, 1, (records, 2))
    return features, (features[:, 0] > features[:, 1]).astype(int)


X, Y = world()
PUBLIC, TRUTH = world(1600)[0][1500:], world(1600)[1][1500:]


def made(**changes):
    known = {"teachers": 40, "classes": (0, 1), "feature_bounds": (-1, 1), "steps": 40, "student_steps": 150}
    return PATEClassifier(PROMISE, **(known | changes))


class AskedOnItself(PATEClassifier):
    """For scikit-learn's checks, which know no public examples: features stand in for them."""

    def fit(self, X, y):
        return super().fit(X, y, public=X)


@pytest.fixture
def account(tmp_path):
    with Ledger(tmp_path / "ledger.db") as ledger:
        yield ledger.open("ward", epsilon=9.0, delta=1e-5)


def test_the_rules_of_scikit_learn_are_kept():
    estimator = AskedOnItself(Guarantee(1e5, 1e-5), teachers=2, steps=15, student_steps=30, learning_rate=0.3)
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] not in ("passed", "skipped")}
    assert {r["check_name"] for r in results if r["status"] == "skipped"} <= LEFT_OUT
    assert len(results) > 40
    assert not failed


@pytest.mark.parametrize("vote", ["gnmax", "confident", "laplace"])
def test_a_student_learns_what_the_teachers_agree_on(vote):
    model = made(vote=vote, random_state=0, max_answers=60).fit(X, Y, public=PUBLIC)
    assert model.score(PUBLIC, TRUTH) > 0.8
    assert 7.9 < model.epsilon_ <= 8.0
    assert model.guarantee_ <= PROMISE
    assert 0 < model.n_answers_ <= 60
    assert len(model.answers_) == model.answered_.sum() == model.n_answers_
    assert model.predict_proba(PUBLIC).sum(axis=1) == pytest.approx(np.ones(100))


def test_the_first_public_examples_are_answered():
    model = made(max_answers=30).fit(X, Y, public=PUBLIC)
    assert model.answered_.tolist() == [True] * 30 + [False] * 70


def test_epsilon_is_that_of_the_plan_however_many_queries_were_answered():
    """A figure that followed from how many were answered would be no promise."""
    model = made(vote="confident", threshold=1.0, threshold_noise=1.0).fit(X, Y, public=PUBLIC)
    assert model.n_answers_ < 100
    assert model.epsilon_ == model.plan_.guarantee(1e-5).epsilon
    assert sum(model.plan_.charges.values()) == 200


def test_the_noise_is_calibrated_to_the_guarantee_and_to_replace_one_twice():
    one, two = (
        made().set_params(guarantee=Guarantee(8.0, 1e-5, adjacency=each)).fit(X, Y, public=PUBLIC).plan_
        for each in ("add_remove", "replace_one")
    )
    assert two.vote.sigma == pytest.approx(2 * one.vote.sigma, rel=1e-4)
    assert two.adjacency == "replace_one"


def test_one_record_less_moves_at_most_one_vote_of_each_query_through_the_estimator(monkeypatch):
    """At zero noise: what reaches the noisy maximum moves by √2 in L2, or by 2√2 if the record is replaced."""
    seen, choose = [], GNMax.choose
    monkeypatch.setattr(GNMax, "choose", lambda self, counts: (seen.append(counts), choose(self, counts))[1])

    def counts(features, labels):
        seen.clear()
        made(teachers=20).fit(features, labels, public=PUBLIC)
        return np.array(seen)

    before = counts(X[:60], Y[:60])
    gone = counts(X[1:60], Y[1:60]) - before
    replaced = counts(np.vstack([[[0.9, -0.9]], X[1:60]]), np.r_[0, Y[1:60]]) - before
    assert (before.sum(axis=1) == 20).all()
    assert 0 < np.linalg.norm(gone, axis=1).max() <= np.sqrt(2) + 1e-12
    assert 0 < np.linalg.norm(replaced, axis=1).max() <= 2 * np.sqrt(2) + 1e-12


def test_nothing_private_stays_on_the_fitted_estimator():
    model = made().fit(X, Y, public=PUBLIC)
    held = {name for name in vars(model) if name not in model.get_params()}
    assert held == {
        "n_features_in_",
        "classes_",
        "run_",
        "answered_",
        "n_answers_",
        "answers_",
        "plan_",
        "guarantee_",
        "epsilon_",
        "is_private_",
        "_is_weighted",
        "not_covered_",
        "model_",
    }


def test_what_is_not_covered_is_listed():
    assert made(account=None).fit(X, Y, public=PUBLIC).not_covered_ == [
        "other fits on these records, and a choice between them: no account was charged"
    ]
    model = made(classes=None, feature_bounds=None, random_state=1).fit(X, Y, public=PUBLIC)
    assert [text.split(":")[0].split(",")[0] for text in model.not_covered_] == [
        "everything",
        "other fits on these records",
        "which labels occur",
        "scaling before fit",
    ]
    assert not model.is_private_


def test_a_fit_is_charged_before_the_first_vote_and_returns_the_rest(account):
    model = made(account=account, run="study", vote="confident", threshold=0.9).fit(X, Y, public=PUBLIC)
    ledger = account._ledger
    (found,) = ledger.reservations(open_only=False)
    assert found.run == model.run_
    assert found.run.startswith("study-")
    assert found.committed == 200  # blocks of a hundred: every look, and at most a hundred votes
    assert not ledger.reservations()
    assert ledger.balance("ward").spent > 0
    assert model.not_covered_ == []


def test_an_account_that_cannot_pay_refuses_before_a_teacher_is_trained(account, monkeypatch):
    monkeypatch.setattr("dpfed.pate.classifier.train_teachers", lambda *a, **k: pytest.fail("trained"))
    with pytest.raises(BudgetExceeded):
        made(account=account, run="study").set_params(guarantee=Guarantee(20.0, 1e-5)).fit(X, Y, public=PUBLIC)


def test_a_fit_that_fails_returns_what_it_reserved(account, monkeypatch):
    def fail(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpfed.pate.classifier.train_teachers", fail)
    with pytest.raises(KeyboardInterrupt):
        made(account=account, run="study").fit(X, Y, public=PUBLIC)
    assert not account._ledger.reservations()
    assert account._ledger.balance("ward").spent == 0


def test_persons_are_protected_whole(account):
    persons = np.arange(1500) // 5
    promise = Guarantee(8.0, 1e-5, unit="person")
    model = made().set_params(guarantee=promise).fit(X, Y, public=PUBLIC, persons=persons)
    assert model.guarantee_.unit == "person"
    with pytest.raises(InvalidArgument, match="persons"):
        made().set_params(guarantee=promise).fit(X, Y, public=PUBLIC)
    with pytest.raises(InvalidArgument, match="one person and the account ward one record"):
        made(account=account, run="s").set_params(guarantee=promise).fit(X, Y, public=PUBLIC, persons=persons)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"guarantee": None}, "guarantee"),
        ({"vote": "majority"}, "vote must be"),
        ({"teachers": 0}, "teachers"),
        ({"threshold": 2.0, "vote": "confident"}, "threshold"),
        ({"hidden": 3}, "hidden"),
        ({"student_steps": 0}, "student_steps"),
        ({"classes": (0, 2)}, "labels that are not in classes"),
        ({"max_answers": 0}, "max_answers"),
        ({"partition_key": -1}, "key"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_spent(account, changes, match):
    with pytest.raises(InvalidArgument, match=match):
        made(account=account, run="study").set_params(**changes).fit(X, Y, public=PUBLIC)
    assert not account._ledger.reservations(open_only=False)


def test_public_examples_are_needed_and_must_have_the_same_features():
    with pytest.raises(InvalidArgument, match="public"):
        made().fit(X, Y)
    with pytest.raises(ValueError, match="features"):
        made().fit(X, Y, public=PUBLIC[:, :1])


def test_a_clone_is_refused_on_an_account(account):
    with pytest.raises(InvalidArgument, match="not cloned"):
        clone(made(account=account, run="study"))


def test_a_fitted_estimator_can_be_stored():
    model = made(random_state=3).fit(X, Y, public=PUBLIC)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert (again.predict(PUBLIC) == model.predict(PUBLIC)).all()


def test_a_seed_makes_a_fit_repeatable():
    one, two = (made(random_state=3).fit(X, Y, public=PUBLIC).answers_ for _ in range(2))
    assert (one == two).all()


def test_a_student_without_an_answer_says_so():
    model = made(vote="confident", threshold=1.0, threshold_noise=1.0)
    model.set_params(guarantee=Guarantee(1e3, 1e-5))
    with pytest.warns(UserWarning, match="no query was answered"):
        model.fit(X, np.random.default_rng(1).permutation(Y), public=PUBLIC[:3])
    assert model.n_answers_ == 0
    assert set(model.predict(PUBLIC)) <= {0, 1}

"""The estimators keep scikit-learn's rules and dpfed's: nothing is spent on bad input, and gaps are listed."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn import ensemble, model_selection
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer
from sklearn.experimental import enable_halving_search_cv  # noqa: F401 (it enables an import)
from sklearn.feature_selection import RFECV, SequentialFeatureSelector
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    PredefinedSplit,
    RandomizedSearchCV,
    train_test_split,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from dpfed.accounting.queries import epsilon
from dpfed.errors import BudgetExceeded, InvalidArgument
from dpfed.events import Gaussian, Repeated
from dpfed.guarantee import Guarantee
from dpfed.integrations.estimator import weight_loss
from dpfed.integrations.sklearn import PrivateClassifier, PrivateRegressor
from dpfed.ledger.ledger import Ledger
from dpfed.training.engine.gradients import ClippedGradients

torch.set_num_threads(1)
PROMISE = Guarantee(1.0, 1e-5)
X = np.linspace(-1, 1, 100).reshape(50, 2)
Y = (X[:, 0] > 0).astype(int)


# Checks that scikit-learn itself leaves out where pandas or SCIPY_ARRAY_API is missing.
LEFT_OUT = {
    "check_array_api_input",
    "check_classifier_data_not_an_array",
    "check_regressor_data_not_an_array",
    "check_sample_weights_pandas_series",
}
# A record of weight 2 is cut to the same length as one of weight 1; two equal records are two.
BY_DESIGN = {"check_sample_weight_equivalence_on_dense_data": "no weight makes a record count for more than clip_norm"}


@pytest.mark.parametrize("estimator", [PrivateClassifier(PROMISE, epochs=2), PrivateRegressor(PROMISE)])
def test_the_rules_of_scikit_learn_are_kept(estimator):
    results = check_estimator(estimator, on_fail=None, on_skip=None, expected_failed_checks=BY_DESIGN)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] not in ("passed", "skipped", "xfail")}
    assert {r["check_name"] for r in results if r["status"] == "xfail"} == set(BY_DESIGN)
    assert {r["check_name"] for r in results if r["status"] == "skipped"} <= LEFT_OUT
    assert len(results) > 40
    assert not failed


def declared(**changes):
    known = {"size": 50, "classes": (0, 1), "feature_bounds": (-1, 1), "epochs": 2, "batch_size": 10}
    return PrivateClassifier(PROMISE, **(known | changes))


def weights_of(model):
    return torch.cat([value.flatten() for value in model.model_.parameters()])


@pytest.mark.parametrize("kind", [PrivateClassifier, PrivateRegressor])
def test_equal_weights_of_one_are_no_weights(kind):
    plain, weighted = (kind(PROMISE, epochs=2, random_state=0).fit(X, Y, w) for w in (None, np.ones(50)))
    assert torch.equal(weights_of(plain), weights_of(weighted))


def test_records_of_weight_zero_teach_nothing():
    """Half of the records say the opposite of the others."""
    model = PrivateClassifier(Guarantee(1000.0, 1e-5), classes=(0, 1), random_state=0)
    model.fit(np.vstack([X, X]), np.hstack([Y, 1 - Y]), sample_weight=np.repeat([1.0, 0.0], 50))
    assert model.score(X, Y) > 0.9


def test_no_weight_makes_a_record_count_for_more_than_the_clip_norm():
    """Were losses weighted after clipping, or gradients not cut, the heavier weights would go ten times as far."""
    heavy, heavier = (declared(random_state=0).fit(X, Y, np.full(50, w)) for w in (1e6, 1e7))
    assert torch.allclose(weights_of(heavy), weights_of(heavier), rtol=1e-4)


@pytest.mark.parametrize("heavy", [1.0, 1e3, 1e12])
def test_one_weighted_record_moves_the_sum_by_at_most_the_clip_norm(heavy):
    torch.manual_seed(0)
    model, rows = nn.Linear(2, 2), torch.randn(6, 2)
    records = torch.stack([torch.arange(6.0) % 2, torch.tensor([heavy, 1, 2, 0.5, 0, 3])], 1).double()
    loss = weight_loss(nn.CrossEntropyLoss(reduction="none"), torch.int64)
    with ClippedGradients(model, clip_norm=0.5) as gradients:
        sums = [gradients.sum(loss(model(rows[kept:]), records[kept:])) for kept in (0, 1)]
    moved = torch.cat([(sums[0][name] - sums[1][name]).flatten() for name in sums[0]]).norm()
    assert 0 < moved <= 0.5


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (np.full(50, -1.0), "negative"),
        (np.full(50, np.nan), "NaN"),
        (np.full(50, 1e300), "infinity"),
        (np.zeros(50), "zero"),
        (np.ones(49), "one number for each of the 50 records"),
        (np.ones((50, 2)), "one number for each of the 50 records"),
    ],
)
def test_weights_that_are_none_are_refused_before_anything_is_spent(account, weights, match):
    before = account.affordable(Gaussian(1000.0))
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=match):
        declared(account=account, run="weighted").fit(X, Y, sample_weight=weights)
    assert account.affordable(Gaussian(1000.0)) == before > 0


def test_weights_that_may_follow_from_other_records_are_listed():
    assert "sample_weight" in declared().fit(X, Y, np.ones(50)).not_covered_[-1]
    assert "sample_weight" not in " ".join(declared().fit(X, Y).not_covered_)


def test_breast_cancer_is_told_at_epsilon_one():
    """Guessing the majority is right for 63 %."""
    data = load_breast_cancer()
    bounds = (np.zeros(30), 2 * np.median(data.data, axis=0))  # stands in for public knowledge of the ranges
    scores = []
    for seed in range(3):
        parts = train_test_split(data.data, data.target, random_state=seed)
        model = PrivateClassifier(PROMISE, size=426, classes=(0, 1), feature_bounds=bounds, random_state=seed)
        scores.append(model.fit(parts[0], parts[2]).score(parts[1], parts[3]))
        assert 0.99 < model.epsilon_ <= 1.0
    assert min(scores) > 0.8, scores


def test_what_was_not_declared_is_listed():
    (text,) = declared().fit(X, Y).not_covered_
    assert all(part in text for part in ("other fits", "choice between them", "no account was charged"))
    listed = " ".join(PrivateClassifier(PROMISE, epochs=1).fit(X, Y).not_covered_)
    assert all(word in listed for word in ("number of records", "labels", "feature_bounds", "account"))


def test_a_seeded_fit_says_that_it_is_not_private():
    seeded = declared(random_state=0).fit(X, Y)
    assert not seeded.is_private_
    assert "NOT PRIVATE" in seeded.not_covered_[0]
    assert declared().fit(X, Y).is_private_


def test_one_record_more_changes_neither_steps_nor_noise():
    assert declared().fit(X, Y).guarantee_ == declared().fit(X[:-1], Y[:-1]).guarantee_


@pytest.fixture
def account(tmp_path):
    return Ledger(f"sqlite:///{tmp_path / 'ledger.db'}").open("ward", epsilon=1.2, delta=1e-5)


@pytest.mark.parametrize(
    ("features", "labels", "changes"),
    [
        (np.where(X > 0.9, np.nan, X), Y, {}),
        (np.where(X > 0.9, np.inf, X), Y, {}),
        (X * 1e300, Y, {"feature_bounds": None}),
        (X[:-1], Y, {}),
        (X[:, 0], Y, {}),
        (X, Y + 1, {}),
        (X, np.zeros(50, dtype=int), {"classes": None}),
        (X, Y, {"batch_size": 51}),
        (X, Y, {"feature_bounds": (1, 1)}),
        (X, Y, {"feature_bounds": 1}),
        (X, Y, {"feature_bounds": (0, 1, 2)}),
        (X, Y, {"hidden": 32}),
        (X, Y, {"account": "ward"}),
        (X, Y, {"feature_bounds": (np.zeros(3), np.ones(3))}),
        (X, Y, {"guarantee": None}),
        (X, Y, {"guarantee": 1.0}),
        (X, Y, {"guarantee": Guarantee(1.0, 1e-5, unit="person")}),
        (X, Y, {"run": None}),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_reserved(features, labels, changes, account):
    event = declared()._make_plan(50).step_event
    before = account.affordable(event)
    model = declared(account=account, run="fit").set_params(**changes)
    with pytest.raises(ValueError, match=r"\w"):
        model.fit(features, labels)
    assert account.affordable(event) == before >= 10


def test_one_record_and_constant_features_are_no_reason_to_refuse():
    assert declared().fit(np.ones((1, 2)), [1]).predict(X).shape == (50,)
    assert declared().fit(np.ones((50, 2)), Y).epsilon_ <= 1.0


def test_a_clone_is_charged_to_the_same_account_and_every_fit_as_a_run_of_its_own(tmp_path):
    account = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}").open("ward", epsilon=3.0, delta=1e-5)
    first = declared(account=account, run="fit", scoring_is_public=True)
    assert clone(first).account is account
    event = first._make_plan(50).step_event
    left = [account.affordable(event)]
    for model in (first, first, clone(first)):
        assert model.fit(X, Y).not_covered_ == []
        assert model.run_.startswith("fit-")
        left.append(account.affordable(event))
    assert left == [left[0], left[0] - 10, left[0] - 20, left[0] - 30]


def test_a_budget_is_spent_to_its_end_and_not_beyond(tmp_path):
    account = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}").open("ward", epsilon=1.0, delta=1e-5)
    model = declared(account=account, run="fit").fit(X, Y)
    assert 0.99 < model.epsilon_ <= 1.0
    assert model.n_iter_ == model._make_plan(50).steps == 10
    assert account.affordable(Gaussian(1000.0)) == 0


def test_a_refused_refit_leaves_the_old_model_as_it_was(account):
    model = declared(account=account, run="fit").fit(X, Y)
    before, run = model.predict_proba(X), model.run_
    with pytest.raises(BudgetExceeded):
        model.set_params(classes=(0, 1, 2)).fit(X, Y)
    assert np.array_equal(model.predict_proba(X), before)
    assert (model.run_, list(model.classes_)) == (run, [0, 1])


GRID = {"learning_rate": [0.1, 1.0]}
# Everything of scikit-learn that fits several times, or once on some of the records, and looks at others.
CLONING = {
    "a grid": lambda model: GridSearchCV(model, GRID).fit(X, Y),
    "a grid whose errors are scores": lambda model: GridSearchCV(model, GRID, error_score=0.0).fit(X, Y),
    "a grid of estimators": lambda model: GridSearchCV(Pipeline([("last", declared())]), {"last": [model]}).fit(X, Y),
    "a grid around a pipeline": lambda model: GridSearchCV(
        make_pipeline(FunctionTransformer(), model), {"privateclassifier__epochs": [1, 2]}
    ).fit(X, Y),
    "a random search": lambda model: RandomizedSearchCV(model, GRID, n_iter=2).fit(X, Y),
    "a halving search": lambda model: HalvingGridSearchCV(model, GRID).fit(X, Y),
    "scores": lambda model: model_selection.cross_val_score(model, X, Y),
    "validation": lambda model: model_selection.cross_validate(model, X, Y),
    "predictions": lambda model: model_selection.cross_val_predict(model, X, Y),
    "a learning curve": lambda model: model_selection.learning_curve(model, X, Y),
    "a validation curve": lambda model: model_selection.validation_curve(
        model, X, Y, param_name="epochs", param_range=[1, 2]
    ),
    "permuted labels": lambda model: model_selection.permutation_test_score(model, X, Y, n_permutations=2),
    "a threshold": lambda model: model_selection.TunedThresholdClassifierCV(model).fit(X, Y),
    "a selection of features": lambda model: SequentialFeatureSelector(model, n_features_to_select=1).fit(X, Y),
    "an elimination of features": lambda model: RFECV(model).fit(X, Y),
    "a stack": lambda model: ensemble.StackingClassifier([("one", model)]).fit(X, Y),
    "a vote": lambda model: ensemble.VotingClassifier([("one", model)]).fit(X, Y),
    "bags": lambda model: ensemble.BaggingClassifier(model).fit(X, Y),
    "boosting": lambda model: ensemble.AdaBoostClassifier(model).fit(X, Y),
    "calibration": lambda model: CalibratedClassifierCV(model).fit(X, Y),
    "one class after the other": lambda model: OneVsRestClassifier(model).fit(X, Y),
    "a clone": lambda model: clone(model).fit(X, Y),
    "a clone of a pipeline": lambda model: clone(make_pipeline(FunctionTransformer(), model)).fit(X, Y),
}


@pytest.mark.parametrize("use", CLONING.values(), ids=CLONING)
def test_what_chooses_by_held_out_records_is_refused_on_an_account_before_anything_is_charged(account, use):
    """Every fit would be charged, and the choice, which follows from exact scores, would not."""
    event = declared()._make_plan(50).step_event
    before = account.affordable(event)
    with pytest.raises(InvalidArgument, match="scoring_is_public=True"):
        use(declared(account=account, run="fit"))
    assert account.affordable(event) == before > 0


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_no_way_around_the_account(account, copied):
    with pytest.raises(InvalidArgument, match="account and run go together"):
        copied(declared(account=account, run="fit")).fit(X, Y)


def test_a_search_cannot_bring_the_account_itself(account):
    search = GridSearchCV(declared(run="fit"), {"account": [account]}, error_score="raise")
    event = declared()._make_plan(50).step_event
    before = account.affordable(event)
    with pytest.raises((TypeError, InvalidArgument)):
        search.fit(X, Y)
    assert account.affordable(event) == before


@pytest.mark.parametrize("said", [None, "public", 1, "False"])
def test_public_scoring_is_declared_in_one_word_only(account, said):
    with pytest.raises(InvalidArgument, match="scoring_is_public=True"):
        clone(declared(account=account, run="fit", scoring_is_public=said))


def test_a_search_that_scores_public_records_is_charged_for_every_fit(tmp_path):
    account = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}").open("ward", epsilon=2.0, delta=1e-5)
    model = declared(account=account, run="fit", scoring_is_public=True)
    event = model._make_plan(50).step_event
    before = account.affordable(event)
    split = PredefinedSplit(np.repeat([-1, 0], 50))  # the second half is public, and scored; the first is trained on
    search = GridSearchCV(model, GRID, cv=split, refit=False, error_score="raise")
    search.fit(np.vstack([X, X]), np.hstack([Y, Y]))
    assert account.affordable(event) == before - 20
    with pytest.raises(BudgetExceeded):
        search.fit(np.vstack([X, X]), np.hstack([Y, Y]))


def test_a_pipeline_with_an_account_is_fitted_as_ever(account):
    pipeline = make_pipeline(FunctionTransformer(), declared(account=account, run="fit")).fit(X, Y)
    assert pipeline[-1].not_covered_ == []
    assert repr(pipeline)


def test_without_an_account_a_search_goes_on_and_its_model_says_that_the_choice_is_not_covered():
    search = GridSearchCV(declared(), GRID, cv=2).fit(X, Y)
    assert "a choice between them" in search.best_estimator_.not_covered_[0]


@pytest.fixture
def interrupted_in_the_third_step():
    taken = []

    def interrupt(optimizer, args, kwargs):
        taken.append(1)
        if len(taken) == 3:
            raise KeyboardInterrupt

    hook = register_optimizer_step_post_hook(interrupt)
    yield
    hook.remove()


@pytest.mark.usefixtures("interrupted_in_the_third_step")
def test_ctrl_c_keeps_what_was_learnt_and_charges_what_was_spent(account):
    model = declared(account=account, run="fit", epochs=20)
    event = model._make_plan(50).step_event
    before = account.affordable(event)
    with pytest.raises(
        KeyboardInterrupt, match=r"step 3 of 100: ε = 0\.\d+, δ = 1e-05 .* is spent, and the model so far is"
    ):
        model.fit(X, Y)
    assert before - 100 < account.affordable(event) <= before - 3, "charged in blocks; the rest was given back"
    assert model.n_iter_ == 3
    assert model.epsilon_ == pytest.approx(epsilon(Repeated(event, 3), 1e-5))
    assert ["step 3 of 100" in text for text in model.not_covered_] == [True]
    assert all(value.grad is None for value in model.model_.parameters())
    assert model.predict(X).shape == (50,)


def test_a_fitted_model_is_pickled_whole():
    model = declared(hidden=(4,)).fit(X, Y)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 (our own bytes)
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert np.allclose(model.predict_proba(X).sum(axis=1), 1)


def test_a_regression_finds_a_slope_within_public_bounds():
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, (2000, 1))
    targets = 100 + 50 * features[:, 0]
    model = PrivateRegressor(PROMISE, size=2000, feature_bounds=(-1, 1), target_bounds=(50, 150), random_state=0)
    assert model.fit(features, targets).score(features, targets) > 0.9


def test_a_missing_guarantee_is_refused_in_one_sentence():
    with pytest.raises(InvalidArgument, match="guarantee must be a Guarantee"):
        PrivateClassifier().fit(X, Y)


def test_a_pickle_leaves_its_account_behind_and_is_not_fitted_uncharged(account):
    model = declared(account=account, run="fit").fit(X, Y)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 (our own bytes)
    assert np.array_equal(again.predict(X), model.predict(X))
    assert model.account is account
    with pytest.raises(InvalidArgument, match="account and run go together"):
        again.fit(X, Y)
    with pytest.raises(InvalidArgument, match="set run=NAME"):
        pickle.dumps(model.set_params(run=None))

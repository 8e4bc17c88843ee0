"""Derived sensitivities against brute force: no noise, small logistic regressions, worst-case records."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from dpfed.clipping import clip_gradients, clip_per_example
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.sensitivity import (
    Sensitivity,
    clipped_update,
    fedavg_step,
    feddyn_step,
    iadmm_step,
    scaffold_step,
)

ORDER = {"l1": 1, "l2": 2}
CLIP, RATE, RECORDS = 0.5, 0.3, 4

Records = list[tuple[np.ndarray, float]]


def clipped_sum(weights: np.ndarray, records: Records, norm: str) -> np.ndarray:
    """The sum of clipped per-record gradients of the logistic loss."""
    if not records:
        return np.zeros_like(weights)
    x = np.array([features for features, _ in records])
    y = np.array([label for _, label in records])
    gradients = -(y * expit(-y * (x @ weights)))[:, None] * x
    return clip_per_example(gradients, CLIP, norm).sum(axis=0)


def fedavg(records: Records, norm: str, steps: int = 1) -> np.ndarray:
    weights = np.array([0.2, -0.1])
    for _ in range(steps):
        weights = weights - RATE * clipped_sum(weights, records, norm) / RECORDS
    return weights


def iadmm(records: Records, norm: str, penalty: float, proximity: float, total: int) -> np.ndarray:
    released, dual, previous = np.array([0.2, -0.1]), np.array([0.3, 0.3]), np.array([0.1, 0.0])
    gradient = clipped_sum(previous, records, norm) / total
    return (penalty * released + dual + proximity * previous - gradient) / (penalty + proximity)


def candidates() -> Records:
    """Records small and huge in several directions: some gradients reach the clip in opposite ways."""
    points = [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (-3.0, 5.0), (1e4, 1.0), (-1e4, 1e4), (0.1, 0.0)]
    return [(np.array(point), label) for point in points for label in (-1.0, 1.0)]


def others() -> Records:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=2) * 3, float(rng.choice([-1, 1]))) for _ in range(RECORDS - 1)]


def largest_change(algorithm: object, adjacency: str, norm: str) -> float:
    rest, extra = others(), candidates()
    if adjacency == "add_remove":
        pairs = [(rest, [*rest, record]) for record in extra]
    else:
        pairs = [([*rest, a], [*rest, b]) for a, b in itertools.combinations(extra, 2)]
    return max(np.linalg.norm(algorithm(here) - algorithm(there), ORDER[norm]) for here, there in pairs)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_fedavg_step_is_exactly_the_largest_change(adjacency: str, norm: str) -> None:
    bound = fedavg_step(CLIP, RATE, RECORDS, adjacency=adjacency, norm=norm)
    measured = largest_change(lambda records: fedavg(records, norm), adjacency, norm)
    assert measured <= bound * (1 + 1e-12)
    assert measured >= bound * 0.99


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("steps", [2, 5])
def test_several_steps_stay_within_their_bound_and_may_pass_that_of_independent_ones(steps: int, norm: str) -> None:
    bound = fedavg_step(CLIP, RATE, RECORDS, steps, norm=norm)
    assert float(bound) == pytest.approx(2 * CLIP * RATE * (1 / RECORDS + steps - 1))
    measured = largest_change(lambda records: fedavg(records, norm, steps), "replace_one", norm)
    assert measured <= bound
    assert measured > fedavg_step(CLIP, RATE, RECORDS, norm=norm)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("proximity", [0.0, 0.7])
def test_iadmm_step_is_exactly_the_largest_change(proximity: float, adjacency: str, norm: str) -> None:
    bound = iadmm_step(CLIP, 1.5, 40, proximity, adjacency=adjacency, norm=norm)
    measured = largest_change(lambda records: iadmm(records, norm, 1.5, proximity, 40), adjacency, norm)
    assert measured <= bound * (1 + 1e-9)
    assert measured >= bound * 0.99


def test_a_mean_over_the_true_count_moves_more_than_the_bound_that_is_refused() -> None:
    def renormalised(records: Records) -> np.ndarray:
        return -RATE * clipped_sum(np.array([0.2, -0.1]), records, "l1") / len(records)

    measured = largest_change(renormalised, "add_remove", "l1")
    assert measured > fedavg_step(CLIP, RATE, RECORDS, adjacency="add_remove")
    with pytest.raises(InvalidArgument, match="public constant"):
        fedavg_step(CLIP, RATE, RECORDS, adjacency="add_remove", normaliser="realised")


def test_the_formulas_of_the_notes() -> None:
    assert float(fedavg_step(1.0, 0.1, 500)) == pytest.approx(2 * 0.1 / 500)
    assert float(fedavg_step(1.0, 0.1, 500, adjacency="add_remove")) == pytest.approx(0.1 / 500)
    assert float(fedavg_step(1.0, 0.1, 500, steps=3)) == pytest.approx(0.2 * (1 / 500 + 2))
    assert float(fedavg_step(1.0, 0.1, 500, steps=3, clipping="batch")) == pytest.approx(0.6)
    assert float(fedavg_step(1.0, 0.1, 500, steps=3, clipping="batch", adjacency="add_remove")) == pytest.approx(0.6)
    assert float(iadmm_step(1.0, 2.0, 100)) == pytest.approx(2 / 200)
    assert float(iadmm_step(1.0, 2.0, 100, proximity=3.0)) == pytest.approx(2 / 500)
    assert float(iadmm_step(1.0, 2.0, 100, adjacency="add_remove")) == pytest.approx(1 / 200)
    assert float(clipped_update(0.3, unit="client")) == pytest.approx(0.6)
    assert float(clipped_update(0.3, unit="client", adjacency="add_remove")) == 0.3


# One weight, a few records, and losses whose gradients may turn with the weight: small enough to try every data set of
# that many records against every neighbour.
GRADIENTS: tuple[Callable[[float], float], ...] = (
    lambda weight: 0.0,
    lambda weight: 1e6,
    lambda weight: -1e6,
    lambda weight: -1e3 * np.sign(weight),
    lambda weight: 1e3 * np.sign(weight),
    lambda weight: 4e6,
    lambda weight: 0.01,
)
Losses = tuple[Callable[[float], float], ...]


def neighbours(adjacency: str, largest: int) -> Iterator[tuple[Losses, Losses]]:
    """Every data set of up to so many records, with every neighbour; under replace-one of exactly so many."""
    for here in itertools.product(GRADIENTS, repeat=largest):
        if adjacency == "add_remove":
            yield from ((here[:kept], here[: kept - 1]) for kept in range(1, largest + 1))
        else:
            yield from ((here, (*here[:-1], other)) for other in GRADIENTS)


def furthest(algorithm: Callable[[Losses], float], adjacency: str, largest: int = 3) -> float:
    return max(abs(algorithm(here) - algorithm(there)) for here, there in neighbours(adjacency, largest))


def trained(losses: Losses, steps: int, clipping: str) -> float:
    weight = 0.0
    for _ in range(steps):
        if clipping == "example":
            gradient = sum(float(np.clip(loss(weight), -CLIP, CLIP)) for loss in losses) / 3
        else:
            gradient = float(np.clip(sum(loss(weight) for loss in losses), -CLIP, CLIP))
        weight -= RATE * gradient
    return weight


@pytest.mark.parametrize(
    ("clipping", "adjacency", "steps"),
    [
        ("example", "replace_one", 1),
        ("example", "replace_one", 2),
        ("example", "replace_one", 4),
        ("example", "add_remove", 1),
        ("batch", "replace_one", 1),
        ("batch", "replace_one", 3),
        ("batch", "add_remove", 1),
        ("batch", "add_remove", 3),
    ],
)
def test_no_neighbours_are_further_apart_than_a_fedavg_bound_and_some_are_as_far(
    clipping: str, adjacency: str, steps: int
) -> None:
    bound = fedavg_step(CLIP, RATE, 3, steps, clipping=clipping, adjacency=adjacency)
    measured = furthest(lambda losses: trained(losses, steps, clipping), adjacency)
    assert bound * 0.999 <= measured <= bound * (1 + 1e-12)


def test_several_steps_under_add_remove_are_refused_because_more_records_go_further_than_any_bound() -> None:
    moved = [furthest(lambda losses: trained(losses, 2, "example"), "add_remove", largest=size) for size in (2, 3, 4)]
    assert moved[0] < moved[1] < moved[2]


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_no_neighbours_are_further_apart_than_an_admm_bound_and_some_are_as_far(adjacency: str) -> None:
    def primal(losses: Losses) -> float:
        gradient = sum(float(np.clip(loss(0.1), -CLIP, CLIP)) for loss in losses) / 3
        return (2.0 * 0.4 + 0.3 + 0.7 * 0.1 - gradient) / 2.7

    bound = iadmm_step(CLIP, 2.0, 3, 0.7, adjacency=adjacency)
    assert bound * 0.999 <= furthest(primal, adjacency) <= bound * (1 + 1e-12)


def sent(losses: Losses, steps: int = 2) -> float:
    """A client's whole update after steps that clip nothing, clipped to 0.5 before it is sent."""
    weight = 0.0
    for _ in range(steps):
        weight -= RATE * sum(loss(weight) for loss in losses)
    return float(clip_gradients(weight, CLIP))


@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_one_record_can_turn_a_clipped_update_around_however_it_came(adjacency: str, unit: str) -> None:
    bound = clipped_update(CLIP, unit=unit, adjacency=adjacency)
    assert bound == 2 * CLIP
    assert bound * 0.999 <= furthest(sent, adjacency) <= bound
    assert bound.adjacency == adjacency


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_a_client_moves_a_sum_of_clipped_updates_by_one_clip_norm_and_a_replaced_one_by_two(adjacency: str) -> None:
    """Here the records are whole clients: an absent one sends nothing."""

    def total(clients: Losses) -> float:
        return sum(sent((client,)) for client in clients)

    bound = clipped_update(CLIP, unit="client", adjacency=adjacency)
    assert bound * 0.999 <= furthest(total, adjacency) <= bound * (1 + 1e-12)


def test_a_whole_update_without_its_unit_has_no_sensitivity() -> None:
    with pytest.raises(TypeError, match="unit"):
        clipped_update(0.3, adjacency="add_remove")


@pytest.mark.parametrize("value", [2**53 + 1, 2**60 + 1, Fraction(1, 3), Fraction(2, 3), np.int64(2**53 + 1)])
def test_what_a_float_cannot_hold_is_rounded_up(value: int | Fraction) -> None:
    exact = Fraction(int(value)) if isinstance(value, np.int64) else Fraction(value)
    assert exact <= Fraction(Sensitivity(value, "l1")) <= exact * (1 + Fraction(2) ** -52)


@given(st.floats(1e-300, 1e300), st.floats(1e-3, 1e3))
def test_scaling_rounds_up(value: float, factor: float) -> None:
    bound = Sensitivity(value, "l1")
    assert Fraction(bound * factor) >= Fraction(value) * Fraction(factor)
    assert Fraction(bound / factor) >= Fraction(value) / Fraction(factor)


def test_replace_one_is_the_default_and_is_carried_along() -> None:
    assert fedavg_step(1.0, 0.1, 500).adjacency == "replace_one"
    assert iadmm_step(1.0, 1.0, 500, norm="l2").norm == "l2"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: fedavg_step(1.0, 0.1, 500, steps=2, adjacency="add_remove"), "steps"),
        (lambda: fedavg_step(1.0, 0.1, 500, optimizer="adam"), "optimizer"),
        (lambda: fedavg_step(1.0, 0.1, 500, clipping="none"), "clipping"),
        (lambda: fedavg_step(1.0, 0.1, 500, normaliser="mean"), "normaliser"),
        (lambda: fedavg_step(0.0, 0.1, 500), "clip_norm"),
        (lambda: fedavg_step(1.0, -0.1, 500), "learning_rate"),
        (lambda: fedavg_step(1.0, 0.1, 0), "records"),
        (lambda: fedavg_step(1.0, 0.1, 500.5), "records"),
        (lambda: fedavg_step(1.0, 0.1, 500, adjacency="remove"), "adjacency"),
        (lambda: fedavg_step(1.0, 0.1, 500, norm="l3"), "norm"),
        (lambda: iadmm_step(1.0, 1.0, 500, steps=2), "steps"),
        (lambda: iadmm_step(1.0, 1.0, 500, state="exact"), "state"),
        (lambda: iadmm_step(1.0, 1.0, 500, optimizer="adam"), "optimizer"),
        (lambda: iadmm_step(1.0, 0.0, 500), "penalty"),
        (lambda: iadmm_step(1.0, 1.0, 500, -0.5), "proximity"),
        (lambda: iadmm_step(1.0, 1.0, 0), "total_records"),
        (lambda: clipped_update(0.0, unit="client"), "clip_norm"),
        (lambda: clipped_update(1.0, unit="site"), "unit"),
        (lambda: clipped_update(1.0, unit="client", adjacency="remove"), "adjacency"),
        (lambda: Sensitivity(float("nan"), "l1"), "sensitivity"),
        (lambda: fedavg_step(1.0, 0.1, 500, over="data"), "over"),
        (lambda: fedavg_step(1.0, 0.1, 500, over="mine"), "over"),
        (lambda: fedavg_step(1.0, 0.1, 500, steps=2, pull=20.1), "pull"),
        (lambda: fedavg_step(1.0, 0.1, 500, steps=2, pull=-1.0), "pull"),
        (lambda: scaffold_step(1.0, 0.1, 500, state="exact"), "state"),
        (lambda: scaffold_step(1.0, 0.1, 500, steps=2, adjacency="add_remove"), "steps"),
        (lambda: feddyn_step(1.0, 0.1, 500, 0.5, state="exact"), "state"),
        (lambda: feddyn_step(1.0, 0.1, 500, 0.0), "alpha"),
        (lambda: feddyn_step(1.0, 0.1, 500, 21.0, steps=2), "pull"),
        (lambda: iadmm_step(1.0, 1.0, 500, penalty_rule="residual"), "penalty_rule"),
        (lambda: iadmm_step(1.0, 1.0, 500, next_penalty=0.0), "next_penalty"),
    ],
)
def test_unsound_and_bad_questions_are_refused_by_name(call: object, name: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        call()
    assert refusal.value.argument == name


def test_scaling_copying_and_pickling_keep_norm_and_adjacency() -> None:
    bound = Sensitivity(0.5, "l2", "replace_one")
    for same in (2 * bound, bound * 2, bound / 0.5, copy.deepcopy(bound), pickle.loads(pickle.dumps(bound))):  # noqa: S301
        assert (same.norm, same.adjacency) == ("l2", "replace_one")
    assert 2 * bound == 1.0
    assert repr(bound) == "Sensitivity(0.5, norm='l2', adjacency='replace_one')"


def test_scaffold_and_feddyn_are_fedavg_with_shifts_and_pulls_that_are_public() -> None:
    for adjacency in ("replace_one", "add_remove"):
        one = fedavg_step(1.0, 0.1, 500, adjacency=adjacency)
        assert scaffold_step(1.0, 0.1, 500, adjacency=adjacency) == one
        assert feddyn_step(1.0, 0.1, 500, 7.0, adjacency=adjacency) == one
    assert scaffold_step(1.0, 0.1, 500, steps=4) == fedavg_step(1.0, 0.1, 500, 4)
    assert feddyn_step(1.0, 0.1, 500, 3.0, steps=4) == fedavg_step(1.0, 0.1, 500, 4, pull=3.0)


@given(
    st.floats(1e-3, 10),
    st.floats(1e-4, 2),
    st.integers(1, 1000),
    st.integers(1, 60),
    st.floats(0, 2),
    st.sampled_from(["example", "batch"]),
)
def test_a_pull_gives_the_sum_of_the_recursion_rounded_up(clip, rate, records, steps, product, clipping) -> None:
    pull = product / rate
    ratio, moved = abs(1 - Fraction(rate) * Fraction(pull)), Fraction(0)
    for step in range(steps):
        most = Fraction(2, records) if clipping == "example" and step == 0 else 2
        moved = ratio * moved + Fraction(rate) * Fraction(clip) * most
    bound = Fraction(fedavg_step(clip, rate, records, steps, pull=pull, clipping=clipping))
    assert moved <= bound <= moved * (1 + Fraction(1, 10**12))


def test_a_pull_within_its_limit_never_adds_to_the_sensitivity_and_a_million_steps_are_quick() -> None:
    free = fedavg_step(1.0, 0.1, 500, steps=50)
    assert all(fedavg_step(1.0, 0.1, 500, steps=50, pull=pull) <= free for pull in (0.1, 5.0, 10.0, 15.0, 19.99))
    assert fedavg_step(1.0, 0.1, 500, steps=50, pull=20.0) == pytest.approx(float(free))
    assert fedavg_step(1.0, 0.1, 500, steps=10**6, pull=1.0) == pytest.approx(2.0)


def test_a_pull_does_not_act_on_a_single_step_so_any_is_allowed() -> None:
    assert fedavg_step(1.0, 0.1, 500, pull=1e6) == fedavg_step(1.0, 0.1, 500)


def test_the_largest_change_over_the_actual_data_differs_between_neighbours() -> None:
    """Why over="data" is refused: the scale itself tells of the record that is looked for."""

    def local_sensitivity(values: np.ndarray) -> float:
        return max(abs(values.mean() - np.delete(values, place).mean()) for place in range(len(values)))

    calm = np.zeros(10)
    assert local_sensitivity(calm) == 0
    assert local_sensitivity(np.append(calm, 1.0)) > 0

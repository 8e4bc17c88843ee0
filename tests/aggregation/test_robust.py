"""Each robust rule is the one of its paper, keeps its properties, and is not moved beyond its bound by faulty rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.aggregation import robust
from dpfed.errors import BreakdownError, UpdateRejected
from dpfed.randomness import SeededSource
from robust_cases import CLIP, LEAST, RULES, cases, make_honest, nnm_trimmed_mean, reach

NOT_MOVED_ALONG = {"norm_bounded_mean", "centered_clipping"}  # they are held near zero on purpose
UPDATES = 5


def run(kind, given_input):
    updates, faulty = np.array(given_input["updates"]), given_input.get("f", (len(given_input["updates"]) - 1) // 2)
    if kind == "multi_krum":
        return robust.multi_krum(updates, max_faulty=faulty, chosen=given_input["m"])
    if kind == "centered_clipping":
        options = {"clip_norm": given_input["tau"], "centre": given_input["center"], "steps": given_input["iters"]}
        return robust.centered_clipping(updates, max_faulty=faulty, **options)
    if kind == "fltrust":
        return robust.fltrust(updates, root=given_input["root_update"])
    functions = {"nnm": robust.nnm, "nnm+trimmed_mean": nnm_trimmed_mean, "mda": robust.minimum_diameter}
    return (functions.get(kind) or getattr(robust, kind))(updates, max_faulty=faulty)


KINDS = ["krum", "multi_krum", "coordinate_median", "trimmed_mean", "mean_around_median", "geometric_median", "bulyan"]
KINDS += ["nnm", "nnm+trimmed_mean", "centered_clipping", "mda", "fltrust"]


@pytest.mark.parametrize("case", cases(*KINDS), ids=lambda case: case["id"])
def test_a_rule_gives_the_answer_of_its_paper(case):
    expected = np.array(case["expected"]["output"])
    assert np.abs(run(case["kind"], case["input"]) - expected).max() <= case["tolerance"]


def rows_for(rule, faulty, seed=0, size=UPDATES):
    times, more = LEAST[rule]
    return make_honest(times * faulty + more, size, seed)


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_updates_does_not_matter(rule):
    updates = rows_for(rule, 3)  # with 2, the last picks of Bulyan have one neighbour each, and tie
    again = RULES[rule](updates[SeededSource(3).words(len(updates)).argsort()], max_faulty=3)
    assert np.allclose(again, RULES[rule](updates, max_faulty=3), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in NOT_MOVED_ALONG])
def test_the_result_moves_along_with_all_updates(rule):
    updates, shift = rows_for(rule, 2), SeededSource(4).normal(UPDATES) * 1e3
    moved = RULES[rule](updates + shift, max_faulty=2)
    assert np.allclose(moved, RULES[rule](updates, max_faulty=2) + shift, rtol=0, atol=1e-8)


def test_centred_clipping_moves_along_with_updates_and_centre():
    updates, shift = make_honest(7, UPDATES), SeededSource(4).normal(UPDATES)
    options = {"max_faulty": 2, "clip_norm": 0.5, "steps": 3}
    plain = robust.centered_clipping(updates, **options)
    assert np.allclose(robust.centered_clipping(updates + shift, centre=shift, **options), plain + shift)


@pytest.mark.parametrize("rule", RULES)
@given(faulty=st.integers(1, 3), seed=st.integers(0, 2**32), length=st.floats(-3, 12), is_equal=st.booleans())
def test_faulty_rows_move_the_result_at_most_by_the_bound_of_the_rule(rule, faulty, seed, length, is_equal):
    updates = rows_for(rule, faulty, seed)
    honest = updates[faulty:].copy()
    sent = 10**length * SeededSource(seed + 1).normal((faulty, UPDATES))
    updates[:faulty] = sent[0] if is_equal else sent
    result = RULES[rule](updates, max_faulty=faulty)
    assert np.linalg.norm(result - honest.mean(axis=0)) <= reach(rule, honest, faulty) * (1 + 1e-9)


def test_faulty_rows_move_a_clipped_mean_by_two_clip_norms_each_over_the_number():
    updates, other = make_honest(9, UPDATES), make_honest(9, UPDATES)
    other[:2] = -1e9
    moved = RULES["norm_bounded_mean"](updates, max_faulty=2) - RULES["norm_bounded_mean"](other, max_faulty=2)
    assert np.linalg.norm(moved) <= 2 * 2 * CLIP / 9 * (1 + 1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e38, 1e308])
def test_a_malformed_update_is_refused_before_any_rule(rule, bad):
    updates = rows_for(rule, 1)
    updates[1, 2] = bad
    with pytest.raises(UpdateRejected, match="update 1 holds a number that is not finite"):
        RULES[rule](updates, max_faulty=1)


@pytest.mark.parametrize("rule", RULES)
def test_updates_that_are_not_floats_in_rows_of_one_length_are_refused(rule):
    for malformed in ([[1, 2], [3, 4], [5, 6]], np.zeros(5), [[1.0], [1.0, 2.0]], np.zeros((3, 0)), b"\x80\x04pickle"):
        with pytest.raises(UpdateRejected):
            RULES[rule](malformed, max_faulty=0)


def test_the_plain_mean_bears_nobody():
    assert robust.mean([[1.0], [3.0]]).tolist() == [2.0]
    with pytest.raises(BreakdownError, match="bears no faulty update"):
        robust.mean([[1.0], [3.0]], max_faulty=1)


@pytest.mark.parametrize("rule", RULES)
def test_updates_are_left_as_they_are(rule):
    updates = rows_for(rule, 1)
    before = updates.copy()
    RULES[rule](updates, max_faulty=1)
    assert (updates == before).all()


@pytest.mark.parametrize("case", cases("sensitivity"), ids=lambda case: case["id"])
def test_one_client_moves_a_robust_rule_by_more_than_the_mean(case):
    """The witnesses because of which a plan refuses the mean's noise behind them."""
    name, count = case["input"]["rule"].removeprefix("clip+").split("(")[0], case["input"]["n"]
    if name == "sum/n_expected":
        with_all = np.ones((count, 1)).sum(axis=0) / count
        assert abs(with_all - (np.ones((count - 1, 1)).sum(axis=0) / count))[0] == pytest.approx(case["expected"]["l2"])
        return
    half = count // 2 + 1
    one, other = np.array([[1.0]] * half + [[-1.0]] * (count - half)), None
    other = one.copy()
    other[0] = -1.0
    faulty = 2 if name == "trimmed_mean" else 4
    moved = np.linalg.norm(RULES[name](one, max_faulty=faulty) - RULES[name](other, max_faulty=faulty))
    assert moved >= case["expected"]["l2_at_least"] - case["tolerance"]

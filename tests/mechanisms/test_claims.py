"""A search that refutes wrong sensitivities and leaves right ones alone. Seeded, so that nothing here is by chance."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfed.clipping import clip_gradients, clip_per_example
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.claims import Box, Neighbours, SensitivityClaim, check_sensitivity
from dpfed.mechanisms.sensitivity import Sensitivity, fedavg_step, iadmm_step

REFERENCE = {
    case["id"]: case for case in json.loads((Path(__file__).parents[1] / "reference/sensitivity.json").read_text())
}
RECORDS = Box((2,), low=-3.0, high=3.0)


def clipped_sum(records, norm="l1"):
    return clip_per_example(records, 1.0, norm).sum(axis=0) if len(records) else np.zeros(2)


def claim(value, release=None, adjacency="replace_one", norm="l1", **settings):
    release = release or (lambda records, _public: clipped_sum(records, norm) / 4)
    return SensitivityClaim(release, Sensitivity(value, norm, adjacency), RECORDS, **{"sizes": (4,), **settings})


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize(("adjacency", "right"), [("replace_one", 0.5), ("add_remove", 0.25)])
def test_a_halved_sensitivity_is_refuted_by_a_factor_of_two_and_the_right_one_is_not(adjacency, right, norm):
    halved = check_sensitivity(claim(right / 2, adjacency=adjacency, norm=norm), trials=300)
    assert halved.is_refuted
    assert halved.ratio == pytest.approx(2, rel=1e-6)
    assert not check_sensitivity(claim(right, adjacency=adjacency, norm=norm), trials=300).is_refuted


def test_a_sensitivity_that_is_too_small_by_a_millionth_is_refuted():
    assert check_sensitivity(claim(0.5 * (1 - 1e-6)), trials=2000).is_refuted


def test_the_same_seed_finds_the_same_pair_and_another_seed_another():
    smooth = claim(0.4, lambda records, _public: np.sin(records).sum(axis=0))
    first, again, other = (check_sensitivity(smooth, trials=20, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.ratio != other.ratio


def test_climbing_finds_what_random_records_do_not():
    """A release that moves only where four numbers are near certain ones."""

    def narrow(records, public):
        return np.exp(-10 * np.square([*records[0] - 1.234, *public - 0.567]).sum())

    needle = claim(1.0, narrow, sizes=(1,), public=Box((2,)))
    assert check_sensitivity(needle, trials=2000).ratio > 0.9


def test_without_sizes_a_first_record_is_added_to_none():
    def is_there(records, _public):
        return float(len(records) > 0)

    added = SensitivityClaim(is_there, Sensitivity(0.5, "l1", "add_remove"), RECORDS)
    assert check_sensitivity(added, trials=100).is_refuted
    replaced = replace(added, sensitivity=Sensitivity(0.5, "l1", "replace_one"))
    assert check_sensitivity(replaced, trials=100).ratio == 0
    assert check_sensitivity(replace(replaced, sensitivity=added.sensitivity), trials=100).is_refuted


def test_a_witness_is_tried_first():
    hidden = claim(1.0, lambda records, _public: 5.0 * (records[0, 0] == 0.123456))
    pair = Neighbours(np.full((4, 2), 0.123456), np.zeros(2))
    assert not check_sensitivity(hidden, trials=10).is_refuted
    assert check_sensitivity(replace(hidden, witness=pair), trials=1).ratio == pytest.approx(5)


def test_neighbours_differ_in_one_unit_at_a_place():
    pair = Neighbours(np.array([[1.0], [2.0]]), np.array([9.0]), place=1)
    assert pair.other(replaces=True).ravel().tolist() == [1.0, 9.0]
    assert pair.other(replaces=False).ravel().tolist() == [1.0, 9.0, 2.0]


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
def test_the_search_compares_neighbours_within_the_bounds_and_as_many_as_it_was_asked_for(adjacency):
    seen = []
    watched = claim(
        1e6, lambda records, public: seen.append((records, public)) or 0.0, adjacency, public=Box((3,), 1, 2)
    )
    check_sensitivity(watched, trials=60)
    pairs = [(seen[i], seen[i + 1]) for i in range(0, len(seen), 2)]
    assert len(pairs) == 60 + 1  # the first one twice, to see whether the release is the same
    for (here, public), (there, same) in pairs:
        assert public is same or np.array_equal(public, same)
        assert ((public >= 1) & (public <= 2)).all()
        assert np.abs(there).max() <= 3
        if adjacency == "replace_one":
            assert (len(here), len(there)) == (4, 4)
            assert (here != there).any(axis=1).sum() <= 1
        else:
            assert (len(here), len(there)) == (4, 5)
            assert any(np.array_equal(np.delete(there, place, axis=0), here) for place in range(5))


def test_a_release_with_infinities_refutes_every_claim():
    found = check_sensitivity(claim(1.0, lambda records, _public: np.where(records[0] > 0, np.inf, 0.0)), trials=20)
    assert found.ratio == math.inf
    assert "another bound" in found.verdict


def test_rounding_of_large_numbers_refutes_no_right_claim():
    shifted = claim(0.5, lambda records, public: 1e9 + clipped_sum(records) / 4)
    assert not check_sensitivity(shifted, trials=500).is_refuted


def test_a_record_is_never_in_what_is_shown_or_kept():
    found = check_sensitivity(claim(0.25), trials=50)
    assert set(vars(found)) == {"claimed", "ratio", "change", "size", "trials", "seed"}
    assert not any(isinstance(value, np.ndarray) for value in vars(found).values())
    assert "seed=0" in found.verdict
    assert "trials=50" in found.verdict
    assert "2.0000 times" in found.verdict
    assert "0.1234" not in repr(Neighbours(np.full((1, 1), 0.1234), np.zeros(1)))


def test_the_least_claim_that_is_named_is_rounded_up_and_is_not_refuted():
    found = check_sensitivity(claim(1 / 3, lambda records, _public: clipped_sum(records) / 3), trials=500)
    least = float(found.verdict.partition("Claim at least ")[2].partition(",")[0])
    assert least >= found.ratio / 3
    assert not check_sensitivity(claim(least, lambda records, _public: clipped_sum(records) / 3), trials=500).is_refuted


def fails(records, public):
    raise ValueError("MARKER")


def marker(records, public):
    raise InvalidArgument("mine", "a refusal of one's own")


def with_noise():
    draws = np.random.default_rng(0)
    return lambda _records, _public: draws.normal()


def turned(records, public):
    return np.zeros((1, 2) if records.sum() > 0 else (2, 1))


def hidden(records, public):
    return np.ma.array(np.zeros(1), mask=[records.sum() > 0])


@pytest.mark.parametrize(
    ("make", "argument", "words"),
    [
        (lambda: SensitivityClaim(clipped_sum, 0.5, RECORDS), "sensitivity", "neither norm nor adjacency"),
        (lambda: claim(0.5, unit="site"), "unit", "record, person, client"),
        (lambda: claim(0.5, sizes=()), "sizes", "whole numbers"),
        (lambda: claim(0.5, sizes=(0,)), "sizes", "at least 1"),
        (lambda: claim(0.5, adjacency="add_remove", sizes=(-1,)), "sizes", "at least 0"),
        (lambda: Box((2,), low=1.0, high=0.0), "low", "swap"),
        (lambda: Box((2,), low=-np.inf), "low", "finite"),
        (lambda: Box((2,), high=np.ones(3)), "high", "shape"),
        (lambda: check_sensitivity(claim(0.5), trials=0), "trials", "at least 1"),
        (lambda: check_sensitivity(claim(0.5), seed=-1), "seed", "at least 0"),
        (lambda: check_sensitivity(claim(0.5, fails)), "release", "a ValueError in test_claims.py"),
        (lambda: check_sensitivity(claim(0.5, marker)), "mine", "one's own"),
        (lambda: check_sensitivity(claim(0.5, lambda r, _p: r[r > 0])), "release", "shape of the release"),
        (lambda: check_sensitivity(claim(0.5, turned)), "release", "shape of the release"),
        (lambda: check_sensitivity(claim(0.5, lambda r, _p: 1j * r.sum())), "release", "complex numbers"),
        (lambda: check_sensitivity(claim(0.5, hidden)), "release", "with a mask"),
        (lambda: check_sensitivity(claim(0.5, with_noise())), "release", "without its noise"),
        (lambda: check_sensitivity(claim(0.5, lambda r, _p: r.fill(0))), "release", "fails on made-up records"),
    ],
)
def test_what_cannot_be_checked_is_refused_by_name_and_without_the_text_of_an_error(make, argument, words):
    with pytest.raises(InvalidArgument) as refusal:
        make()
    assert refusal.value.argument == argument
    assert words in str(refusal.value)
    assert "MARKER" not in str(refusal.value)


def gradient_moves(steps):
    """Steps on losses with gradients a·w + b, clipped in L1, as in the notes: 100 records, η = 0.1."""

    def model(records, _public):
        weight = 0.0
        for _ in range(steps):
            weight -= 0.1 * np.clip(records[:, 0] * weight + records[:, 1], -1, 1).sum() / 100
        return weight

    return model


def test_reference_fedavg_multi_worst_is_the_bound_and_is_attained():
    expected = REFERENCE["fedavg_multi_worst"]["expected"]
    bound = fedavg_step(1.0, 0.1, 100, steps=5)
    assert float(bound) == pytest.approx(expected, rel=1e-12)
    rest = np.tile([-1e5, 0.0], (99, 1))
    pair = Neighbours(np.vstack([[-1e5, 2.0], rest]), np.array([-1e5, -2.0]))
    box = Box((2,), low=-1e5, high=1e5)
    found = check_sensitivity(SensitivityClaim(gradient_moves(5), bound, box, sizes=(100,), witness=pair), trials=20)
    assert found.ratio == pytest.approx(1, rel=1e-9)
    assert not found.is_refuted


def test_reference_fedavg_remove_fixednorm_is_the_bound():
    bound = fedavg_step(1.0, 0.1, 100, adjacency="add_remove")
    assert float(bound) == pytest.approx(REFERENCE["fedavg_remove_fixednorm"]["expected"], rel=1e-12)


def batch_gradient(records):
    return clip_gradients(records.sum(axis=0), 1.0, "l1")


def test_reference_iiadmm_without_a_proximal_term_is_the_bound_of_its_first_round():
    bound = iadmm_step(1.0, 500.0, total_records=1)
    assert float(bound) == pytest.approx(REFERENCE["iiadmm_noprox"]["expected"], rel=1e-12)
    primal = claim(float(bound), lambda records, _public: -batch_gradient(records) / 500)
    assert check_sensitivity(primal, trials=300).ratio == pytest.approx(1, rel=1e-6)


def test_reference_an_exact_dual_moves_the_second_round_twice_as_far_and_is_refused():
    """λ becomes the gradient of the first round, so z = w + (g₁ − g₂)/ρ; g turns around with the public z_prev."""

    def second(records, public):
        first = batch_gradient(records)
        return (first - batch_gradient(records * public)) / 500

    expected = REFERENCE["iiadmm_unnoised_dual"]["expected"]
    found = check_sensitivity(claim(float(iadmm_step(1.0, 500.0, 1)), second, public=Box((1,))), trials=500)
    assert found.is_refuted
    assert found.ratio * found.claimed == pytest.approx(expected, rel=1e-6)
    with pytest.raises(InvalidArgument, match="released values"):
        iadmm_step(1.0, 500.0, 1, state="exact")


@pytest.mark.parametrize(
    ("name", "size", "rule"),
    [
        ("sens_median", 9, lambda updates: np.median(updates, axis=0)),
        ("sens_trmean", 10, lambda updates: np.sort(updates, axis=0)[2:-2].mean(axis=0)),
    ],
)
def test_reference_a_robust_rule_moves_further_than_a_mean(name, size, rule):
    """Noise for a mean of so many clipped updates is too small for it."""

    def aggregate(records, _public):
        return rule(clip_per_example(records, 1.0, "l2"))

    mean = SensitivityClaim(
        aggregate, Sensitivity(2 / size, "l2", "replace_one"), Box((1,)), sizes=(size,), unit="client"
    )
    found = check_sensitivity(mean, trials=2000)
    assert found.is_refuted
    assert found.ratio * found.claimed >= REFERENCE[name]["expected"]["l2_at_least"] * (1 - 1e-6)


def test_reference_a_sum_over_the_expected_number_moves_by_one_clip_norm_over_it():
    expected = REFERENCE["sens_mean"]["expected"]["l2"]
    mean = claim(expected, lambda records, _public: clipped_sum(records, "l2") / 10, "add_remove", "l2", unit="client")
    assert check_sensitivity(mean, trials=300).ratio == pytest.approx(1, rel=1e-6)


def test_every_reference_case_of_a_sensitivity_has_a_test_above():
    text = Path(__file__).read_text()
    assert all(f'"{name}"' in text for name in REFERENCE)

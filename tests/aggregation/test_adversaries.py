"""The attacks are those of their papers, and those that hide are within what honest updates allow."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.aggregation.adversaries import ATTACKS, MALFORMED, alie, alie_strength, parse_attacks
from dpfed.errors import InvalidArgument
from dpfed.randomness import SeededSource
from robust_cases import cases, make_honest


@pytest.mark.parametrize("case", cases("attack"), ids=lambda case: case["id"])
def test_an_attack_sends_what_its_paper_says(case):
    honest = np.array(case["input"]["honest"])
    if case["input"]["name"] == "alie":
        sent = alie(honest, case["input"]["tau"])
    else:
        (sent,) = ATTACKS[case["input"]["name"]](honest, 1, SeededSource(1))
    assert np.allclose(sent, case["expected"]["output"], rtol=0, atol=case["tolerance"])


@pytest.mark.parametrize("case", cases("alie_zmax"), ids=lambda case: case["id"])
def test_alie_goes_as_far_as_its_paper_says(case):
    found = alie_strength(case["input"]["n"], case["input"]["f"])
    assert found == pytest.approx(case["expected"]["z_max"], abs=case["tolerance"])


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_sends_one_update_for_each_faulty_client(name):
    honest = make_honest(6, 4)
    before = honest.copy()
    assert len(ATTACKS[name](honest, 3, SeededSource(1))) == 3
    assert (honest == before).all()


def test_min_max_is_as_far_as_honest_updates_are_apart_and_no_farther():
    honest = make_honest(6, 4)
    (sent,) = ATTACKS["min_max"](honest, 1, SeededSource(1))
    apart = np.linalg.norm(honest[:, None] - honest[None], axis=2).max()
    assert np.linalg.norm(honest - sent, axis=1).max() == pytest.approx(apart)


def test_min_sum_has_the_sum_of_the_farthest_honest_update():
    honest = make_honest(6, 4)
    (sent,) = ATTACKS["min_sum"](honest, 1, SeededSource(1))
    sums = (np.linalg.norm(honest[:, None] - honest[None], axis=2) ** 2).sum(axis=1)
    assert (np.linalg.norm(honest - sent, axis=1) ** 2).sum() == pytest.approx(sums.max())


def test_ipm_turns_against_the_mean_and_mimic_is_an_honest_update():
    honest = make_honest(6, 4)
    assert np.allclose(ATTACKS["ipm"](honest, 1, SeededSource(1))[0], -0.5 * honest.mean(axis=0))
    assert (ATTACKS["mimic"](honest, 1, SeededSource(1))[0] == honest[0]).all()


def test_malformed_attacks_are_malformed():
    sent = {name: attack(make_honest(6, 4), 1, SeededSource(1))[0] for name, attack in MALFORMED.items()}
    assert np.isnan(sent["nan"]).any()
    assert np.isinf(sent["inf"]).any()
    assert sent["wrong_shape"].shape == (5,)
    assert np.isfinite(sent["huge"]).all()
    assert sent["huge"].max() > 1e154  # whose square is infinite


@pytest.mark.parametrize("text", ["", "nan", "nan:x", "nan:1,nan:2", "krum:1", "nan:-1", "nan:0", "nan:1;inf:1"])
def test_attacks_that_cannot_be_read_are_refused_with_an_example(text):
    with pytest.raises(InvalidArgument, match="attack"):
        parse_attacks(text)


def test_attacks_are_read_with_spaces_and_zeros():
    assert parse_attacks(" sign_flip:2, label_flip:1,nan:0") == {"sign_flip": 2, "label_flip": 1}

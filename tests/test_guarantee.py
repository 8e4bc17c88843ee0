from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee

epsilons = st.floats(min_value=0, max_value=50)
deltas = st.floats(min_value=0, max_value=1, exclude_max=True)
guarantees = st.builds(Guarantee, epsilons, deltas)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        *(((bad, 0), "epsilon") for bad in [-1, math.nan, -math.inf, "1", None, True]),
        *(((1, bad), "delta") for bad in [-0.1, 1, 1.5, math.nan, math.inf, "0", None, True]),
        *(((1, 0, bad), "unit") for bad in ["row", "", None]),
        *(((1, 0, "record", bad), "adjacency") for bad in ["both", "", None]),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_argument(arguments, name):
    with pytest.raises(InvalidArgument, match=f"^{name} must be") as caught:
        Guarantee(*arguments)
    assert caught.value.argument == name


def test_an_infinite_epsilon_is_a_promise_of_nothing():
    nothing = Guarantee(math.inf, 0)
    assert nothing.detection_rate(0.01) == 1
    assert "promises next to nothing" in nothing.sentence()
    assert nothing.for_group(3).epsilon == math.inf


@pytest.mark.parametrize(
    ("size", "epsilon", "delta"),
    [
        (1, 1.0, 1e-6),
        # δ(e^{kε} − 1)/(e^ε − 1) = δ(1 + e + e² + …), by hand
        (2, 2.0, 1e-6 * (1 + math.e)),
        (3, 3.0, 1e-6 * (1 + math.e + math.e**2)),
        (5, 5.0, 1e-6 * sum(math.e**i for i in range(5))),
    ],
)
def test_group_privacy_has_its_known_answers(size, epsilon, delta):
    group = Guarantee(1.0, 1e-6, "person", "replace_one").for_group(size)
    assert group.epsilon == epsilon
    assert group.delta == pytest.approx(delta, rel=1e-12)
    assert (group.unit, group.adjacency) == ("person", "replace_one")


def test_group_privacy_of_pure_dp_multiplies_epsilon_alone():
    assert Guarantee(0.5, 0).for_group(4) == Guarantee(2.0, 0)


def test_group_privacy_at_epsilon_zero_adds_the_deltas():
    assert Guarantee(0, 1e-3).for_group(7).delta == pytest.approx(7e-3)


def test_a_group_too_large_for_its_delta_is_promised_nothing():
    assert Guarantee(1.0, 1e-5).for_group(20).epsilon == math.inf
    assert Guarantee(1.0, 1e-5).for_group(10**400).epsilon == math.inf
    assert Guarantee(0.0, 1e-5).for_group(10**400).epsilon == math.inf
    assert Guarantee(1.0, 1e-5).for_group(10_000).epsilon == math.inf


@given(st.floats(0, 20), st.floats(1e-12, 1e-6), st.integers(1, 6))
def test_a_group_is_never_promised_more_than_the_lemma_says(epsilon, delta, size):
    group = Guarantee(epsilon, delta).for_group(size)
    assert Fraction(group.epsilon if group.epsilon < math.inf else 10**9) >= size * Fraction(epsilon)
    with mpmath.workdps(40):
        owed = delta * mpmath.fsum(mpmath.exp(mpmath.mpf(epsilon) * i) for i in range(size))
    assert group.epsilon == math.inf or group.delta >= owed


@pytest.mark.parametrize("size", [0, -1, 1.5, True, math.nan, "2"])
def test_a_group_of_no_whole_size_is_refused(size):
    with pytest.raises(InvalidArgument, match=r"^size must be"):
        Guarantee(1.0, 0).for_group(size)


@given(guarantees, st.integers(1, 5), st.integers(1, 5))
def test_a_group_of_groups_is_no_weaker_than_the_lemma_says(guarantee, first, second):
    """k then m units is one way to reach k·m units, and the two bounds agree where both say something."""
    twice = guarantee.for_group(first).for_group(second)
    once = guarantee.for_group(first * second)
    assert once.epsilon == pytest.approx(twice.epsilon)
    assert once.delta == pytest.approx(twice.delta, rel=1e-6)


def best_attack(epsilon: float, delta: float, false_alarm_rate: float) -> float:
    """The best test against the worst (ε, δ) mechanism, which has four outputs, by Neyman and Pearson.

    Under P the outputs weigh (δ, (1−δ)e^ε/(1+e^ε), (1−δ)/(1+e^ε), 0), under Q the same backwards (Kairouz, Oh
    and Viswanath 2015): fill the false alarms by falling likelihood ratio.
    """
    likely, unlikely = (1 - delta) / (1 + math.exp(-epsilon)), (1 - delta) / (1 + math.exp(epsilon))
    caught, budget = delta, false_alarm_rate
    for p, q in [(likely, unlikely), (unlikely, likely), (0.0, delta)]:
        share = min(1.0, budget / q) if q > 0 else 1.0
        caught, budget = caught + share * p, budget - share * q
    return caught


@given(st.floats(0, 20), st.floats(0, 0.9), st.floats(1e-6, 1))
def test_the_detection_rate_is_that_of_the_best_attack(epsilon, delta, false_alarm_rate):
    bound = Guarantee(epsilon, delta).detection_rate(false_alarm_rate)
    assert bound == pytest.approx(best_attack(epsilon, delta, false_alarm_rate), abs=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "caught"),
    [
        (0, 0, 0.01, 0.01),
        (1, 0, 0.01, 0.01 * math.e),
        (1, 1e-5, 0.01, 1e-5 + 0.01 * math.e),
        (0, 0.1, 0.5, 0.6),
    ],
)
def test_the_detection_rate_has_its_known_answers(epsilon, delta, rate, caught):
    assert Guarantee(epsilon, delta).detection_rate(rate) == pytest.approx(caught, rel=1e-12)


def test_the_detection_rate_of_a_huge_epsilon_does_not_overflow():
    assert Guarantee(1e6, 1e-5).detection_rate(1e-9) == 1


@pytest.mark.parametrize("bad", [0, -0.1, 1.1, math.nan, True])
def test_a_false_alarm_rate_that_is_none_is_refused(bad):
    with pytest.raises(InvalidArgument, match=r"^false_alarm_rate must be"):
        Guarantee(1, 0).detection_rate(bad)


@pytest.mark.parametrize(
    ("guarantee", "words"),
    [
        (Guarantee(1.0, 1e-5), ["one record took part", "hardly better than by guessing", "at most 2.8 %"]),
        (Guarantee(3.0, 1e-5, "client"), ["one client took part", "only so well", "at most 20.1 %"]),
        (Guarantee(3.0, 1e-5, "person", "replace_one"), ["one person was swapped for another"]),
        (Guarantee(20.0, 1e-5), ["promises next to nothing", "one record took part"]),
    ],
)
def test_the_sentence_says_what_an_attacker_can_do_and_to_whom(guarantee, words):
    sentence = guarantee.sentence()
    assert all(word in sentence for word in words), sentence
    assert sentence.endswith(".")


def test_html_holds_the_numbers_the_sentence_and_no_loose_markup():
    text = Guarantee(1.5, 1e-5, "client", "replace_one")._repr_html_()
    assert all(part in text for part in ["ε = 1.5", "δ = 1e-05", "per client", "replace_one", "false alarms"])
    assert text.count("<") == text.count(">") == 5


def test_str_names_unit_and_adjacency():
    assert str(Guarantee(6.18772, 1e-5)) == "ε = 6.18772, δ = 1e-05 per record (add_remove)"


def test_a_stronger_promise_meets_a_weaker_one():
    weak, strong = Guarantee(2, 1e-5), Guarantee(1, 1e-6)
    assert weak.is_met_by(strong)
    assert not strong.is_met_by(weak)
    assert strong < weak
    assert strong <= weak
    assert weak > strong
    assert weak >= strong
    assert weak.is_met_by(weak)
    assert not weak < weak


def test_neither_promise_meets_the_other_when_each_has_one_smaller_number():
    first, second = Guarantee(1, 1e-3), Guarantee(2, 1e-6)
    assert not first <= second
    assert not second <= first


@given(guarantees, guarantees)
def test_a_promise_that_meets_another_lets_no_attacker_catch_more(first, second):
    if first <= second:
        assert first.detection_rate(0.01) <= second.detection_rate(0.01) + 1e-12


@pytest.mark.parametrize("other", [Guarantee(1, 0, "client"), Guarantee(1, 0, "record", "replace_one"), (1, 0), None])
def test_promises_of_different_kinds_do_not_compare(other):
    mine = Guarantee(1, 0)
    with pytest.raises(InvalidArgument, match="one unit and adjacency"):
        mine.is_met_by(other)
    assert mine != other


def test_a_guarantee_is_a_value():
    assert len({Guarantee(1, 1e-5), Guarantee(1.0, 1e-5)}) == 1
    with pytest.raises(AttributeError):
        Guarantee(1, 0).epsilon = 2

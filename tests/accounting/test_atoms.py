"""Event trees as bags of atoms."""

from __future__ import annotations

import math

import pytest

from dpfed.accounting.atoms import as_event, atoms
from dpfed.errors import UnknownEvent, UnsupportedEvent
from dpfed.events import (
    Composed,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomizedResponse,
    Repeated,
    SampledWithoutReplacement,
    Shuffled,
)

G, L = Gaussian(2.0), Laplace(3.0)


def test_counts_multiply_through_the_tree() -> None:
    tree = Repeated(Composed([G, Repeated(Composed([G, L]), 3)]), 5)
    assert atoms(tree) == {G: 20, L: 15}


def test_an_atom_is_its_own_bag() -> None:
    assert atoms(L) == {L: 1}


def test_sampling_everyone_is_no_sampling() -> None:
    assert atoms(PoissonSampled(Repeated(L, 4), 1.0)) == {L: 4}


def test_nested_draws_of_single_releases_multiply_their_rates() -> None:
    assert atoms(PoissonSampled(PoissonSampled(L, 0.5), 0.1)) == {PoissonSampled(L, 0.05): 1}


def test_nested_draws_of_several_releases_stay_nested() -> None:
    nested = PoissonSampled(Repeated(PoissonSampled(L, 0.5), 2), 0.1)
    assert atoms(nested) == {nested: 1}


def test_gaussians_of_one_draw_merge_with_a_hair_less_noise() -> None:
    (atom,) = atoms(PoissonSampled(Composed([Gaussian(3.0), Gaussian(4.0)]), 0.1))
    assert atom.event.noise_multiplier == pytest.approx(12 / 5, rel=1e-12)
    assert atom.event.noise_multiplier <= 1 / math.sqrt(1 / 9 + 1 / 16)


def test_gaussians_of_different_draws_do_not_merge() -> None:
    step = PoissonSampled(G, 0.1)
    assert atoms(Repeated(step, 7)) == {step: 7}
    assert atoms(Repeated(G, 7)) == {G: 7}


def test_gaussians_of_one_draw_without_replacement_merge() -> None:
    (atom,) = atoms(SampledWithoutReplacement(Repeated(Gaussian(2.0), 4), 1, 10))
    assert atom.event.noise_multiplier == pytest.approx(1.0, rel=1e-12)


def test_the_order_of_releases_of_one_draw_is_forgotten() -> None:
    one, other = (PoissonSampled(Composed(parts), 0.1) for parts in ([L, PureDP(1.0), L], [PureDP(1.0), L, L]))
    assert atoms(one) == atoms(other)


def test_a_bag_and_its_event_are_the_same() -> None:
    bag = {G: 3, L: 1, PoissonSampled(L, 0.2): 2}
    assert atoms(as_event(bag)) == bag


@pytest.mark.parametrize("value", [None, 1.0, "Gaussian", Gaussian])
def test_anything_else_is_no_event(value: object) -> None:
    with pytest.raises(UnknownEvent, match="expected an event"):
        atoms(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "core", [Shuffled(RandomizedResponse(1.0, 10), 100), Gaussian(1.0)], ids=["shuffled", "noised"]
)
@pytest.mark.parametrize("wrap", [lambda event: event, lambda event: Repeated(event, 3)], ids=["once", "thrice"])
def test_a_draw_from_more_units_than_the_draw_around_it_leaves_is_refused(core, wrap) -> None:
    inner = SampledWithoutReplacement(core, 100, 1000)
    with pytest.raises(UnsupportedEvent, match="a draw of 5 units leaves 5 to draw from"):
        atoms(SampledWithoutReplacement(wrap(inner), 5, 50))
    atoms(SampledWithoutReplacement(wrap(inner), 1000, 5000))

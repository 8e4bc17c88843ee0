"""Mutants of the accountant: every one makes some ε too small."""

from __future__ import annotations

from mutants.mutant import Mutant

EXACT = "tests/accounting/test_composed.py::test_"
MOMENTS = "tests/accounting/exact/test_pairs.py::test_"
NORMAL = "tests/accounting/test_atoms.py::test_"
RENYI = "tests/accounting/test_renyi.py::test_"

ACCOUNTING = (
    Mutant(
        "replace-one without the doubled shift",
        "accounting/exact/pairs.py",
        "    require_adjacency(atom, adjacency)\n    shift = 2 if adjacency == REPLACE_ONE else 1\n    match atom:\n        case ev.Gaussian():",
        "    require_adjacency(atom, adjacency)\n    shift = 1\n    match atom:\n        case ev.Gaussian():",
        (MOMENTS + "replacing_moves_a_release_twice_as_far",),
    ),
    Mutant(
        "replace-one curves without the doubled shift",
        "accounting/exact/pairs.py",
        "    require_adjacency(atom, adjacency)\n    shift = 2 if adjacency == REPLACE_ONE else 1\n    match atom:\n        case ev.ZeroConcentratedDP():",
        "    require_adjacency(atom, adjacency)\n    shift = 1\n    match atom:\n        case ev.ZeroConcentratedDP():",
        ("tests/accounting/test_reference.py::test_sampling_without_replacement_in_our_unit_is_the_known_moment",),
    ),
    Mutant(
        "doubled adjacency",
        "plan/local.py",
        "return self._sample(noised_event(self.noise, self.adaptive, self.norm))",
        "noise = self.noise * (2 if self.adjacency == REPLACE_ONE else 1)  # which the accountant does\n"
        "        return self._sample(noised_event(noise, self.adaptive, self.norm))",
        ("tests/plan/test_plan.py::test_public_sizes_ask_for_replace_one_and_twice_the_shift",),
    ),
    Mutant(
        "the other neighbouring relation",
        "accounting/exact/pairs.py",
        "    if stated != adjacency:\n",
        "    if False:\n",
        (MOMENTS + "the_other_neighbouring_relation_is_refused",),
    ),
    Mutant(
        "sampling without replacement under add/remove",
        "accounting/exact/pairs.py",
        "if isinstance(atom, ev.SampledWithoutReplacement) and adjacency != REPLACE_ONE:",
        "if False:",
        (MOMENTS + "the_other_neighbouring_relation_is_refused",),
    ),
    Mutant(
        "one direction only",
        "accounting/composed.py",
        "return self._sides[:1] if self._is_mirrored else self._sides",
        "return self._sides[1:]",
        (EXACT + "sampled_gaussians_agree_with_the_oracle[1.0-0.01-1000-1e-05]",),
    ),
    Mutant(
        "the other direction only",
        "accounting/composed.py",
        "return self._sides[:1] if self._is_mirrored else self._sides",
        "return self._sides[:1]",
        (EXACT + "the_dearer_direction_counts_also_where_it_is_that_of_the_absent_unit",),
    ),
    Mutant(
        "a curve of one direction",
        "accounting/renyi.py",
        "sides[side] += count * curves[side % len(curves)]",
        "sides[side] += count * curves[-1]",
        (RENYI + "a_sampled_gaussian_is_charged_its_dearer_direction",),
    ),
    Mutant(
        "a composition that drops an event",
        "accounting/composed.py",
        "            self._events[atom] += times * count\n",
        "            self._events[atom] += times * count\n            if len(self._events) > 1:\n                continue\n",
        (EXACT + "mixed_runs_agree_with_the_oracle",),
    ),
    Mutant(
        "a composition that drops counts",
        "accounting/atoms.py",
        "            _gather(event.event, count * event.count, bag)\n",
        "            _gather(event.event, event.count, bag)\n",
        (NORMAL + "counts_multiply_through_the_tree",),
    ),
    Mutant(
        "amplification twice",
        "accounting/atoms.py",
        "return {PoissonSampled(as_event(inner), event.sample_rate): 1}",
        "return {PoissonSampled(as_event(inner), event.sample_rate**2): 1}",
        (NORMAL + "nested_draws_of_several_releases_stay_nested",),
    ),
    Mutant(
        "amplification twice for Gaussians",
        "accounting/exact/pairs.py",
        "return tuple(SampledGaussian(inner.noise_multiplier, rate, side) for side in sides)",
        "return tuple(SampledGaussian(inner.noise_multiplier, rate**2, side) for side in sides)",
        (EXACT + "sampled_gaussians_agree_with_the_oracle[1.0-0.01-1000-1e-05]",),
    ),
    Mutant(
        "two releases of one draw as two draws",
        "accounting/atoms.py",
        "    inner = _merge_gaussians(_require_drawable(event.event))\n    _refuse_shuffled(inner,",
        "    inner = _require_drawable(event.event)\n    if event.sample_rate == 1:\n        return inner\n"
        "    if all(isinstance(atom, Gaussian) for atom in inner):\n"
        "        return {PoissonSampled(atom, event.sample_rate): times for atom, times in inner.items()}\n"
        "    _refuse_shuffled(inner,",
        (EXACT + "releases_of_one_draw_cost_more_than_of_two",),
    ),
    Mutant(
        "an amplified tree",
        "accounting/atoms.py",
        "        if isinstance(atom, TreeAggregation):\n",
        "        if False:\n",
        ("tests/accounting/test_tree_sensitivity.py::test_sampling_amplifies_no_tree",),
    ),
    Mutant(
        "a tree of which one node counts",
        "accounting/exact/pairs.py",
        "return math.nextafter(shift * sensitivity(atom) / atom.noise_multiplier, math.inf)",
        "return math.nextafter(shift / atom.noise_multiplier, math.inf)",
        ("tests/accounting/test_tree_sensitivity.py::test_a_tree_costs_what_one_gaussian_does",),
    ),
    Mutant(
        "δ rounded down",
        "accounting/exact/privacy_loss.py",
        "return float(max(0.0, excess) + 2.0**-50 * p)",
        "return float(max(0.0, excess) * (1 - 1e-9))",
        ("tests/accounting/exact/test_privacy_loss.py::test_single_bounds_stand_on_their_sides",),
    ),
    Mutant(
        "mass at infinity forgotten",
        "accounting/exact/direction.py",
        "return -math.expm1(self._log_finite)",
        "return 0.0",
        (EXACT + "more_delta_in_the_events_than_asked_for_is_infinite",),
    ),
    Mutant(
        "an unprotected release that costs nothing",
        "accounting/composed.py",
        "        if ev.Unprotected() in self._events:\n            return math.inf\n",
        "        if ev.Unprotected() in self._events:\n            return 0.0\n",
        (EXACT + "an_unprotected_release_has_no_epsilon_wherever_it_hides",),
    ),
    Mutant(
        "orders without their share of δ",
        "accounting/filter.py",
        "return tuple(rdp_allowance(order, epsilon, delta / len(orders)) for order in orders)",
        "return tuple(rdp_allowance(order, epsilon, delta) for order in orders)",
        ("tests/accounting/test_filter.py::test_each_further_order_is_paid_for_by_the_union_bound",),
    ),
    Mutant(
        "a filter that does not spend",
        "accounting/filter.py",
        "            raise BudgetExceeded(self._refusal(event, count, after))\n        self._spent = after\n",
        "            raise BudgetExceeded(self._refusal(event, count, after))\n",
        ("tests/accounting/test_filter.py::test_a_refused_charge_spends_nothing_and_says_what_is_short",),
    ),
    Mutant(
        "a known ε that is kept when more is added",
        "accounting/tally.py",
        "            self._bag[atom] = self._bag.get(atom, 0) + times * count\n        self._known.clear()\n",
        "            self._bag[atom] = self._bag.get(atom, 0) + times * count\n",
        ("tests/accounting/test_tally.py::test_an_answer_is_not_kept_when_something_is_added",),
    ),
    Mutant(
        "an adaptive clip whose count is free",
        "plan/adaptive.py",
        "left = total**-2 - Fraction(self.count_multiplier) ** -2",
        "left = total**-2",
        ("tests/plan/test_adaptive.py::test_the_pair_costs_what_one_gaussian_of_its_noise_costs",),
    ),
    Mutant(
        "a sampled event charged at the rate of a smaller batch",
        "plan/local.py",
        "return math.ldexp(math.ceil(Fraction(self.batch_size, self.size) * 2**53), -53)",
        "return math.ldexp(math.floor(Fraction(self.batch_size, self.size) * 2**53), -53)",
        ("tests/plan/test_plan.py::test_the_rate_is_exactly_how_often_a_uniform_draw_falls_below_it",),
    ),
)

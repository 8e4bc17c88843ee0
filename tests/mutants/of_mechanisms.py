"""Mutants of the mechanisms and of what enters them."""

from __future__ import annotations

from mutants.mutant import Mutant

CLAIMS = "tests/mechanisms/test_claims.py::test_"
ALGORITHM_CLAIMS = "tests/federated/test_algorithm_claims.py::test_"
DISCRETE = "tests/mechanisms/test_discrete.py::test_"
GAUSSIAN = "tests/mechanisms/test_gaussian.py::test_"
LAPLACE = "tests/mechanisms/test_laplace.py::test_"
SPARSE = "tests/mechanisms/test_sparse_vector.py::test_"
TREE = "tests/mechanisms/test_tree.py::test_"

MECHANISMS = (
    Mutant(
        "a search that never adds a first record",
        "mechanisms/claims.py",
        "return SMALL if self._replaces else (0, *SMALL)",
        "return SMALL",
        ("tests/mechanisms/test_claims.py::test_without_sizes_a_first_record_is_added_to_none",),
    ),
    Mutant(
        "rounded integers",
        "arrays.py",
        'if array.dtype.kind in "iu" and np.any(',
        "if False and np.any(",
        ("tests/test_arrays.py::test_an_array_that_float64_may_round_is_refused_at_every_entrance",),
    ),
    Mutant(
        "half the Gaussian noise",
        "mechanisms/gaussian.py",
        "return perturb(x, or_system(self.source).normal, self.scale, self._widening, self.hardened)",
        "return perturb(x, or_system(self.source).normal, self.scale / 2, self._widening, self.hardened)",
        (GAUSSIAN + "noise_has_the_stated_scale",),
    ),
    Mutant(
        "half the Laplace noise of a mechanism",
        "mechanisms/laplace.py",
        "return perturb(x, or_system(self.source).laplace, self.scale, self._widening, self.hardened)",
        "return perturb(x, or_system(self.source).laplace, self.scale / 2, self._widening, self.hardened)",
        (LAPLACE + "noise_has_the_stated_scale",),
    ),
    Mutant(
        "half the sensitivity",
        "mechanisms/gaussian.py",
        "return checks.positive(scale=round_up(Fraction(self._multiplier) * Fraction(self.sensitivity)))",
        "return checks.positive(scale=round_up(Fraction(self._multiplier) * Fraction(self.sensitivity) / 2))",
        (GAUSSIAN + "scale_is_the_known_analytic_one",),
    ),
    Mutant(
        "a replace-one sensitivity charged as add/remove",
        "mechanisms/gaussian.py",
        "if self._sensitivity.adjacency == ADD_REMOVE:\n",
        "if True:\n",
        (GAUSSIAN + "a_replace_one_sensitivity_gives_an_event_for_replace_one_only",),
    ),
    Mutant(
        "the classical formula above one",
        "mechanisms/gaussian.py",
        "    if target > 1:\n",
        "    if False:\n",
        (GAUSSIAN + "the_classical_formula_is_refused_above_one",),
    ),
    Mutant(
        "noise that does not pay for the grid of a mechanism",
        "mechanisms/additive.py",
        "noise = draw(vector.size) * (scale * widening(step, vector.size) * _ROUNDING)",
        "noise = draw(vector.size) * scale",
        ("tests/mechanisms/test_additive.py::test_noise_is_widened_by_what_rounding_adds_to_the_sensitivity",),
    ),
    Mutant(
        "a value that is not on the grid",
        "mechanisms/additive.py",
        "noisy = _snap(vector, step) + _snap(noise, step)",
        "noisy = vector + _snap(noise, step)",
        ("tests/mechanisms/test_additive.py::test_every_output_is_a_multiple_of_the_grid_step",),
    ),
    Mutant(
        "a discrete Gaussian by rounding",
        "mechanisms/exact.py",
        "    variance = scale * scale\n",
        "    return round(float(scale) * sum(coins.bits(32) / 2**32 for _ in range(12)) - 6 * float(scale))\n"
        "    variance = scale * scale\n",
        ("tests/mechanisms/test_exact.py::test_discrete_gaussian_follows_its_law",),
    ),
    Mutant(
        "discrete noise on numbers that are rounded first",
        "mechanisms/discrete.py",
        "    if not all(np.array_equal(part, np.rint(part)) for part in parts):\n",
        "    if False:\n",
        (DISCRETE + "what_is_not_whole_is_refused",),
    ),
    Mutant(
        "another dimension than is charged",
        "mechanisms/discrete.py",
        "    if dimension not in (None, size):\n",
        "    if False:\n",
        (DISCRETE + "a_vector_of_another_dimension_than_is_charged_is_refused",),
    ),
    Mutant(
        "a sparse vector without noise on the threshold",
        "mechanisms/sparse_vector.py",
        "self._threshold_noise = self.threshold_scale * float(self._source.laplace())",
        "self._threshold_noise = 0.0",
        (SPARSE + "the_threshold_noise_is_drawn_once",),
    ),
    Mutant(
        "a sparse vector without noise on the queries",
        "mechanisms/sparse_vector.py",
        "noisy = above + self.query_scale * float(self._source.laplace())",
        "noisy = above",
        (SPARSE + "answers_have_the_exact_probabilities",),
    ),
    Mutant(
        "a sparse vector that goes on",
        "mechanisms/sparse_vector.py",
        "            self.positives += answer\n",
        "",
        (SPARSE + "it_stops_after_its_positives_and_not_before",),
    ),
    Mutant(
        "half the noise of a choice",
        "mechanisms/scores.py",
        "return (1 if self.monotone else 2) * Fraction(self.sensitivity) / Fraction(self.epsilon)",
        "return Fraction(self.sensitivity) / Fraction(self.epsilon)",
        ("tests/mechanisms/test_scores.py::test_the_scale_is_never_below_what_epsilon_asks_for",),
    ),
    Mutant(
        "one noise for all nodes of a tree",
        "mechanisms/tree.py",
        "estimate = share * self._add_node_noise(total) + (1 - share) * (left.estimate + right.estimate)",
        "estimate = left.estimate + right.estimate",
        (TREE + "noise_is_drawn_once_for_every_node_that_the_sensitivity_counts",),
    ),
    Mutant(
        "half the noise of a node",
        "mechanisms/tree.py",
        "return total + np.rint(self._source.normal(total.size) * steps).astype(np.int64)",
        "return total + np.rint(self._source.normal(total.size) * steps / 2).astype(np.int64)",
        (TREE + "the_noise_of_the_first_step_is_that_of_one_node",),
    ),
    Mutant(
        "a tree with more steps than were charged",
        "mechanisms/tree.py",
        "        if self._taken == steps:\n",
        "        if False:\n",
        (TREE + "more_steps_than_were_charged_are_refused",),
    ),
    Mutant(
        "half the sensitivity of a replaced update",
        "mechanisms/sensitivity.py",
        "return 2 if checks.adjacency(adjacency) == REPLACE_ONE else 1",
        "return len(checks.adjacency(adjacency)[:1])",
        ("tests/mechanisms/test_sensitivity.py::test_the_formulas_of_the_notes",),
    ),
    Mutant(
        "a clip that rounds up",
        "clipping.py",
        "np.ldexp(np.trunc(np.ldexp(values, -quanta)), quanta)",
        "np.ldexp(np.ceil(np.ldexp(values, -quanta)), quanta)",
        ("tests/test_clipping.py::test_huge_gradients_are_clipped_and_not_silently_zeroed",),
    ),
    Mutant(
        "a sum that rounds",
        "clipping.py",
        "return np.asarray(cut_examples(clipped, clip_norm).sum(axis=0))",
        "return np.asarray(clipped.sum(axis=0))",
        ("tests/test_clipping.py::test_one_example_moves_the_sum_by_itself_without_any_rounding",),
    ),
    Mutant(
        "a manager that charges after noise",
        "manager/manager.py",
        "        self._budget.use_round()\n        noisy = self._mechanism.add_noise(values)\n",
        "        noisy = self._mechanism.add_noise(values)\n        self._budget.use_round()\n",
        ("tests/ledger/test_account.py::test_a_round_is_on_disk_before_its_noise_is_drawn",),
    ),
    Mutant(
        "half the sensitivity of a record in an update",
        "manager/manager.py",
        "(1.0 if is_whole_contribution else 2.0)",
        "1.0",
        ("tests/manager/test_manager.py::TestSensitivity::test_the_unit_decides_the_sensitivity_and_not_the_event",),
    ),
    Mutant(
        "half the sensitivity of a record that is replaced",
        "mechanisms/sensitivity.py",
        "    return 2 if checks.adjacency(adjacency) == REPLACE_ONE else 1\n",
        "    return 1\n",
        (
            ALGORITHM_CLAIMS + "no_neighbours_are_found_that_break_a_bound",
            "tests/mechanisms/test_formulas.py::test_the_text_of_a_formula_is_what_is_computed",
        ),
    ),
    Mutant(
        "later steps that count as the first",
        "mechanisms/sensitivity.py",
        "bound * (first * Fraction(_count_moved(adjacency), records) + 2 * later)",
        "bound * (first + later) * Fraction(_count_moved(adjacency), records)",
        (ALGORITHM_CLAIMS + "no_neighbours_are_found_that_break_a_bound",),
    ),
    Mutant(
        "a pull that contracts however long the steps are",
        "mechanisms/sensitivity.py",
        "    return abs(1 - product)\n",
        "    return max(1 - product, Fraction(0))\n",
        (
            ALGORITHM_CLAIMS + "no_neighbours_are_found_that_break_a_bound",
            "tests/mechanisms/test_sensitivity.py::test_a_pull_gives_the_sum_of_the_recursion_rounded_up",
        ),
    ),
    Mutant(
        "a sensitivity with exact duals",
        "mechanisms/sensitivity.py",
        '    if _require_one_of("state", state, ("released", "exact")) == "exact":\n',
        "    if False:\n",
        (CLAIMS + "reference_an_exact_dual_moves_the_second_round_twice_as_far_and_is_refused",),
    ),
    Mutant(
        "a sensitivity of the actual data",
        "mechanisms/sensitivity.py",
        '    if _require_one_of("over", over, ("all", "data")) == "data":\n',
        "    if False:\n",
        ("tests/mechanisms/test_sensitivity.py::test_unsound_and_bad_questions_are_refused_by_name",),
    ),
    Mutant(
        "a check that looks away",
        "mechanisms/claims.py",
        "        return self.ratio > 1 + ROUNDING\n",
        "        return self.ratio > 2 + ROUNDING\n",
        (
            CLAIMS + "a_halved_sensitivity_is_refuted_by_a_factor_of_two_and_the_right_one_is_not",
            ALGORITHM_CLAIMS + "half_of_a_bound_is_refuted_without_its_witness",
        ),
    ),
    Mutant(
        "a check that does not climb",
        "mechanisms/claims.py",
        "            best = found if found.ratio >= best.ratio else best",
        "            best = best",
        (CLAIMS + "climbing_finds_what_random_records_do_not",),
    ),
    Mutant(
        "a check of data sets that are the same",
        "mechanisms/claims.py",
        "        return np.concatenate([before, self.newcomer[None], after])\n",
        "        return self.records\n",
        (CLAIMS + "neighbours_differ_in_one_unit_at_a_place", ALGORITHM_CLAIMS + "the_witness_attains_the_bound"),
    ),
    Mutant(
        "a person who is counted once beyond its budget",
        "mechanisms/individual.py",
        "        is_counted = self._spent + costs <= self.rho\n",
        "        is_counted = self._spent <= self.rho\n",
        ("tests/mechanisms/test_individual.py::test_nobody_is_counted_beyond_its_budget_whatever_it_contributes",),
    ),
    Mutant(
        "a person who pays for a mean contribution",
        "mechanisms/individual.py",
        "squares / (2 * self.noise_multiplier**2) * _UP)",
        "np.full_like(squares, squares.mean()) / (2 * self.noise_multiplier**2) * _UP)",
        ("tests/mechanisms/test_individual.py::test_whether_one_is_counted_depends_on_nobody_else",),
    ),
)

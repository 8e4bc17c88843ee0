"""Mutants of shuffled reports: every one makes an ε too small, or a shuffler that does not shuffle."""

from __future__ import annotations

from mutants.mutant import Mutant

LAW = "tests/accounting/exact/test_shuffled.py::test_"
EVENT = "tests/accounting/test_shuffling.py::test_"
PLAN = "tests/plan/test_shuffling.py::test_"
SHUFFLER = "tests/federated/test_shuffler.py::test_"

SHUFFLING = (
    Mutant(
        "the target counted among the others",
        "accounting/exact/shuffled.py",
        "    first, weights, error = _spread(min(users, MOST_USERS) - 1, clone_rate)\n",
        "    first, weights, error = _spread(min(users, MOST_USERS), clone_rate)\n",
        (LAW + "the_known_delta_of_any_randomizer_is_found[shuffle_small_n_all]",),
    ),
    Mutant(
        "the target counted among the uniform reports of the others",
        "accounting/exact/shuffled.py",
        "    first, weights, error = _spread(users - 1, uniform)\n",
        "    first, weights, error = _spread(users, uniform)\n",
        (LAW + "counting_two_of_three_values_is_refuted_by_two_users",),
    ),
    Mutant(
        "buckets of counts rounded up",
        "accounting/exact/shuffled.py",
        "    return first + starts, np.add.reduceat(weights, starts, axis=0)\n",
        "    ends = np.append(starts[1:], len(weights)) - 1\n"
        "    return first + ends, np.add.reduceat(weights, starts, axis=0)\n",
        (LAW + "counts_in_buckets_are_rounded_down_which_costs_more",),
    ),
    Mutant(
        "cumulants without their rounding",
        "accounting/exact/privacy_loss.py",
        "    exponents = logs + turns + 2.0**-51 * (16 + np.abs(logs) + np.abs(turns))\n",
        "    exponents = logs + turns\n",
        (
            "tests/accounting/exact/test_privacy_loss.py::test_cumulants_near_order_one_are_not_rounded_below_the_moments[7]",
        ),
    ),
    Mutant(
        "the share of the least count of a bucket",
        "accounting/exact/shuffled.py",
        "    pull = half * (np.append(counts[1:], end) - 1)[:, None]",
        "    pull = half * counts[:, None]",
        (LAW + "no_bucket_of_counts_makes_k_ary_response_cheaper",),
    ),
    Mutant(
        "atoms divided between points the wrong way round",
        "accounting/exact/shuffled.py",
        "        self._masses += np.bincount(right, masses * up, len(self._points))\n"
        "        self._masses += np.bincount(right - 1, masses * (1 - up), len(self._points))\n",
        "        self._masses += np.bincount(right - 1, masses, len(self._points))\n",
        (LAW + "points_between_which_atoms_are_divided_cost_more_and_hardly_any",),
    ),
    Mutant(
        "only the two values of k-ary response are counted",
        "accounting/exact/shuffled.py",
        "    if buckets == 2:\n        return _make_two_sided(epsilon, users, uniform)\n",
        "    if buckets >= 2:\n        return _make_two_sided(epsilon, users, uniform)\n",
        (LAW + "k_ary_response_costs_a_little_more_than_the_figure_that_is_no_bound[shuffle_krr_n10000_e1_k10]",),
    ),
    Mutant(
        "a pair that is not mirrored",
        "accounting/exact/shuffled.py",
        "    lost = masses * np.exp(-gains)\n",
        "    lost = 0 * masses\n",
        (LAW + "the_pair_is_its_own_mirror_image[any]",),
    ),
    Mutant(
        "a draw without its factor on the loss",
        "accounting/exact/shuffled.py",
        "    kept = (rate * p + (1 - rate) * q) * (1 + 2.0**-48)\n",
        "    kept = rate * p\n",
        (LAW + "a_draw_keeps_the_theorem_at_every_epsilon",),
    ),
    Mutant(
        "Laplace noise of b clip norms as one over b",
        "accounting/shuffling.py",
        "            return 2 / event.noise_multiplier * _UP\n",
        "            return 1 / event.noise_multiplier * _UP\n",
        (EVENT + "laplace_noise_of_b_clip_norms_counts_as_two_over_b",),
    ),
    Mutant(
        "the closed form out of its range",
        "accounting/shuffling.py",
        "    if epsilon > math.log(users / (16 * log)):\n        return epsilon\n",
        "",
        (EVENT + "out_of_its_range_the_closed_form_is_the_epsilon_of_a_report",),
    ),
    Mutant(
        "shuffled reports under add/remove",
        "accounting/exact/pairs.py",
        "if isinstance(atom, ev.Shuffled) and adjacency != REPLACE_ONE:",
        "if False:",
        (EVENT + "shuffling_is_refused_under_add_remove",),
    ),
    Mutant(
        "Poisson samples of shuffled reports",
        "accounting/atoms.py",
        '    _refuse_shuffled(inner, "PoissonSampled, which leaves open how many users report")\n',
        "",
        (EVENT + "poisson_samples_of_shuffled_reports_are_refused",),
    ),
    Mutant(
        "a draw of another size than is shuffled",
        "accounting/atoms.py",
        "        case [(Shuffled(users=event.sample_size), 1)]:\n",
        "        case [(Shuffled(), 1)]:\n",
        (EVENT + "a_draw_must_be_of_as_many_as_are_shuffled",),
    ),
    Mutant(
        "reports stated for add/remove are shuffled",
        "events.py",
        "            if event.adjacency != REPLACE_ONE:\n                raise AdjacencyMismatch(\n",
        "            if False:\n                raise AdjacencyMismatch(\n",
        ("tests/test_events.py::test_reports_stated_for_add_remove_are_not_shuffled",),
    ),
    Mutant(
        "a lower bound from a pair that is only an upper one",
        "accounting/composed.py",
        "            self._is_tight &= not _is_bounded_only(atom)\n",
        "",
        (EVENT + "only_an_upper_bound_is_claimed",),
    ),
    Mutant(
        "parts in parallel whose records never move",
        "accounting/parallel.py",
        "    return max([largest, *(_moved_epsilon(*two, delta) for two in _list_twos(kinds))])\n",
        "    return largest\n",
        ("tests/accounting/test_parallel.py::test_under_replace_one_a_record_may_change_its_part_which_can_be_worse",),
    ),
    Mutant(
        "posterior sampling without the change of its integral",
        "accounting/bayesian.py",
        "    return ev.PureDP(2 * power * ratio * _UP, adjacency=REPLACE_ONE)\n",
        "    return ev.PureDP(power * ratio * _UP, adjacency=REPLACE_ONE)\n",
        ("tests/accounting/test_bayesian.py::test_a_bounded_log_likelihood_costs_four_times_its_bound",),
    ),
    Mutant(
        "a shuffler that hands on too few reports",
        "federated/shuffler.py",
        "        if len(reports) < self.users:\n            return []\n",
        "",
        (
            SHUFFLER + "with_fewer_reports_than_declared_nothing_is_handed_on",
            SHUFFLER + "a_round_with_too_few_reports_moves_nothing_and_is_charged",
        ),
    ),
    Mutant(
        "a shuffler that keeps the order",
        "federated/shuffler.py",
        "            order[last], order[other] = order[other], order[last]\n",
        "            order[other] = order[other]\n",
        (SHUFFLER + "every_order_is_equally_likely",),
    ),
    Mutant(
        "a biased shuffle",
        "federated/shuffler.py",
        "self.source.integers(last + 1)",
        "self.source.integers(len(order))",
        (SHUFFLER + "every_order_is_equally_likely",),
    ),
    Mutant(
        "no shuffler in the round of a plan that promises one",
        "federated/round.py",
        "            return self._average_shuffled(self.plan.client.shuffle_users)\n",
        "            return self._average_released()\n",
        (SHUFFLER + "no_file_of_the_run_has_a_report_with_a_name",),
    ),
    Mutant(
        "a shuffler with Gaussian reports",
        "plan/shuffling.py",
        '    if client.norm != "l1":\n',
        "    if False:\n",
        (PLAN + "a_shuffler_is_refused_where_its_gain_is_not_proved[gaussian]",),
    ),
    Mutant(
        "a shuffler for clients that keep state",
        "plan/rules.py",
        "    if plan.client is not None and plan.client.shuffle_users is not None:\n",
        "    if False:\n",
        (PLAN + "clients_that_keep_state_have_the_local_statement_alone",),
    ),
    Mutant(
        "spare rounds that are not in the shuffled statement",
        "plan/shuffling.py",
        "list_releases(plan, plan.client_factors).items()",
        "list_releases(plan, {1.0: plan.participations}).items()",
        (PLAN + "every_charge_that_there_may_be_is_shuffled_among_the_declared_users",),
    ),
    Mutant(
        "a draw from more users than there are",
        "accounting/atoms.py",
        "    _require_one_population(bag, event)\n",
        "",
        (
            "tests/accounting/test_atoms.py::"
            "test_a_draw_from_more_units_than_the_draw_around_it_leaves_is_refused[once-shuffled]",
        ),
    ),
    Mutant(
        "a number of users that is asked for and ignored",
        "accounting/notions.py",
        "    _require_own_users(event, users)\n",
        "",
        ("tests/accounting/test_notions.py::test_users_of_a_run_that_is_shuffled_already_are_its_own",),
    ),
)

"""Mutants of robust aggregation: conditions, malformed updates, rules behind noise, quarantine and its memory."""

from __future__ import annotations

from mutants.mutant import Mutant

ATTACKED = "tests/federated/runners/test_attacked.py::test_"
CONDITIONS = "tests/aggregation/test_conditions.py::test_"
PLAN = "tests/plan/test_robust.py::test_"
QUARANTINE = "tests/aggregation/test_quarantine.py::test_"
ROBUST = "tests/aggregation/test_robust.py::test_"
RULES = "tests/aggregation/test_rules.py::test_"
SERVER = "tests/plan/test_server.py::test_"
SHUFFLER = "tests/federated/test_shuffler.py::test_"
WATCHING = "tests/federated/test_watching.py::test_"

ROBUST_RULES = (
    Mutant(
        "Krum with one neighbour more than in its paper",
        "aggregation/krum.py",
        "    neighbours = rows.count - max_faulty - 2\n",
        "    neighbours = rows.count - max_faulty - 1\n",
        (ROBUST + "a_rule_gives_the_answer_of_its_paper[krum_7_2]",),
    ),
    Mutant(
        "a rule that goes on with one update too few",
        "aggregation/conditions.py",
        "    if arrived >= least:\n",
        "    if arrived >= least - 1:\n",
        (
            CONDITIONS + "a_rule_works_with_its_least_number_and_not_with_one_fewer[2-krum]",
            CONDITIONS + "the_published_cases_are_accepted_or_refused[breakdown_bucketing_s3]",
        ),
    ),
    Mutant(
        "a NaN that is not above the limit",
        "aggregation/rows.py",
        "np.flatnonzero(~(peaks <= LARGEST))",
        "np.flatnonzero(peaks > LARGEST)",
        (ROBUST + "a_malformed_update_is_refused_before_any_rule[nan-trimmed_mean]",),
    ),
    Mutant(
        "the lower of the two middle values for the median",
        "aggregation/coordinatewise.py",
        "middle - (values.shape[1] % 2 == 0), middle + 1)",
        "middle - (values.shape[1] % 2 == 0), middle + (values.shape[1] % 2))",
        (ROBUST + "a_rule_gives_the_answer_of_its_paper[median_even]",),
    ),
    Mutant(
        "Krum behind the mean's noise",
        "plan/robust.py",
        "            _require_noisable(plan, rule)\n",
        "            pass\n",
        (
            PLAN + "each_style_takes_the_rules_that_are_proved_in_it[user-krum]",
            PLAN + "each_style_takes_the_rules_that_are_proved_in_it[hybrid-coordinate_median]",
        ),
    ),
    Mutant(
        "a second step around a point that was not released",
        "aggregation/rules.py",
        "rule.steps == 1 and rule.before is None",
        "rule.before is None",
        (
            RULES + "centred_clipping_of_another_form_is_no_clipped_sum[options0]",
            PLAN
            + "centred_clipping_at_the_server_is_one_step_to_the_norm_that_the_noise_is_for[options0-one step-user]",
        ),
    ),
    Mutant(
        "differences from the last release that are not clipped",
        "plan/server.py",
        "            return Mean().total(terms, dimension, self.parts, bound)\n",
        "            return Mean().total(terms, dimension, self.parts, bound * (1 if centre is None else 2))\n",
        (PLAN + "one_client_moves_one_step_of_centred_clipping_by_a_clip_norm_at_most[user]",),
    ),
    Mutant(
        "centred clipping that forgets its centre",
        "plan/server.py",
        "            return average + centre if self._is_centred(centre) else average\n",
        "            return average\n",
        (PLAN + "a_release_is_around_the_last_one",),
    ),
    Mutant(
        "quarantine where the server noises the sum",
        "plan/robust.py",
        '    if plan.server_noises:\n        message = f"in style {plan.style!r} whether',
        '    if False:\n        message = f"in style {plan.style!r} whether',
        (PLAN + "quarantine_is_refused_where_it_would_change_the_sensitivity[user]",),
    ),
    Mutant(
        "a quarantine that has room for everybody",
        "aggregation/quarantine.py",
        "has_room=count < most",
        "has_room=True",
        (QUARANTINE + "no_more_are_put_aside_than_may_be_faulty",),
    ),
    Mutant(
        "a resumed run that forgets strikes",
        "federated/state/checkpoint.py",
        'standings=quarantine.from_plain(note.get("standings", {})),',
        "standings={},",
        (WATCHING + "a_resumed_run_remembers_its_strikes",),
    ),
    Mutant(
        "too few updates that stop a run in which somebody is protected",
        "federated/round.py",
        "        if not self.plan.units:\n            raise error\n",
        "        raise error\n",
        (ATTACKED + "too_few_updates_leave_the_model_as_it_is_where_somebody_is_protected[sample]",),
    ),
    Mutant(
        "too few reports behind a shuffler that stop a run",
        "federated/round.py",
        "            value, judged = self._hold(error, took_part)\n            return value, judged.participation\n",
        "            raise error\n",
        ("tests/federated/test_shuffler.py::test_reports_without_names_go_through_the_rule_of_the_plan",),
    ),
    Mutant(
        "too few updates for what multi_krum chooses, found when a run is under way",
        "aggregation/robust_rules.py",
        "        return max(super()._needed, (self.chosen or 0) + self.max_faulty)\n",
        "        return super()._needed\n",
        (
            "tests/aggregation/test_robust_rules.py::"
            "test_multi_krum_needs_as_many_honest_updates_as_it_is_to_choose[None-9]",
            PLAN + "a_rule_that_can_never_do_its_work_is_refused_before_anything_is_spent",
        ),
    ),
    Mutant(
        "a row far out beside which all others are one point",
        "aggregation/geometric.py",
        "NEAR * np.maximum(_square_distances(np.abs(gram), weights, sign=1), np.finfo(float).tiny)\n",
        "NEAR * max(float(squares.max()), np.finfo(float).tiny)\n",
        ("tests/aggregation/test_geometric.py::test_the_geometric_median_beside_a_row_far_out_is_as_exact_as_without",),
    ),
    Mutant(
        "strikes for all where the aggregate is too short to have a direction",
        "aggregation/quarantine.py",
        " or not has_direction:\n",
        " or not np.any(aggregate):\n",
        (QUARANTINE + "nobody_is_struck_where_the_aggregate_has_no_direction[1e-200]",),
    ),
    Mutant(
        "a simulation that is not marked",
        "federated/results.py",
        "        if self.simulation:\n",
        "        if False:\n",
        (ATTACKED + "a_simulation_is_marked_in_every_round_and_other_runs_are_not[none]",),
    ),
    Mutant(
        "a breakdown behind a shuffler that a crash forgets",
        "federated/round.py",
        "Released(value), head, (), breakdown=took_part.breakdown)",
        "Released(value), head, ())",
        (SHUFFLER + "a_round_that_broke_down_leaves_the_model_wherever_the_process_dies[True]",),
    ),
    Mutant(
        "no reports at all as an aggregate of a robust rule",
        "plan/shuffling.py",
        "    if not reports and isinstance(plan.aggregation, Mean):\n",
        "    if not reports:\n",
        (SHUFFLER + "no_reports_at_all_break_a_robust_rule_and_leave_the_model",),
    ),
    Mutant(
        "a breakdown after which updates are clipped around zero",
        "federated/engine.py",
        "        last = self._checkpoint.centre if mean.participation.breakdown else mean.value\n",
        "        last = mean.value\n",
        (WATCHING + "a_round_that_broke_down_keeps_the_centre_and_what_clients_kept_before",),
    ),
    Mutant(
        "states of clients whose updates did not count",
        "federated/round.py",
        "        used = () if judged.participation.breakdown else watching.select_counted(self.standings, updates)\n",
        "        used = updates\n",
        (WATCHING + "whoever_is_aside_keeps_the_state_of_its_last_update_that_counted",),
    ),
    Mutant(
        "a client's state from its update clipped around zero",
        "federated/runners/in_process.py",
        "    centre = 0.0 if task.centre is None else np.asarray(task.centre, dtype=float)\n",
        "    centre = 0.0\n",
        ("tests/federated/test_centred.py::test_what_a_client_keeps_follows_from_its_update_as_the_server_uses_it",),
    ),
    Mutant(
        "a client that is in every group",
        "plan/server.py",
        "                found[groups.place(number)][name] = terms[name]\n",
        "                for each in found:\n                    each[name] = terms[name]\n",
        (SERVER + "one_client_moves_the_sums_of_all_groups_by_a_clip_norm_at_most",),
    ),
    Mutant(
        "groups by who came",
        "plan/server.py",
        "        for number, name in enumerate(names):\n            if name in terms:\n",
        "        for number, name in enumerate(terms):\n            if name in names:\n",
        (SERVER + "one_client_moves_the_sums_of_all_groups_by_a_clip_norm_at_most",),
    ),
    Mutant(
        "one noise for all groups",
        "plan/server.py",
        "        noised = np.asarray(mechanism.add_noise(self.query(updates, dimension, clip_norm, centre)))\n",
        "        parts = self.query(updates, dimension, clip_norm, centre)\n"
        "        noised = parts + np.resize(mechanism.add_noise(np.zeros(dimension)), parts.shape)\n",
        (SERVER + "each_group_has_noise_of_its_own_and_the_rule_comes_after_it",),
    ),
    Mutant(
        "groups in a style that noises nothing",
        "plan/robust.py",
        '    if find_groups(rule) is not None:\n        message = f"in style',
        '    if False:\n        message = f"in style',
        (PLAN + "groups_are_offered_where_the_server_noises_and_refused_elsewhere[sample]",),
    ),
)

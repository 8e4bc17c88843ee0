"""Mutants of released figures: who adds how much to counts, who is charged for them, and what a crash leaves."""

from __future__ import annotations

from mutants.mutant import Mutant

COUNTED = "tests/federated/torch/test_counted.py::test_"
COUNTS = "tests/mechanisms/test_counts.py::test_"
MEASURED = "tests/federated/test_measured.py::test_"
NETWORK = "tests/federated/test_network_measured.py::test_"
MEASURING = "tests/plan/test_measuring.py::test_"

QUERIES = "tests/analytics/test_queries.py::test_"
RELEASES = "tests/analytics/test_releases.py::test_"
SITES = "tests/analytics/test_sites.py::test_"
TABLES = "tests/analytics/test_tables.py::test_"
BOUNDS = "tests/cli/test_bounds.py::test_"

FIGURES = (
    Mutant(
        "shares of a person that are rounded up",
        "mechanisms/counts.py",
        "    steps = grid * shares.astype(np.int64) // rows.astype(np.int64)[pairs[0]]\n",
        "    steps = -(-grid * shares.astype(np.int64) // rows.astype(np.int64)[pairs[0]])\n",
        (COUNTS + "a_person_more_or_less_moves_the_sum_by_the_grid_at_most_and_upwards_only",),
    ),
    Mutant(
        "rows of a person that count one each",
        "mechanisms/counts.py",
        "    steps = grid * shares.astype(np.int64) // rows.astype(np.int64)[pairs[0]]\n",
        "    steps = grid * shares.astype(np.int64)\n",
        (COUNTS + "a_person_more_or_less_moves_the_sum_by_the_grid_at_most_and_upwards_only",),
    ),
    Mutant(
        "counts of a client that are not scaled",
        "mechanisms/counts.py",
        "    whole = max(sum(map(abs, values)), int(unit))\n",
        "    whole = int(unit)\n",
        (COUNTS + "whatever_a_client_counts_has_a_norm_of_one_at_most_and_is_rounded_towards_zero",),
    ),
    Mutant(
        "counts of a client that are scaled by their plain sum",
        "mechanisms/counts.py",
        "    whole = max(sum(map(abs, values)), int(unit))\n",
        "    whole = max(abs(sum(values)), int(unit))\n",
        (COUNTS + "counts_that_noise_made_negative_count_in_the_norm",),
    ),
    Mutant(
        "noise on counts for adding where a record is replaced",
        "mechanisms/counts.py",
        "        shift = 2 if checks.adjacency(adjacency) == REPLACE_ONE else 1\n",
        "        shift = 1 if checks.adjacency(adjacency) == REPLACE_ONE else 1\n",
        (COUNTS + "all_releases_cost_what_was_asked_for_and_hardly_less",),
    ),
    Mutant(
        "counts charged for a grid of one step",
        "mechanisms/counts.py",
        "        return ev.DiscreteLaplace(self.scale, self.grid)\n",
        "        return ev.DiscreteLaplace(self.scale)\n",
        (COUNTS + "all_releases_cost_what_was_asked_for_and_hardly_less",),
    ),
    Mutant(
        "figures of clients that no account pays for",
        "plan/by_round.py",
        "    return add_up([*list_costliest(plan, name, plan.record_charges).items(), *list_client_charges(plan).items()])\n",
        "    return add_up([*list_costliest(plan, name, plan.record_charges).items()])\n",
        (MEASURING + "which_accounts_pay_with_which_event",),
    ),
    Mutant(
        "figures of the server that the study does not pay for",
        "plan/by_round.py",
        "    beside = list_client_charges(plan) if plan.noises_updates else list_server_charges(plan)\n",
        "    beside = list_client_charges(plan) if plan.noises_updates else {}\n",
        (MEASURING + "which_accounts_pay_with_which_event",),
    ),
    Mutant(
        "training that is calibrated to the whole promise beside figures",
        "plan/adaptive.py",
        "        parts += [] if beside is None else [beside]\n",
        "",
        (MEASURING + "training_is_calibrated_to_the_rest_and_all_of_it_together_keeps_the_promise",),
    ),
    Mutant(
        "figures for a person in one site where it is in several",
        "plan/measuring.py",
        "        releases=times * plan.max_sites_per_person,\n",
        "        releases=times,\n",
        (MEASURING + "a_person_in_several_sites_pays_no_more_than_was_asked_in_the_worst_of_them",),
    ),
    Mutant(
        "figures of spare rounds beyond their epsilon",
        "plan/measuring.py",
        "    times = count_releases(plan)\n",
        "    times = count_releases(plan) - plan.spare_rounds\n",
        (MEASURING + "epsilon_is_for_all_rounds_and_spare_ones_together",),
    ),
    Mutant(
        "counts that clients noise before they pay",
        "federated/runners/in_process.py",
        "        self.charging.commit_measured(able)\n",
        "",
        (MEASURED + "a_run_releases_its_figures_after_the_round_they_are_planned_for_and_pays_for_them_once",),
    ),
    Mutant(
        "a sum of counts that the server noises before the study pays",
        "federated/runners/charging.py",
        "            self._reservation.commit({self.study: {noise.event: 1}})\n",
        "",
        (MEASURED + "a_run_releases_its_figures_after_the_round_they_are_planned_for_and_pays_for_them_once",),
    ),
    Mutant(
        "a client that fails to count and sends nothing",
        "federated/runners/in_process.py",
        "                counted = np.zeros(0, dtype=np.int64)\n",
        "                continue\n",
        (MEASURED + "whoever_fails_sends_as_many_numbers_as_the_others",),
    ),
    Mutant(
        "clients that are measured as often as they are asked",
        "federated/runners/in_process.py",
        "        able = [name for name in names if self.charging.left_measured(name) > 0]\n",
        "        able = list(names)\n",
        (MEASURED + "a_client_without_a_charge_left_is_not_asked_again",),
    ),
    Mutant(
        "stored counts of another model",
        "federated/state/unfinished.py",
        "            if model in (None, str(known)):\n",
        "            if known is not None:\n",
        (MEASURED + "counts_about_another_model_are_not_used_again",),
    ),
    Mutant(
        "stored counts that are paid for again",
        "federated/measured.py",
        "        found = self.stored.measured(self.number, self._model)\n",
        "        found: dict[str, Update] = {}\n",
        (MEASURED + "counts_that_were_stored_are_used_again_and_cost_nothing",),
    ),
    Mutant(
        "a checkpoint that does not know who paid for its figures",
        "federated/engine.py",
        "        head = outcome.head if measured is None else measured.head\n",
        "        head = outcome.head\n",
        (MEASURED + "a_ledger_from_before_the_measurement_is_refused",),
    ),
    Mutant(
        "a client whose counts are added up twice",
        "federated/measured.py",
        "                waiting.remove(outcome.client)\n",
        "",
        (MEASURED + "a_client_counts_once_and_a_stranger_never",),
    ),
    Mutant(
        "figures that the rounds so far do not cost",
        "federated/engine.py",
        "        local = {name: _add(charges, own, charged.measured.get(name, 0)) for name, charges in local.items()}\n",
        "",
        (MEASURED + "a_run_releases_its_figures_after_the_round_they_are_planned_for_and_pays_for_them_once",),
    ),
    Mutant(
        "a run that stops by values nobody released",
        "plan/measure.py",
        "        if self.stop not in self.metrics or self.stop == MATRIX:\n",
        "        if self.stop == MATRIX:\n",
        (MEASURED + "a_stop_that_could_never_be_decided_is_refused",),
    ),
    Mutant(
        "columns that are noised as if a record were in one of them",
        "analytics/queries.py",
        "        return math.nextafter(math.sqrt(self.columns), math.inf)\n",
        "        return 1.0\n",
        (QUERIES + "a_record_more_moves_the_sum_by_the_norm_at_most",),
    ),
    Mutant(
        "rows of a person that weigh one each in a column",
        "analytics/queries.py",
        "    return np.repeat(SHARES // counts, counts)\n",
        "    return np.repeat(SHARES // np.ones_like(counts), counts)\n",
        (QUERIES + "a_person_more_moves_the_sum_by_the_norm_at_most_however_many_rows_it_has",),
    ),
    Mutant(
        "values of a column beyond its bounds",
        "analytics/queries.py",
        "        units = np.clip(np.nan_to_num(scaled), -1.0, 1.0)\n",
        "        units = np.nan_to_num((table - (lows + highs) / 2) / ((highs - lows) / 2))\n",
        (QUERIES + "the_norm_is_reached",),
    ),
    Mutant(
        "noise on columns for one site where a person is in several",
        "analytics/releases.py",
        "        return least * shift * math.sqrt(checks.count(sites=self.sites)) * (1 + 2.0**-50)\n",
        "        return least * shift * (1 + 2.0**-50)\n",
        (RELEASES + "as_many_sites_as_one_may_be_in_keep_the_promise_together_and_no_noise_is_wasted",),
    ),
    Mutant(
        "a client's columns that are not scaled",
        "analytics/sites.py",
        "        scaled = whole.scale(noised)\n",
        "        scaled = noised\n",
        (SITES + "at_zero_noise_one_unit_moves_the_answer_by_the_norm_at_most",),
    ),
    Mutant(
        "a table of another form that is refused after it was paid for",
        "analytics/sites.py",
        "        self._require_tables()\n",
        "",
        (SITES + "a_table_of_another_form_is_refused_before_anything_is_charged",),
    ),
    Mutant(
        "columns that nobody pays for",
        "analytics/sites.py",
        "        self._charge(own, whole)\n",
        "",
        (SITES + "every_account_that_somebody_noises_for_pays_once_before",),
    ),
    Mutant(
        "an ask of a site to measure that the server does not count",
        "federated/asks.py",
        "spent[event] + len(book.pending(name, measures=True))",
        "spent[event]",
        ("tests/federated/test_asks.py::test_an_ask_to_measure_counts_as_a_measurement_and_as_no_round",),
    ),
    Mutant(
        "a site that does not say how often it was measured",
        "federated/site_run.py",
        "charged.measured.get(self._name, 0))\n",
        "0)\n",
        (NETWORK + "counts_are_charged_before_they_leave_and_are_sent_again_free_of_charge",),
    ),
    Mutant(
        "counts of a site that are not kept",
        "federated/site_run.py",
        "            self._store.keep(self.run, task.round, Kept(plan, model, sent.value, head=sent.head), MEASURED)\n",
        "            pass\n",
        (NETWORK + "counts_are_charged_before_they_leave_and_are_sent_again_free_of_charge",),
    ),
    Mutant(
        "a site that measures after any round",
        "federated/site_run.py",
        "        if self.plan.measurement is None or number not in self.plan.measurement.rounds:\n",
        "        if self.plan.measurement is None:\n",
        (NETWORK + "what_the_plan_does_not_measure_is_refused_with_a_fixed_word_and_not_charged",),
    ),
    Mutant(
        "a site that holds out nobody",
        "federated/site_data.py",
        "    if data.test_fraction == 0:\n",
        "    if data.test_fraction > 0:\n",
        ("tests/federated/test_site_data.py::test_a_record_more_or_less_moves_no_other_to_the_other_side",),
    ),
    Mutant(
        "an account beside two owners that pays for one of them",
        "analytics/sites.py",
        "                known.update({event: known.get(event, 0) + 1 for event in events})\n",
        "                known.update(dict.fromkeys(events, 1))\n",
        (SITES + "an_account_beside_two_owners_pays_for_the_release_of_each",),
    ),
    Mutant(
        "columns of persons whose rows count one each",
        "analytics/sites.py",
        "record.unit == PERSON and any(owner.rows is None for owner in self.owners.values())",
        "record.unit == PERSON and not self.owners",
        (SITES + "a_promise_for_one_person_needs_to_know_whose_rows_there_are",),
    ),
    Mutant(
        "rows of a person that are not brought together",
        "analytics/tables.py",
        '    return TablePart(values[np.argsort(persons, kind="stable")], counts[counts > 0].astype(np.int64))\n',
        "    return TablePart(values, counts[counts > 0].astype(np.int64))\n",
        (TABLES + "the_rows_of_a_person_stay_together_in_whatever_order_the_file_is",),
    ),
    Mutant(
        "a person at any number of sites",
        "analytics/tables.py",
        "    if len(pairs) and np.bincount(pairs[:, 0]).max() > most:\n",
        "    if len(pairs) and most < 1:\n",
        (TABLES + "a_person_at_more_sites_than_is_said_is_refused",),
    ),
    Mutant(
        "ranges for a person at several sites that have the noise of one",
        "cli/bounds.py",
        "    return ColumnRelease(query, promise, sites if promise.unit == PERSON else 1)\n",
        "    return ColumnRelease(query, promise)\n",
        (BOUNDS + "a_person_at_two_sites_has_noise_for_both",),
    ),
    Mutant(
        "ranges that are released again under the same name",
        "cli/bounds.py",
        "    if ledger.has_run(name):\n",
        "    if ledger.has_run(name) and not given:\n",
        (BOUNDS + "the_same_release_again_is_refused_and_not_charged",),
    ),
    Mutant(
        "records held out that meet the model in one batch",
        "federated/torch/client.py",
        "        outputs = self.model.predict_apart(weights, _read_rows(self.held_out))\n",
        "        outputs = self.model.predict(weights, _read_rows(self.held_out))[0][:, None]\n",
        (
            COUNTED + "a_record_more_moves_one_count_by_one_whatever_the_model_does_where_it_does_not_train[Mixes]",
            COUNTED + "how_many_records_there_are_does_not_round_another_ones_output_to_another_class",
        ),
    ),
    Mutant(
        "records held out that meet what the record before left in the model",
        "federated/torch/model.py",
        "            self._restore()\n            self._row.copy_(",
        "            self._row.copy_(",
        (COUNTED + "a_record_more_moves_one_count_by_one_whatever_the_model_does_where_it_does_not_train[Keeps]",),
    ),
    Mutant(
        "a record at which the model fails that fails all others",
        "federated/torch/model.py",
        "            except BaseException:  # it must not decide what becomes of the others\n",
        "            except ZeroDivisionError:\n",
        (COUNTED + "a_person_more_moves_the_counts_by_the_grid_at_most[Raises]",),
    ),
    Mutant(
        "clients' vectors whose sum is rounded",
        "analytics/releases.py",
        "        return cut_examples(np.asarray(clip_gradients(total, self.query.norm)), self.query.norm)\n",
        "        return np.asarray(clip_gradients(total, self.query.norm))\n",
        (RELEASES + "a_client_more_moves_the_sum_of_many_by_its_own_vector_to_the_last_bit",),
    ),
)

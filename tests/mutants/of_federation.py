"""Mutants of the federation: what the server clips, noises, charges and stores, and what a client keeps."""

from __future__ import annotations

from mutants.mutant import Mutant

CHECKPOINT = "tests/federated/test_checkpoint.py::test_"
CLIENT = "tests/federated/test_torch_client.py::test_"
ENGINE = "tests/federated/test_engine.py::test_"
LOCAL = "tests/federated/runners/test_local.py::test_"
MEAN = "tests/aggregation/test_mean.py::test_"
RELEASE = "tests/test_server_release.py::test_"
ROUNDS = "tests/federated/test_rounds.py::test_"

FEDERATION = (
    Mutant(
        "half the server's noise",
        "server_release.py",
        "from_noise_multiplier(self.client.sum_noise, bound, source=source)",
        "from_noise_multiplier(self.client.sum_noise / 2, bound, source=source)",
        (RELEASE + "the_noise_on_the_mean_is_the_noise_multiplier_times_the_sensitivity",),
    ),
    Mutant(
        "half the noise of the server's tree",
        "server_release.py",
        'return TreeMechanism(event, Sensitivity(self.client.clip_norm, "l2", ADD_REMOVE), source)',
        'return TreeMechanism(event, Sensitivity(self.client.clip_norm / 2, "l2", ADD_REMOVE), source)',
        (RELEASE + "the_noise_of_the_first_round_of_a_tree_is_the_noise_multiplier_times_the_sensitivity",),
    ),
    Mutant(
        "updates that are not clipped",
        "aggregation/mean.py",
        "sum_examples(clip_per_example(rows, self.clip_norm) * np.asarray(weights)[:, None], self.clip_norm)",
        "sum_examples(rows * np.asarray(weights)[:, None], self.clip_norm)",
        (RELEASE + "removing_any_client_moves_the_sum_by_at_most_the_clip_norm_exactly",),
    ),
    Mutant(
        "updates that are clipped together",
        "clipping.py",
        "rows = [part.reshape(_examples(parts), -1) for part in parts]",
        "rows = [part.reshape(1, -1) for part in parts]",
        (
            "tests/test_clipping.py::test_each_example_is_clipped_on_its_own",
            MEAN + "a_long_update_of_the_heaviest_client_moves_the_mean_by_almost_all_of_it",
        ),
    ),
    Mutant(
        "weights from who came",
        "aggregation/mean.py",
        "        largest = self.largest_weight\n",
        "        largest = max((self.weights or dict.fromkeys(names, 1.0))[name] for name in names)\n",
        (MEAN + "the_largest_weight_decides_even_if_its_client_is_absent",),
    ),
    Mutant(
        "a denominator from who came",
        "server_release.py",
        "average = mechanism.add_noise(self.query(updates, dimension, clip_norm)) * float(self.largest_weight())",
        "average = mechanism.add_noise(self.query(updates, dimension, clip_norm)) * float("
        "self.largest_weight() * self.expected / max(len(updates), 1))",
        (RELEASE + "the_mean_is_over_the_expected_cohort",),
    ),
    Mutant(
        "an update that is not finite in the sum",
        "aggregation/mean.py",
        "return np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)",
        "return rows",
        (MEAN + "an_update_that_is_not_finite_counts_as_zero",),
    ),
    Mutant(
        "noise before the server's charge",
        "federated/rounds.py",
        "head = self.runner.charge_release(self._commits)\n",
        "head = self.head\n",
        (ENGINE + "an_uninterrupted_run_charges_every_round_once_and_everyone_contributes",),
    ),
    Mutant(
        "the clients' charge after their training",
        "federated/runners/local.py",
        "        self._commit_local(able)\n        if able:\n            yield from self._trained(able, task, self._head())\n",
        "        if able:\n            yield from self._trained(able, task, self._head())\n        self._commit_local(able)\n",
        (LOCAL + "the_whole_cohort_is_charged_before_the_first_client_looks_at_its_data",),
    ),
    Mutant(
        "one charge for two updates",
        "federated/runners/local.py",
        "for name in dict.fromkeys(cohort)]  # one charge, one update",
        "for name in cohort]",
        (LOCAL + "a_client_that_is_named_twice_trains_once_for_its_one_charge",),
    ),
    Mutant(
        "un-noised save",
        "federated/rounds.py",
        "            self.stored.write_release(self.number, released, head, counted)\n",
        "            plain = type(released)(self.plan.server.query(values, self.layout.size), released.noisy_count)\n"
        "            self.stored.write_release(self.number, plain, head, counted)\n",
        (ENGINE + "what_is_stored_of_a_round_is_what_is_released_with_its_noise",),
    ),
    Mutant(
        "updates stored where the server adds the noise",
        "federated/rounds.py",
        "        head = self.runner.charge_release(self._commits)\n",
        "        self.stored.write_updates(self.number, list(updates.values()))\n"
        "        head = self.runner.charge_release(self._commits)\n",
        (ENGINE + "where_the_server_adds_the_noise_no_update_is_ever_stored",),
    ),
    Mutant(
        "a secret cohort in the checkpoint",
        "federated/rounds.py",
        "counted = () if self._is_secret else asked",
        "counted = asked",
        (ENGINE + "no_checkpoint_and_no_stored_release_says_who_was_in_a_secret_cohort",),
    ),
    Mutant(
        "the same noise again after a crash",
        "federated/runners/local.py",
        'return self.source.once(f"{sequence(head)} {task.round} {client.name}")',
        'return self.source.once(f"{task.round} {client.name}")',
        (ENGINE + "noise_after_a_crash_is_fresh_even_from_the_same_seed",),
    ),
    Mutant(
        "more rounds than a client's participations",
        "federated/rounds.py",
        "able = (name for name in self._drawn() if self.taken.get(name, 0) < most)",
        "able = iter(self._drawn())",
        (ENGINE + "whoever_has_taken_part_as_often_as_is_paid_is_not_asked_again",),
    ),
    Mutant(
        "a client's state in the next one's model",
        "federated/torch_model.py",
        "            module._buffers[name] = first.clone()\n",
        "            pass\n",
        (CLIENT + "statistics_of_one_clients_records_do_not_reach_an_evaluation",),
    ),
    Mutant(
        "a client without noise that draws from public generators",
        "federated/torch_model.py",
        "            Generators(or_system(source), devices_of(self.module)).scope(),\n",
        "",
        (CLIENT + "torchs_own_generator_is_left_as_it_was",),
    ),
    Mutant(
        "a proximal term inside the clip",
        "federated/torch_client.py",
        "        optimizer.register_step_pre_hook(pull)  # hooks run in order: the noise is there when this one looks\n",
        "",
        (CLIENT + "the_proximal_term_is_added_after_clipping_and_noise",),
    ),
    Mutant(
        "a cohort drawn at another rate than charged",
        "cohort.py",
        "coins = source.uniform(len(names)) < self.chance(len(names))",
        "coins = source.uniform(len(names)) < 1.5 * self.chance(len(names))",
        ("tests/test_cohort.py::test_a_draw_that_is_the_rate_itself_takes_nobody",),
    ),
    Mutant(
        "sampling claimed for a cohort that is no secret",
        "cohort.py",
        "        return self.secret and self.chance(population) < 1",
        "        return self.chance(population) < 1",
        ("tests/test_cohort.py::test_only_a_secret_cohort_amplifies",),
    ),
    Mutant(
        "a tree that a client enters too soon",
        "federated/server_tree.py",
        "self._steps - steps[-1] >= self.event.min_separation",
        "self._steps - steps[-1] >= 1",
        ("tests/federated/test_server_tree.py::test_a_client_is_admitted_as_often_and_as_soon_as_declared",),
    ),
    Mutant(
        "a tree that goes on after a step that failed",
        "federated/server_tree.py",
        "        self._mechanism = None\n        yield mechanism\n",
        "        yield mechanism\n",
        ("tests/federated/test_server_tree.py::test_a_step_that_fails_loses_the_tree",),
    ),
)

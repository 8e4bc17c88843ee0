"""Mutants of the federation: what the server clips, noises, charges and stores, and what a client keeps."""

from __future__ import annotations

from mutants.mutant import Mutant

CHECKPOINT = "tests/federated/state/test_checkpoint.py::test_"
CHANGED = "tests/federated/test_changed_files.py::test_"
CLIENT = "tests/federated/torch/test_client.py::test_"
ENGINE = "tests/federated/test_engine.py::test_"
DEADLINE = "tests/federated/test_deadline.py::test_"
DEALING = "tests/data/test_dealing.py::test_"
HELD_OUT = "tests/federated/test_hold_outs.py::test_"
OBJECTIVE = "tests/training/test_objective.py::test_"
WRITES = "a_client_that_writes_where_numpy_forbids_it_reaches_no_other_and_not_the_server"
LOCAL = "tests/federated/runners/test_in_process.py::test_"
LOCAL_STYLE = "tests/federated/test_local_style.py::test_"
SENT = "tests/plan/test_client_release.py::test_"
MEAN = "tests/aggregation/test_mean.py::test_"
POPULATED = "tests/federated/test_population.py::test_"
POPULATION = "tests/plan/test_population.py::test_"
PRISTINE = "tests/training/test_pristine.py::test_what_is_noted_anywhere_in_a_module_is_undone_again_and_again"
TOGETHER = "tests/federated/runners/test_together.py::test_"
NONSENSE = "tests/federated/test_nonsense.py::test_"
RELEASE = "tests/plan/test_server.py::test_"
ROUNDS = "tests/federated/test_round.py::test_"
STATES = "tests/federated/state/test_clients.py::test_"
STATEFUL = "tests/federated/algorithms/test_stateful.py::test_"
RUNS = "tests/runs/test_directory.py::test_"
SCHEDULE = "tests/plan/test_schedule.py::test_"
SCHEDULED = "tests/federated/test_schedule.py::test_"

FEDERATION = (
    Mutant(
        "batches of many models as wide as the most records that one has",
        "training/many/draws.py",
        "np.arange(width or batches.max())",
        "np.arange(np.minimum(batches[:, 0], lengths).max())",
        (
            "tests/training/many/test_draws.py::"
            "test_batches_are_as_wide_as_the_plans_say_however_many_records_there_are",
        ),
    ),
    Mutant(
        "a client that is left over and trains alone",
        "training/many/train.py",
        "len(members) == 1 < several",
        "several < 1",
        (
            TOGETHER + "however_many_others_train_a_clients_update_stays_bit_for_bit[1-None-True]",
            TOGETHER + "whatever_another_client_is_a_clients_update_stays_bit_for_bit[of another form-None]",
        ),
    ),
    Mutant(
        "clients that train by another path where one of them fails",
        "federated/runners/together.py",
        "            if not size:  # by",
        "            if size:  # by",
        (TOGETHER + "whatever_another_client_is_a_clients_update_stays_bit_for_bit[raising in training-None]",),
    ),
    Mutant(
        "batches as wide as the largest of those who are here",
        "federated/runners/together.py",
        "source, objective, width)",
        "source, objective)",
        (TOGETHER + "whatever_another_client_is_a_clients_update_stays_bit_for_bit[of many records-0.5]",),
    ),
    Mutant(
        "a shared first pass of so few rows that their number shows",
        "training/many/train.py",
        "2 * width >= FEWEST_ROWS",
        "2 * width >= 0",
        (TOGETHER + "batches_of_one_record_are_rounded_alike_however_many_others_there_are",),
    ),
    Mutant(
        "a client without records that trains with the others",
        "training/many/train.py",
        "        self._hold_empty()\n",
        "",
        (
            "tests/federated/runners/test_together.py::"
            "test_more_or_fewer_records_of_one_client_leave_all_others_bit_for_bit",
        ),
    ),
    Mutant(
        "a model that goes to the next client as the last one left it",
        "federated/torch/model.py",
        "        self._pristine.bring_back()\n",
        "",
        ("tests/federated/torch/test_model.py::test_no_data_of_a_client_move_the_update_of_the_next_one",),
    ),
    Mutant(
        "containers inside containers that stay as a client left them",
        "training/pristine.py",
        "            container.bring_back()\n",
        "            pass\n",
        (PRISTINE + "[a list in a dict in a dict-True]",),
    ),
    Mutant(
        "objects that stay as a client left them",
        "training/pristine.py",
        "            owner[name] = deepcopy(value, memo)\n",
        "            pass\n",
        (PRISTINE + "[an object-True]",),
    ),
    Mutant(
        "tensors beside the buffers that stay as a client left them",
        "training/pristine.py",
        "(*self._structure.tensors, *reached.tensors)",
        "(*self._structure.tensors,)",
        (PRISTINE + "[a tensor that is no buffer-True]",),
    ),
    Mutant(
        "modules in lists that stay as a client left them",
        "training/pristine.py",
        "[*given, *reached.modules]",
        "given",
        (PRISTINE + "[the mode of a module in a list-True]",),
    ),
    Mutant(
        "parameters that stay where a client has put them",
        "training/pristine.py",
        "is_same and all(map(Tensor.is_set_to, tensors, self._places))",
        "is_same",
        (
            "tests/training/test_pristine.py::test_parameters_are_windows_on_their_row_again_and_have_the_values_"
            "that_are_written_there",
        ),
    ),
    Mutant(
        "containers that are compared by value",
        "training/reached.py",
        "is_same = all(map(is_, value, found))",
        "is_same = list(value) == list(found)",
        (PRISTINE + "[a zero with another sign-True]",),
    ),
    Mutant(
        "attributes that a client replaces as a whole",
        "training/engine/kept.py",
        "if not all(map(is_, map(vars, self.modules), self._owns)):",
        "if False:",
        (PRISTINE + "[all attributes at once-True]",),
    ),
    Mutant(
        "a client that is charged every round as the first",
        "federated/runners/charging.py",
        "choose_payment(self._cover(name, number), self._left[name])",
        "choose_payment(self._cover(name, 1), self._left[name])",
        (
            SCHEDULED + "where_all_take_part_every_round_charges_the_noise_that_it_drew[sample]",
            SCHEDULED + "of_two_clients_in_different_rounds_each_pays_for_its_own",
        ),
    ),
    Mutant(
        "a study that is charged every round as the first",
        "federated/runners/charging.py",
        "choose_payment(cover_release(self._plan, number), self._left_releases)",
        "choose_payment(cover_release(self._plan, 1), self._left_releases)",
        (SCHEDULED + "the_rounds_so_far_cost_what_their_own_events_do",),
    ),
    Mutant(
        "spare rounds reserved at the mean noise",
        "plan/schedule.py",
        "Counter([*ordered[:rounds], *ordered[:1] * spare])",
        "Counter([*ordered[:rounds], *[sum(ordered) / len(ordered)] * spare])",
        (
            SCHEDULE + "every_spare_round_is_reserved_at_the_least_noise_of_all",
            SCHEDULE + "with_all_crashes_in_the_round_of_least_noise_the_statement_still_holds_and_is_met",
        ),
    ),
    Mutant(
        "the first rounds reserved for whoever takes part less often",
        "plan/schedule.py",
        "ordered = sorted(factors)\n",
        "ordered = list(factors)\n",
        (SCHEDULE + "a_client_that_takes_part_less_often_is_reserved_the_rounds_of_least_noise",),
    ),
    Mutant(
        "a round that is paid with more noise than it has",
        "plan/schedule.py",
        "(each for each in reserved if each <= factor)",
        "(each for each in reserved if each >= factor)",
        (SCHEDULE + "a_round_whose_own_event_is_spent_takes_the_next_costlier_and_never_a_cheaper",),
    ),
    Mutant(
        "a schedule that the study pays by the count of who took part most",
        "plan/by_round.py",
        "return plan.is_secret or plan.noise_schedule is not None",
        "return plan.is_secret",
        (SCHEDULE + "the_study_pays_for_every_round_where_a_count_of_rounds_would_not_order_them",),
    ),
    Mutant(
        "a schedule that clients ignore",
        "federated/runners/in_process.py",
        "self._plan.in_round(task.round).local[name]",
        "self._plan.local[name]",
        (SCHEDULED + "a_clients_noise_has_the_size_of_its_round_whoever_trains_it[LocalRunner]",),
    ),
    Mutant(
        "a schedule that clients ignore when they train together",
        "federated/runners/together.py",
        "local = self._plan.in_round(task.round).local[client.name]",
        "local = self._plan.local[client.name]",
        (SCHEDULED + "a_clients_noise_has_the_size_of_its_round_whoever_trains_it[EnsembleRunner]",),
    ),
    Mutant(
        "a schedule that the server ignores",
        "federated/round.py",
        "self.plan.in_round(self.number).server.release(",
        "self.plan.in_round(1).server.release(",
        (SCHEDULED + "where_all_take_part_every_round_charges_the_noise_that_it_drew[user]",),
    ),
    Mutant(
        "a schedule that clients ignore when they noise their updates",
        "federated/runners/in_process.py",
        "release = self._plan.in_round(task.round).client_release",
        "release = self._plan.in_round(1).client_release",
        (SCHEDULED + "in_style_local_every_participation_charges_the_noise_that_it_drew[l2]",),
    ),
    Mutant(
        "updates that leave without noise",
        "federated/runners/in_process.py",
        "            left = self._add_noise(left, task)\n",
        "            left = replace(left, value=self._plan.in_round(1).client_release.query(left.value, task.weights.size))\n",
        (LOCAL_STYLE + "every_client_draws_noise_of_its_own_and_new_in_every_round[LocalRunner]",),
    ),
    Mutant(
        "a client that noises what it did not clip",
        "plan/server.py",
        "mechanism.add_noise(self.query(update, dimension))",
        "mechanism.add_noise(np.asarray(update, dtype=float))",
        (
            SENT + "records_that_turn_the_update_around_attain_two_clip_norms[l1]",
            LOCAL_STYLE + "what_the_algorithm_lets_leave_is_clipped_however_far_its_objective_is_shifted[l2]",
        ),
    ),
    Mutant(
        "half a client's own noise",
        "plan/server.py",
        "make.from_noise_multiplier(self.client.noise, bound, source=source)",
        "make.from_noise_multiplier(self.client.noise / 2, bound, source=source)",
        (SENT + "the_noise_of_what_leaves_is_the_noise_multiplier_times_the_clip_norm[l2]",),
    ),
    Mutant(
        "a client's own update charged as if it might be absent",
        "plan/plan.py",
        "        if self.noises_updates:\n            return REPLACE_ONE\n",
        "        if self.noises_updates:\n            return ADD_REMOVE\n",
        (
            LOCAL_STYLE + "epsilon_is_that_of_the_accountant_for_every_charge_that_there_may_be_under_replacement",
            LOCAL_STYLE + "gaussian_rounds_are_the_analytic_gaussian_of_twice_the_clip_norm",
        ),
    ),
    Mutant(
        "a secret cohort that amplifies what a client sends itself",
        "plan/plan.py",
        "        if self.noises_updates:\n            return self.client_release.event\n",
        "",
        (LOCAL_STYLE + "no_cohort_amplifies_what_a_client_sends_itself[cohort1]",),
    ),
    Mutant(
        "a client's charge after its own noise",
        "federated/runners/in_process.py",
        "        self.charging.commit_local(able, task.round)\n        if able:\n            head = self.charging.head\n"
        "            for outcome in self._train_all(able, task, head):\n"
        "                yield from self._finish_update(outcome, task, head)\n",
        "        if able:\n            head = self.charging.head\n"
        "            for outcome in self._train_all(able, task, head):\n"
        "                yield from self._finish_update(outcome, task, head)\n"
        "        self.charging.commit_local(able, task.round)\n",
        (LOCAL_STYLE + "a_crash_while_the_noise_is_drawn_leaves_the_charge",),
    ),
    Mutant(
        "an account for adding and removing that pays in style local",
        "federated/runners/charging.py",
        "    if adjacency != REPLACE_ONE:\n",
        "    if not adjacency:\n",
        (LOCAL_STYLE + "an_account_for_adding_and_removing_is_refused[record]",),
    ),
    Mutant(
        "a second account on the same data that does not pay",
        "federated/runners/charging.py",
        "            charges = self._add_beside(self.ledger, charges)\n",
        "",
        (LOCAL_STYLE + "accounts_for_other_units_on_the_same_data_are_charged_as_well",),
    ),
    Mutant(
        "a failure in style local that everyone sees",
        "federated/runners/in_process.py",
        "                left = Update(left.client, task.round, np.zeros(0), head)\n",
        "                return\n",
        (LOCAL_STYLE + "a_client_that_fails_sends_noise_around_zero_and_its_owner_is_told[LocalRunner]",),
    ),
    Mutant(
        "half the server's noise",
        "plan/server.py",
        "from_noise_multiplier(self.client.sum_noise, bound, source=source)",
        "from_noise_multiplier(self.client.sum_noise / 2, bound, source=source)",
        (RELEASE + "the_noise_on_the_mean_is_the_noise_multiplier_times_the_sensitivity",),
    ),
    Mutant(
        "half the noise of the server's tree",
        "plan/server.py",
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
        "rows = [part.reshape(_count_examples(parts), -1) for part in parts]",
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
        "plan/server.py",
        "        average = self._combine(noised, dimension, centre)\n",
        "        average = self._combine(noised, dimension, centre) * float(self.expected / max(len(updates), 1))\n",
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
        "federated/round.py",
        "head = self.runner.charge_release(self._commits, self.number)\n",
        "head = self.head\n",
        (ENGINE + "an_uninterrupted_run_charges_every_round_once_and_everyone_contributes",),
    ),
    Mutant(
        "the clients' charge after their training",
        "federated/runners/in_process.py",
        "        self.charging.commit_local(able, task.round)\n        if able:\n            head = self.charging.head\n"
        "            for outcome in self._train_all(able, task, head):\n",
        "        if able:\n            head = self.charging.head\n            trained = [*self._train_all(able, task, head)]\n"
        "            self.charging.commit_local(able, task.round)\n            for outcome in trained:\n",
        (LOCAL + "the_whole_cohort_is_charged_before_the_first_client_looks_at_its_data",),
    ),
    Mutant(
        "one charge for two updates",
        "federated/runners/in_process.py",
        "names = list(dict.fromkeys(cohort))  # one charge, one update",
        "names = list(cohort)",
        (LOCAL + "a_client_that_is_named_twice_trains_once_for_its_one_charge",),
    ),
    Mutant(
        "un-noised save",
        "federated/round.py",
        "            self.stored.write_release(self.number, released, head, counted, keepers)\n",
        "            plain = type(released)(self.plan.server.query(values, self.layout.size), released.noisy_count)\n"
        "            self.stored.write_release(self.number, plain, head, counted)\n",
        (ENGINE + "what_is_stored_of_a_round_is_what_is_released_with_its_noise",),
    ),
    Mutant(
        "updates stored where the server adds the noise",
        "federated/round.py",
        "        head = self.runner.charge_release(self._commits, self.number)\n",
        "        self.stored.write_updates(self.number, list(updates.values()))\n"
        "        head = self.runner.charge_release(self._commits, self.number)\n",
        (ENGINE + "where_the_server_adds_the_noise_no_update_is_ever_stored",),
    ),
    Mutant(
        "a secret cohort in the checkpoint",
        "federated/round.py",
        "counted = () if self.plan.is_secret else asked",
        "counted = asked",
        (ENGINE + "no_checkpoint_and_no_stored_release_says_who_was_in_a_secret_cohort",),
    ),
    Mutant(
        "the same noise again after a crash",
        "federated/runners/in_process.py",
        'return self.source.once(f"charge {self.charging.times(name)} {task.round} {name}")',
        'return self.source.once(f"{task.round} {name}")',
        (ENGINE + "noise_after_a_crash_is_fresh_even_from_the_same_seed",),
    ),
    Mutant(
        "the server's noise again after a crash",
        "federated/round.py",
        'f"noise {self.runner.charged().release_number} {self.number}"',
        'f"noise {self.number}"',
        (ENGINE + "the_servers_noise_is_never_drawn_again_from_the_same_seed",),
    ),
    Mutant(
        "more rounds than a client's participations",
        "federated/round.py",
        "able = (name for name in self._draw() if self.taken.get(name, 0) < most)",
        "able = iter(self._draw())",
        (ENGINE + "whoever_has_taken_part_as_often_as_is_paid_is_not_asked_again",),
    ),
    Mutant(
        "a client without noise that draws from public generators",
        "federated/torch/model.py",
        "            Generators(or_system(source), self._devices).scope(),\n",
        "",
        (CLIENT + "torchs_own_generator_is_left_as_it_was",),
    ),
    Mutant(
        "state of an update that was turned away",
        "federated/engine.py",
        "counted = {**before.counted, **dict.fromkeys(mean.contributed, number)}\n",
        "counted = dict.fromkeys(self.plan.local, number) if mean.contributed else {}\n",
        (STATES + "a_client_whose_update_is_turned_away_keeps_what_it_had[user]",),
    ),
    Mutant(
        "state from a change that is not clipped",
        "federated/runners/in_process.py",
        "    if task.clip_norm is None:\n        return left\n    centre",
        "    return left\n    centre",
        (STATES + "a_client_keeps_its_change_as_the_server_clips_it_by_the_clip_norm_of_the_round",),
    ),
    Mutant(
        "a stored release that forgets whose state goes with it",
        "federated/state/unfinished.py",
        "        if kept := list(contributed):\n",
        "        if kept := []:\n",
        (STATES + "a_crash_at_each_durable_write_leaves_no_update_without_its_state[after-user-all]",),
    ),
    Mutant(
        "state with secret draws that depend on each other",
        "plan/rules.py",
        '    if forbids_a_cap(plan):\n        message = "clients must keep',
        '    if False:\n        message = "clients must keep',
        (STATES + "state_with_a_secret_cohort_of_fixed_size_is_refused_where_a_client_is_protected[user]",),
    ),
    Mutant(
        "an algorithm that is told who else took part",
        "federated/runners/in_process.py",
        "        state, own = self._read_state(trained.client, task), task.of(trained.client)\n",
        "        state, own = self._read_state(trained.client, task), task\n",
        (STATES + "what_a_client_sends_depends_on_no_other_clients_rounds",),
    ),
    Mutant(
        "an algorithm that carries something from client to client in itself",
        "federated/algorithms/registry.py",
        'vars(type(algorithm)).get("__dataclass_params__")',
        'getattr(algorithm, "__dataclass_params__", None)',
        (STATES + "a_subclass_of_a_frozen_algorithm_must_be_frozen_itself",),
    ),
    Mutant(
        "state of a run that has ended",
        "federated/engine.py",
        "            ClientStates(self.run.folder(CLIENTS)).forget_all()\n",
        "            pass\n",
        (STATES + "nothing_stays_of_a_run_that_crashed_when_all_its_rounds_were_done",),
    ),
    Mutant(
        "a client that writes into the weights others start from",
        "training/objective.py",
        'object.__setattr__(self, "start", read_only(self.start))',
        'object.__setattr__(self, "start", np.asarray(self.start))',
        (OBJECTIVE + "what_an_objective_holds_cannot_be_written_into_and_a_copy_shares_no_memory",),
    ),
    Mutant(
        "a client that writes by torch into the weights of all",
        "federated/runners/in_process.py",
        "objective.copied(), source)",
        "objective, source)",
        (POPULATED + f"{WRITES}[False-LocalRunner]",),
    ),
    Mutant(
        "a made client that rehearses on the weights of all",
        "federated/runners/in_process.py",
        "self._factory.client(name, self._plan, task.weights.copy())",
        "self._factory.client(name, self._plan, task.weights)",
        (POPULATED + f"{WRITES}[False-LocalRunner]",),
    ),
    Mutant(
        "a panic of a client that ends the round",
        "federated/runners/in_process.py",
        "        except BaseException as error:  # whatever a client's data does to it, the others go on\n",
        "        except Exception as error:\n",
        (
            POPULATED
            + "a_client_that_cannot_be_made_contributes_zero_and_nobody_sees_it[panics in training-LocalRunner]",
        ),
    ),
    Mutant(
        "an algorithm that writes into what is sent",
        "federated/messages.py",
        "{name: read_only(vector) for name, vector in self.vectors.items()}",
        "dict(self.vectors)",
        (LOCAL + "an_algorithm_cannot_write_into_what_is_sent",),
    ),
    Mutant(
        "a rule of one's own that does not clip",
        "plan/rules.py",
        "    if type(rule) not in RULES.values():",
        "    if not isinstance(rule, tuple(RULES.values())):",
        (
            "tests/aggregation/test_rules.py::test_a_plan_takes_no_rule_of_ones_own_for_which_no_noise_is_proved[Unclipped()]",
        ),
    ),
    Mutant(
        "an end of the run at what one client sent",
        "federated/runners/in_process.py",
        "        except BaseException as error:  # of what the client sent, whatever that is\n",
        "        except Exception as error:\n",
        (STATES + "an_algorithm_that_ends_the_process_at_one_client_leaves_that_one_out[leaves]",),
    ),
    Mutant(
        "a state that nobody sealed",
        "federated/state/clients.py",
        "            if not self._seal(client, round_number).is_of(seal, known):\n",
        "            if not seal:\n",
        (STATES + "a_state_that_was_changed_is_refused_before_a_round_is_run[forged]",),
    ),
    Mutant(
        "a count of those who came in a formula of the server",
        "federated/algorithms/constants.py",
        "    return float(plan.cohort.expected(len(plan.local)) / len(plan.local))\n",
        "    return 1.0\n",
        (STATEFUL + "without_noise_the_server_keeps_the_mean_of_what_clients_keep[none-three-scaffold]",),
    ),
    Mutant(
        "scaffold with unequal weights",
        "federated/algorithms/constants.py",
        '    if plan.weighting != "equal":\n',
        "    if False:\n",
        (STATEFUL + "unequal_weights_are_refused[scaffold]",),
    ),
    Mutant(
        "scaffold with momentum",
        "federated/runners/in_process.py",
        "        registry.require_fitting_steps(self._algorithm, self.clients.values())\n",
        "",
        (
            STATEFUL
            + "scaffold_is_for_plain_gradient_descent[OptimizerSettings(optimizer='sgd', momentum=0.5, weight_decay=0.0, schedule=Constant())]",
        ),
    ),
    Mutant(
        "two processes in one run",
        "federated/engine.py",
        "        self._lock = hold(self.run.path)\n",
        "",
        (
            "tests/federated/state/test_run_lock.py::test_a_run_that_another_process_runs_is_refused_and_goes_on_when_that_has_ended[none]",
        ),
    ),
    Mutant(
        "another rule than the plan's",
        "plan/plan.py",
        "self._expected, self.aggregation)\n",
        "self._expected)\n",
        ("tests/aggregation/test_rules.py::test_the_rule_of_the_plan_is_the_one_that_is_executed",),
    ),
    Mutant(
        "a rule that no noise is proved for",
        "plan/rules.py",
        "    if type(rule) not in RULES.values():  # one that derives from them may add up as it likes\n",
        "    if False:\n",
        ("tests/plan/test_plan.py::test_an_unknown_rule_of_aggregation_is_refused[rule0]",),
    ),
    Mutant(
        "a proximal term inside the clip",
        "federated/torch/client.py",
        "        optimizer.register_step_pre_hook(terms)  # hooks run in order: the noise is there when this one looks\n",
        "",
        (
            CLIENT + "the_proximal_term_is_added_after_clipping_and_noise",
            CLIENT + "shift_and_anchor_are_added_after_clipping_and_noise",
        ),
    ),
    Mutant(
        "a cohort drawn at another rate than charged",
        "plan/cohort.py",
        "np.flatnonzero(coins < np.uint64(self._heads))",
        "np.flatnonzero(coins < np.uint64(1.5 * self._heads))",
        ("tests/plan/test_cohort.py::test_a_draw_that_is_the_rate_itself_takes_nobody",),
    ),
    Mutant(
        "a shuffle that draws a client twice",
        "plan/cohort.py",
        "            moved[other] = moved.get(place, place)\n",
        "            moved[other] = place\n",
        (POPULATION + "a_sparse_shuffle_is_the_dense_one[50-60]",),
    ),
    Mutant(
        "a population whose clients' accounts would have to pay",
        "plan/rules.py",
        "    if isinstance(plan.local, Population) and plan.charges_clients:\n",
        "    if False:\n",
        (POPULATION + "styles_that_charge_each_clients_account_are_refused[sample]",),
    ),
    Mutant(
        "a client with two names",
        "plan/population.py",
        'return number if number < self.length and name == f"{self.prefix}{number}" else None',
        "return number if number < self.length else None",
        (POPULATION + "no_client_has_two_names_and_no_other_name_is_a_clients[client-03]",),
    ),
    Mutant(
        "a mean of a population that moves further than is said",
        "plan/server.py",
        "            return 1 / self.expected\n",
        "            return 2 / self.expected\n",
        (
            POPULATION + "the_charge_is_that_of_a_dict_of_as_many_equal_clients[plain-all]",
            POPULATED + "a_run_over_a_population_is_that_over_a_dict_to_the_last_bit_and_charge[user-all]",
        ),
    ),
    Mutant(
        "another client than the one that was drawn",
        "federated/runners/factory.py",
        "        if made.name != name:\n",
        "        if made is None:\n",
        (POPULATED + "a_client_that_cannot_be_made_contributes_zero_and_nobody_sees_it[another-LocalRunner]",),
    ),
    Mutant(
        "sampling claimed for a cohort that is no secret",
        "plan/cohort.py",
        "        return self.secret and self.chance(population) < 1",
        "        return self.chance(population) < 1",
        ("tests/plan/test_cohort.py::test_only_a_secret_cohort_amplifies",),
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
    Mutant(
        "a door without a norm",
        "aggregation/screening.py",
        "        if (norm := total_norm(vector)) > self.max_norm:\n",
        "        if (norm := total_norm(vector)) > math.inf:\n",
        (NONSENSE + "nonsense_of_one_client_or_several_neither_becomes_the_model_nor_stops_the_run",),
    ),
    Mutant(
        "a round without a finite model that is kept",
        "federated/engine.py",
        "        self._stored.forget(number)\n        self._tree = self._make_tree()\n",
        "        self._tree = self._make_tree()\n",
        (NONSENSE + "a_round_that_ended_without_a_finite_model_keeps_nothing_and_the_run_goes_on",),
    ),
    Mutant(
        "stored updates that are not screened again",
        "federated/round.py",
        "reused = {update.client: update for update in arrivals.accept(stored.values())}",
        "reused = dict(stored)",
        (NONSENSE + "an_update_that_was_stored_is_screened_again_and_not_asked_for_again",),
    ),
    Mutant(
        "a checkpoint whose digest is not looked at",
        "federated/state/checkpoint.py",
        '        if note["digest"] != _digest(plain, arrays):\n',
        "        if plain is None:\n",
        (CHANGED + "a_flipped_bit_in_the_weights_is_noticed_by_whoever_reads_the_model",),
    ),
    Mutant(
        "a checkpoint whose seal is not looked at",
        "federated/state/checkpoint.py",
        "        if self._key is not None and not Seal(",
        "        if self._key is None and not Seal(",
        (CHANGED + "a_forged_checkpoint_with_a_right_digest_is_refused",),
    ),
    Mutant(
        "a stored release whose seal is not looked at",
        "federated/state/unfinished.py",
        "        if self._seal is not None and not self._seal.is_of(seal, known):\n",
        "        if self._seal is not None and not known:\n",
        (CHANGED + "a_forged_release_with_a_right_digest_and_a_known_head_is_not_used_un_charged",),
    ),
    Mutant(
        "a seal that goes with any checkpoint",
        "runs/digests.py",
        'f"{self.head} {digest}".encode()',
        "digest.encode()",
        (CHANGED + "a_release_that_goes_with_another_checkpoint_of_the_round_before_is_refused",),
    ),
    Mutant(
        "files that the checkpoint knows and nobody looks at",
        "runs/directory.py",
        "            raise self._changed_error(name)\n        return round_files",
        "            pass\n        return round_files",
        (CHANGED + "an_older_file_of_the_same_run_in_place_of_the_new_one_is_refused",),
    ),
    Mutant(
        "a line of rounds.jsonl whose digest is not looked at",
        "runs/rounds.py",
        "            if end.end() != len(line) or end[1].decode() != known:\n",
        "            if end.end() != len(line):\n",
        ("tests/runs/test_rounds.py::test_a_line_that_was_changed_is_noticed_by_whoever_reads_it",),
    ),
    Mutant(
        "a key that the run's files show",
        "ledger/ledger.py",
        "return first.hash.encode()",
        "return run.encode()",
        (CHANGED + "the_key_of_a_run_is_in_none_of_its_files_and_no_head",),
    ),
    Mutant(
        "what comes late is taken all the same",
        "federated/deadline.py",
        "    if monotonic() - started > seconds:\n        raise Late\n",
        "",
        (DEADLINE + "in_another_thread_what_comes_late_is_thrown_away",),
    ),
    Mutant(
        "scores on private records for everyone",
        "federated/metrics.py",
        "        return self.is_public\n",
        "        return True\n",
        (
            "tests/cli/test_private_scores.py::test_a_mean_square_error_is_no_more_for_everyone_than_the_loss_that_it_is",
        ),
    ),
    Mutant(
        "hashes that hold out by the number of a row",
        "data/partition.py",
        "    return hash_contents((row.tobytes() for row in rows.astype(np.float64)), seed, purpose)\n",
        "    return hash_contents((str(place).encode() for place in range(len(rows))), seed, purpose)\n",
        (DEALING + "a_record_more_or_less_moves_no_other_between_clients_and_hold_out",),
    ),
    Mutant(
        "hold-outs of true counts by the place of a row",
        "federated/data.py",
        'np.argsort(found[pile], kind="stable")',
        "np.argsort(np.arange(len(pile)))",
        (HELD_OUT + "a_quantity_holds_the_smallest_hashes_out",),
    ),
    Mutant(
        "hold-outs of one table by the smallest hashes where counts are not public",
        "federated/data.py",
        "    if not config.sizes_are_public and not isinstance(config.partition, blocks.Quantity):\n",
        "    if _has_sites(config) and not config.sizes_are_public:\n",
        (HELD_OUT + "a_record_more_or_less_changes_no_other_ones_side",),
    ),
    Mutant(
        "hold-outs that leave their site",
        "federated/data.py",
        "    if _has_sites(config):\n",
        "    if not config:\n",
        (HELD_OUT + "what_is_held_out_stays_at_its_site_with_its_persons",),
    ),
    Mutant(
        "a simulation that nobody is told of",
        "config/data.py",
        "        return HASHED if is_hashed else ROWS\n",
        "        return HASHED\n",
        (DEALING + "which_kinds_are_dealt_how",),
    ),
    Mutant(
        "a run that claims to be older than the ledger says",
        "federated/engine.py",
        "        if self.run.is_older and self.runner.seals_files(self.plan):\n",
        "        if self.run.is_older and not self.plan:\n",
        (
            CHANGED + "a_run_rewritten_as_a_whole_into_the_form_before_digests_is_refused",
            CHANGED + "without_its_checkpoints_too_a_run_is_of_the_version_that_reserved_it",
        ),
    ),
    Mutant(
        "a reservation that does not say that files are sealed",
        "ledger/lease.py",
        "    return this_process() | SEALED\n",
        "    return this_process()\n",
        (CHANGED + "a_run_rewritten_as_a_whole_into_the_form_before_digests_is_refused",),
    ),
    Mutant(
        "a seal that is not looked at when a run is taken up",
        "federated/engine.py",
        "        self._checkpoints.newest()\n        if self.run.note()",
        "        if self.run.note()",
        (CHANGED + "a_forged_last_checkpoint_does_not_end_a_run",),
    ),
    Mutant(
        "lines of rounds whose checkpoint is not written",
        "runs/directory.py",
        'if record["round"] <= note.round]',
        "if True]",
        (RUNS + "a_line_that_no_checkpoint_knows_of_is_no_round_for_anybody",),
    ),
    Mutant(
        "an end that no checkpoint knows of",
        "runs/directory.py",
        "            if STATUS in note.files or self._lacks_digests(note):\n",
        "            if True:\n",
        (RUNS + "an_end_that_no_checkpoint_knows_of_is_none",),
    ),
    Mutant(
        "another folder's data",
        "runs/directory.py",
        "        self._require_unchanged(ORIGIN_FILE)\n",
        "",
        ("tests/cli/test_covered.py::test_another_folder_is_not_used_on_the_same_accounts",),
    ),
    Mutant(
        "digests of files as they are now, whatever they were",
        "runs/directory.py",
        "known = {name: before[name] for name in WHOLE if name in before and name != STATUS}",
        "known = dict[str, str]()",
        (RUNS + "a_file_that_is_changed_while_the_run_goes_on_is_noticed_all_the_same",),
    ),
    Mutant(
        "a largest norm that no update of an ordinary model has",
        "plan/limits.py",
        "UNCLIPPED_MEAN = 1e3 ",
        "UNCLIPPED_MEAN = 1e9 ",
        (NONSENSE + "without_a_clip_norm_one_clients_1e9_does_not_fit_and_large_steps_of_an_honest_one_do",),
    ),
    Mutant(
        "a late client that leaves half a module to the others",
        "federated/deadline.py",
        "        if _is_importing(frame) and ",
        "        if frame is None and ",
        (DEADLINE + "a_late_client_is_not_interrupted_in_the_middle_of_an_import_that_others_need",),
    ),
)

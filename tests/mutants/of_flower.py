"""Faults in what Flower users' own code runs under: a site's policy, its wrapper, and the accountant on a ledger."""

from __future__ import annotations

from mutants.mutant import Mutant

APP = "tests/integrations/test_flower_app.py::test_"
ACCOUNTANT = "tests/integrations/test_flower_accountant.py::test_"
ROUND = "tests/integrations/test_flower_round.py::test_"
POLICY = "tests/integrations/test_flower_policy.py::test_"
STRATEGY = "tests/integrations/test_flower_strategy.py::test_"
TELLS = APP + "an_answer_tells_nothing_beside_its_numbers"

FLOWER = (
    Mutant(
        "a wrapped client whose ledger may be put back while its SuperNode is away",
        "integrations/flower_policy.py",
        "            heads = [*heads, *known.read(), charging.head]\n",
        "            heads = [*heads, charging.head]\n",
        (POLICY + "a_ledger_that_was_put_back_while_the_supernode_was_away_is_refused",),
    ),
    Mutant(
        "an update that leaves without clip and noise",
        "integrations/flower_app.py",
        "        return request.place(policy.plan.client_release.release(update, request.dimension, source))\n",
        "        return request.place(update)\n",
        (APP + "any_two_clients_are_at_most_two_clip_norms_apart_at_zero_noise",),
    ),
    Mutant(
        "an update that leaves clipped and without noise",
        "integrations/flower_app.py",
        "policy.plan.client_release.release(update, request.dimension, source)",
        "policy.plan.client_release.query(update, request.dimension)",
        (APP + "the_noise_that_leaves_is_the_noise_that_is_charged",),
    ),
    Mutant(
        "the same noise in every training",
        "integrations/flower_policy.py",
        '.once(f"charge {number} {self.plan.name}")',
        '.once(f"charge {self.plan.name}")',
        (APP + "no_two_trainings_have_the_same_noise",),
    ),
    Mutant(
        "an answer to the message that a client wrote into",
        "integrations/flower_app.py",
        "policy, number, deepcopy(message), context)",
        "policy, number, message, context)",
        (TELLS + "[metadata]", TELLS + "[whom it goes to]", TELLS + "[the type of the message]"),
    ),
    Mutant(
        "a client whose error leaves",
        "integrations/flower_app.py",
        "        except BaseException:\n            return _refuse(message, FAILED)\n",
        "        except BaseException as error:\n            return _refuse(message, str(error))\n",
        (APP + "steps_that_are_not_all_private_are_answered_with_a_fixed_code[leak_an_error]",),
    ),
    Mutant(
        "a client that is seen to have failed",
        "integrations/flower_app.py",
        '            _log("the client\'s training failed, and noise around zero is sent in its place")\n'
        "            return None\n",
        "            raise\n",
        (TELLS + "[an error]",),
    ),
    Mutant(
        "an exit that ends the site",
        "integrations/flower_app.py",
        "        except BaseException:\n            _log(",
        "        except Exception:\n            _log(",
        (TELLS + "[an exit]", TELLS + "[what is no Exception]"),
    ),
    Mutant(
        "evaluations that leave",
        "integrations/flower_app.py",
        '        if message.metadata.message_type.partition(".")[0] != "train":\n'
        "            return _refuse(message, WITHHELD)\n",
        '        if message.metadata.message_type.partition(".")[0] != "train":\n'
        "            return self._inner(message, context)\n",
        (APP + "whatever_is_not_training_is_withheld_and_runs_nothing[evaluate]",),
    ),
    Mutant(
        "a client that runs before it is paid for",
        "integrations/flower_app.py",
        "            number, head = policy.pay(_read_heads(context))\n",
        "            number, head = (self._inner(deepcopy(message), context), policy.pay())[1]\n",
        (
            APP + "a_training_is_on_disk_before_the_client_sees_it",
            APP + "a_spent_run_is_refused_before_the_client_runs",
        ),
    ),
    Mutant(
        "a training that costs nothing",
        "integrations/flower_policy.py",
        "            charging.commit_local([SITE], 1)\n",
        "",
        (POLICY + "every_training_is_one_charge_and_the_next_one_is_refused",),
    ),
    Mutant(
        "one metric more in an answer",
        "integrations/flower_records.py",
        "MetricRecord({WEIGHT: weight})",
        "MetricRecord({WEIGHT: weight, 'sum': float(sum(map(np.sum, arrays.values())))})",
        (TELLS + "[a metric]",),
    ),
    Mutant(
        "arrays of another type than were sent",
        "integrations/flower_records.py",
        "Array(np.asarray(arrays[name])) for name in self.sent})",
        "Array(np.asarray(arrays[name], np.float64)) for name in self.sent})",
        (ROUND.replace("round", "records") + "an_answer_has_the_names_of_the_request_in_its_order",),
    ),
    Mutant(
        "what fit returned instead of what was released",
        "integrations/flower_app.py",
        "            self._inner(message, context)\n            return own.released()\n",
        "            answer = self._inner(message, context)\n            own.released()\n"
        "            return read_arrays(*answer.content.array_records.values())\n",
        (APP + "what_private_steps_released_leaves_and_not_what_the_client_returns",),
    ),
    Mutant(
        "the model as it is when the client returns",
        "integrations/flower_round.py",
        "    return {name: value.detach().clone() for name, value in _list_tensors(model).items()}\n",
        "    return {name: value.detach() for name, value in _list_tensors(model).items()}\n",
        (
            APP + "what_private_steps_released_leaves_and_not_what_the_client_returns",
            ROUND + "a_model_that_was_changed_between_two_steps_takes_no_other[first.weight]",
        ),
    ),
    Mutant(
        "a model that is changed between steps",
        "integrations/flower_round.py",
        "        optimizer.register_step_pre_hook(self._require_unchanged)\n",
        "",
        (ROUND + "a_model_that_was_changed_between_two_steps_takes_no_other[last.bias]",),
    ),
    Mutant(
        "a model that starts where the site left it",
        "integrations/flower_round.py",
        "        _load(model, self._sent)\n",
        "        _match_names(model, self._sent)\n",
        (APP + "a_model_starts_from_what_the_server_sent",),
    ),
    Mutant(
        "an optimizer that remembers steps without noise",
        "integrations/flower_round.py",
        "        if optimizer.state:\n",
        "        if False:\n",
        (ROUND + "an_optimizer_that_made_steps_before_is_refused",),
    ),
    Mutant(
        "a round that stops when its records say so",
        "integrations/flower_round.py",
        "        if self._kept != self._plan.steps:\n",
        "        if False:\n",
        (APP + "steps_that_are_not_all_private_are_answered_with_a_fixed_code[stop_early]",),
    ),
    Mutant(
        "two models for one charge",
        "integrations/flower_round.py",
        "        if self._private is not None:\n            raise InvalidArgument",
        "        if False:\n            raise InvalidArgument",
        (ROUND + "a_round_trains_one_model",),
    ),
    Mutant(
        "half the sensitivity of a mean under Flower",
        "integrations/flower_accountant.py",
        "        return epsilon_of(self._repeat(releases), delta, adjacency=REPLACE_ONE) if releases else 0.0\n",
        "        return epsilon_of(self._repeat(releases), delta) if releases else 0.0\n",
        (ACCOUNTANT + "epsilon_is_that_of_a_client_who_is_replaced",),
    ),
    Mutant(
        "an account for adding or removing clients under Flower",
        "integrations/flower_accountant.py",
        "        if terms.adjacency != REPLACE_ONE:\n",
        "        if False:\n",
        (ACCOUNTANT + "an_account_for_something_else_is_refused[terms1-AdjacencyMismatch-who is replaced]",),
    ),
    Mutant(
        "a release of Flower that is not charged",
        "integrations/flower_accountant.py",
        "        self._held.commit(self._read(event), checks.count(count=count))\n",
        "        self._read(event)\n",
        (
            ACCOUNTANT
            + "every_release_is_on_disk_before_a_client_gets_the_model[DifferentialPrivacyServerSideFixedClipping]",
            ACCOUNTANT + "a_refused_commit_lets_no_model_out",
        ),
    ),
    Mutant(
        "a number that Flower does not clip",
        "integrations/flower_accountant.py",
        "        if value.ndim < 1:\n",
        "        if False:\n",
        (ACCOUNTANT + "flower_does_not_clip_a_single_number_and_so_it_is_refused",),
    ),
    Mutant(
        "less noise than was reserved",
        "integrations/flower_accountant.py",
        "        return Gaussian(event.noise_multiplier)\n",
        "        return self._event\n",
        (ACCOUNTANT + "other_noise_than_was_reserved_is_refused",),
    ),
    Mutant(
        "noise that a seed in an app makes",
        "integrations/flower_accountant.py",
        "        _reseed()  # Flower asks before each round, and nothing of ours is called before it draws noise\n",
        "",
        (ACCOUNTANT + "noise_is_not_what_a_seed_in_the_app_makes_it",),
    ),
    Mutant(
        "a policy from the settings of a server",
        "integrations/flower_app.py",
        "        own.run_config = {}\n",
        "",
        (APP + "a_policy_is_made_of_what_the_site_was_started_with_alone",),
    ),
    Mutant(
        "a site that forgets the head of its ledger",
        "integrations/flower_app.py",
        "policy.pay(_read_heads(context))",
        "policy.pay()",
        (APP + "a_ledger_that_was_rolled_back_in_a_run_is_refused",),
    ),
    Mutant(
        "a round of the strategy that is not charged",
        "integrations/flower_strategy.py",
        "        self._charging.commit_release(1, server_round)\n",
        "",
        (
            STRATEGY + "every_round_is_on_disk_before_a_client_gets_its_model",
            STRATEGY + "a_refused_commit_lets_no_model_out_and_a_new_process_goes_on_with_the_run",
        ),
    ),
    Mutant(
        "a sum of raw updates in the strategy",
        "integrations/flower_strategy.py",
        "        return self.plan.server.release(updates, dimension, source, centre=centre).average\n",
        "        return Mean().combined(updates, dimension, dict.fromkeys(updates, 1 / self.clients))\n",
        (
            STRATEGY + "adding_a_client_moves_the_mean_by_at_most_the_clip_norm_over_the_clients",
            STRATEGY + "the_noise_is_that_of_the_event_that_is_charged",
        ),
    ),
    Mutant(
        "a mean over the clients that answered",
        "integrations/flower_strategy.py",
        "            weights = dict.fromkeys(updates, 1 / self.clients)\n",
        "            weights = dict.fromkeys(updates, 1 / len(updates))\n",
        (STRATEGY + "a_strange_client_contributes_zero_and_the_denominator_stays[failed]",),
    ),
    Mutant(
        "the same noise in two rounds of the strategy",
        "integrations/flower_strategy.py",
        'f"release {self._charging.charged().release_number} {self.plan.name}"',
        'f"release {self.plan.name}"',
        (STRATEGY + "the_noise_is_that_of_the_event_that_is_charged",),
    ),
    Mutant(
        "nodes that were not asked",
        "integrations/flower_strategy.py",
        '        check = UpdateCheck(server_round, {"update": (request.dimension,)}, self._asked, largest)\n',
        '        check = UpdateCheck(server_round, {"update": (request.dimension,)}, {*self._asked, "99"}, largest)\n',
        (STRATEGY + "a_reply_of_a_node_that_was_not_asked_or_answers_twice_counts_not",),
    ),
    Mutant(
        "a parameter that does not start from what was sent",
        "integrations/flower_round.py",
        "        if name not in wanted or not torch.equal(",
        "        if False and not torch.equal(",
        (ROUND + "a_parameter_that_starts_elsewhere_is_refused[Hidden]",),
    ),
    Mutant(
        "parameters by what a model says of itself",
        "integrations/flower_round.py",
        "    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}\n",
        "    return dict(model.state_dict())\n",
        (ROUND + "what_leaves_is_not_what_a_state_dict_of_its_own_says",),
    ),
    Mutant(
        "training without noise after the private steps",
        "integrations/flower_round.py",
        "        if self._count_steps() > self._taken:\n",
        "        if True:\n",
        (
            ROUND + "what_is_trained_after_the_private_steps_stays_at_the_site[raw]",
            ROUND + "what_is_trained_after_the_private_steps_stays_at_the_site[private]",
            ROUND + "a_step_that_failed_is_not_made_up_for_by_one_without_noise",
        ),
    ),
    Mutant(
        "hooks of an optimizer that change the model",
        "integrations/flower_round.py",
        "        if _count_hooks(optimizer):\n",
        "        if False:\n",
        (ROUND + "an_optimizer_with_hooks_is_refused_whenever_it_got_them[register_step_post_hook]",),
    ),
    Mutant(
        "an optimizer's memory that is put there between steps",
        "integrations/flower_round.py",
        " or not _are_equal(_list_memory(optimizer), self._memory):\n",
        ":\n",
        (ROUND + "an_optimizer_whose_memory_was_changed_takes_no_step[0]",),
    ),
)

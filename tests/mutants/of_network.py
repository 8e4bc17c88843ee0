"""Mutants of the network: what a site checks, charges and sends again, and what the server counts."""

from __future__ import annotations

from mutants.mutant import Mutant

ASKS = "tests/federated/test_asks.py::test_"
NETWORK = "tests/federated/runners/test_network.py::test_"
POLICY = "tests/federated/test_site_policy.py::test_"
RECIPE = "tests/federated/test_recipe.py::test_"
RUN = "tests/federated/test_site_run.py::test_"
SENT = "tests/federated/test_sent.py::test_"
SITE = "tests/federated/test_site.py::test_"
WIRE = "tests/federated/test_wire.py::test_"
SIGNED = SITE + "only_signed_requests_for_this_site_in_time_are_answered"

NETWORKS = (
    Mutant(
        "a site that believes the server about its own ledger's past",
        "federated/site.py",
        "for known, run in self._store.heads().items():",
        "for known, run in ():",
        (SITE + "a_ledger_that_was_put_back_is_refused_though_the_server_names_no_head",),
    ),
    Mutant(
        "a message whose header cannot be written again",
        "federated/wire.py",
        "        json.dumps(header, allow_nan=False)",
        "        json.dumps(header)",
        (SITE + "a_header_that_cannot_be_echoed_is_refused_before_anything_is_charged",),
    ),
    Mutant(
        "a shuffler that the server is itself",
        "federated/runners/network.py",
        "if plan.client is not None and plan.client.shuffle_users is not None:",
        "if plan.is_secret:",
        (NETWORK + "plans_that_a_network_is_not_for_are_refused",),
    ),
    Mutant(
        "a message whose signature is not looked at",
        "federated/wire.py",
        "if not key.verifies(content[len(MAGIC) : start], MAGIC + role + blob):",
        "if not blob:",
        (WIRE + "every_flipped_byte_is_refused", SIGNED),
    ),
    Mutant(
        "a request that passes as a reply",
        "federated/wire.py",
        "key.verifies(content[len(MAGIC) : start], MAGIC + role + blob)",
        "any(key.verifies(content[len(MAGIC) : start], MAGIC + each + blob) for each in (REQUEST, REPLY))",
        (WIRE + "a_request_does_not_pass_as_a_reply",),
    ),
    Mutant(
        "a message that is parsed before its size is looked at",
        "federated/wire.py",
        "if len(content) > limit:",
        "if len(content) > 2**40:",
        (WIRE + "a_message_is_refused_by_its_size_before_its_signature_is_looked_at",),
    ),
    Mutant(
        "a site that answers a request for another",
        "federated/site.py",
        'header["site"] == self.name and request.verb in wire.VERBS',
        "request.verb in wire.VERBS",
        (SIGNED,),
    ),
    Mutant(
        "a site that answers after the deadline",
        "federated/site.py",
        "if not self._now() <= request.deadline:",
        "if not request.deadline > 0:",
        (SIGNED,),
    ),
    Mutant(
        "a site that answers a replayed request",
        "federated/sent.py",
        "if number <= self.last(run):",
        "if number < self.last(run):",
        (SITE + "an_old_request_that_is_replayed_gets_nothing", SENT + "numbers_only_go_up_also_after_a_restart"),
    ),
    Mutant(
        "a frozen site that sends again",
        "federated/site.py",
        "        self._require_open_account()\n        header = message.header",
        "        header = message.header",
        (SITE + "a_frozen_site_sends_nothing_and_nothing_again",),
    ),
    Mutant(
        "a site that charges again for what it has",
        "federated/site.py",
        "value = run.find_kept(request.round, request.plan, request.model)",
        "value = None",
        (SITE + "a_round_is_committed_before_it_leaves_and_is_sent_again_free_of_charge",),
    ),
    Mutant(
        "a kept value sent for another model",
        "federated/site_run.py",
        "(kept.plan, kept.model) == (plan, model)",
        "kept.plan == plan",
        (RUN + "an_answer_is_charged_stored_and_found_again",),
    ),
    Mutant(
        "a plan that is not the one of its digest",
        "federated/site.py",
        'if request.plan != wire.digest_text(str(terms.header["plan"])):\n            raise MessageRefused("the plan is not',
        'if not request.plan:\n            raise MessageRefused("the plan is not',
        (SITE + "a_plan_is_the_one_of_its_digest_and_a_run_keeps_it",),
    ),
    Mutant(
        "a site whose run may change its plan",
        "federated/site.py",
        "if known is not None and dict(known.header) != dict(terms.header):",
        "if known is not None and not known.header:",
        (SITE + "a_plan_is_the_one_of_its_digest_and_a_run_keeps_it",),
    ),
    Mutant(
        "a rolled back ledger that goes on",
        "federated/site.py",
        "        elif request.head:\n            self._ledger.require(request.head)\n",
        "",
        (SIGNED,),
    ),
    Mutant(
        "a policy that looks at the first round alone",
        "federated/site_policy.py",
        "for factor in dict.fromkeys(factors):",
        "for factor in factors[:1]:",
        (POLICY + "the_round_of_least_noise_decides",),
    ),
    Mutant(
        "a policy without a limit of noise",
        "federated/site_policy.py",
        "if noise < policy.least_noise:",
        "if noise < 0:",
        (POLICY + "a_plan_beyond_a_limit_is_refused[policy1-noise_multiplier of at least 2.001]",),
    ),
    Mutant(
        "a policy without a limit of epsilon",
        "federated/site_policy.py",
        "    if plan.charges_clients:\n        _require_at_most(",
        "    if not plan.units:\n        _require_at_most(",
        (POLICY + "a_plan_beyond_a_limit_is_refused[policy7-epsilon]",),
    ),
    Mutant(
        "a scale of the server's choice",
        "federated/site_policy.py",
        '(key == "shape" or (key == "feature_bounds" and not is_scaled))',
        "True",
        (POLICY + "a_recipe_beyond_the_policy_or_the_declared_data_is_refused[recipe5-data5-policy5]",),
    ),
    Mutant(
        "a model by code that is sent",
        "federated/recipe.py",
        "if self.model.kind not in KINDS or self.model.loss not in losses.KINDS:",
        "if not self.model.kind:",
        (RECIPE + "code_and_other_widths_than_declared_are_refused[changes0]",),
    ),
    Mutant(
        "numbers that no model has",
        "federated/site_run.py",
        "if not all(np.isfinite(vector.astype(np.float32)).all() for vector in vectors.values()):",
        "if not vectors:",
        (SIGNED,),
    ),
    Mutant(
        "a state that is stored without its value's round",
        "federated/sent.py",
        "            if number < counted or not kept.state:",
        "            if number <= counted or not kept.state:",
        (SENT + "confirming_deletes_values_and_keeps_the_state_that_counts",),
    ),
    Mutant(
        "values kept as they are",
        "federated/sent.py",
        'content = nonce + self._cipher.encrypt(nonce, to_blob(message), f"{run}\\0{name}".encode())',
        "content = to_blob(message)",
        (SENT + "no_value_can_be_read_from_the_disk_without_the_key",),
    ),
    Mutant(
        "raw updates that stay",
        "federated/site.py",
        "confirmed = request.round if run.is_raw() else request.round - KEPT",
        "confirmed = request.round - KEPT",
        (SITE + "raw_updates_are_deleted_when_the_next_round_is_asked_for",),
    ),
    Mutant(
        "asks that are sent before they are written",
        "federated/runners/network.py",
        "        if verb in wire.CHARGED and here:\n",
        "        if verb == wire.ENROLL and here:\n",
        (NETWORK + "a_busy_site_is_asked_again_and_each_ask_counts_until_it_is_heard",),
    ),
    Mutant(
        "asks that do not count",
        "federated/asks.py",
        "for number in book.pending(name):",
        "for number in book.pending(name)[:0]:",
        (
            NETWORK + "a_busy_site_is_asked_again_and_each_ask_counts_until_it_is_heard",
            ASKS + "no_more_is_counted_than_is_reserved",
        ),
    ),
    Mutant(
        "a lower count that is believed",
        "federated/asks.py",
        "counts = tuple(max(pair) for pair in zip_longest(self.counts, newer.counts, fillvalue=0))",
        "counts = newer.counts",
        (ASKS + "the_higher_count_stays_when_a_site_says_less",),
    ),
    Mutant(
        "counts of a rolled back ledger that settle asks",
        "federated/runners/network.py",
        'header["code"] not in SETTLING or last is None',
        "last is None",
        (NETWORK + "counts_of_a_rolled_back_ledger_settle_nothing",),
    ),
    Mutant(
        "an answer to another request",
        "federated/runners/network.py",
        "if any(answer.header.get(name) != value for name, value in expected.items()):",
        "if not answer.header:",
        (NETWORK + "an_answer_to_another_request_is_not_used[nonce]",),
    ),
    Mutant(
        "raw updates for as many runs as a study likes",
        "federated/sent.py",
        "        if made >= most or (self._most_raw is not None and in_all >= self._most_raw):\n",
        "        if made >= most:\n",
        (
            SITE + "a_study_that_begins_run_after_run_gets_no_more_raw_updates_than_the_policy_says",
            SENT + "values_without_noise_are_counted_over_all_runs_also_over_those_that_have_ended",
        ),
    ),
    Mutant(
        "raw updates for as many models as a server likes",
        "federated/site_run.py",
        "        return not self.is_raw() or self._store.take_raw(self.run, kind, most)\n",
        "        return True\n",
        (
            SITE + "raw_updates_leave_as_often_as_the_plan_has_rounds_whichever_models_are_sent",
            "tests/federated/test_network_measured.py::test_"
            "raw_counts_leave_as_often_as_the_plan_measures_whichever_models_are_sent",
        ),
    ),
    Mutant(
        "a run that begins again after its end",
        "federated/site.py",
        "        if self._store.has_ended(request.run):\n",
        "        if False:\n",
        (SITE + "what_was_asked_of_a_run_that_has_ended_does_not_begin_it_again",),
    ),
    Mutant(
        "a site that forgets its ledger's past once all runs have ended",
        "federated/sent.py",
        '        self._write(run, ENDED, Message({"head": head}))\n',
        "        self._write(run, ENDED, Message({}))\n",
        (SITE + "a_ledger_that_was_put_back_after_all_runs_have_ended_is_refused",),
    ),
)

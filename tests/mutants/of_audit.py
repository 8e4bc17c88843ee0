"""Mutants of audits, and mutants of training and rounds that an audit must see by itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mutants.mutant import Mutant

BOUNDS = "tests/audit/test_bounds.py::test_"
CANARIES = "tests/audit/test_canaries.py::test_"
CLIENTS = "tests/audit/test_clients.py::test_scores_are_as_far_apart_as_the_noise_says"
RUN = "tests/audit/test_run.py::test_"
SWEEP = "tests/audit/test_sweep.py::test_"
APART = CANARIES + "what_is_found_is_as_far_apart_as_the_noise_says"
# Leaks that an audit sees: what its canaries show is no longer what the noise says.
SEEN = {
    "half noise": (f"{APART}[1.0-score_gradients]", f"{APART}[1.0-score_records]"),
    "an un-noised sum": (f"{APART}[1.0-score_gradients]",),
    "no clip": (f"{APART}[1.0-score_records]",),
    "twice the clip norm": (f"{APART}[1.0-score_records]",),
    "half the server's noise": (f"{CLIENTS}[user]",),
    "updates that are not clipped": (f"{CLIENTS}[user]",),
    "half a client's own noise": (f"{CLIENTS}[local]",),
    "a client that noises what it did not clip": (f"{CLIENTS}[local]",),
}

AUDIT = (
    Mutant(
        "a choice of guesses that nobody pays for",
        "audit/bounds.py",
        "_find_best(test, made, delta, level / len(made))",
        "_find_best(test, made, delta, level)",
        (
            BOUNDS
            + "scores_with_a_correction_over_the_frontier_give_the_published_bound[one_run-steinke-onerun_scores_shift1]",
        ),
    ),
    Mutant(
        "a bound that forgets δ",
        "audit/bounds.py",
        "tail + 2 * m * delta * float(",
        "tail + 0 * delta * float(",
        (BOUNDS + "the_p_value_of_one_run_is_that_of_the_paper[onerun_p_1000_100_100]",),
    ),
    Mutant(
        "ties that help the attacker",
        "audit/guessing.py",
        "np.lexsort((is_in, -scores))",
        "np.lexsort((~is_in, -scores))",
        ("tests/audit/test_guessing.py::test_all_scores_alike_give_no_correct_guess_but_those_that_cannot_be_avoided",),
    ),
    Mutant(
        "a canary that takes part more often than a record",
        "audit/canaries.py",
        "coins(Fraction(self._plan.sample_rate),",
        "coins(Fraction(1),",
        (CANARIES + "a_canary_takes_part_with_the_sampling_rate_and_only_if_it_is_in",),
    ),
    Mutant(
        "residual scores of private records that may be shared",
        "audit/run.py",
        "is_shareable=not is_private or scoring != RESIDUAL",
        "is_shareable=True",
        ("tests/audit/test_run.py::test_residual_scores_of_private_records_are_for_the_owner_alone",),
    ),
    Mutant(
        "an audit on private records that nobody pays for",
        "audit/run.py",
        "            if is_private:\n",
        "            if is_private and ledger is None and canaries < 0:\n",
        ("tests/audit/test_run.py::test_on_private_records_there_must_be_a_ledger_and_budget_for_it",),
    ),
    Mutant(
        "statements of different units that are compared",
        "audit/verdict.py",
        "if (accounted.unit, accounted.adjacency) != (unit, adjacency):",
        "if accounted.adjacency != adjacency:",
        ("tests/audit/test_verdict.py::test_statements_of_another_unit_or_adjacency_are_not_compared[other0]",),
    ),
    Mutant(
        "a sweep that releases private records as they are",
        "audit/sweep.py",
        "if not setting.is_protected or setting.epsilon == math.inf:",
        "if setting.epsilon < 0:",
        ("tests/audit/test_sweep.py::test_private_records_are_used_only_if_asked_and_never_without_noise_or_ledger",),
    ),
    Mutant(
        "canary clients that are there although they are not in",
        "audit/clients.py",
        "strict=True) if not here)",
        "strict=True) if here is None)",
        ("tests/audit/test_clients.py::test_a_client_that_is_not_in_is_absent_and_not_counted_as_short",),
    ),
    Mutant(
        "an audit of a hybrid run that no client's budget pays for",
        "audit/run.py",
        '    if plan.server_noises:\n        message = "what an audit',
        '    if False:\n        message = "what an audit',
        (RUN + "an_audit_on_private_records_is_refused_where_no_account_would_cover_its_line",),
    ),
    Mutant(
        "an audit that any account pays for",
        "audit/run.py",
        "    SharedLedger(ledger, {client.name: client.account}).require_fitting(plan)\n",
        "",
        (RUN + "an_account_for_another_relation_does_not_pay_for_an_audit",),
    ),
    Mutant(
        "private records that stand in for themselves",
        "audit/stand_in.py",
        "if not own.startswith(SKLEARN) and (source == own",
        "if own.startswith(SKLEARN) and (source == own",
        ("tests/audit/test_stand_in.py::test_bundled_records_and_other_files_may_stand_in_but_not_the_runs_own",),
    ),
    Mutant(
        "a sweep that reserves nothing beforehand",
        "audit/sweep.py",
        "_make_charging(launch, ledger).reserve(launch.plan)",
        "_make_charging(launch, ledger)",
        (SWEEP + "on_private_records_every_run_is_reserved_before_the_first",),
    ),
    Mutant(
        "a sweep on private records with noise that can be predicted",
        "audit/sweep.py",
        "    if config.seed is not None:\n",
        "    if False:\n",
        (SWEEP + "no_option_and_no_variant_trains_on_private_records_without_noise_or_payment[seed]",),
    ),
    Mutant(
        "a failed attack that is a coin",
        "audit/roc.py",
        'return "all scores are alike" if both.min() == both.max() else ""',
        'return ""',
        (
            "tests/audit/test_roc.py::test_a_failed_attack_has_a_reason_and_no_figures[members0-others0-all scores are alike]",
        ),
    ),
    Mutant(
        "a refuted audit that ends as if all were well",
        "cli/audit.py",
        "    if any(verdict.is_refuted for verdict in verdicts):\n",
        "    if False:\n",
        (
            "tests/cli/test_audit.py::"
            "test_a_fault_that_leaves_the_noise_out_is_refuted_with_exit_code_1_and_stands_in_the_report",
        ),
    ),
    Mutant(
        "what is not a number ranked as a score",
        "audit/attacks.py",
        "    if any(np.isnan(table).any() for table in tables):\n",
        "    if False:\n",
        ("tests/audit/test_attacks.py::test_attacks_by_rank_refuse_what_is_not_a_number_and_do_not_rank_it",),
    ),
    Mutant(
        "an attribute guessed as its first value where the model does not look at it",
        "audit/attacks.py",
        "    if (np.ptp(member_losses, axis=0) == 0).all() and",
        "    if False and",
        (
            "tests/audit/test_attributes.py::"
            "test_a_model_that_does_not_look_at_the_column_fails_and_does_not_guess_the_first_value",
        ),
    ),
    Mutant(
        "a missing cell guessed as if it had a category",
        "audit/attributes.py",
        "slice(0 if categories else 1, None)",
        "slice(len(places), None)",
        (
            "tests/audit/test_attributes.py::"
            "test_a_category_is_guessed_from_all_its_features_and_one_that_was_missing_is_left_out",
        ),
    ),
)


def add_audits(mutants: Iterable[Mutant]) -> tuple[Mutant, ...]:
    """Return the mutants, of which those that an audit must see have its test among their killers."""
    return tuple(replace(mutant, killers=(*mutant.killers, *SEEN.get(mutant.name, ()))) for mutant in mutants)

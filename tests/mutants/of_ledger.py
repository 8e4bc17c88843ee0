"""Mutants of the ledger: what is acknowledged, admitted and kept."""

from __future__ import annotations

from mutants.mutant import Mutant

ADMISSION = "tests/ledger/test_admission.py::test_"
MODEL = "tests/ledger/test_rules.py::test_"
RESERVATION = "tests/ledger/test_reservation.py::test_"
REFUSALS = "tests/ledger/test_refusals.py::test_"
RESTORING = "tests/ledger/test_restoring.py::test_"
CORRUPTION = "tests/ledger/test_corruption.py::test_"
CREATING = "tests/ledger/store/test_creating.py::test_"
FILES = "tests/ledger/store/test_files.py::test_"
SEALS = "tests/ledger/test_seals.py::test_"

LEDGER = (
    Mutant(
        "a commit that is acknowledged without an entry",
        "ledger/reservation.py",
        "        if step is not None and self._store.append_unmoved(step.entry, self._lease, count):\n            "
        "return\n",
        "        if step is not None:\n            return\n",
        (RESERVATION + "what_was_returned_is_spent_by_one_of_two_only",),
    ),
    Mutant(
        "a large commit that is acknowledged without an entry",
        "ledger/reservation.py",
        "        wanted = inputs.charges(charges)\n        with self._charging() as journal:\n            "
        "self._commit(journal, wanted)\n",
        "        inputs.charges(charges)\n",
        (RESERVATION + "a_commit_of_several_accounts_is_all_or_nothing",),
    ),
    Mutant(
        "a count that is charged once",
        "ledger/fast_commit.py",
        "after = state.after_commit(count, item.cost)",
        "after = state.after_commit(1, item.cost)",
        ("tests/ledger/test_fast_commit.py::test_an_entry_continues_the_chain_and_moves_the_account",),
    ),
    Mutant(
        "more commits than were reserved",
        "ledger/reservation.py",
        "        if count > left:\n            raise NotReserved(",
        "        if False:\n            raise NotReserved(",
        (RESERVATION + "all_of_the_budget_can_be_reserved_and_committed_and_not_one_more",),
    ),
    Mutant(
        "a run that was taken over and goes on",
        "ledger/reservation.py",
        "        if journal.lease(self._run) != self._lease:\n",
        "        if False:\n",
        ("tests/ledger/test_lease.py::test_a_process_that_lost_its_run_may_not_charge",),
    ),
    Mutant(
        "what is committed can be returned",
        "ledger/rules.py",
        "                held, pending = self._take_out(count, cost)\n                return self._replace(held=held, "
        "pending=pending)._reopen()",
        "                held, pending = self._take_out(count, cost)\n"
        "                spent = amounts.minus(self.spent, count, cost)\n"
        "                return self._replace(spent=spent, held=held, pending=pending)._reopen()",
        (MODEL + "a_release_returns_what_is_held_and_never_what_is_spent",),
    ),
    Mutant(
        "reserved charges that do not count",
        "ledger/rules.py",
        "return amounts.plus(self.spent, 1, self.held)",
        "return self.spent",
        (MODEL + "what_is_reserved_counts_as_much_as_what_is_spent",),
    ),
    Mutant(
        "an exact plan beside earlier charges",
        "ledger/admission.py",
        "if fixed_plan and state.is_fresh and not state.closed:",
        "if fixed_plan and not state.closed:",
        (ADMISSION + "only_an_account_without_any_charge_admits_by_the_exact_epsilon",),
    ),
    Mutant(
        "an exact plan that may grow",
        "ledger/admission.py",
        "if fixed_plan and state.is_fresh and not state.closed:",
        "if state.is_fresh and not state.closed:",
        (ADMISSION + "a_plan_that_may_grow_is_never_admitted_by_its_exact_epsilon",),
    ),
    Mutant(
        "a closed account that takes more",
        "ledger/admission.py",
        "if state.plan is None and not state.closed and amounts.fits(total, terms.caps(state.cap)):",
        "if amounts.fits(total, terms.caps(state.cap)):",
        (ADMISSION + "an_account_with_an_exact_plan_admits_nothing_more_however_large_its_cap",),
    ),
    Mutant(
        "a frozen account that is charged",
        "ledger/refusals.py",
        "    if state.frozen:\n",
        "    if False:\n",
        (REFUSALS + "a_frozen_account_takes_nothing_and_keeps_what_is_reserved",),
    ),
    Mutant(
        "costs of add/remove on an account for replace-one",
        "ledger/rules.py",
        "return amounts.cost(event, self.orders, self.adjacency)",
        "return amounts.cost(event, self.orders, ADD_REMOVE)",
        (RESERVATION + "a_replace_one_account_pays_for_twice_the_shift",),
    ),
    Mutant(
        "a cost that is rounded down",
        "ledger/amounts.py",
        "return tuple(_round_up(value) for value in divergences(event, orders, adjacency))",
        "return tuple(int(value * ATTO) for value in divergences(event, orders, adjacency))",
        ("tests/ledger/test_amounts.py::test_a_cost_is_never_below_the_divergence_and_at_most_one_unit_above",),
    ),
    Mutant(
        "a charge that does not reach the parent",
        "ledger/relations.py",
        "return {name: _follow_reach(name, terms, carriers) for name in names}",
        "return {name: (name,) for name in names}",
        ("tests/ledger/test_relations.py::test_a_charge_reaches_the_parent_of_a_parent",),
    ),
    Mutant(
        "an account of records that sees all charges of whole clients",
        "ledger/relations.py",
        "alike = [account for account in chains[0] if _are_alike(terms[account], terms[names[0]])]",
        "alike = list(chains[0])",
        (
            "tests/ledger/test_relations.py::"
            "test_an_account_of_records_is_not_the_one_that_sees_all_charges_of_whole_clients",
            "tests/ledger/test_relations.py::"
            "test_an_account_that_carries_those_of_whole_clients_does_not_pay_in_their_place",
        ),
    ),
    Mutant(
        "an entry that continues no chain",
        "ledger/verify.py",
        '_require(row.previous == self.head.digest, row, "it does not continue the chain")\n        row.check()\n',
        "pass\n",
        (CORRUPTION + "any_change_of_a_row_is_named",),
    ),
    Mutant(
        "an old copy of the ledger",
        "ledger/journal.py",
        "        if found != head.digest:\n",
        "        if False:\n",
        (CORRUPTION + "an_old_copy_is_refused_by_whoever_kept_the_head",),
    ),
    Mutant(
        "commits that are not written through",
        "ledger/store/connecting.py",
        "PRAGMA synchronous=FULL",
        "PRAGMA synchronous=OFF",
        ("tests/ledger/store/test_connecting.py::test_sqlite_writes_through_to_the_disk",),
    ),
    Mutant(
        "a new ledger whose head may go back",
        "ledger/store/creating.py",
        "WHEN NEW.seq <= OLD.seq OR NEW.id <> OLD.id",
        "WHEN NEW.id <> OLD.id",
        (CREATING + "a_new_ledger_is_in_every_part_what_the_migrations_make[sqlite]",),
    ),
    Mutant(
        "a new ledger that takes an entry which does not continue it",
        "ledger/store/creating.py",
        "NOT EXISTS (SELECT 1 FROM head WHERE id = 1 AND seq = NEW.seq - 1 AND hash = NEW.previous)",
        "NOT EXISTS (SELECT 1 FROM head WHERE id = 1 AND seq = NEW.seq - 1)",
        (CREATING + "a_new_ledger_is_in_every_part_what_the_migrations_make[sqlite]",),
    ),
    Mutant(
        "ledgers that share a key of fingerprints",
        "ledger/store/creating.py",
        "secrets.token_hex(32)",
        '"0" * 64',
        (CREATING + "each_new_ledger_has_a_key_of_its_own[sqlite]",),
    ),
    Mutant(
        "a commit that is acknowledged into a file that was moved",
        "ledger/store/database.py",
        """            cursor.execute(statement.text(link), tuple(values))  # drivers take a plain tuple faster than a row
            self._require_after()
""",
        """            cursor.execute(statement.text(link), tuple(values))  # drivers take a plain tuple faster than a row
""",
        (FILES + "a_commit_in_the_middle_of_which_a_file_is_moved_is_not_acknowledged",),
    ),
    Mutant(
        "a large commit that is acknowledged into a file that was moved",
        "ledger/store/database.py",
        """                execute_raw(link, "COMMIT")
                self._require_after()
""",
        """                execute_raw(link, "COMMIT")
""",
        (FILES + "a_commit_in_the_middle_of_which_a_file_is_moved_is_not_acknowledged",),
    ),
    Mutant(
        "a log that is deleted by who has lost its own",
        "ledger/store/files.py",
        "    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))\n",
        "    del thing\n",
        (FILES + "who_lost_its_log_does_not_delete_the_log_of_the_next",),
    ),
    Mutant(
        "files that were away and are used as before",
        "ledger/store/files.py",
        "if self._is_lost or noted & RENAMED or not self._are_as_before",
        "if self._is_lost or not self._are_as_before",
        (FILES + "files_that_were_away_for_a_while_are_used_no_more_by_who_has_missed_them",),
    ),
    Mutant(
        "a log that may be cut short",
        "ledger/store/log.py",
        "return do_follow and is_known and _is(found[-1], now)",
        "return True",
        (FILES + "a_commit_in_the_middle_of_which_a_file_is_written_over_is_not_acknowledged",),
    ),
    Mutant(
        "a log that may be cut by its name alone",
        "ledger/store/files.py",
        "        if self._last and not self._reaches(self._last):",
        "        if False:",
        (FILES + "a_file_that_is_cut_short_by_its_name_alone_is_noticed",),
    ),
    Mutant(
        "a file that may be written over",
        "ledger/store/log.py",
        "return before is None or now.taken != before.taken",
        "return True",
        (FILES + "a_file_that_is_written_over_in_place_is_noticed",),
    ),
    Mutant(
        "a password in what a driver says",
        "ledger/store/address.py",
        "                each.args = (HIDDEN,)\n",
        "                pass\n",
        ("tests/ledger/store/test_address.py::test_a_password_that_a_driver_repeats_by_chance_hides_what_it_said",),
    ),
    Mutant(
        "a key of fingerprints that may change",
        "ledger/seals.py",
        "    if keys and keys != {digest(read_key(link))}:\n",
        "    if False:\n",
        (SEALS + "no_second_account_opens_on_the_same_data_after_key_or_fingerprint_was_changed",),
    ),
    Mutant(
        "entries that go back in time",
        "ledger/journal.py",
        "self.at = clock if clock > view.at else later(view.at)",
        "self.at = clock",
        ("tests/ledger/test_clock.py::test_an_entry_says_the_later_of_clock_and_last_entry",),
    ),
    Mutant(
        "a restored ledger that is not frozen",
        "ledger/rules.py",
        "return self._replace(frozen=True, restored=True)",
        "return self._replace(restored=True)",
        (RESTORING + "a_restored_ledger_is_frozen_and_has_spent_at_least_what_was_spent",),
    ),
    Mutant(
        "a backup that forgets what was reserved",
        "ledger/restoring.py",
        "        if count := left[row.seq]:\n",
        "        if False:\n",
        (RESTORING + "a_restored_ledger_is_frozen_and_has_spent_at_least_what_was_spent",),
    ),
    Mutant(
        "a new account in a restored ledger",
        "ledger/restoring.py",
        "    if unanswered:\n",
        "    if False:\n",
        (RESTORING + "no_account_is_opened_in_a_restored_ledger_until_all_are_answered_for",),
    ),
    Mutant(
        "a commit that was refused after expiry and goes through later",
        "ledger/refusals.py",
        "        if is_expired(terms, at) and not is_expired(terms, last):\n",
        "        if False:\n",
        ("tests/ledger/test_clock.py::test_what_was_refused_after_expiry_is_refused_when_the_clock_is_set_back",),
    ),
    Mutant(
        "an account for records that starts at zero where whole clients were charged",
        "ledger/opening.py",
        "    require_carried(journal, terms.name, everyone)\n",
        "",
        (
            "tests/ledger/test_opening.py::"
            "test_an_account_for_records_does_not_start_at_zero_where_whole_clients_were_charged"
            "[False-add_remove-record]",
        ),
    ),
    Mutant(
        "a reservation for records on an account that lacks what whole clients were charged",
        "ledger/refusals.py",
        "    require_told(journal, run, parts)\n",
        "",
        (
            "tests/ledger/test_wholes.py::"
            "test_an_account_of_records_that_lacks_what_its_whole_client_was_charged_for_reserves_nothing",
        ),
    ),
    Mutant(
        "charges of another run taken for those of whole clients",
        "ledger/wholes.py",
        "bag.get((run, event), 0) >= times for",
        "any(known == event for _, known in bag) for",
        ("tests/ledger/test_wholes.py::test_both_accounts_are_charged_the_same_by_one_run",),
    ),
    Mutant(
        "the same charges on an account for add/remove, whom they cost less",
        "ledger/wholes.py",
        "known[account].adjacency == REPLACE_ONE and ",
        "",
        (
            "tests/ledger/test_wholes.py::"
            "test_an_account_for_add_remove_is_not_told_by_the_same_event_which_costs_it_less",
        ),
    ),
)

"""Mutants of local DP: coins, mechanisms, what is kept and added up, and the auditor."""

from __future__ import annotations

from mutants.mutant import Mutant

CAPS = "tests/ldp/test_caps.py::test_"
UNIT = "tests/ldp/test_unit_vector.py::test_"

AUDIT = "tests/audit/test_ldp.py::test_"
BINARY = "tests/ldp/test_binary.py::test_"
COINS = "tests/ldp/test_coins.py::test_"
COLLECTING = "tests/ldp/test_collecting.py::test_"
COMMAND = "tests/cli/test_ldp.py::test_"
FILES = "tests/ldp/test_files.py::test_"
HASHING = "tests/ldp/test_hashing.py::test_"
HEAVY = "tests/ldp/test_heavy.py::test_"
KARY = "tests/ldp/test_kary.py::test_"
MEAN = "tests/ldp/test_mean.py::test_"
MEAN_VECTOR = "tests/ldp/test_mean_vector.py::test_"
ORACLE = "tests/ldp/test_oracle.py::test_"
PIECEWISE = "tests/ldp/test_piecewise.py::test_"
RAPPOR = "tests/ldp/test_rappor.py::test_"
SKETCH = "tests/ldp/test_sketch.py::test_"
SUBSET = "tests/ldp/test_subset.py::test_"
UNARY = "tests/ldp/test_unary.py::test_"

LOCAL = (
    Mutant(
        "a local chance rounded up",
        "ldp/coins.py",
        "share.to_integral_value(ROUND_FLOOR)",
        'share.to_integral_value("ROUND_CEILING")',
        (COINS + "chances_are_rounded_down_from_more_digits_than_a_float_has",),
    ),
    Mutant(
        "coins of eight bits",
        "ldp/coins.py",
        "    if low:\n",
        "    if False:\n",
        (COINS + "a_coin_is_a_number_of_53_bits_below_the_threshold",),
    ),
    Mutant(
        "a biased lie",
        "ldp/coins.py",
        "        if again.size:\n",
        "        if False:\n",
        (COINS + "draws_that_would_be_too_many_for_one_number_are_drawn_again",),
    ),
    Mutant(
        "a local epsilon rounded down",
        "ldp/coins.py",
        "return round_up(Fraction(_PRECISE.add(value, _SLACK)))",
        "return -round_up(-Fraction(value))",
        (COINS + "logarithms_are_rounded_up_and_no_more_than_that",),
    ),
    Mutant(
        "a fair coin as an answer",
        "ldp/binary.py",
        "        if threshold == HALF:\n",
        "        if False:\n",
        (BINARY + "a_fair_coin_is_refused",),
    ),
    Mutant(
        "a lie that may be the truth",
        "ldp/kary.py",
        "(coins.below(source, size - 1, part.size) + np.uint32(1))",
        "coins.below(source, size, part.size)",
        (KARY + "reports_follow_their_law_for_every_value",),
    ),
    Mutant(
        "sets that always hold the own value",
        "ldp/subset.py",
        "coins.flip(source, self._own, codes.size)",
        "np.ones(codes.size, dtype=np.bool_)",
        (SUBSET + "sets_follow_their_law_for_every_value",),
    ),
    Mutant(
        "a sign that is never turned round",
        "ldp/mean.py",
        "coins.flip(source, self._keep, numbers.size)",
        "True",
        (MEAN + "estimates_are_unbiased_and_have_the_formulas_variance",),
    ),
    Mutant(
        "a cell that is outside only beyond the window",
        "ldp/piecewise.py",
        "(outside >= begins)",
        "(outside > begins)",
        (PIECEWISE + "cells_follow_their_law_for_every_point_of_a_small_grid",),
    ),
    Mutant(
        "the whole epsilon for every coordinate",
        "ldp/mean_vector.py",
        "round_down(Fraction(asked) / self.coordinates)",
        "asked",
        (MEAN_VECTOR + "the_epsilon_of_all_coordinates_adds_up_to_no_more_than_asked_for",),
    ),
    Mutant(
        "whole values from every group",
        "ldp/heavy.py",
        "codes >> (self.bits - np.array(self.lengths)[groups])",
        "codes",
        (HEAVY + "each_group_reports_the_prefix_of_its_length_and_nothing_more",),
    ),
    Mutant(
        "the own bit without noise",
        "ldp/unary.py",
        "= coins.flip(coin, self._own, own.size)",
        "= True",
        (
            UNARY + "every_bit_follows_its_law",
            AUDIT + "no_mechanism_of_ours_is_refuted_and_the_bound_comes_near_its_epsilon",
        ),
    ),
    Mutant(
        "a unary encoding with the whole epsilon for each of two bits",
        "ldp/unary.py",
        "coins.exp(self.epsilon / 2)",
        "coins.exp(self.epsilon)",
        (
            ORACLE
            + "the_epsilon_named_is_that_of_the_rounded_chances_and_never_above_the_one_asked_for[SymmetricUnary-1.0]",
        ),
    ),
    Mutant(
        "a sketch with the whole epsilon for each of two bits",
        "ldp/sketch.py",
        "coins.exp(self.epsilon / 2)",
        "coins.exp(self.epsilon)",
        (SKETCH + "chances_scales_and_noise_are_the_known_ones",),
    ),
    Mutant(
        "a hashed bucket without noise",
        "ldp/hashing.py",
        'reports["bucket"] = respond(hashed, self._own, self.buckets, source)',
        'reports["bucket"] = hashed',
        (HASHING + "given_its_function_a_bucket_is_a_randomized_response",),
    ),
    Mutant(
        "a RAPPOR that never clears a bit",
        "ldp/rappor.py",
        "packed.pack(filled ^ packed.flip_rows(",
        "packed.pack(filled | packed.flip_rows(",
        (
            RAPPOR + "a_permanent_bit_is_flipped_with_half_of_f_whatever_it_was",
            AUDIT + "no_mechanism_of_ours_is_refuted_and_the_bound_comes_near_its_epsilon[RAPPOR for ever]",
        ),
    ),
    Mutant(
        "a RAPPOR that counts half of the changed bits",
        "ldp/rappor.py",
        "** (2 * self.hashes))",
        "** self.hashes)",
        (RAPPOR + "epsilons_and_chances_are_the_known_ones",),
    ),
    Mutant(
        "reports of cohorts that were not declared",
        "ldp/rappor.py",
        'if len(array) and array["cohort"].max() >= self.cohorts:',
        "if False:",
        (RAPPOR + "mixed_cohorts_and_filters_are_refused",),
    ),
    Mutant(
        "frequencies clipped silently",
        "ldp/oracle.py",
        "return Estimate(frequencies, self._errors(frequencies, users), users)",
        "return Estimate(np.clip(frequencies, 0.0, 1.0), self._errors(frequencies, users), users)",
        (ORACLE + "estimates_are_unbiased_and_have_the_formulas_variance[KaryResponse-5]",),
    ),
    Mutant(
        "values outside the domain",
        "ldp/oracle.py",
        "if array.min() < lowest or array.max() >= domain:",
        "if array.min() < lowest:",
        (ORACLE + "values_outside_the_domain_and_wrong_shapes_are_refused_without_showing_one",),
    ),
    Mutant(
        "responses drawn anew for everybody",
        "ldp/collecting.py",
        "if same is None else ~np.isin(digests, same.persons)",
        "if same is None else digests == digests",
        (COLLECTING + "the_same_terms_send_the_same_reports_again_whatever_the_values_are_now",),
    ),
    Mutant(
        "a second question for nothing",
        "ldp/collecting.py",
        "    if spent:\n",
        "    if False:\n",
        (
            COLLECTING + "other_terms_are_refused_for_whoever_has_reported_and_add_up_if_asked_for",
            COMMAND + "other_terms_are_refused_and_again_prints_what_adds_up",
        ),
    ),
    Mutant(
        "the epsilon of who has spent least",
        "ldp/collecting.py",
        "return round_up(max(",
        "return round_up(min(",
        (COLLECTING + "the_epsilon_is_that_of_who_has_spent_most",),
    ),
    Mutant(
        "rows that are taken for other people than persons",
        "ldp/collecting.py",
        'if terms.unit == "row" or collection.settings.get("person_column") != terms.person_column:',
        "if False:",
        (
            COLLECTING + "rows_and_persons_of_one_file_are_taken_to_be_the_same",
            COLLECTING + "persons_named_by_another_column_are_taken_to_be_the_same",
        ),
    ),
    Mutant(
        "a row that has moved, taken for a new one",
        "ldp/collecting.py",
        'kept.collections if terms.unit == "row" else earlier',
        "earlier",
        (
            COLLECTING + "a_new_row_may_be_an_old_one_that_has_moved",
            COMMAND + "a_row_that_came_in_above_others_spends_nothing_unseen",
        ),
    ),
    Mutant(
        "a person anew in another spelling",
        "ldp/files.py",
        'unicodedata.normalize("NFKC", person)',
        "person",
        (
            FILES + "a_person_is_the_same_however_a_program_writes_the_name",
            COMMAND + "one_person_in_two_spellings_has_one_report",
        ),
    ),
    Mutant(
        "kept responses that are rolled back",
        "ldp/files.py",
        "if kept.writes < _count_writes(path):",
        "if False:",
        (
            FILES + "an_old_copy_of_what_is_kept_and_a_lost_one_are_refused",
            COMMAND + "kept_responses_that_are_lost_or_rolled_back_are_missed",
        ),
    ),
    Mutant(
        "a link to kept responses that becomes a second file",
        "ldp/files.py",
        "return path.resolve() if path.is_symlink() else path",
        "return path",
        (
            FILES + "a_link_to_what_is_kept_stays_one_and_is_locked_as_the_file",
            COMMAND + "data_named_by_a_link_have_the_same_kept_file",
        ),
    ),
    Mutant(
        "one report for each value instead of each person",
        "cli/ldp.py",
        "    if column == person_column:\n",
        "    if False:\n",
        (COMMAND + "refusals_are_one_clear_line",),
    ),
    Mutant(
        "kept responses left aside",
        "ldp/kept_place.py",
        "    if named is None or not usual.exists() or",
        "    if True or not usual.exists() or",
        ("tests/ldp/test_kept_place.py::test_a_kept_file_beside_the_data_that_has_no_note_is_not_left_aside",),
    ),
    Mutant(
        "a coin with one side",
        "ldp/coins.py",
        "ROUND_FLOOR)), ONE - 1)",
        "ROUND_FLOOR)), ONE)",
        (COINS + "no_epsilon_is_so_large_that_a_coin_has_one_side_only",),
    ),
    Mutant(
        "an audit of reports that differ by their type",
        "audit/ldp.py",
        "if len(kinds) > 1 or any(",
        "if False and any(",
        (AUDIT + "reports_that_differ_in_type_or_number_are_not_audited_as_if_they_were_alike",),
    ),
    Mutant(
        "kept responses that everybody may read",
        "ldp/files.py",
        "write_durably(follow(path), stream.getvalue(), OWNER_ONLY)",
        "write_durably(follow(path), stream.getvalue())",
        (FILES + "what_is_kept_is_the_owners_alone_and_names_nobody",),
    ),
    Mutant(
        "persons under a digest that anybody can make",
        "ldp/files.py",
        "hmac.new(self.key, name, hashlib.sha256)",
        'hmac.new(b"dpfed", name, hashlib.sha256)',
        (FILES + "digests_of_two_files_do_not_tell_that_a_person_is_in_both",),
    ),
    Mutant(
        "a damaged file of responses taken for an empty one",
        "ldp/files.py",
        "    except Exception:  # whatever",
        "    except Exception:\n        return Kept.new()\n    except BaseException:  # whatever",
        (FILES + "a_damaged_kept_file_is_refused_and_not_taken_for_an_empty_one",),
    ),
    Mutant(
        "reports that are sent before they are kept",
        "cli/ldp.py",
        "    write_kept(private, found.kept)\n",
        "",
        (COMMAND + "reports_are_never_sent_before_their_responses_are_kept",),
    ),
    Mutant(
        "an audit that forgets how many sets it tried",
        "audit/ldp.py",
        "level = risk / (4 * learned.shape[1])",
        "level = 0.5 + 0 * risk",
        (AUDIT + "the_bound_holds_as_often_as_it_says",),
    ),
    Mutant(
        "a second kept file for the same data",
        "ldp/kept_place.py",
        "    noted = _read_note(data)\n",
        "    noted = None\n",
        ("tests/cli/test_ldp.py::test_responses_kept_elsewhere_are_found_again_whatever_is_named_next",),
    ),
    Mutant(
        "a strange kept file for one that was moved",
        "ldp/kept_place.py",
        " or _digest(read_kept(asked)) != digest:\n",
        ":\n",
        ("tests/ldp/test_kept_place.py::test_a_file_that_was_moved_is_known_by_its_key_and_another_is_not",),
    ),
    Mutant(
        "a cap whose rounding is not paid for",
        "ldp/caps.py",
        "        return self.shape.tail(self.edge + self.shape.error) * (1 - SLACK)\n",
        "        return self.shape.tail(self.edge)\n",
        (CAPS + "epsilon_is_never_above_the_one_asked_for_and_hardly_below[10-1.0-Sphere]",),
    ),
    Mutant(
        "a cap that is hit too often",
        "ldp/caps.py",
        "    logit = epsilon * share\n    keep = math.floor(ONE / (1 + math.exp(-logit)))\n",
        "    logit = epsilon * share\n    keep = math.floor(ONE / (1 + math.exp(-1.3 * logit)))\n",
        (CAPS + "epsilon_is_never_above_the_one_asked_for_and_hardly_below[10-1.0-Sphere]",),
    ),
    Mutant(
        "a vector on the wrong side of its edge",
        "ldp/unit_vector.py",
        "        return np.where(wanted[:, None], inside, outside)\n",
        "        return inside\n",
        (
            UNIT + "the_auditor_does_not_refute_a_cap_comes_near_its_epsilon_and_finds_one_that_leans",
            UNIT + "the_error_is_that_of_the_formula[UnitVectorMean]",
        ),
    ),
    Mutant(
        "a sphere for vectors of any length",
        "ldp/unit_vector.py",
        "        if not np.all(np.abs(lengths - 1) <= LONG):",
        "        if False:",
        (UNIT + "values_that_are_no_unit_vectors_are_refused[values1]",),
    ),
)

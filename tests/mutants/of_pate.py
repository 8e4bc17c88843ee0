"""Mutants of PATE: votes with too little noise or charge, and teachers that know of each other."""

from __future__ import annotations

from mutants.mutant import Mutant

NOISY_MAX = "tests/pate/vote/test_noisy_max.py::test_"
POLL = "tests/pate/test_poll.py::test_"
TEACHERS = "tests/pate/test_teachers.py::test_"
CLASSIFIER = "tests/pate/test_classifier.py::test_"
GNSS = "tests/pate/vote/test_gnss.py::test_"

PATE = (
    Mutant(
        "Laplace votes with half the noise",
        "pate/vote/noisy_max.py",
        "L1_SHIFT = 2.0",
        "L1_SHIFT = 1.0",
        (
            NOISY_MAX + "laplace_votes_flip_as_often_as_published",
            NOISY_MAX + "one_teacher_moves_the_counts_by_the_stated_shifts",
        ),
    ),
    Mutant(
        "a Gaussian vote charged for sigma",
        "pate/vote/noisy_max.py",
        "return GaussianMechanism.from_noise_multiplier(multiplier, L2_SHIFT, source=self.source)",
        "return GaussianMechanism.from_noise_multiplier(self.sigma, 1.0, source=self.source)",
        (NOISY_MAX + "the_events_are_those_of_the_papers", NOISY_MAX + "an_answer_is_alpha_over_sigma_squared"),
    ),
    Mutant(
        "a refused query that costs nothing",
        "pate/poll.py",
        "            self._looks.take()\n            if not self.plan.vote.is_confident(votes):\n                return None\n",
        "            if not self.plan.vote.is_confident(votes):\n                return None\n            self._looks.take()\n",
        (POLL + "a_refused_query_is_charged_for_its_threshold_and_leaves_the_answer",),
    ),
    Mutant(
        "a vote before its charge",
        "pate/poll.py",
        "        self._answers.take()\n        return self.plan.vote.choose(votes)\n",
        "        found = self.plan.vote.choose(votes)\n        self._answers.take()\n        return found\n",
        (POLL + "every_charge_is_on_disk_before_its_noise_is_drawn",),
    ),
    Mutant(
        "thresholds that no plan charges",
        "pate/poll.py",
        "            found[self.vote.threshold_event] += self.queries\n",
        "            found[self.vote.threshold_event] += self.answers\n",
        (POLL + "a_plan_charges_for_every_threshold_and_every_answer",),
    ),
    Mutant(
        "teachers by the place of a record",
        "pate/teachers.py",
        "hashes = partition.hash_rows(features, labels, plan.key, PURPOSE)",
        "hashes = partition.hash_names(range(len(features)), plan.key, PURPOSE)",
        (TEACHERS + "removing_each_record_in_turn_changes_one_teacher_and_one_vote",),
    ),
    Mutant(
        "a teacher that diverges stops the run",
        "training/many/train.py",
        "if not isolated and not all(bool(value.isfinite()",
        "if not all(bool(value.isfinite()",
        (
            "tests/training/many/test_train.py::test_an_isolated_model_that_diverges_is_returned_and_the_others_are_as_without_it",
        ),
    ),
    Mutant(
        "epsilon by the number of answers",
        "pate/classifier.py",
        "self.guarantee_ = plan.guarantee(",
        "self.guarantee_ = replace(plan, max_answers=max(1, self.n_answers_)).guarantee(",
        (CLASSIFIER + "epsilon_is_that_of_the_plan_however_many_queries_were_answered",),
    ),
    Mutant(
        "a published diagnostic that costs nothing",
        "pate/vote/gnss.py",
        "        PaidSteps(self.event, 1 if held is None else held.left(self.event), held=held).take()\n",
        "",
        (GNSS + "a_release_is_charged_to_the_account",),
    ),
    Mutant(
        "a smooth sensitivity without its conditions",
        "pate/vote/smooth.py",
        "    bound.require_conditions(teachers)\n",
        "",
        ("tests/pate/vote/test_smooth.py::test_a_bound_whose_conditions_fail_is_refused",),
    ),
    Mutant(
        "a smooth sensitivity of a bound that jumps",
        "pate/vote/smooth.py",
        "    if bound.jumps:\n",
        "    if False:\n",
        ("tests/pate/vote/test_smooth.py::test_a_bound_that_jumps_to_the_worst_case_is_refused",),
    ),
    Mutant(
        "a smooth sensitivity that stops short of the last teacher",
        "pate/vote/smooth.py",
        "    return np.append(local, bound.local_sensitivity(bound.low))\n",
        "    return local\n",
        ("tests/pate/vote/test_smooth.py::test_for_all_counts_it_is_smooth_and_no_vote_moves_more_or_it_is_refused",),
    ),
    Mutant(
        "one person at two teachers, as 1 and 1.0",
        "pate/teachers.py",
        "    if names.shape != (records,) or not _are_names(names):\n",
        "    if names.shape != (records,):\n",
        (TEACHERS + "names_of_which_two_may_be_one_person_are_refused",),
    ),
    Mutant(
        "private records as public examples",
        "config/pate.py",
        "os.path.normpath(source) == os.path.normpath(private)",
        "source == key",
        ("tests/config/test_pate.py::test_private_records_are_refused_as_public_examples",),
    ),
)

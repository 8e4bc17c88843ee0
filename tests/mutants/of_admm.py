"""Mutants of the ADMMs: a dual or a primal that leaves exact, or that is made of what never left."""

from __future__ import annotations

from mutants.mutant import Mutant

ADMM = "tests/federated/algorithms/test_admm.py::test_"
OFFERED = "tests/federated/algorithms/test_offered.py::test_"
PRIVACY = "tests/federated/algorithms/test_admm_privacy.py::test_"
RUNNER = "federated/runners/in_process.py"
SHARED = "federated/algorithms/admm.py"

ADMMS = (
    Mutant(
        "a dual from the un-noised primal",
        RUNNER,
        "            left = self._add_noise(left, task)\n"
        "        if isinstance(left, Update) and self._states is not None:\n",
        "            if self._states is not None:\n"
        "                self._keep(left, task, self._states)\n"
        "            left = self._add_noise(left, task)\n"
        "        elif isinstance(left, Update) and self._states is not None:\n",
        (PRIVACY + "what_a_client_keeps_is_made_of_what_left_it[local-iceadmm]",),
    ),
    Mutant(
        "an exact primal and dual in what leaves every other round",
        RUNNER,
        "            left = self._add_noise(left, task)\n",
        "            left = self._add_noise(left, task) if task.round % 2 else left\n",
        (PRIVACY + "least_squares_on_all_iceadmm_traffic_finds_no_primal_better_than_its_own_release[local]",),
    ),
    Mutant(
        "a stale contribution of an absent client",
        SHARED,
        "    if plan.cohort.chance(len(plan.local)) < 1:\n",
        "    if False:\n",
        (OFFERED + "each_is_offered_or_refused_as_the_table_says[iadmm-poisson-user-b]",),
    ),
    Mutant(
        "a mean dual that counts who is not there",
        SHARED,
        "dual = state[DUAL] - self._rho(number) * self.share * mean",
        "dual = state[DUAL] - self._rho(number) * mean",
        (ADMM + "without_noise_the_server_keeps_the_mean_of_the_clients_duals[iadmm]",),
    ),
)

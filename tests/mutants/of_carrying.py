"""Mutants of what carries a run over Flower: somebody gets in, or a run that was killed looks like one that ended."""

from __future__ import annotations

from mutants.mutant import Mutant

GRID = "tests/integrations/test_flower.py::test_"
FILES = "tests/integrations/test_flower_files.py::test_"
NODE = "tests/integrations/test_flower_node.py::test_"
PROCESSES = "tests/integrations/test_flower_processes.py::test_"
REMOTE = "tests/cli/test_remote.py::test_"
STATUS = "tests/runs/test_server_status.py::test_"

CARRYING = (
    Mutant(
        "a server that was killed counts as one that works",
        "runs/server_status.py",
        "return self.state != WORKING or not _is_alive(self.pid)",
        "return self.state != WORKING",
        (STATUS + "a_server_that_works_is_over_when_its_process_is",),
    ),
    Mutant(
        "a run that did not end looks like success",
        "cli/remote.py",
        "    if status.state == ENDED:\n        return\n",
        "    if status.state != BROKEN:\n        return\n",
        (REMOTE + "any_other_end_says_how_to_go_on",),
    ),
    Mutant(
        "a run on a network is resumed on one machine",
        "cli/run.py",
        "    return any((directory / name).exists() for name in (HUB, ASKS))\n",
        "    return (directory / HUB).exists()\n",
        (REMOTE + "a_run_on_a_network_is_never_resumed_on_one_machine",),
    ),
    Mutant(
        "a reply is handed on twice",
        "integrations/flower.py",
        "            if each.token not in self._done:\n",
        "            if True:\n",
        (GRID + "a_reply_comes_back_once",),
    ),
    Mutant(
        "a server that waits for a superlink that is gone until its round is over",
        "integrations/flower.py",
        "        if self._fetching and time.monotonic() - self._heard > HUB_SILENCE:\n",
        "        if False:\n",
        (GRID + "a_superlink_that_is_gone_is_noticed_long_before_a_message_of_a_long_round_expires",),
    ),
    Mutant(
        "a server that cannot be ended while it waits",
        "integrations/flower.py",
        "answers.get(timeout=min(LOOK, seconds))",
        "answers.get(timeout=seconds)",
        (GRID + "flower_may_end_the_server_while_it_waits_for_the_superlink",),
    ),
    Mutant(
        "one site holds up the others",
        "integrations/flower.py",
        "            thread.join(PATIENCE)\n",
        "            thread.join(60)\n",
        (GRID + "a_site_that_never_sends_what_it_announced_holds_up_nobody",),
    ),
    Mutant(
        "a site that is offline is asked",
        "integrations/flower.py",
        "for node in _ask_hub(self._grid.get_nodes, HUB_SILENCE) if node.status == ONLINE]",
        "for node in _ask_hub(self._grid.get_nodes, HUB_SILENCE)]",
        (GRID + "sites_are_those_online_by_the_key_that_was_registered",),
    ),
    Mutant(
        "a superlink that knows no nodes",
        "integrations/flower_processes.py",
        '*kept, "--enable-supernode-auth", ',
        "*kept, ",
        (PROCESSES + "a_superlink_has_a_database_certificates_and_known_nodes_and_installs_nothing",),
    ),
    Mutant(
        "telemetry of Flower stays on",
        "integrations/flower_processes.py",
        '"FLWR_TELEMETRY_ENABLED": "0"',
        '"FLWR_TELEMETRY_ENABLED": "1"',
        (PROCESSES + "telemetry_and_the_search_for_updates_are_off",),
    ),
    Mutant(
        "a private key that others may read",
        "integrations/flower_files.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)",
        (FILES + "a_nodes_two_keys_belong_together_and_the_private_one_is_the_owners",),
    ),
    Mutant(
        "a policy that allows more than the run",
        "integrations/deployment.py",
        '"most_rounds": plan.rounds,',
        '"most_rounds": 2 * plan.rounds,',
        ("tests/integrations/test_deployment.py::test_the_policy_allows_this_run_and_no_other",),
    ),
    Mutant(
        "a message of any size is read",
        "integrations/flower_node.py",
        'int(response.headers.get("content-length", 0)) > most',
        'int(response.headers.get("content-length", 0)) < 0',
        (NODE + "a_response_that_says_it_is_too_large_is_not_read",),
    ),
    Mutant(
        "the server is told why a request failed",
        "integrations/flower_node.py",
        "            return Message(FAILED, reply_to=message)\n",
        "            return Message(Error(2, str(error)), reply_to=message)\n",
        (NODE + "a_request_that_fails_is_answered_with_an_error_that_says_nothing",),
    ),
)

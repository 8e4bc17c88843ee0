"""A plan in words: what is protected, from whom and who must be trusted, for a person who signs it.

>>> from dpfed.plan.plan import LocalPlan, Plan
>>> print(Plan("study", rounds=2, local={"a": LocalPlan(size=9, batch_size=3, steps=1)}, style="none").explain())
study: 2 rounds, all clients in each, averaged by declared size
<BLANKLINE>
- a: 1 step a round on about 3 of 9 declared records, gradients not clipped
<BLANKLINE>
- Nobody is protected: nothing is noised, and nothing is charged.
- A client that fails, takes longer than 3600 s or sends an update of a root mean square above 1000 contributes zero \
in that round, and the run goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from dpfed.aggregation.robust_rules import RobustRule
from dpfed.aggregation.rules import Mean
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.guarantee import CLIENT, RECORD, UNITS, Guarantee
from dpfed.plan.client import ClientPlan
from dpfed.plan.local import LocalPlan
from dpfed.plan.population import Population
from dpfed.plan.robust import describe_rule
from dpfed.plan.rules import ROWS
from dpfed.plan.shuffling import find_shuffled
from dpfed.plan.tree import RoundTree
from dpfed.rounding import decimal_up

if TYPE_CHECKING:
    from dpfed.plan.plan import Plan

MOST_NAMES = 20  # more clients are listed by the plan they share
MOST_RUNS = 12  # of rounds with one factor of noise
MOST_CURVES = 30  # of unequal sites, each asked of the accountant
DELTAS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08)
FALSE_ALARMS = 0.01


def explain_plan(plan: Plan) -> str:
    """Return the plan as Markdown, every number of it public."""
    parts = (_sites, _server, _schedule, describe_rule, measured)
    lines = [f"{plan.name}: {headline(plan)}", "", *(line for part in parts for line in part(plan))]
    lines += ["", *rounds_and_total(plan)] if plan.guarantees else []
    lines += ["", simulation(plan)] if simulation(plan) else []
    for guarantee in plan.guarantees:
        lines += ["", sentence(plan, guarantee)]
    return "\n".join([*lines, "", *(f"- {line}" for line in (*protection(plan), limits(plan)))])


def sentence(plan: Plan, promised: Guarantee) -> str:
    """Return the plan's guarantee in words for a person who does not know ε, from its statements at several δ.

    All of them hold at once. At each δ it is the worst site that is counted; sites with one ε at the δ of the promise
    differ at others.
    """
    if len(plan.kinds) > MOST_CURVES:
        return promised.sentence()
    cost = plan.client_epsilon if promised.unit == "client" else plan.record_epsilon
    caught = 1.0
    for delta in DELTAS:
        if delta + FALSE_ALARMS < caught:  # what no ε is below, so that a larger δ need not be asked
            caught = min(caught, replace(promised, epsilon=cost(delta), delta=delta).detection_rate(FALSE_ALARMS))
    return promised.sentence(caught)


def rounds_and_total(plan: Plan) -> list[str]:
    """Return ε of one round beside that of all rounds together, a sentence for each promise.

    The total is the accountant's for everything that may be charged: ε of a round times their number is more.
    """
    return [line for promise in plan.guarantees if (line := _round_and_total(plan, promise))]


def _round_and_total(plan: Plan, promise: Guarantee) -> str:
    if plan.client is not None and plan.client.tree is not None and promise.unit == CLIENT:
        return ""  # its rounds are one event
    one, delta = plan.round_cost(promise)
    total = plan.client_epsilon(promise.delta) if promise.unit == CLIENT else plan.record_epsilon(promise.delta)
    times = plan.client_charges if promise.unit == CLIENT else plan.record_charges
    what = "One round" if plan.noise_schedule is None else "The round of least noise"
    alone = f"{what} costs one {promise.unit} ε ≤ {decimal_up(one)} at δ = {delta:g}"
    return f"{alone}, all {times} that are charged together ε ≤ {decimal_up(total)} at δ = {promise.delta:g}."


def headline(plan: Plan) -> str:
    """Return rounds, cohort and weighting in one line."""
    how = "averaged by declared size" if plan.weighting == "declared" else "averaged equally"
    how = how if isinstance(plan.aggregation, Mean) else f"combined by {plan.aggregation.kind}"
    return f"{_number(plan.rounds, 'round')}, {plan.cohort}, {how}{_range(plan)}"


def _range(plan: Plan) -> str:
    """Return how far the noise of rounds is from the multipliers given; an empty text if all are alike."""
    if plan.noise_schedule is None:
        return ""
    return f", noise multiplied by {min(plan.noise_schedule):.4g} to {max(plan.noise_schedule):.4g} by round"


def simulation(plan: Plan) -> str:
    """Return a sentence about clients that were made of one set; an empty text for others.

    A table of one owner whose true count is public is none: with one record in place of another, one more at most
    changes sides of the hold-out, and there is no other client to move to.
    """
    is_one_owner = len(plan.local) == 1 and (plan.local_unit, plan.record_adjacency) == (RECORD, REPLACE_ONE)
    if plan.dealing != ROWS or is_one_owner:
        return ""
    return (
        "SIMULATION: clients made from one set of records, dealt all at once. The promise is for the deal as fixed: a "
        "record more or less in that set would move others between clients and hold-out."
    )


def measured(plan: Plan) -> list[str]:
    """Return what is released beside the model, for what part of the promise; nothing without that."""
    measurement, said = plan.measurement, _list_ranges(plan)
    if measurement is None:
        return said
    names = ", ".join(measurement.metrics).replace("_", " ")
    when = "round" if len(measurement.rounds) == 1 else "rounds"
    numbers = ", ".join(map(str, measurement.rounds))
    who = "the server noises the sum of all clients'" if plan.server_noises else "each client noises its own"
    kept = f"ε = {measurement.epsilon:g} of the promise, for all of it together"
    return [*said, f"- released after {when} {numbers}: {names} of the records held out, from counts; {who} ({kept})"]


def _list_ranges(plan: Plan) -> list[str]:
    if plan.ranges is None:
        return []
    names, kept = (
        ", ".join(plan.ranges.columns),
        f"ε = {plan.ranges.epsilon:g} of the promise, for all of them together",
    )
    return [
        f"- released before round 1: ranges of {names}, from counts of all records; each client noises its own ({kept})"
    ]


def limits(plan: Plan) -> str:
    """Return the limits that a client must keep to, as one sentence."""
    late, mean = f"takes longer than {plan.client_timeout:g} s", plan.largest_mean
    long = f"longer than {plan.largest_norm(0):g}" if mean is None else f"of a root mean square above {mean:g}"
    if plan.noises_updates:
        return (
            f"A client that fails or {late} sends noise around zero. An update {long} and its noise is refused, and "
            "contributes zero in that round. The run goes on."
        )
    is_left_out = isinstance(plan.aggregation, RobustRule) and not plan.server_noises
    what = "is left out of that round" if is_left_out else "contributes zero in that round"
    return f"A client that fails, {late} or sends an update {long} {what}, and the run goes on."


def protection(plan: Plan) -> list[str]:
    """Return who is protected, from whom, and who must be trusted: a sentence each."""
    if not plan.units:
        return ["Nobody is protected: nothing is noised, and nothing is charged."]
    lines = []
    if plan.noises_steps:
        lines += _record_lines(plan)
    if plan.server_noises:
        lines += _client_lines(plan)
    if plan.noises_updates:
        lines += _update_lines(plan)
    return [*lines, "Not protected: the list of clients, their declared sizes and every other number of the plan."]


def _sites(plan: Plan) -> list[str]:
    if isinstance(plan.local, Population):
        return [f"- {plan.local}: {_site(plan, plan.local.names[0])}"]
    if len(plan.local) <= MOST_NAMES:
        return [f"- {name}: {_site(plan, name)}" for name in plan.local]
    kinds: dict[LocalPlan, list[str]] = {}
    for name, part in plan.local.items():
        kinds.setdefault(part, []).append(name)
    return [f"- {_names(names)}: {_site(plan, names[0])}" for names in kinds.values()]


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} clients from {names[0]} to {names[-1]}"


def _site(plan: Plan, name: str) -> str:
    local = plan.local[name]
    words = [
        f"{_number(local.steps, 'step')} a round on about {local.batch_size} of {local.size} declared {local.unit}s"
    ]
    words.append(_clip(local))
    if local.noise_multiplier is not None:
        words.append(f"noise multiplier {decimal_up(local.noise_multiplier)}")
    if plan.record_charges != plan.rounds:
        words.append(f"charged at most {_number(plan.record_charges, 'time')}")
    if plan.guarantee:
        epsilon = plan.epsilon(name, plan.guarantee.delta)
        words.append(f"ε ≤ {decimal_up(epsilon)} at δ = {plan.guarantee.delta:g}")
    return ", ".join(words)


def _clip(local: LocalPlan) -> str:
    if local.clip_norm == math.inf:
        return "gradients not clipped"
    words = f"clip norm {local.clip_norm:g}"
    if local.norm == "l1":
        words += " in L1 with Laplace noise"
    if local.layers == "each":
        words += ", shared out to every layer"
    if local.tree:
        passes = local.tree.max_participations
        words += f", noise from a tree of partial sums for {'one pass' if passes == 1 else f'at most {passes} passes'}"
    return words + (f", following the {local.adaptive.quantile:g} quantile" if local.adaptive else "")


def _server(plan: Plan) -> list[str]:
    if plan.client is None:
        return []
    words = [f"every update clipped to {'L1 ' * (plan.client.norm == 'l1')}norm {plan.client.clip_norm:g}"]
    if plan.client.adaptive:
        words.append(f"following the {plan.client.adaptive.quantile:g} quantile")
    if plan.client.noise_multiplier is not None:
        words.append(f"noise multiplier {decimal_up(plan.client.noise_multiplier)} on {_where(plan, plan.client)}")
        words.append(_charges(plan))
    if plan.client_guarantee:
        epsilon = plan.client_epsilon(plan.client_guarantee.delta)
        words.append(f"ε ≤ {decimal_up(epsilon)} at δ = {plan.client_guarantee.delta:g}")
    return [f"- {'each client' if plan.noises_updates else 'the server'}: {', '.join(words)}"]


def _where(plan: Plan, client: ClientPlan) -> str:
    if plan.noises_updates:
        return f"it ({'Laplace' if client.norm == 'l1' else 'Gaussian'})"
    return "their sum" if client.tree is None else _tree(plan, client.tree)


def _schedule(plan: Plan) -> list[str]:
    """Return by how much each round's noise differs, and which rounds are reserved."""
    if plan.noise_schedule is None:
        return []
    runs = _list_runs(plan.noise_schedule)
    shown = runs if len(runs) <= MOST_RUNS else [*runs[: MOST_RUNS - 2], "…", runs[-1]]
    lines = [f"- noise by round: the multipliers above times {', '.join(shown)}"]
    if plan.charges_clients and plan.record_charges != plan.rounds:
        many = f"- reserved for each client: the {_number(plan.participations, 'round')} of least noise"
        spare = f", and the least noise {_number(plan.spare_rounds, 'time')} more" if plan.spare_rounds else ""
        lines.append(f"{many}{spare}, since who takes part when is not known beforehand")
    return lines


def _list_runs(schedule: Iterable[float]) -> list[str]:
    """Return the factors with the rounds that have them, neighbours of one factor together."""
    runs = []
    for factor, group in groupby(enumerate(schedule, 1), key=itemgetter(1)):
        numbers = [number for number, _ in group]
        where = f"round {numbers[0]}" if len(numbers) == 1 else f"rounds {numbers[0]} to {numbers[-1]}"
        runs.append(f"{factor:.4g} in {where}")
    return runs


def _tree(plan: Plan, tree: RoundTree) -> str:
    asked = f"each client asked at most {_number(plan.participations, 'time')}"
    apart = f", {_number(tree.min_separation, 'round')} apart" if plan.participations > 1 else ""
    return f"every node of a tree of partial sums over the rounds ({asked}{apart})"


def _charges(plan: Plan) -> str:
    if plan.client is not None and plan.client.tree is not None:
        spare = f", and anew after a crash, {_number(plan.spare_rounds, 'time')} at most" if plan.spare_rounds else ""
        return f"charged as one before the first round{spare}"
    return f"charged {_number(plan.client_charges, 'time')}{_sampling(plan)}"


def _sampling(plan: Plan) -> str:
    if plan.noises_updates:
        return " in full to its account"
    if plan.is_secret:
        return " as a secret random cohort"
    return "" if plan.cohort.chance(len(plan.local)) == 1 else " in full, since who takes part is not secret"


def _record_lines(plan: Plan) -> list[str]:
    sites, what = plan.max_sites_per_person, UNITS[plan.local_unit]
    where = f"{what}, in any site" if sites == 1 else f"{what} in each of {sites} sites, any of them, together"
    did = (
        "took part" if plan.record_adjacency == ADD_REMOVE else "was this or another one (how many there are is public)"
    )
    lines = [
        f"Protected: whether {where}, {did}; from whoever sees the updates, the models and all that is computed "
        "from them, the server and the other clients included.",
        "Trusted for it: each client with its own records. It draws batches, clips and adds noise, and pays first.",
    ]
    if sites == 1 and len(plan.local) > 1:
        nobody = "nobody's record is" if plan.local_unit == RECORD else "nobody is"
        lines.append(f"Assumed: {nobody} in two sites; otherwise say max_sites_per_person.")
    if plan.guarantee and len(plan.kinds) > 1:
        lines.append(f"Binding: {plan.binding()}, whose records ask for the most noise.")
    return lines


def _update_lines(plan: Plan) -> list[str]:
    what, sites = plan.local_unit, plan.max_sites_per_person
    lines = [
        "Protected: whether one client's records, all at once, were these or others; from whoever sees the updates, "
        "the models and all that is computed from them, the server and the other clients included. That a client takes "
        "part is no secret.",
        "Trusted for it: each client with its own records. It clips its update and adds noise, and pays first.",
        f"Implied: the same for one {what} of a client that is replaced by another.",
        *_shuffled_lines(plan),
    ]
    if plan.client_guarantee is not None and sites > 1:
        delta = plan.client_guarantee.delta
        total = f"ε ≤ {decimal_up(plan.record_epsilon(delta))} at δ = {delta:g}"
        return [*lines, f"One person with records at {sites} sites: {total}, for all of these together."]
    return [*lines, "Assumed of a person: records at one site; otherwise say max_sites_per_person."]


def shuffled(plan: Plan) -> str:
    """Return what holds after shuffling, as a sentence; an empty text without a shuffler or a promised δ."""
    if plan.client is None or plan.client.shuffle_users is None or plan.client_guarantee is None:
        return ""
    delta = plan.client_guarantee.delta
    found, alone = find_shuffled(plan, delta), plan.client_epsilon(delta)
    if found is None or found.epsilon >= alone:
        return f"Shuffled: among {plan.client.shuffle_users} reports nothing is gained that each client's own ε lacks."
    return (
        f"Shuffled: for one client ε ≤ {decimal_up(found.epsilon)} at δ = {delta:g}, replace-one, beside the "
        f"{decimal_up(alone)} that each keeps alone; from whoever sees the shuffled reports and the models, the server "
        "included, but not from the shuffler."
    )


def _shuffled_lines(plan: Plan) -> list[str]:
    if not (text := shuffled(plan)) or plan.client is None:
        return []
    return [
        text,
        f"Trusted for that: the shuffler, to tell nobody who sent what; and at least {plan.client.shuffle_users} "
        "clients of each round, to report honestly and not to work with the server. With fewer reports it hands on "
        "nothing. Without that trust the statement of each client alone holds.",
    ]


def _client_lines(plan: Plan) -> list[str]:
    did = "were used" if plan.client_adjacency == ADD_REMOVE else "were these or others"
    lines = [
        f"Protected: whether one client's records, all at once, {did}; from whoever sees the models and all that is "
        "computed from them, the other clients included, but not from the server.",
        "Trusted for it: the server, which sees every update. It clips and adds noise, and the study pays first.",
    ]
    if plan.is_secret:
        lines.append(
            "Trusted further: the server keeps the cohort secret. No list, count or client's spend may leave it, and "
            "clients tell nobody when they took part."
        )
        if plan.charges_clients:
            lines.append("The entries of the clients' accounts tell who took part: that ledger stays with the server.")
    return lines


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

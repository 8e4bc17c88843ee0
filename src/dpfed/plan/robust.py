"""Which robust rule goes with which style: what is proved, refused with the nearest choice that is.

A robust rule does not have the mean's sensitivity. Where the server adds noise to the aggregate (`user`, `hybrid`) only
sums of clipped terms are offered: the mean, and one step of centred clipping around the last release; and any rule
behind fixed groups of clients, each of which is such a sum that the server noises first. Where each client noises what
it sends (`sample`, `local`), or nobody does (`none`), any rule is post-processing.

>>> from dpfed.aggregation.rules import Krum
>>> from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
>>> sites = dict.fromkeys("abcdefg", LocalPlan(size=9, batch_size=3, steps=1))
>>> Plan("study", 2, sites, style="user", client=ClientPlan(clip_norm=1.0), aggregation=Krum(max_faulty=2))
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: in style 'user' noise is added to the aggregate, and one client moves krum by up to two \
clip norms, 7 times as far as the mean whose noise it would get: choose centered_clipping with max_faulty 2, or style \
'sample' or 'local', where krum is post-processing; or noise groups first, with before: groups
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpfed.aggregation.quarantine import Quarantine
from dpfed.aggregation.robust_rules import CenteredClipping, FixedGroups, RobustRule
from dpfed.aggregation.rules import Mean, Rule, find_groups, is_noisable
from dpfed.errors import InvalidArgument
from dpfed.plan.cohort import FixedCohort
from dpfed.plan.population import Population

if TYPE_CHECKING:
    from dpfed.plan.plan import Plan


def require_robust(plan: Plan) -> None:
    """Refuse a robust rule or a quarantine that is not proved, or cannot work, in this plan."""
    rule = plan.aggregation
    if isinstance(rule, RobustRule):
        if plan.server_noises:
            _require_noisable(plan, rule)
        else:
            _require_post_processing(plan, rule)
        rule.require(count_most(plan))
    if plan.quarantine is not None:
        _require_quarantine(plan, plan.quarantine)


def count_most(plan: Plan) -> int:
    """Return how many clients can take part in a round, at most."""
    return plan.cohort.size if isinstance(plan.cohort, FixedCohort) else len(plan.local)


def count_aside(plan: Plan) -> int:
    """Return how many clients may be in quarantine: no more than may be faulty, and as many as the rule can miss."""
    rule = plan.aggregation
    return min(rule.max_faulty, count_most(plan) - rule.least) if isinstance(rule, RobustRule) else 0


def describe_rule(plan: Plan) -> list[str]:
    """Return what `dpfed plan` prints of the rule and of quarantine: lines of a list, none for a plain mean."""
    rule = plan.aggregation
    if isinstance(rule, Mean):
        return []
    how = _describe_noise(plan, rule)
    few = "" if plan.server_noises else f"; a round with fewer than {rule.least} updates is not used"
    lines = [f"- the aggregate: {rule}; {how}{few}"]
    if isinstance(plan.quarantine, Quarantine):
        after = f"{plan.quarantine.strikes} strikes, back after {plan.quarantine.clean_rounds} clean rounds"
        lines.append(f"- quarantine: after {after}; at most {count_aside(plan)} clients at a time")
    return lines


def _describe_noise(plan: Plan, rule: RobustRule) -> str:
    if groups := find_groups(rule):
        sizes = sorted({*groups.sizes(len(plan.local))})
        clients = " or ".join(map(str, sizes)) + (" client" if sizes == [1] else " clients")
        return f"of {groups.groups} fixed groups of {clients}, each with the noise above on its sum"
    if plan.server_noises:
        return "a clipped sum around the last release, so that the noise above is proved for it"
    if plan.noises_steps or plan.noises_updates:
        return "computed from what clients have noised, so that it costs nothing"
    return "nobody is protected" if rule.before is None else "mixed first, since clients' data differ"


def _require_noisable(plan: Plan, rule: RobustRule) -> None:
    if groups := find_groups(rule):
        _require_groups(plan, rule, groups)
    if plan.client is not None and plan.client.tree is not None:
        message = f"{rule.kind} is not offered with noise from a tree over the rounds"
        raise InvalidArgument("aggregation", f"{message}: leave tree out, or choose mean")
    if is_noisable(rule):
        return
    raise InvalidArgument("aggregation", _refuse_centred(plan, rule) or _refuse_other(plan, rule))


def _require_groups(plan: Plan, rule: RobustRule, groups: FixedGroups) -> None:
    """Refuse groups whose sums would not be alike, that have nobody in them, or that say nothing of their clients."""
    if isinstance(plan.local, Population):
        message = "groups are of named clients, and those of a population are made when they are drawn"
        raise InvalidArgument("aggregation", f"{message}: choose centered_clipping, or give local as a dict of clients")
    if plan.weighting != "equal":
        message = "groups count every client once: weights by size would let one faulty client be many"
        raise InvalidArgument("weighting", f"{message}; say weighting: equal")
    if groups.groups > len(plan.local):
        message = f"groups must be at most the {len(plan.local)} clients, got {groups.groups}"
        raise InvalidArgument("groups", f"{message}: an empty group is noise alone; give fewer")
    if isinstance(rule, CenteredClipping):
        message = "centered_clipping is noised as one sum, which needs no groups and has less noise"
        raise InvalidArgument("before", f"{message}: leave before out, or choose trimmed_mean")


def _refuse_centred(plan: Plan, rule: RobustRule) -> str:
    if not isinstance(rule, CenteredClipping):
        return ""
    where = f"in style {plan.style!r} centered_clipping"
    remedy = f"give it max_faulty {rule.max_faulty} alone"
    if rule.clip_norm is not None:
        return f"{where} clips to the norm that the noise is for, client.clip_norm, got one of its own: {remedy}"
    if rule.steps > 1:
        return f"{where} is proved for one step: a second is around a point that was not released; {remedy}"
    return f"{where} is proved without mixing, which lets one client move several terms of the sum: {remedy}"


def _refuse_other(plan: Plan, rule: RobustRule) -> str:
    nearest = f"centered_clipping with max_faulty {rule.max_faulty}"
    if rule.kind == "norm_bounded_mean" and rule.before is None:
        return (
            f"in style {plan.style!r} the mean is a clipped one already, by client.clip_norm: choose mean or {nearest}"
        )
    message = f"in style {plan.style!r} noise is added to the aggregate, and one client moves {rule.kind} by up to two"
    times = f"clip norms, {count_most(plan)} times as far as the mean whose noise it would get"
    remedy = f"choose {nearest}, or style 'sample' or 'local', where {rule.kind} is post-processing"
    return f"{message} {times}: {remedy}; or noise groups first, with before: groups"


def _require_post_processing(plan: Plan, rule: RobustRule) -> None:
    if plan.weighting != "equal":
        message = f"{rule.kind} counts every client once: weights by size would let one faulty client be many"
        raise InvalidArgument("weighting", f"{message}; say weighting: equal")
    if find_groups(rule) is not None:
        message = f"in style {plan.style!r} the server adds no noise that groups could share"
        raise InvalidArgument("before", f"{message}: choose bucketing, or style 'user' or 'hybrid'")
    if isinstance(rule, CenteredClipping) and rule.clip_norm is None:
        message = f"in style {plan.style!r} no clip norm of the plan bounds whole updates at the server"
        raise InvalidArgument("aggregation", f"{message}: give centered_clipping a clip_norm of its own")


def _require_quarantine(plan: Plan, quarantine: Any) -> None:
    if type(quarantine) is not Quarantine:
        message = f"quarantine must be a Quarantine() or None, got {quarantine!r:.60}"
        raise InvalidArgument("quarantine", f"{message}: give Quarantine() for its defaults")
    if plan.server_noises:
        message = f"in style {plan.style!r} whether a client counts must not depend on the updates of others"
        why = "one client could then move the sum by several clip norms, and who is aside would tell of private data"
        remedy = "leave quarantine out, or choose style 'sample' or 'local'"
        raise InvalidArgument("quarantine", f"{message}: {why}; {remedy}")
    if plan.client is not None and plan.client.shuffle_users is not None:
        message = "behind a shuffler nobody knows whose report is whose, so that none can be put aside"
        raise InvalidArgument("quarantine", f"{message}: leave quarantine out, or shuffle_users")
    _require_room(plan, plan.aggregation)


def _require_room(plan: Plan, rule: Rule) -> None:
    if not isinstance(rule, RobustRule):
        message = "quarantine compares updates with a robust aggregate, and a mean may be what a faulty client wants"
        raise InvalidArgument("quarantine", f"{message}: name a robust rule with max_faulty, or leave quarantine out")
    if count_aside(plan) < 1:
        message = f"{rule.kind} needs {rule.least} of the {count_most(plan)} updates, so that nobody can be put aside"
        raise InvalidArgument("quarantine", f"{message}: choose trimmed_mean behind nnm, or leave quarantine out")

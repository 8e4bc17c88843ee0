"""What a plan must not be: every unsound combination, refused in one sentence before anything is spent.

>>> from dpfed.plan.plan import LocalPlan, Plan
>>> Plan("study", rounds=10, local={"a": LocalPlan(size=9, batch_size=3, steps=1)}, style="user")
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: style 'user' needs client=ClientPlan(clip_norm=...): without a clip nothing bounds an \
update, and no noise is enough
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any

from dpfed import checks
from dpfed.aggregation.mean import MOST_CLIENTS
from dpfed.aggregation.rules import RULES
from dpfed.checks import REPLACE_ONE
from dpfed.errors import AdjacencyMismatch, InvalidArgument
from dpfed.guarantee import UNITS_OF_STYLE, Guarantee
from dpfed.plan.by_round import require_schedule
from dpfed.plan.client import ClientPlan
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.limits import MOST_NORM
from dpfed.plan.local import LocalPlan
from dpfed.plan.measuring import require_measurable
from dpfed.plan.population import Population
from dpfed.plan.ranges import require_releasable
from dpfed.plan.robust import require_robust
from dpfed.plan.shuffling import require_shuffleable
from dpfed.plan.tree import RoundTree
from dpfed.rounding import decimal_up

if TYPE_CHECKING:
    from dpfed.plan.plan import Plan

WEIGHTINGS = ("equal", "declared")
NOISES = ("own", "shared")
CLIENT_TIMEOUT = 3600.0  # seconds, where none are declared
SITES, HASHED, ROWS = "sites", "hashed", "rows"
# Real sites; each record of one set by its own hash; all records of one set at once, which is a simulation.
DEALINGS = (SITES, HASHED, ROWS)


def require_sound(plan: Plan) -> None:
    """Refuse a plan that is malformed or whose parts do not go together."""
    _require_well_formed(plan)
    _require_cohort(plan)
    _require_records(plan)
    _require_server(plan)
    require_schedule(plan)
    require_robust(plan)
    require_measurable(plan)
    require_releasable(plan)


def forbids_a_cap(plan: Plan) -> bool:
    """Return whether a client must be asked as often as it is drawn.

    Draws without replacement depend on each other: who has no turns left tells who was drawn before, and so the
    rounds are no longer independent given what they released, on which their composition rests. Poisson draws are
    independent between clients, and a client that is left out only lowers its own rate.
    """
    is_fixed = isinstance(plan.cohort, FixedCohort) and plan.is_secret
    return is_fixed and plan.server_noises


def require_stateful(plan: Plan) -> None:
    """Refuse a plan whose clients must not keep state from round to round.

    What a client keeps depends on the rounds that it was drawn for. With independent draws that tells of no other
    client. Draws without replacement depend on each other, for the reason in `forbids_a_cap`.
    """
    if plan.client is not None and plan.client.shuffle_users is not None:
        message = (
            "a client that keeps state is told by name whether its report was used, which a shuffler must not know"
        )
        raise InvalidArgument(
            "shuffle_users",
            f"{message}; leave it out, and the statement of each client alone holds, or choose another algorithm",
        )
    if forbids_a_cap(plan):
        message = "clients must keep no state with a secret cohort of fixed size: what one keeps tells of others' draws"
        raise InvalidArgument("cohort", f"{message}; draw a PoissonCohort, or choose an algorithm without state")


def require_kept(plan: Plan, guarantee: Guarantee) -> None:
    """Refuse a guarantee that the plan's noise does not keep."""
    if guarantee.unit == "client":
        who, epsilon = "a client", plan.client_epsilon(guarantee.delta)
    else:
        epsilon = plan.record_epsilon(guarantee.delta)
        who = plan.worst(guarantee.delta) if plan.max_sites_per_person == 1 else "a person in several sites"
    if not epsilon <= guarantee.epsilon:
        message = f"all rounds cost {who} ε = {decimal_up(epsilon)}, more than {guarantee}: use calibrated()"
        raise InvalidArgument("guarantee", message)


def require_accounts(plan: Plan, accounts: Mapping[str, str], study: str | None) -> None:
    """Refuse clients that are not the plan's, and accounts that would mix what must be kept apart."""
    paying = list(accounts.values()) if plan.charges_clients else []
    if isinstance(plan.local, Population):
        _require_no_accounts(accounts)
    elif set(accounts) != set(plan.local) or len(set(paying)) != len(paying):
        given = ", ".join(f"{name} on {account}" for name, account in sorted(accounts.items())) or "nobody"
        message = f"the plan is for {', '.join(sorted(plan.local))}, each with an account of its own; got {given}"
        raise InvalidArgument("clients", message)
    if plan.server_noises != (study is not None):
        need, remedy = ("needs", "give study=") if study is None else ("has no use for", "leave study out")
        raise InvalidArgument("study", f"style {plan.style!r} {need} a study account of unit client: {remedy}")
    if study is not None and study in paying:
        raise InvalidArgument("study", f"study must be an account of its own, of unit client, got {study!r} again")


def by_unit(plan: Plan, guarantees: Iterable[Guarantee], noise: str) -> dict[str, Guarantee]:
    """Return the guarantees by unit; refuse two for one unit, and units that the style does not protect."""
    if noise not in NOISES:
        raise InvalidArgument("noise", f"noise must be 'own' or 'shared', got {noise!r}")
    asked: dict[str, Guarantee] = {}
    for guarantee in guarantees:
        _require_unit(plan, guarantee)
        if guarantee.unit in asked:
            raise InvalidArgument(
                "guarantees", f"guarantees must be one per unit, got two per {guarantee.unit}: give one of them"
            )
        asked[guarantee.unit] = guarantee
    if not asked:
        raise InvalidArgument("guarantees", "guarantees must hold at least one promise to calibrate the noise for")
    return asked


def _require_unit(plan: Plan, guarantee: Guarantee) -> None:
    if guarantee.unit not in plan.units:
        if plan.style == "sample":
            plan.one_local.require_unit(guarantee)
        whom = " and ".join(f"one {unit}" for unit in plan.units) or "nobody"
        message = f"style {plan.style!r} protects {whom}, not what was asked: {guarantee}"
        raise InvalidArgument("guarantee", f"{message}; ask for that, or choose another style")
    _require_replacement(plan, guarantee)
    is_fixed = isinstance(plan.cohort, FixedCohort) and plan.is_secret
    if guarantee.unit == "client" and is_fixed and guarantee.adjacency != REPLACE_ONE:
        message = (
            "a secret cohort of fixed size is proved under replace_one only: ask with adjacency='replace_one', "
            "or draw a PoissonCohort"
        )
        raise InvalidArgument("guarantee", message)


def _require_well_formed(plan: Plan) -> None:
    if not isinstance(plan.name, str) or not plan.name.strip():
        raise InvalidArgument("name", f"name must be a text that names the run, got {plan.name!r}")
    _require_clients(plan)
    for setting in ("rounds", "max_sites_per_person", "minimum_cohort"):
        checks.count(**{setting: getattr(plan, setting)})
    checks.positive(server_learning_rate=plan.server_learning_rate)
    checks.positive(client_timeout=plan.client_timeout)
    if plan.max_update_norm is not None and checks.positive(max_update_norm=plan.max_update_norm) > MOST_NORM:
        message = f"max_update_norm must be at most {MOST_NORM:g}, got {plan.max_update_norm:g}"
        raise InvalidArgument(
            "max_update_norm", f"{message}: longer updates do not add up to a finite model; give less"
        )
    if plan.dealing not in (None, *DEALINGS):
        raise InvalidArgument("dealing", f"dealing must be one of {', '.join(DEALINGS)} or None, got {plan.dealing!r}")
    if plan.style not in UNITS_OF_STYLE:
        raise InvalidArgument("style", f"style must be one of {', '.join(UNITS_OF_STYLE)}, got {plan.style!r}")
    rule: Any = plan.aggregation
    if type(rule) not in RULES.values():  # one that derives from them may add up as it likes
        message = f"aggregation must be a rule of dpfed.aggregation.rules, such as Mean(), got {rule!r:.60}"
        raise InvalidArgument("aggregation", f"{message}: noise is proved for no other")
    if plan.weighting not in WEIGHTINGS:
        message = f"weighting must be 'equal' or 'declared', got {plan.weighting!r}: weights from the data tell sizes"
        raise InvalidArgument("weighting", message)
    _require_population(plan)
    _require_charges(plan)


def _require_clients(plan: Plan) -> None:
    if not isinstance(plan.local, Mapping) or not plan.local:
        raise InvalidArgument("local", "local must map the name of each client to its LocalPlan, got none")
    if isinstance(plan.local, Population):
        _require_no_subclass(plan.local)
        return
    for name, part in plan.local.items():
        if not isinstance(name, str) or not isinstance(part, LocalPlan):
            raise InvalidArgument("local", f"local must map names to LocalPlans, got {name!r}: {part!r:.60}")
    if len({part.unit for part in plan.kinds}) > 1:
        message = "the plans of all clients must be for one unit, record or person, and several were found"
        raise InvalidArgument("local", f"{message}: give all the same")


def _require_no_subclass(local: Population) -> None:
    if type(local) is not Population:
        message = f"local must be a Population itself, got the subclass {type(local).__name__}"
        raise InvalidArgument("local", f"{message}, which might train by other plans than are charged: use Population")


def _require_population(plan: Plan) -> None:
    """Refuse a population in a style that charges each client's own account."""
    if isinstance(plan.local, Population) and plan.charges_clients:
        message = f"clients of a population have no accounts, and style {plan.style!r} charges the account of each"
        remedy = "choose style='user', for which the study's account pays, or give local as a dict of clients"
        raise InvalidArgument("style", f"{message}: {remedy}")


def _require_no_accounts(accounts: Mapping[str, str]) -> None:
    if accounts:
        message = f"clients of a population are made when they are drawn, so none are listed; got {len(accounts)}"
        remedy = "give the runner ClientFactory(make) in place of clients, or the plan a dict of clients"
        raise InvalidArgument("clients", f"{message}: {remedy}")


def _require_charges(plan: Plan) -> None:
    spare: Any = plan.spare_rounds
    if isinstance(spare, bool) or not isinstance(spare, Integral) or spare < 0:
        raise InvalidArgument("spare_rounds", f"spare_rounds must be a whole number of at least 0, got {spare!r}")
    if plan.max_participations is not None:
        most = checks.count(max_participations=plan.max_participations)
        if most > plan.rounds:
            message = f"max_participations must be at most the {plan.rounds} rounds, got {most}"
            raise InvalidArgument("max_participations", message)
        if most < plan.rounds and forbids_a_cap(plan):
            message = (
                f"max_participations must be all {plan.rounds} rounds with a secret cohort of fixed size, got {most}: "
                "whose turns are used up tells of earlier draws; draw a PoissonCohort instead"
            )
            raise InvalidArgument("max_participations", message)
    if plan.max_sites_per_person > len(plan.local):
        message = f"max_sites_per_person must be at most the {len(plan.local)} sites, got {plan.max_sites_per_person}"
        raise InvalidArgument("max_sites_per_person", message)


def _require_cohort(plan: Plan) -> None:
    cohort: Any = plan.cohort
    clients = len(plan.local)
    if not isinstance(cohort, All | PoissonCohort | FixedCohort):
        message = f"cohort must be All(), PoissonCohort(rate) or FixedCohort(size), got {cohort!r}: who happens to be"
        raise InvalidArgument("cohort", f"{message} connected has no rate")
    if isinstance(cohort, FixedCohort) and cohort.size > clients:
        raise InvalidArgument(
            "cohort", f"a cohort must be at most the {clients} clients, got size {cohort.size}: draw fewer"
        )
    most = cohort.size if isinstance(cohort, FixedCohort) else clients
    if most > MOST_CLIENTS and plan.server_noises:  # refused by the sum, it would tell how many updates came
        message = f"at most {MOST_CLIENTS} clients a round are added up exactly, got {most}: draw a FixedCohort"
        raise InvalidArgument("cohort", message)
    if plan.minimum_cohort > most:
        message = f"minimum_cohort must be at most {most}, the largest cohort there can be, got {plan.minimum_cohort}"
        raise InvalidArgument("minimum_cohort", message)
    if plan.minimum_cohort > 1 and isinstance(cohort, PoissonCohort) and cohort.secret and plan.server_noises:
        # Whoever knows all other draws sees from an empty round that one client was not drawn.
        message = (
            f"minimum_cohort must be 1 with a secret cohort, got {plan.minimum_cohort}: whether others count would "
            "tell if a client was drawn, and sampling would not amplify; leave it out"
        )
        raise InvalidArgument("minimum_cohort", message)


def _require_records(plan: Plan) -> None:
    if plan.noises_steps:
        for part in plan.kinds:
            part.require_clip()
        if len({part.adjacency for part in plan.kinds}) > 1:
            message = "the plans of all clients must be for one adjacency: sizes are declared by all, or public for all"
            raise InvalidArgument("local", message)
        if plan.guarantee is not None and plan.guarantee.adjacency != plan.record_adjacency:
            message = f"the clients' plans are for {plan.record_adjacency}, and the promise is {plan.guarantee}"
            raise AdjacencyMismatch(f"{message}: use calibrated(), or plans for {plan.guarantee.adjacency}")
        return
    if any(part.noise_multiplier is not None or part.tree is not None for part in plan.kinds):
        other = "hybrid" if plan.style == "user" else "sample"
        where = "in the clients' steps" if plan.noises_updates else "at the clients"
        message = f"style {plan.style!r} adds no noise {where}: leave their noise out, or choose {other!r}"
        raise InvalidArgument("local", message)
    if plan.guarantee is not None:
        _require_unit(plan, plan.guarantee)


def _require_server(plan: Plan) -> None:
    for guarantee, unit in ((plan.guarantee, plan.local_unit), (plan.client_guarantee, "client")):
        if guarantee is not None:
            _require_unit(plan, guarantee)
            if guarantee.unit != unit:
                raise InvalidArgument("guarantee", f"this promise must be for one {unit}, got {guarantee}")
    if "client" in plan.units and not isinstance(plan.client, ClientPlan):
        message = f"style {plan.style!r} needs client=ClientPlan(clip_norm=...): without a clip nothing bounds an"
        raise InvalidArgument("client", f"{message} update, and no noise is enough")
    if "client" not in plan.units and plan.client is not None:
        message = f"style {plan.style!r} adds no noise at the server: leave client out, or choose 'user' or 'hybrid'"
        raise InvalidArgument("client", message)
    if plan.client is not None:
        _require_fitting_noise(plan, plan.client)
        require_shuffleable(plan, plan.client)
    if plan.client is not None and plan.client.tree is not None:
        _require_fitting_tree(plan, plan.client.tree)


def _require_fitting_noise(plan: Plan, client: ClientPlan) -> None:
    """Refuse noise on updates that is not proved where the style adds it."""
    if plan.server_noises and client.norm != "l2":
        message = f"style {plan.style!r} adds up updates that are clipped in L2, with Gaussian noise, got norm='l1'"
        raise InvalidArgument("norm", f"{message}: leave norm out, or choose style 'local'")
    if plan.noises_updates and client.tree is not None:
        message = "in style 'local' every client draws its own noise, and no sum over the rounds has a tree of it"
        raise InvalidArgument("tree", f"{message}: leave tree out, or choose 'user'")
    if plan.noises_updates and client.adaptive is not None:
        message = "in style 'local' a client sends its update alone: whether it was clipped would be one release more"
        raise InvalidArgument("adaptive", f"{message}, which is not offered; give one clip_norm, or choose 'user'")


def _require_replacement(plan: Plan, guarantee: Guarantee) -> None:
    if plan.noises_updates and guarantee.adjacency != REPLACE_ONE:
        message = f"in style 'local' a client that is there sends an update, so none is hidden by it: {guarantee}"
        raise AdjacencyMismatch(f"{message} is not what it promises; ask with adjacency='replace_one'")


def _require_fitting_tree(plan: Plan, tree: RoundTree) -> None:
    """Refuse a tree over the rounds whose pattern the plan does not keep, or that would hide who takes part."""
    if plan.is_secret:
        message = "a tree gains nothing from a secret cohort, and who has taken part decides who may again"
        raise InvalidArgument("cohort", f"{message}: leave secret out, or choose noise without a tree")
    if tree.restarts >= plan.rounds:
        raise InvalidArgument(
            "tree", f"restarts must be below the {plan.rounds} rounds of a tree, got {tree.restarts}: give fewer"
        )
    if isinstance(plan.cohort, All) and (
        plan.participations < plan.rounds or (tree.min_separation > 1 and plan.rounds > 1)
    ):
        message = (
            f"all clients in each of {plan.rounds} rounds take part {plan.rounds} times, one round after the other"
        )
        remedy = f"declare max_participations={plan.rounds} with min_separation=1, or draw a cohort"
        raise InvalidArgument("max_participations", f"{message}: {remedy}")

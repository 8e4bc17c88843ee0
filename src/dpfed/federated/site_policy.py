"""What a site allows, checked on the very plan that it will execute and charge.

A refusal is raised with its reason, which stays in the site's log: the server gets one fixed word. No rule reads a
record: all that is compared are declared constants of the site's file, of the plan and of the recipe.

>>> from dpfed.plan.plan import LocalPlan, Plan
>>> weak = LocalPlan(size=182, batch_size=8, steps=1, clip_norm=1.0, noise_multiplier=0.01)
>>> policy = Policy(styles=("sample",), epsilon_per_run=4, least_noise=0.8, most_clip=1)
>>> require_allowed_plan(policy, Plan("study", 2, {"north": weak}), "north", 182, delta=1e-5)
Traceback (most recent call last):
    ...
dpfed.errors.MessageRefused: the policy asks for a noise_multiplier of at least 0.8, and a round has 0.01
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpfed.config.site import Policy, SiteData
from dpfed.errors import MessageRefused
from dpfed.federated.algorithms import registry
from dpfed.federated.recipe import Recipe
from dpfed.mechanisms.counts import GRID
from dpfed.plan.client import ClientPlan
from dpfed.plan.local import LocalPlan
from dpfed.plan.plan import Plan
from dpfed.plan.population import Population

MOST_LAYERS = 1000  # of a model, before it is made: its parameters are counted after
DEPTHS = ("layers", "blocks")  # options that say how many there are
SCALES = ("shape", "feature_bounds", "mean", "scale")


def require_allowed_plan(policy: Policy, plan: Plan, name: str, size: int, delta: float) -> None:
    """Refuse a plan that asks for more of the site than its policy allows.

    Privacy: the plan that passes is the one that is reserved, executed and charged; no figure is the server's.
    """
    _require_known(plan, name)
    if plan.style not in policy.styles:
        raise MessageRefused(f"the policy allows styles {', '.join(policy.styles)}, and not {plan.style}")
    if plan.ranges is not None:
        raise MessageRefused("the study releases ranges before its first round, which no site over a network does")
    local = plan.local[name]
    if local.size != size:
        raise MessageRefused(f"the plan is for {local.size} records of {name}, which declares {size}")
    _require_at_most("rounds", plan.rounds, policy.most_rounds)
    _require_at_most("spare_rounds", plan.spare_rounds, policy.most_spare_rounds)
    _require_at_most("steps", local.steps, policy.most_steps)
    _require_at_most("client_timeout", plan.client_timeout, policy.most_seconds)
    for part in _list_protections(plan, name):
        _require_protected(policy, part)
    if plan.charges_clients:
        _require_at_most("epsilon", plan.epsilon(name, delta), policy.epsilon_per_run)


def require_allowed_measurement(policy: Policy, plan: Plan, data: SiteData) -> None:
    """Refuse to count what is held out in another way than the site's file declares; its ε is part of the plan's.

    Privacy: all that is compared is declared. The grid is dpfed's own, so that no weight of a person overflows.
    """
    measurement = plan.measurement
    if measurement is None:
        return
    _require_at_most("the epsilon of figures", measurement.epsilon, policy.epsilon_per_run)
    if measurement.fraction != data.test_fraction:
        message = f"the study counts a share of {measurement.fraction:g} that is held out"
        raise MessageRefused(f"{message}, and the site's file declares {data.test_fraction:g}")
    if (measurement.classes, measurement.grid) != (len(data.classes), GRID):
        raise MessageRefused("the study counts other classes than the site's file, or on another grid than dpfed's")


def require_allowed_recipe(policy: Policy, recipe: Recipe, data: SiteData) -> None:
    """Refuse a model that the policy does not name or that is too large, and data in another form than declared.

    Privacy: an error about a scale, a class or a shape would tell of the records, if a server could choose these until
    one of them fits. So they are the site's own; only bounds, to which every value is clipped, may be the server's.
    """
    if recipe.model.kind not in policy.models:
        raise MessageRefused(f"the policy allows models {', '.join(policy.models)}, and not {recipe.model.kind}")
    if recipe.classes != data.classes:
        raise MessageRefused("the study has other classes than the site's file")
    is_scaled = any(getattr(data, key) is not None for key in SCALES[1:])
    for key in SCALES:
        own, theirs = getattr(data, key), getattr(recipe, key)
        is_free = own is None and (key == "shape" or (key == "feature_bounds" and not is_scaled))
        if not is_free and _to_plain(own) != _to_plain(theirs):
            raise MessageRefused(f"the study has another {key} than the site's file")
    _require_makeable(recipe.model.options)
    _require_at_most("parameters", recipe.count_numbers(), policy.most_numbers)


def _require_makeable(options: Mapping[str, Any]) -> None:
    """Refuse a model of so many layers that to count its parameters would take all memory."""
    for name, value in options.items():
        if isinstance(value, list | tuple):
            _require_at_most(name, len(value), MOST_LAYERS)
        elif name in DEPTHS:
            _require_at_most(name, value, MOST_LAYERS)


def _require_known(plan: Plan, name: str) -> None:
    if isinstance(plan.local, Population) or name not in plan.local:
        raise MessageRefused(f"the plan does not name {name}")
    if plan.algorithm.name not in registry.KINDS:
        raise MessageRefused("the plan's algorithm is none of dpfed's own, and no code is imported")
    if plan.is_secret and plan.charges_clients:
        raise MessageRefused("secret cohorts are not for styles in which sites pay: their ledgers show who was asked")


def _list_protections(plan: Plan, name: str) -> Iterator[LocalPlan | ClientPlan]:
    """Yield clip and noise of each kind of round, as it will be executed."""
    factors = plan.noise_schedule or (1.0,)
    for factor in dict.fromkeys(factors):
        one = plan.in_round(factors.index(factor) + 1)
        if one.noises_steps:
            yield one.local[name]
        if one.client is not None:
            yield one.client


def _require_protected(policy: Policy, part: LocalPlan | ClientPlan) -> None:
    noise = part.noise_multiplier or 0.0
    if noise < policy.least_noise:
        message = f"the policy asks for a noise_multiplier of at least {policy.least_noise:g}"
        raise MessageRefused(f"{message}, and a round has {noise:g}")
    _require_at_most("clip_norm", part.clip_norm, policy.most_clip)


def _require_at_most(what: str, asked: float | None, most: float) -> None:
    if asked is None or not asked <= most:
        raise MessageRefused(f"the policy allows at most {most:g} for {what}, and the study asks for {asked}")


def _to_plain(value: Any) -> Any:
    """Return a scale as JSON would give it back."""
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    return [_to_plain(item) for item in value] if isinstance(value, tuple | list) else value

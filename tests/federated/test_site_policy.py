"""What a site allows, at the edge of every limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpfed.config.site import Policy, SiteData
from dpfed.config.training import Local, Model
from dpfed.errors import MessageRefused
from dpfed.federated.recipe import Recipe
from dpfed.federated.site_policy import require_allowed_plan, require_allowed_recipe
from dpfed.plan.plan import Algorithm, ClientPlan, LocalPlan, Plan, PoissonCohort
from dpfed.plan.ranges import Ranges

LOCAL = LocalPlan(size=100, batch_size=10, steps=5, clip_norm=1.0, noise_multiplier=2.0)
PLAN = Plan("study", rounds=5, local={"north": LOCAL, "south": LOCAL}, spare_rounds=2, client_timeout=60)
POLICY = Policy(
    styles=("sample", "local"),
    epsilon_per_run=4,
    least_noise=2,
    most_clip=1,
    most_rounds=5,
    most_steps=5,
    most_seconds=60,
)


def require(plan: Plan = PLAN, **policy) -> None:
    require_allowed_plan(POLICY.model_copy(update=policy), plan, "north", 100, delta=1e-5)


def test_a_plan_at_every_limit_is_allowed():
    require()
    require(epsilon_per_run=PLAN.epsilon("north", 1e-5))


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        ({"styles": ("hybrid",)}, "styles hybrid, and not sample"),
        ({"least_noise": 2.001}, "noise_multiplier of at least 2.001"),
        ({"most_clip": 0.99}, "clip_norm"),
        ({"most_rounds": 4}, "rounds"),
        ({"most_spare_rounds": 1}, "spare_rounds"),
        ({"most_steps": 4}, "steps"),
        ({"most_seconds": 59.0}, "client_timeout"),
        ({"epsilon_per_run": 0.5}, "epsilon"),
    ],
)
def test_a_plan_beyond_a_limit_is_refused(policy, what):
    with pytest.raises(MessageRefused, match=what):
        require(**policy)


def test_a_plan_that_releases_ranges_is_refused():
    with pytest.raises(MessageRefused, match="releases ranges"):
        require(replace(PLAN, ranges=Ranges(("age",), ((0.0, 60.0),), epsilon=0.1, delta=1e-5)))


def test_the_round_of_least_noise_decides():
    schedule = (2.0, 1.0, 1.0, 1.0, 0.9)
    with pytest.raises(MessageRefused, match=r"a round has 1\.8"):
        require(replace(PLAN, noise_schedule=schedule))
    require(replace(PLAN, noise_schedule=schedule), least_noise=1.8)


def test_clip_and_noise_of_a_whole_update_are_looked_at_too():
    bare = replace(LOCAL, noise_multiplier=None)
    client = ClientPlan(clip_norm=1.5, noise_multiplier=30.0)
    plan = replace(PLAN, style="local", local={"north": bare}, client=client, max_sites_per_person=1)
    with pytest.raises(MessageRefused, match="clip_norm"):
        require(plan)
    require(replace(plan, client=replace(client, clip_norm=1.0)))
    with pytest.raises(MessageRefused, match="epsilon"):
        require(replace(plan, client=ClientPlan(clip_norm=1.0, noise_multiplier=2.0)))


def test_another_size_an_unknown_name_and_code_are_refused():
    with pytest.raises(MessageRefused, match="which declares 101"):
        require_allowed_plan(POLICY, PLAN, "north", 101, delta=1e-5)
    with pytest.raises(MessageRefused, match="does not name west"):
        require_allowed_plan(POLICY, PLAN, "west", 100, delta=1e-5)
    with pytest.raises(MessageRefused, match="no code is imported"):
        require(replace(PLAN, algorithm=Algorithm("my.module:Own", {})))


def test_a_secret_cohort_is_refused_where_the_site_pays():
    with pytest.raises(MessageRefused, match="secret cohorts"):
        require(replace(PLAN, cohort=PoissonCohort(0.5, secret=True), weighting="equal"))


DATA = SiteData(source="records.csv", label="ill", classes=("no", "yes"), size=100)
RECIPE = Recipe(
    model=Model(kind="logistic"),
    local=Local(steps=5, batch_size=10, learning_rate=0.5),
    shape=(3,),
    classes=("no", "yes"),
    feature_bounds=(0.0, 1.0),
)


def allow(recipe: Recipe = RECIPE, data: SiteData = DATA, **policy) -> None:
    require_allowed_recipe(POLICY.model_copy(update=policy), recipe, data)


def test_a_recipe_within_the_policy_is_allowed():
    allow()
    allow(most_numbers=8)
    allow(data=DATA.model_copy(update={"feature_bounds": (0.0, 1.0), "shape": (3,)}))


@pytest.mark.parametrize(
    ("recipe", "data", "policy"),
    [
        ({}, {}, {"models": ("mlp",)}),
        ({}, {}, {"most_numbers": 7}),
        ({"model": Model(kind="mlp", options={"hidden": [1] * 1001})}, {}, {"models": ("mlp",)}),
        ({"model": Model(kind="transformer", options={"layers": 10**9})}, {}, {"models": ("transformer",)}),
        ({"classes": ("yes", "no")}, {}, {}),
        ({"feature_bounds": None, "scale": 2.0}, {}, {}),
        ({"feature_bounds": None, "mean": 2.0}, {}, {}),
        ({}, {"feature_bounds": (0.0, 2.0)}, {}),
        ({}, {"scale": 2.0}, {}),
        ({}, {"shape": (3, 1)}, {}),
    ],
)
def test_a_recipe_beyond_the_policy_or_the_declared_data_is_refused(recipe, data, policy):
    with pytest.raises(MessageRefused):
        allow(RECIPE.model_copy(update=recipe), DATA.model_copy(update=data), **policy)


def test_a_scale_that_the_site_declares_itself_is_allowed():
    scale = {"feature_bounds": None, "scale": 2.0, "mean": 1.0}
    allow(RECIPE.model_copy(update=scale), DATA.model_copy(update=scale))

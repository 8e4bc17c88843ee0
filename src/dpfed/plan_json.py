"""The file form of a plan: constants only, versioned, and read back through every check of the plan itself.

>>> from dpfed.plan import LocalPlan, Plan
>>> plan = Plan("study", rounds=2, local={"a": LocalPlan(size=9, batch_size=3, steps=1, clip_norm=1.0)})
>>> loads(dumps(plan), Plan) == plan
True
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from dpfed import cohort
from dpfed.adaptive import AdaptiveClip
from dpfed.aggregation import rules
from dpfed.algorithm import Algorithm
from dpfed.client_plan import ClientPlan
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.local_plan import LocalPlan
from dpfed.tree_noise import RoundTree

if TYPE_CHECKING:
    from dpfed.plan import Plan

VERSION = 4
# A plan of version 1 is one of style `sample` with all clients in every round. What an older version does not say is
# the default, and how records were dealt it does not know.
READABLE = (1, 2, 3, 4)
LATER = {3: {"aggregation"}}  # fields that a version did not have yet; earlier ones may lack others too


def dumps(plan: Plan) -> str:
    """The plan as JSON text."""
    plain: dict[str, Any] = {"version": VERSION}
    plain |= {each.name: getattr(plan, each.name) for each in fields(plan)}
    plain["local"] = {name: local.to_plain() for name, local in plan.local.items()}
    plain["cohort"] = cohort.to_plain(plan.cohort)
    plain["algorithm"] = plan.algorithm.to_plain()
    plain["aggregation"] = rules.to_plain(plan.aggregation)
    for name in ("guarantee", "client_guarantee", "client"):
        plain[name] = None if plain[name] is None else asdict(plain[name])
    return json.dumps(plain, indent=2, allow_nan=False)


def version_of(text: str) -> int:
    """Return the version of a plan's JSON text; 0 if it has none."""
    try:
        return int(json.loads(text)["version"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0


def loads(text: str, kind: type[Plan]) -> Plan:
    """The plan that `dumps` wrote."""
    try:
        return kind(**_arguments(json.loads(text), {each.name for each in fields(kind)}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidArgument("text", f"text must be the JSON form of a plan: {error}") from None


def _arguments(plain: dict[str, Any], expected: set[str]) -> dict[str, Any]:
    version = plain.pop("version")
    if version not in READABLE:
        raise ValueError(f"it is not of version {VERSION}")
    known = expected - LATER.get(version, set())
    if version >= min(LATER) and set(plain) != known:
        raise ValueError(f"its fields must be {', '.join(sorted(known))}")
    plain["local"] = {name: LocalPlan.from_plain(part) for name, part in plain["local"].items()}
    readers: dict[str, Callable[[Any], Any]] = {
        "guarantee": _guarantee,
        "client_guarantee": _guarantee,
        "client": _client,
        "cohort": cohort.from_plain,
        "aggregation": rules.from_plain,
        "algorithm": lambda value: Algorithm(**value),
    }
    for name, read in readers.items():
        if name in plain and plain[name] is not None:
            plain[name] = read(plain[name])
    return plain


def _guarantee(plain: dict[str, Any]) -> Guarantee:
    return Guarantee(**plain)


def _client(plain: dict[str, Any]) -> ClientPlan:
    adaptive, tree = plain.pop("adaptive", None), plain.pop("tree", None)
    return ClientPlan(
        **plain,
        adaptive=None if adaptive is None else AdaptiveClip(**adaptive),
        tree=None if tree is None else RoundTree(**tree),
    )

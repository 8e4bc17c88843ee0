"""The file form of a plan: constants only, versioned, and read back through every check of the plan itself.

>>> from dpfed.plan.plan import LocalPlan, Plan
>>> plan = Plan("study", rounds=2, local={"a": LocalPlan(size=9, batch_size=3, steps=1, clip_norm=1.0)})
>>> loads(dumps(plan), Plan) == plan
True
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from dpfed.aggregation import rules
from dpfed.aggregation.quarantine import Quarantine
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan import cohort
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.algorithm import Algorithm
from dpfed.plan.client import ClientPlan
from dpfed.plan.local import LocalPlan
from dpfed.plan.measure import Measurement
from dpfed.plan.population import Population
from dpfed.plan.ranges import Ranges
from dpfed.plan.tree import RoundTree

if TYPE_CHECKING:
    from dpfed.plan.plan import Plan

VERSION = 6  # since which hold-outs are chosen by hashes
WITH_POPULATION = 7  # the same with a population for `local`
POPULATIONS = (5, WITH_POPULATION)
# A plan of version 1 is one of style `sample` with all clients in every round. What an older version does not say is
# the default, and how records were dealt it does not know.
READABLE = (1, 2, 3, 4, *POPULATIONS, VERSION)
LATER = {3: {"aggregation"}}  # fields that a version did not have yet; earlier ones may lack others too
# Fields that a plan without them does not write; a reader that does not know them refuses.
SOMETIMES = {"noise_schedule", "quarantine", "measurement", "ranges"}


def dumps(plan: Plan) -> str:
    """Return the plan as JSON text."""
    plain: dict[str, Any] = {"version": WITH_POPULATION if isinstance(plan.local, Population) else VERSION}
    plain |= {each.name: getattr(plan, each.name) for each in fields(plan)}
    plain["local"] = _plain_clients(plan.local)
    plain["cohort"] = cohort.to_plain(plan.cohort)
    plain["algorithm"] = plan.algorithm.to_plain()
    plain["aggregation"] = rules.to_plain(plan.aggregation)
    for name in ("guarantee", "client_guarantee", "client", "quarantine"):
        plain[name] = None if plain[name] is None else asdict(plain[name])
    plain["measurement"] = None if plan.measurement is None else plan.measurement.to_plain()
    plain["ranges"] = None if plan.ranges is None else plan.ranges.to_plain()
    if plan.client is not None and plan.client.norm == "l2":
        del plain["client"]["norm"]  # which earlier plans did not have: theirs are written as ever
    if plan.client is not None and plan.client.shuffle_users is None:
        del plain["client"]["shuffle_users"]
    plain = {name: value for name, value in plain.items() if value is not None or name not in SOMETIMES}
    return json.dumps(plain, indent=2, allow_nan=False)


def version_of(text: str) -> int:
    """Return the version of a plan's JSON text; 0 if it has none."""
    try:
        return int(json.loads(text)["version"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0


def loads(text: str, kind: type[Plan]) -> Plan:
    """Return the plan that `dumps` wrote."""
    try:
        return kind(**_read_fields(json.loads(text), {each.name for each in fields(kind)}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidArgument("text", f"text must be the JSON form of a plan: {error}") from None


def _read_fields(plain: dict[str, Any], expected: set[str]) -> dict[str, Any]:
    version = plain.pop("version")
    if version not in READABLE:
        raise ValueError(f"it is not of version {VERSION} or {WITH_POPULATION}")
    known = expected - LATER.get(version, set())
    if version >= min(LATER) and set(plain) | SOMETIMES != known:
        raise ValueError(f"its fields must be {', '.join(sorted(known))}")
    plain["local"] = _read_clients(plain["local"], version)
    readers: dict[str, Callable[[Any], Any]] = {
        "guarantee": _read_guarantee,
        "client_guarantee": _read_guarantee,
        "client": _read_client,
        "cohort": cohort.from_plain,
        "aggregation": rules.from_plain,
        "algorithm": lambda value: Algorithm(**value),
        "quarantine": lambda value: Quarantine(**value),
        "measurement": Measurement.from_plain,
        "ranges": Ranges.from_plain,
    }
    for name, read in readers.items():
        if name in plain and plain[name] is not None:
            plain[name] = read(plain[name])
    return plain


def _plain_clients(local: Mapping[str, LocalPlan]) -> dict[str, Any]:
    if isinstance(local, Population):
        return local.to_plain()
    return {name: part.to_plain() for name, part in local.items()}


def _read_clients(plain: Mapping[str, Any], version: int) -> Mapping[str, LocalPlan]:
    """Return the clients; the version tells a population from clients that are named like its fields."""
    if version in POPULATIONS:
        return Population.from_plain(plain)
    return {name: LocalPlan.from_plain(part) for name, part in plain.items()}


def _read_guarantee(plain: dict[str, Any]) -> Guarantee:
    return Guarantee(**plain)


def _read_client(plain: dict[str, Any]) -> ClientPlan:
    adaptive, tree = plain.pop("adaptive", None), plain.pop("tree", None)
    return ClientPlan(
        **plain,
        adaptive=None if adaptive is None else AdaptiveClip(**adaptive),
        tree=None if tree is None else RoundTree(**tree),
    )

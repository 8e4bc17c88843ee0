"""Release the ranges of a run's columns before its first round: charged, noised, stored, and used again after a crash.

What is released is a constant of everything that follows: features are scaled by it, hold-outs are drawn from what is
scaled, and neither costs anything more. The counts are of all records, those held out included.

>>> config = RunConfig.parse('''
... name: wards
... data: {source: wards.csv, label: ill, classes: [no, yes], partition: {kind: iid, clients: 1}, sizes: 900}
... model: {kind: logistic}
... rounds: 2
... local: {steps: 5, batch_size: 90, learning_rate: 0.5}
... privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
... bounds: {release: [pay], epsilon: 0.5, grid: {pay: [0, 9000, 9]}}
... ''')
>>> config.has_ranges, describe_ranges(config.with_ranges({"pay": (1000.0, 7000.0)}))
(False, 'Released ranges: pay 1000 to 7000')
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dpfed.analytics.answers import HistogramAnswer
from dpfed.analytics.scaling import find_bounds
from dpfed.analytics.tables import read_parts
from dpfed.config import data as blocks
from dpfed.config.run import RunConfig
from dpfed.data.sources import read_column_names, read_file
from dpfed.errors import PrivacyError
from dpfed.federated.runners.charging import SharedLedger
from dpfed.ledger.ledger import Ledger
from dpfed.plan.plan import Plan
from dpfed.plan.ranges import find_range_release, find_sum_deviation
from dpfed.randomness import RandomSource, or_system
from dpfed.runs.directory import RANGES, RunDirectory, write_durably

ASSUMED = (-(2.0**64), 2.0**64)  # by which no two values become one: a power of two on both sides of zero


def assume_ranges(config: RunConfig, directory: Path) -> RunConfig:
    """Return the configuration with one wide range for all that are not released yet.

    Privacy: until then, too, one record with a huge value is cut to something public, and stops nothing.
    """
    if config.has_ranges or config.bounds is None:
        return config
    data = config.data
    apart = {data.label, data.person_column, _find_site_column(config), *data.ignore, *data.categories}
    features = set(read_column_names(directory / data.source)) - apart - set(data.feature_bounds or {})
    return config.with_ranges({name: ASSUMED for name in config.bounds.release if name in features})


def release_ranges(
    config: RunConfig,
    plan: Plan,
    directory: Path,
    run: RunDirectory,
    charging: SharedLedger,
    source: RandomSource | None,
) -> RunConfig:
    """Reserve the plan, charge and release its ranges, store them, and return the configuration with them.

    Privacy: the event of `find_range_release`, committed to the account of every client before any noise is drawn; all
    take part, whatever the cohort. The rest is post-processing.
    """
    release = find_range_release(plan)
    if release is None or plan.ranges is None:
        return config
    parts = read_parts(
        read_file(directory / config.data.source),
        plan.ranges.columns,
        sites=tuple(plan.local),
        site_column=_find_site_column(config),
        person_column=config.data.person_column,
        max_sites_per_person=plan.max_sites_per_person,
    )
    totals = {name: release.query.add_up(part.values, part.rows) for name, part in parts.items()}
    charging.reserve(plan)
    number = charging.commit_ranges()
    draws = or_system(source)
    noised = [release.release(total, draws.once(f"ranges {number} {name}")) for name, total in totals.items()]
    answer = HistogramAnswer(plan.ranges.query, np.sum(noised, axis=0), find_sum_deviation(plan))
    found = dict(zip(plan.ranges.columns, find_bounds(answer), strict=True))
    write_durably(run.path / RANGES, json.dumps(found, ensure_ascii=False).encode())
    return config.with_ranges({name: pair for name, pair in found.items() if pair is not None})


def require_useful(config: RunConfig, plan: Plan, run: RunDirectory, ledger: Ledger | None) -> None:
    """Refuse to train where noise left a range open: release what was reserved for rounds, and say what to do."""
    if config.has_ranges or not (run.path / RANGES).exists() or config.bounds is None:
        return
    if ledger is not None and any(open_.run == plan.name for open_ in ledger.reservations()):
        ledger.release(plan.name, reason="a range that was released is of no use")
    known = config.data.feature_bounds or {}
    lacking = ", ".join(name for name in config.bounds.release if name not in known)
    ways = "declare a range that anybody may know in data.feature_bounds, or begin another run with more bounds.epsilon"
    message = f"USELESS: noise left the range of {lacking} open, and the run ends here; what it cost stays spent"
    raise PrivacyError(f"{message}: {ways}")


def _find_site_column(config: RunConfig) -> str | None:
    return config.data.partition.column if isinstance(config.data.partition, blocks.Column) else None


def describe_ranges(config: RunConfig) -> str:
    """Return what was released, in a sentence."""
    bounds: Mapping[str, tuple[float, float]] = config.data.feature_bounds or {}
    names = () if config.bounds is None else config.bounds.release
    return "Released ranges: " + ", ".join(f"{name} {bounds[name][0]:g} to {bounds[name][1]:g}" for name in names)

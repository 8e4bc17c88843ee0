"""Who holds a record, and who is held out, depends on that record alone, or the run says SIMULATION."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.cli.main import main
from dpfed.config.data import Data
from dpfed.config.run import RunConfig
from dpfed.config.templates import hospitals
from dpfed.data import partition
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument
from dpfed.federated.data import hash_records, prepare
from dpfed.federated.planning import make_plan
from dpfed.plan.rules import HASHED, ROWS, SITES

HEADER = "x,who,y"
LINES = [f"{n},p{n // 2},{n % 2}" for n in range(80)]
IID = {"kind": "iid", "clients": 4}
MADE_UP = {
    "quantity": {"kind": "quantity", "sizes": [40, 24]},
    "dirichlet": {"kind": "dirichlet", "clients": 2, "alpha": 1.0},
    "shards": {"kind": "shards", "clients": 2},
    "class": {"kind": "class", "clients": 2},
    "iid in equal parts": {"kind": "iid", "clients": 2, "minimum": 1},
}
RUN = """
name: wards
data: {source: a.csv, label: y, classes: [0, 1], ignore: [who], scale: 1, partition: %s, sizes: 20}
model: {kind: logistic}
rounds: 1
local: {steps: 1, batch_size: 5, learning_rate: 0.5}
privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
"""


def held(folder: Path, lines, **options) -> dict[str, Counter]:
    """What each client and the hold-out have."""
    (folder / "a.csv").write_text("\n".join([HEADER, *lines]))
    block = Data(source="a.csv", label="y", classes=["0", "1"], **{"partition": IID, "ignore": ["who"], **options})
    data = prepare(block, folder)
    parts = {**data.clients, "held out": data.test}
    return {name: Counter(part.rows.features.ravel().tolist()) for name, part in parts.items()}


@pytest.mark.parametrize("place", [0, 1, 40, 79])
def test_a_record_more_or_less_moves_no_other_between_clients_and_hold_out(tmp_path, place):
    before = held(tmp_path, LINES)
    for lines in (LINES[:place] + LINES[place + 1 :], [*LINES[:place], "999,p99,1", *LINES[place:]], LINES[::-1]):
        after = held(tmp_path, lines)
        changed = sum((before[name] - after[name] + (after[name] - before[name])).total() for name in before)
        assert changed == abs(len(lines) - len(LINES))


@pytest.mark.parametrize("place", [0, 37, 79])
def test_a_person_more_or_less_moves_no_other_with_all_rows_together(tmp_path, place):
    options = {"ignore": [], "person_column": "who", "rows_per_person": 2}
    before = held(tmp_path, LINES, **options)
    person = LINES[place].split(",")[1]
    gone = {float(line.split(",")[0]) for line in LINES if line.split(",")[1] == person}
    after = held(tmp_path, [line for line in LINES if line.split(",")[1] != person], **options)
    holders = [name for name in before if before[name] != after[name]]
    assert len(holders) == 1
    assert set(before[holders[0]] - after[holders[0]]) == gone


@given(st.integers(0, 2**60), st.integers(1, 9))
def test_every_record_has_one_client_that_follows_from_its_hash(seed, clients):
    records = Records(np.arange(50.0)[:, None], np.arange(50) % 2)
    parts = partition.by_hash(hash_records(records, None, seed), clients)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(50))
    some = records.take(np.arange(0, 50, 3))
    alone = partition.by_hash(hash_records(some, None, seed), clients)
    for whole, part in zip(parts, alone, strict=True):
        assert {3 * place for place in part.tolist()} <= set(whole.tolist())


def test_parts_are_equal_but_for_chance_and_dealing_has_nothing_to_do_with_holding_out():
    # Of 20,000 records a client of 10 has 2,000, give or take 5 standard deviations (212) but for one in 10⁵ deals.
    records = Records(np.arange(20_000.0)[:, None], np.zeros(20_000, dtype=int))
    dealt = hash_records(records, None, 7, b"dealt")
    assert all(abs(len(part) - 2000) < 212 for part in partition.by_hash(dealt, 10))
    kept = records.take(hash_records(records, None, 7) > np.uint64(2**63))
    assert all(abs(len(part) - 1000) < 170 for part in partition.by_hash(hash_records(kept, None, 7, b"dealt"), 10))


def test_a_client_without_a_record_is_refused_and_not_left_out_of_the_list(tmp_path):
    (tmp_path / "a.csv").write_text("\n".join([HEADER, *LINES]))
    block = Data(
        source="a.csv", label="y", classes=["0", "1"], ignore=["who"], partition={"kind": "iid", "clients": 60}
    )
    with pytest.raises(InvalidArgument, match=r"60 clients are too many.*minimum: 1"):
        prepare(block, tmp_path)


def test_which_kinds_are_dealt_how():
    def dealing(kind, **options):
        return Data(source="sklearn:iris", partition=kind, **options).dealing

    assert dealing(IID) == HASHED
    assert dealing(IID, sizes="public") == ROWS  # a record replaced would change two counts
    assert dealing({"kind": "column", "column": "site"}) == SITES
    assert {dealing(kind) for kind in MADE_UP.values()} == {ROWS}


@pytest.mark.parametrize("kind", MADE_UP)
def test_a_deal_of_all_records_at_once_is_called_a_simulation_in_the_plan(tmp_path, kind):
    (tmp_path / "a.csv").write_text("\n".join([HEADER, *LINES]))
    config = RunConfig.parse(RUN % json.dumps(MADE_UP[kind]))
    plan = make_plan(config, prepare(config.data, tmp_path))
    assert plan.dealing == ROWS
    assert "SIMULATION: clients made from one set" in plan.explain()
    assert type(plan).from_json(plan.to_json()).dealing == ROWS


def test_real_sites_and_hashes_are_no_simulation(tmp_path):
    (tmp_path / "a.csv").write_text("\n".join([HEADER, *LINES]))
    config = RunConfig.parse(RUN % json.dumps(IID))
    plan = make_plan(config, prepare(config.data, tmp_path))
    assert plan.dealing == HASHED
    assert "SIMULATION" not in plan.explain()


def test_a_dealing_that_is_none_is_refused():
    config = hospitals().config
    plan = make_plan(config, prepare(config.data))
    with pytest.raises(InvalidArgument, match="dealing must be one of"):
        type(plan)(plan.name, 1, plan.local, style="sample", dealing="cards")


@pytest.mark.parametrize(("kind", "is_simulated"), [(MADE_UP["shards"], True), (IID, False)])
def test_plan_terminal_and_both_reports_say_simulation(tmp_path, monkeypatch, kind, is_simulated):
    from click.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("\n".join([HEADER, *LINES]))
    Path("run.yaml").write_text(RUN % json.dumps(kind))

    def said(*arguments: str) -> bool:
        result = CliRunner().invoke(main, arguments, standalone_mode=False, catch_exceptions=False)
        return "SIMULATION" in result.output

    assert said("plan", "run.yaml") == is_simulated
    assert said("run", "run.yaml", "--directory", "run") == is_simulated
    assert said("report", "run", "--markdown") == is_simulated
    assert said("report", "run", "--markdown", "--owner") == is_simulated
    assert said("report", "run", "--json") == is_simulated
    assert ("SIMULATION" in Path("run/report.html").read_text()) == is_simulated

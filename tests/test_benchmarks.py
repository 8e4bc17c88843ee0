"""The benchmark harness: it takes turns, keeps the minimum, and never turns a missing peer into a pass."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import accounting as accounting_benchmark
import accuracy as accuracy_benchmark
import aggregation as aggregation_benchmark
import bench
import everyday
import federation as federation_benchmark
import local as local_benchmark
import page
import picked
import run
import throughput as throughput_benchmark
import throughput_cases
import training as training_benchmark
import venvs
import whole_step

SCRIPT = """\
import os, sys, time
sys.path.insert(0, {benchmarks!r})
import bench
from pathlib import Path

def quick():
    return {{"add": lambda nudge: 1 + nudge, "cores": lambda nudge: len(os.sched_getaffinity(0))}}

def slow():
    def add(nudge):
        print("chatter on stdout")
        time.sleep(0.02)
        return 2.0
    return {{"add": add, "broken": lambda nudge: 1 / 0}}

def absent():
    import a_package_that_nobody_has

PLAYERS = [bench.Contestant("quick", quick), bench.Contestant("slow", slow),
           bench.Contestant("absent", absent), bench.Contestant("elsewhere", quick, venv="never_built")]

def rows(is_quick):
    found = bench.measure(Path(__file__), PLAYERS, ["add", "cores", "broken"], quick=is_quick)
    ours = found["quick", "add"]
    rows = [bench.faster(f"seconds, {{p.name}}", ours, found.get((p.name, "add")), 2.0) for p in PLAYERS[1:]]
    rows += [bench.tighter("value, slow", ours, found["slow", "add"])]
    rows += [bench.tighter("reverse", found["slow", "add"], ours)]
    rows += [bench.tighter("broken", found["quick", "cores"], found.get(("slow", "broken")))]
    return rows

sys.exit(bench.run(__file__, PLAYERS, rows))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    script = tmp_path_factory.mktemp("bench") / "toy.py"
    script.write_text(SCRIPT.format(benchmarks=str(bench.HERE)))
    command = [sys.executable, str(script), "--json", "--quick"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)


@pytest.fixture(scope="module")
def rows(finished: subprocess.CompletedProcess[str]) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in json.loads(finished.stdout)}


def test_a_row_has_the_six_agreed_fields(rows: dict[str, dict[str, object]]) -> None:
    assert all(list(row) == ["name", "peer", "ours", "ratio", "goal", "holds"] for row in rows.values())


def test_a_measured_peer_is_compared_although_it_chatters_on_stdout(
    rows: dict[str, dict[str, object]],
) -> None:
    assert rows["seconds, slow"]["peer"] >= 0.02
    assert rows["seconds, slow"]["holds"] is True


def test_a_larger_bound_of_ours_is_shown_as_not_holding(rows: dict[str, dict[str, object]]) -> None:
    assert rows["value, slow"]["holds"] is True
    assert rows["value, slow"]["ratio"] == 2.0
    assert rows["reverse"]["holds"] is False


@pytest.mark.parametrize("name", ["seconds, absent", "seconds, elsewhere", "broken"])
def test_a_peer_without_an_answer_is_not_measured_and_never_a_pass(rows, name: str) -> None:
    assert rows[name]["peer"] == "not measured"
    assert rows[name]["ratio"] is None
    assert not rows[name]["holds"]


def test_a_peer_that_fails_says_why(finished: subprocess.CompletedProcess[str]) -> None:
    assert "slow, broken: ZeroDivisionError" in finished.stderr


def test_a_worker_runs_on_one_core(rows: dict[str, dict[str, object]]) -> None:
    assert rows["broken"]["ours"] == 1.0


def test_our_own_failure_does_not_hold() -> None:
    row = bench.faster("x", None, bench.Result(1.0, 1.0), 1.0)
    assert row.holds is False
    assert row.ours == "not measured"


def test_a_missed_goal_stays_visible_in_the_table() -> None:
    row = bench.within("rounds", bench.Result(1.0, 2.0), seconds=1.0)
    assert "NO" in bench.table([vars(row)])


def test_every_call_of_a_task_gets_other_parameters() -> None:
    seen: list[float] = []
    bench._time(lambda nudge: seen.append(nudge) or 1.0, nudge=1e-8)
    assert len(set(seen)) == len(seen) > 1


def test_cpu_time_does_not_count_waiting() -> None:
    def wait(_: float) -> float:
        time.sleep(0.02)
        return 1.0

    assert bench._time(wait, 0.0, bench.CLOCKS["wall"]).seconds >= 0.02
    assert bench._time(wait, 0.0, bench.CLOCKS["cpu"]).seconds < 0.02


def test_the_time_of_a_family_has_that_of_its_processes() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass"

    def wait(_: float) -> float:
        subprocess.run([sys.executable, "-c", busy], check=True)
        return 1.0

    assert bench._time(wait, 0.0, bench.CLOCKS["cpu"]).seconds < 0.2
    assert bench._time(wait, 0.0, bench.CLOCKS["family"]).seconds >= 0.25


def test_what_a_task_prepares_is_not_timed() -> None:
    class Prepared:
        now = 0.0

        def ready(self) -> None:
            self.now += 1000.0

        def __call__(self, nudge: float) -> float:
            self.now += 0.25
            return 3.0

    task = Prepared()
    assert bench._answer(task, 0.0, lambda: task.now) == {"value": 3.0, "seconds": 0.25}


def test_a_row_without_a_goal_neither_holds_nor_fails_unless_we_were_not_measured() -> None:
    row = bench.compared("x", bench.Result(0.0, 2.0), bench.Result(0.0, 3.0))
    assert (row.ratio, row.goal, row.holds) == (1.5, None, None)
    assert bench.cells(vars(row))[-2:] == ("–", "–")
    assert bench.compared("x", None, bench.Result(0.0, 3.0)).holds is False


def test_a_smaller_row_holds_up_to_its_goal() -> None:
    sgd, ours = bench.Result(10.0, 0.0), bench.Result(22.0, 0.0)
    assert bench.smaller("bytes", ours, sgd, 1 / 2.2).holds is True
    assert bench.smaller("bytes", bench.Result(22.1, 0.0), sgd, 1 / 2.2).holds is False


def test_every_benchmark_of_make_bench_is_a_script_with_rows() -> None:
    known = (
        "accounting aggregation ensemble federation flower ledger local shuffle startup throughput training whole_step"
    )
    assert set(known.split()) == set(run.BENCHMARKS)
    assert all((bench.HERE / f"{name}.py").exists() for name in run.BENCHMARKS)


def test_a_peer_file_may_add_pip_options_and_is_rebuilt_when_it_changes(tmp_path: Path) -> None:
    peer = tmp_path / "toy.txt"
    peer.write_text("# pip: --no-deps --no-index\n")
    assert venvs.options(peer) == ["--no-deps", "--no-index"]
    assert venvs.build(peer, tmp_path)
    assert venvs.is_built(peer, tmp_path)
    peer.write_text("# pip: --no-index\nno-such-package\n")
    assert not venvs.is_built(peer, tmp_path)
    assert not venvs.build(peer, tmp_path)


def test_every_peer_file_belongs_to_a_contestant_and_the_other_way_round() -> None:
    contestants = [
        *accounting_benchmark.PEERS,
        *local_benchmark.PEERS,
        *throughput_benchmark.CONTESTANTS,
        *aggregation_benchmark.CONTESTANTS,
    ]
    asked = {peer.venv for peer in contestants if peer.venv} | {accuracy_benchmark.IMAGES.stem}
    assert asked == {file.stem for file in venvs.PEERS.glob("*.txt")}


def test_every_peer_enters_only_workloads_that_exist() -> None:
    assert {peer.name for peer in accounting_benchmark.PEERS} == set(accounting_benchmark.ENTRIES)
    assert {task for tasks in accounting_benchmark.ENTRIES.values() for task in tasks} <= set(
        accounting_benchmark.WORKLOADS
    )


@pytest.fixture(params=[case.kind for case in training_benchmark.CASES])
def case(request: pytest.FixtureRequest) -> training_benchmark.Case:
    return next(case for case in training_benchmark.CASES if case.kind == request.param)


@pytest.mark.parametrize(
    "prepare",
    [
        training_benchmark.by_vmap,
        partial(training_benchmark.by_opacus, force_functorch=False),
        partial(training_benchmark.by_opacus, force_functorch=True),
        training_benchmark.by_opacus_ghost,
        training_benchmark.by_dpfed,
    ],
    ids=["vmap", "hooks", "functorch", "ghost", "dpfed"],
)
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning", "ignore:In CPU autocast:UserWarning")
def test_every_contestant_of_the_training_benchmark_clips_as_a_loop_over_examples_does(prepare, case) -> None:
    training_benchmark.Step(prepare, case, batch=4, noisy=False)()


def test_a_contestant_that_does_not_clip_is_not_measured() -> None:
    def unclipped(model, *, noisy):
        return training_benchmark.plain(model, noisy=noisy)

    with pytest.raises(ValueError, match="clipped sum is off by"):
        training_benchmark.Step(unclipped, training_benchmark.CASES[1], batch=4, noisy=False)


def test_the_best_mode_of_opacus_is_the_peer_and_goals_of_training_stay_visible() -> None:
    found = {("Opacus ghost", "step/mlp/32"): 3.0, ("Opacus hooks", "step/mlp/32"): 2.0, ("dpfed", "step/mlp/32"): 1.5}
    found[training_benchmark.SGD, "step/mlp/32"] = 1.0
    rows = training_benchmark.step_rows({key: bench.Result(0.0, s) for key, s in found.items()}, "mlp/32")
    assert [row.holds for row in rows] == [False, True, None]
    assert rows[1].name.endswith("Opacus hooks (its best)")
    assert [row.holds for row in training_benchmark.step_rows({}, "mlp/32")] == [False, False, False]


def test_peak_memory_is_what_the_steps_held_at_once() -> None:
    def step() -> None:
        del bytearray(64 << 20)[:1]

    held = training_benchmark.peak(step)
    assert 60 << 20 < held < 80 << 20
    assert training_benchmark.peak(lambda: None) == training_benchmark.MEGABYTE


def test_a_whole_step_is_that_of_draws_of_about_the_planned_size() -> None:
    taken = [(10, 0.1), (31, 3.0), (32, 1.0), (33, 2.0), (50, 9.0)]
    assert whole_step.typical(taken, batch=32) == 1.5
    assert whole_step.typical([(10, 0.1), (30, 3.0)], batch=32) == 3.0
    assert whole_step.typical([(10, 0.1), (20, 3.0)], batch=32) == 3.0


def test_who_refuses_is_in_the_row_with_its_words_and_is_no_pass() -> None:
    found = {(whole_step.SGD, "step/gru/32"): bench.Result(0.0, 1.0)}
    said = {(whole_step.OURS, "step/gru/32"): "InvalidArgument: model | is not to our taste " + "at all " * 20}
    said[whole_step.VMAP, "step/gru/32"] = "RuntimeError: in place"
    plain, opacus, vmap, _ = whole_step.step_rows(found, said, "gru/32")
    assert str(plain.ours).startswith("InvalidArgument: model is not to our taste at")
    assert (plain.holds, opacus.holds, vmap.holds) == (False, False, False)
    assert (opacus.peer, vmap.peer) == ("not measured", "RuntimeError: in place")


def test_who_takes_too_long_is_stopped_even_if_it_catches_exceptions() -> None:
    def stubborn() -> None:
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))

    with pytest.raises(TimeoutError, match="CPU time"), whole_step.at_most(0.05):
        stubborn()


def test_a_bar_of_a_whole_step_is_its_rows_goal() -> None:
    found = {
        (whole_step.SGD, "step/gru/32"): 1.0,
        (whole_step.OURS, "step/gru/32"): 1.9,
        ("Opacus ghost", "step/gru/32"): 1.8,
    }
    rows = whole_step.step_rows({key: bench.Result(1.0, seconds) for key, seconds in found.items()}, {}, "gru/32")
    assert [row.holds for row in rows[:2]] == [True, False]
    assert rows[1].name.endswith("Opacus ghost (its best)")


@pytest.mark.parametrize("name", sorted(everyday.NAMED | everyday.FOUND | picked.PICKED))
@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
def test_everyday_models_give_one_loss_for_each_record(name) -> None:
    model = (everyday.NAMED | everyday.FOUND | picked.PICKED)[name]
    inputs, targets = model.records(3)
    assert model.loss(model.build()(inputs), targets).shape == (3,)
    assert name in {case.model for case in whole_step.CASES.values()}


def test_a_whole_step_that_does_not_clip_is_not_measured() -> None:
    with pytest.raises(ValueError, match="clipped sum is off by"):
        whole_step.check(whole_step.Way(whole_step.plain), whole_step.CASES["mlp/32"])
    whole_step.check(whole_step.Way(whole_step.by_dpfed), whole_step.CASES["mlp/32"])


def test_a_task_may_have_a_measure_of_its_own() -> None:
    class Measured:
        def measure(self) -> bench.Result:
            return bench.Result(2.0, 3.0)

    assert bench._answer(Measured(), 0.0, time.perf_counter) == {"value": 2.0, "seconds": 3.0}


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_our_federation_learns_what_the_plain_loop_learns(name) -> None:
    case = dataclasses.replace(throughput_cases.CASES[name], clients=20)
    plain, ours = (prepare(case)() for prepare in (throughput_benchmark.plainly, throughput_benchmark.by_dpfed))
    assert ours == pytest.approx(plain, rel=0.1)  # fewer clients, more chance


def test_a_peer_with_fewer_clients_is_scaled_and_the_row_says_so() -> None:
    case = throughput_cases.CASES["few"]
    found = {("plain torch", name): bench.Result(2.0, 1.0) for name in ("few", "logistic")}
    found |= {("dpfed", "logistic"): bench.Result(2.0, 0.2), ("dpfed", "few"): bench.Result(2.0, 9.0)}
    found["Flower's simulation", "few"] = bench.Result(2.01, 20.0)
    (row,) = throughput_benchmark.case_rows(found, case)
    assert row.name.endswith("Flower's simulation (4 times that of 250 clients)")
    assert (row.ours, row.peer, row.holds) == (0.2, 80.0, True)


def test_who_learns_something_else_is_not_measured() -> None:
    case = throughput_cases.CASES["logistic"]
    found = {("plain torch", "logistic"): bench.Result(2.0, 1.0), ("dpfed", "logistic"): bench.Result(2.01, 1.0)}
    assert throughput_benchmark.agreed(found, "dpfed", case) is not None
    found["pfl-research", "logistic"] = bench.Result(2.1, 1.0)
    assert throughput_benchmark.agreed(found, "pfl-research", case) is None
    assert throughput_benchmark.agreed({}, "dpfed", case) is None


@pytest.mark.parametrize("case", federation_benchmark.CASES)
def test_every_figure_of_a_federation_is_measured(case, monkeypatch, tmp_path) -> None:
    small = {"CASES": dict.fromkeys(federation_benchmark.CASES, 5), "ROUNDS": 6}
    small |= {"EARLY": range(1, 3), "HALF": 3, "LATE": range(4, 6)}
    for name, value in small.items():
        monkeypatch.setattr(federation_benchmark, name, value)
    monkeypatch.setattr(federation_benchmark.tempfile, "tempdir", str(tmp_path))
    tasks = federation_benchmark.load_study(case)
    found = {(case, name): bench.Result(task(0.0), 0.0) for name, task in tasks.items()}
    rows = federation_benchmark.rows_of(case, found)
    shown = ("late", "whole") if case == "trained" else ("enrol", "round", "late", "whole")
    assert [row.ours for row in rows] == [found[case, name].value for name in shown]
    assert all(isinstance(row.holds, bool) and row.ours > 0 for row in rows)
    assert not any(row.holds for row in federation_benchmark.rows_of(case, {}))


def test_every_figure_of_a_population_is_measured(monkeypatch, tmp_path) -> None:
    for name, value in {"POPULATION": 300, "FEWER": 200, "EARLY": range(1, 3), "ROUNDS": 6}.items():
        monkeypatch.setattr(federation_benchmark, name, value)
    monkeypatch.setattr(federation_benchmark.tempfile, "tempdir", str(tmp_path))
    alone, turns = federation_benchmark.load_alone(), federation_benchmark.load_turns()
    found = {(federation_benchmark.ALONE, name): bench.Result(alone[name](0.0), 0.0) for name in ("ready", "peak")}
    found |= {(federation_benchmark.TURNS, name): bench.Result(turns[name](0.0), 0.0) for name in ("million", "fewer")}
    rows = federation_benchmark.rows_of_populations(found)
    assert [row.holds is not None and row.ours > 0 for row in rows] == [True] * 3
    assert not any(row.holds for row in federation_benchmark.rows_of_populations({}))


@pytest.mark.parametrize(("patience", "times"), [(0.0, 2), (60.0, 4)])
def test_a_slow_contestant_is_asked_as_often_as_it_must_and_no_more(monkeypatch, patience, times) -> None:
    asked = []
    worker = bench.Worker(bench.Contestant("slow", dict), Path(__file__), core=0, scratch="")
    monkeypatch.setattr(worker, "ask", lambda task, nudge: asked.append(nudge) or bench.Result(1.0, 9.0 - len(asked)))
    ((_, result),) = bench._take_turns([worker], "step", repeats=4, least=2, patience=patience)
    assert len(asked) == times
    assert result.seconds == 9.0 - times


def test_the_page_of_figures_is_the_one_made_from_the_results() -> None:
    assert page.PAGE.read_text() == page.render()


def test_a_task_for_some_users_is_scaled_to_a_million() -> None:
    result = local_benchmark.Scaled(lambda: sum(range(200_000)), users=1000).measure()
    assert result.value == 1000.0
    assert result.seconds > 0.1


def test_every_oracle_of_the_local_benchmark_is_measured_against_both_peers(monkeypatch) -> None:
    monkeypatch.setattr(local_benchmark, "MILLION", 300)
    tasks = local_benchmark.load_dpfed()
    found = {("dpfed", name): task.measure() for name, task in tasks.items()}
    found |= {("pure-ldp", name): bench.Result(1.0, 1e9) for name in tasks}
    assert set(tasks) == set(local_benchmark.GOALS)
    assert all(local_benchmark.row_of(found, name, "pure-ldp").holds for name in tasks)
    assert not any(local_benchmark.row_of(found, name, "multi-freq-ldpy").holds for name in tasks)

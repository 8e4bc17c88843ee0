"""Released figures through whole runs: at zero noise one unit moves the counts by 1, and no crash makes them free."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from dpfed import events as ev
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.federated.engine import Federation
from dpfed.federated.messages import Failure, Task, Update
from dpfed.federated.runners.attacked import AttackedRunner
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.runners.processes import PoolRunner
from dpfed.federated.runners.together import EnsembleRunner
from dpfed.ledger.ledger import Ledger
from dpfed.plan import measuring
from dpfed.plan.measure import Measurement
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from studies import Crash, Study, Ward, committed, crash_at

STYLES = ("sample", "user", "hybrid", "local")
LOUD = Measurement(("accuracy",), 0.5, (2,), classes=2)
SILENT = Measurement(("accuracy",), 600.0, (1,), classes=2, grid=12)  # a number has noise with chance e^−50
COUNTED = "counted"


@dataclass
class Counter(Ward):
    """A ward that holds out rows in these cells; where `rows` says how many each person has, those of persons."""

    cells: list = field(default_factory=lambda: [0, 3, 3])
    rows: list | None = None

    def find_cells(self, measurement, weights):
        self.say(COUNTED, self.name)
        return np.array(self.cells, dtype=int), None if self.rows is None else np.array(self.rows, dtype=int)


class Measuring(Study):
    """A study whose wards can count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clients = [Counter(ward.name, ward.account, ward.value, ward.say) for ward in self.clients]

    def counted(self) -> dict[str, int]:
        lines = [words[1] for words in self.diary.lines() if words[0] == COUNTED]
        return {name: lines.count(name) for name in self.sizes}

    def measured(self) -> dict[str, int]:
        """How many measurements are charged to each account."""
        found = committed(self.ledger)
        return {
            account: sum(times for event, times in charges.items() if isinstance(event, ev.DiscreteLaplace))
            for account, charges in found.items()
        }


def study_of(folder, style, measurement=LOUD, **options) -> Measuring:
    return Measuring(folder, style, {"rounds": 2, "measurement": measurement, **options})


# ---- zero noise ----


def release(folder, style: str, clients: dict, *, unit: str, adjacency: str) -> np.ndarray:
    """The counts that a whole run of one round releases at zero noise, if clients hold these rows out."""
    noise = {"clip_norm": 1.0, "noise_multiplier": 5.0} if style in ("sample", "hybrid") else {}
    part = LocalPlan(size=30, batch_size=5, steps=1, unit=unit, adjacency=adjacency, **noise)
    client = None if style == "sample" else ClientPlan(clip_norm=1.0, noise_multiplier=5.0)
    plan = Plan("study", 1, dict.fromkeys(clients, part), style=style, client=client, measurement=SILENT)
    wards = [Counter(name, f"account-{name}", cells=cells, rows=rows) for name, (cells, rows) in clients.items()]
    with Ledger(f"sqlite:///{folder / 'ledger.db'}") as ledger:
        if plan.charges_clients:
            kind = ("client", REPLACE_ONE) if style == "local" else (unit, adjacency)
            for ward in wards:
                ledger.open(ward.account, epsilon=1e4, delta=1e-5, unit=kind[0], adjacency=kind[1])
        if plan.server_noises:
            ledger.open("study", epsilon=1e4, delta=1e-5, unit="client", adjacency=plan.client_adjacency)
        runner = LocalRunner(wards, ledger, study="study" if plan.server_noises else None)
        (result,) = Federation(plan, np.zeros(3), runner, folder / "run")
    return np.array(result.measured.counts)


@pytest.fixture
def released(tmp_path_factory):
    def run(style, clients, unit="record", adjacency=ADD_REMOVE):
        return release(tmp_path_factory.mktemp("run"), style, clients, unit=unit, adjacency=adjacency)

    return run


BASE = {"a": ([0, 1, 3, 3, 3], None), "b": ([2, 3], None)}
PERSONS = {"a": ([0, 1, 3, 3, 3], [2, 3]), "b": ([2, 3], [2])}


@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_at_zero_noise_a_record_held_out_moves_one_count_by_one_and_one_replaced_two(released, style):
    """In hybrid what a client sends is scaled; what it noised itself is `release_client`, and the sum bounds it."""
    if style == "sample":
        before = released(style, BASE)
        assert before.tolist() == [1, 1, 1, 4]
        assert (released(style, {**BASE, "b": ([2, 3, 3], None)}) - before).tolist() == [0, 0, 0, 1]
        assert (released(style, {**BASE, "b": ([3], None)}) - before).tolist() == [0, 0, -1, 0]
        replaced = released(style, {**BASE, "b": ([0, 3], None)}, adjacency=REPLACE_ONE)
        assert np.abs(replaced - before).sum() == 2
    else:
        plan = study_plan(style, "record")
        one, two = (measuring.count_client(plan, np.array(cells), None) for cells in ([0, 1], [0, 1, 3]))
        assert (two - one).tolist() == [0, 0, 0, 1]
        assert measuring.find_client_noise(plan).grid == 1


@pytest.mark.parametrize("style", ["sample", "hybrid"])
@pytest.mark.parametrize("person", [[3], [0, 1, 2, 3, 3], [1] * 7, [0] * 11 + [2]])
def test_at_zero_noise_a_person_moves_the_counts_by_a_weight_of_one_however_many_rows_it_has(released, style, person):
    if style == "sample":
        before = released(style, PERSONS, unit="person")
        after = released(style, {**PERSONS, "b": ([2, 3, *person], [2, len(person)])}, unit="person")
        assert 0 < np.abs(after - before).sum() <= SILENT.grid
        replaced = released(style, {**PERSONS, "b": (person, [len(person)])}, unit="person", adjacency=REPLACE_ONE)
        assert np.abs(replaced - before).sum() <= 2 * SILENT.grid
    else:
        plan = study_plan(style, "person")
        moved = measuring.count_client(plan, np.array(person), np.array([len(person)]))
        assert 0 < moved.sum() <= SILENT.grid == measuring.find_client_noise(plan).grid


def study_plan(style: str, unit: str) -> Plan:
    noise = {"clip_norm": 1.0, "noise_multiplier": 5.0}
    part = LocalPlan(size=30, batch_size=5, steps=1, unit=unit, **noise)
    return Plan("study", 1, {"a": part}, style=style, client=ClientPlan(**noise), measurement=SILENT)


@pytest.mark.parametrize("style", ["user", "hybrid"])
@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize("cells", [[], [0], [3] * 500, [0, 1, 2, 3] * 9])
def test_at_zero_noise_a_client_more_or_less_moves_the_sum_by_a_weight_of_one_whatever_it_holds(
    released, style, unit, cells
):
    rows = [1] * len(cells) if unit == "person" else None
    base = PERSONS if unit == "person" else BASE
    before, after = released(style, base, unit), released(style, {**base, "c": (cells, rows)}, unit)
    assert np.abs(before).sum() <= 2 * SILENT.grid
    assert np.abs(after - before).sum() == (SILENT.grid if cells else 0)


@pytest.mark.parametrize("cells", [[], [0] * 7, [3] * 500])
def test_at_zero_noise_other_records_of_a_client_move_what_it_sends_by_two_weights_at_most_in_style_local(
    released, cells
):
    before, after = released("local", BASE), released("local", {**BASE, "b": (cells, None)})
    assert np.abs(after - before).sum() <= 2 * SILENT.grid
    assert measuring.find_client_noise(study_plan_local()).grid == SILENT.grid


def study_plan_local() -> Plan:
    part = LocalPlan(size=30, batch_size=5, steps=1)
    client = ClientPlan(clip_norm=1.0, noise_multiplier=5.0)
    return Plan("study", 1, {"a": part}, style="local", client=client, measurement=SILENT)


# ---- what is charged, stored and shown ----


@pytest.mark.parametrize("style", STYLES)
def test_a_run_releases_its_figures_after_the_round_they_are_planned_for_and_pays_for_them_once(tmp_path, style):
    study = study_of(tmp_path, style)
    first, last = list(study.federation())
    assert first.measured is None
    assert set(last.measured.figures) == {"accuracy"}
    paying = {f"account-{name}" for name in study.sizes} if study.plan.charges_clients else set()
    paying |= {"study"} if study.plan.server_noises else set()
    assert study.measured() == dict.fromkeys(paying, 1)
    for spent, whole in zip(last.spent, study.plan.statements(1e-5), strict=True):
        assert spent.epsilon == pytest.approx(whole.epsilon)
    assert all(more.epsilon > own.epsilon for own, more in zip(first.cost, last.cost, strict=True))
    record = study.directory().rounds()[-1]
    assert record["released"] == last.measured.to_record()
    assert "released" not in study.directory().rounds()[0]
    study.require_done()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("spare", [0, 1])
def test_after_a_crash_at_any_point_no_figure_is_free_and_none_is_paid_twice(tmp_path, style, spare):
    number, ended = 0, False
    while not ended:
        number += 1
        for is_after in (False, True):
            folder = tmp_path / f"{number}-{is_after}"
            folder.mkdir()
            study = study_of(folder, style, spare_rounds=spare)
            ended = True
            with crash_at(number, is_after=is_after), suppress(Crash):
                ended = bool(list(study.federation()))
            study.ledger.close()
            again = study_of(folder, style, spare_rounds=spare)
            done = list(again.federation())
            check_charges(again, done, spare)
            again.ledger.close()


def check_charges(study: Measuring, done: list, spare: int) -> None:
    """Whatever was counted with noise was charged, within what was reserved; a figure is there if one is paid for."""
    study.ledger.verify()
    most, charged, counted = 1 + spare, study.measured(), study.counted()
    assert all(times <= most for times in charged.values())
    if study.plan.charges_clients:
        assert all(counted[name] <= charged.get(f"account-{name}", 0) for name in counted)
    records = study.directory().rounds()
    if [record["round"] for record in records] == [1, 2] and spare:
        assert "released" in records[-1]
    if done and done[-1].measured is not None:
        assert all(times >= 1 for times in charged.values())


def test_counts_that_were_stored_are_used_again_and_cost_nothing(tmp_path):
    for style, file in (("sample", "measured-000002-000000.npz"), ("user", "measured-000002.npz")):
        folder = tmp_path / style
        folder.mkdir()
        study = study_of(folder, style)
        federation = study.federation()
        next(federation)
        with pytest.raises(Crash):
            _crash_when_stored(study, federation, file)
        before = study.measured()
        again = study_of(folder, style)
        (last,) = again.federation()
        assert last.measured is not None
        assert again.measured() == before
        assert not list((folder / "run" / "released").iterdir())


def _crash_when_stored(study: Measuring, federation: Federation, file: str) -> None:
    def crash(*_):
        assert (study.folder / "run" / "released" / file).exists()
        raise Crash

    federation.run.append = crash  # the first thing after it
    next(federation)


def test_counts_about_another_model_are_not_used_again(tmp_path):
    study = study_of(tmp_path, "sample", spare_rounds=1)
    federation = study.federation()
    next(federation)
    with pytest.raises(Crash):
        _crash_when_stored(study, federation, "measured-000002-000000.npz")
    for path in (study.folder / "run" / "released").glob("round-*.npz"):
        path.unlink()  # as a power cut does: the round is done again, and leads to another model
    again = study_of(tmp_path, "sample", spare_rounds=1)
    list(again.federation())
    assert set(again.measured().values()) == {2}


def test_a_ledger_from_before_the_measurement_is_refused(tmp_path):
    study = study_of(tmp_path, "sample", replace(LOUD, rounds=(1,)))
    federation = study.federation()
    head = study.ledger.head()
    next(federation)
    record = study.directory().rounds()[-1]
    assert int(record["head"].split(":")[0]) >= int(str(head).split(":")[0]) + 6  # three trained, three measured


# ---- clients that fail, and nonsense ----


def test_a_client_that_fails_sends_noise_around_zero_and_is_told_to_its_owner(tmp_path):
    study = study_of(tmp_path, "sample", SILENT)
    study.clients[1].cells = ["no cell"]
    runner = study.runner()
    federation = study.federation(runner)
    (first, _) = list(federation)
    assert first.measured.counts == (2, 0, 0, 4)  # of the two others
    assert set(study.measured().values()) == {1}


@pytest.mark.parametrize("style", STYLES)
def test_whoever_fails_sends_as_many_numbers_as_the_others(tmp_path, style):
    """That nothing comes would tell of its records, also where it is noised; its owner is told beside."""
    study = study_of(tmp_path, style)
    study.clients[1].cells = ["no cell"]
    runner = study.runner()
    runner.enroll(study.plan, np.zeros(3))
    outcomes = list(runner.measure(Task(2, {"weights": np.zeros(3)}), study.sizes))
    sent = {each.client: each.value for each in outcomes if isinstance(each, Update)}
    assert {name: len(value) for name, value in sent.items()} == dict.fromkeys(study.sizes, 4)
    assert [each.client for each in outcomes if isinstance(each, Failure)] == ["west"]


def test_a_client_without_a_charge_left_is_not_asked_again(tmp_path):
    study = study_of(tmp_path, "sample")
    runner, task = study.runner(), Task(2, {"weights": np.zeros(3)})
    runner.enroll(study.plan, np.zeros(3))
    list(runner.measure(task, study.sizes))
    again = list(runner.measure(task, study.sizes))
    assert again == [Failure(name, "exhausted") for name in study.sizes]
    assert set(study.measured().values()) == {1}


@pytest.mark.parametrize("kind", [LocalRunner, PoolRunner, EnsembleRunner])
def test_every_runner_of_one_machine_measures(tmp_path, kind):
    study = study_of(tmp_path, "sample", SILENT)
    first, _ = list(study.federation(study.runner(kind)))
    assert first.measured.counts == (3, 0, 0, 6)


def test_a_simulated_attack_measures_as_its_inner_runner(tmp_path):
    study = study_of(tmp_path, "hybrid", SILENT)
    first, _ = list(study.federation(AttackedRunner(study.runner(), {"west": "sign_flip"}, "SIMULATION")))
    assert sum(first.measured.counts) <= 3 * SILENT.grid


class Nonsense(LocalRunner):
    """A runner whose clients send what they should not."""

    def measure(self, task, clients):
        for place, outcome in enumerate(list(super().measure(task, clients))):
            yield outcome
            yield replace(outcome, value=np.full(4, 1e6))  # a second time
            yield Update("stranger", task.round, np.full(4, 1e6), outcome.head)
            yield replace(outcome, client=f"{outcome.client}{place}")
            yield Failure("west", "failed", None)


def test_a_client_counts_once_and_a_stranger_never(tmp_path):
    study = study_of(tmp_path, "sample", SILENT)
    first, _ = list(study.federation(study.runner(Nonsense)))
    assert first.measured.counts == (3, 0, 0, 6)


class Malformed(LocalRunner):
    def measure(self, task, clients):
        for outcome, value in zip(
            list(super().measure(task, clients)), (np.zeros(3), np.full(4, np.nan), np.full(4, np.inf)), strict=True
        ):
            yield replace(outcome, value=value)


@pytest.mark.parametrize("style", ["sample", "user"])
def test_malformed_counts_are_left_out_and_do_not_end_the_run(tmp_path, style):
    study = study_of(tmp_path, style, SILENT)
    first, last = list(study.federation(study.runner(Malformed)))
    assert last.number == 2
    assert first.measured is None if style == "sample" else first.measured.counts == (0, 0, 0, 0)


# ---- stopping by released figures ----

EARLY = replace(LOUD, epsilon=600.0, rounds=(1, 2, 3, 4), grid=12, stop="accuracy", patience=2)


class Weary(Measuring):
    """A study whose models are right less and less often from round to round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for ward in self.clients:
            ward.find_cells = lambda measurement, weights: (np.array([0, 3, *[1] * int(abs(weights).sum() * 9)]), None)


def test_a_run_ends_once_a_released_figure_is_not_better_for_as_long_as_it_waits(tmp_path):
    study = Weary(tmp_path, "sample", {"rounds": 4, "measurement": EARLY})
    federation = study.federation()
    assert [result.number for result in federation] == [1, 2, 3]
    assert federation.status == study.directory().status == "stopped"
    assert study.ledger.reservations() == ()
    assert [record["round"] for record in study.directory().follow()] == [1, 2, 3]
    whole = study.plan.record_epsilon(1e-5)
    assert [each.epsilon for each in study.plan.statements(1e-5)] == [whole]  # that of the reserved plan


def test_a_stopped_run_stays_stopped_and_one_that_crashed_before_stops_at_the_same_round(tmp_path):
    study = Weary(tmp_path, "sample", {"rounds": 4, "measurement": EARLY})
    federation = study.federation()
    for _ in range(3):
        next(federation)
    again = Weary(tmp_path, "sample", {"rounds": 4, "measurement": EARLY}).federation()
    assert list(again) == []
    assert again.status == "stopped"


def test_only_released_values_decide_when_to_stop():
    assert not EARLY.is_over([0.5, 0.6, 0.4])
    assert EARLY.is_over([0.6, 0.5, 0.4])
    assert not EARLY.is_over([0.5, None, 0.6, None])
    assert EARLY.is_over([0.5, 0.6, None, 0.6])
    assert not LOUD.is_over([0.9, 0.1, 0.1, 0.1])


@pytest.mark.parametrize(
    ("change", "why"),
    [({"stop": "auc"}, "must be a metric that is released"), ({"rounds": (1, 2)}, "needs figures after 3 rounds")],
)
def test_a_stop_that_could_never_be_decided_is_refused(change, why):
    with pytest.raises(InvalidArgument, match=why):
        replace(EARLY, **change)

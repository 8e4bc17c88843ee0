"""A run over a population is, to the last bit and charge, that over a dict of as many equal clients."""

from __future__ import annotations

import json
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from dpfed.cli.main import main
from dpfed.errors import InvalidArgument
from dpfed.federated.engine import Federation
from dpfed.federated.results import FINISHED
from dpfed.federated.runners.factory import ClientFactory
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.runners.processes import PoolRunner
from dpfed.federated.runners.together import EnsembleRunner
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.ledger.ledger import Ledger
from dpfed.models.logistic import Logistic
from dpfed.plan.plan import Algorithm, All, ClientPlan, FixedCohort, LocalPlan, Plan, PoissonCohort, Population
from dpfed.plan.tree import RoundTree
from dpfed.randomness import SeededSource
from dpfed.report.documents import render_markdown
from dpfed.report.reports import owner_page, shareable_facts, shareable_page
from dpfed.runs.directory import RunDirectory
from studies import BORN, DIMENSION, Crash, Diary, SilentSource, Study, Ward, committed, crash_at
from worlds import fork, told

EACH = LocalPlan(size=20, batch_size=10, steps=2, learning_rate=0.5)
TREE = ClientPlan(clip_norm=1.0, noise_multiplier=5.0, tree=RoundTree(min_separation=2))
CASES = {
    "all": {"cohort": All()},
    "poisson": {"cohort": PoissonCohort(0.3)},
    "poisson, secret": {"cohort": PoissonCohort(0.3, secret=True)},
    "fixed": {"cohort": FixedCohort(4)},
    "fixed, secret": {"cohort": FixedCohort(4, secret=True)},
    "tree": {"cohort": FixedCohort(4), "client": TREE, "max_participations": 2},
}
STATEFUL = {
    "scaffold": {"algorithm": Algorithm("scaffold"), "weighting": "equal"},
    "feddyn": {"algorithm": Algorithm("feddyn", {"alpha": 0.1}), "weighting": "equal"},
}
every_case = pytest.mark.parametrize("case", CASES)


@dataclass
class Phones(Study):
    """A study of so many clients that are alike: over a population, or over a dict of them."""

    count: int = 12
    is_named: bool = False

    def __post_init__(self) -> None:
        self.diary = Diary(self.folder / "diary")
        self.diary.say(BORN)
        self.made: list[int] = []
        self.population = Population(self.count, EACH)
        local = dict.fromkeys(self.population.names, EACH) if self.is_named else self.population
        noise = {"client": ClientPlan(clip_norm=1.0, noise_multiplier=5.0)} if self.style == "user" else {}
        self.plan = Plan("study", local=local, style=self.style, **{"rounds": 4, **noise, **self.options})
        self.clients = [self.ward(*each) for each in enumerate(self.population.names)] if self.is_named else []
        self.study = "study" if "client" in self.plan.units else None
        self.ledger = Ledger(f"sqlite:///{self.folder / 'ledger.db'}")
        if self.study:
            self._open(self.study, "client", self.plan.client_adjacency)

    def ward(self, number, name) -> Ward:
        self.made.append(number)
        return Ward(name, "", float(number), self.diary.say)

    def runner(self, kind=LocalRunner, source=None, make=None, example=None) -> LocalRunner:
        ledger = self.ledger if self.plan.units else None
        clients = self.clients if self.is_named else ClientFactory(make or self.ward, example)
        return kind(clients, ledger, study=self.study, source=source)


@pytest.fixture
def phones(tmp_path):
    """Opens a study over a population in a folder of its own, or in the same again."""
    opened = []

    def opens(style="user", folder="a", **options) -> Phones:
        (tmp_path / folder).mkdir(exist_ok=True)
        own = {name: options.pop(name) for name in ("count", "is_named") if name in options}
        opened.append(Phones(tmp_path / folder, style, options, **own))
        return opened[-1]

    yield opens
    for each in opened:
        each.ledger.close()


def seeded(study, kind=LocalRunner, **options) -> Federation:
    return study.federation(study.runner(kind, SeededSource(3), **options), source=SeededSource(4))


# ---- the same run ----


@pytest.mark.parametrize(("style", "case"), [*(("user", case) for case in CASES), ("none", "all"), ("none", "fixed")])
def test_a_run_over_a_population_is_that_over_a_dict_to_the_last_bit_and_charge(phones, style, case):
    runs = [phones(style, folder, is_named=folder == "named", **CASES[case]) for folder in ("alike", "named")]
    results = [list(seeded(study)) for study in runs]
    for one, other in zip(*results, strict=True):
        assert one.weights.tolist() == other.weights.tolist()
        assert (one.spent, one.cost, one.status) == (other.spent, other.cost, other.status)
        assert one.participation == other.participation
    assert committed(runs[0].ledger) == committed(runs[1].ledger)
    assert any(one.participation.contributed for one in results[0])


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("style", ["none", "user"])
def test_what_clients_keep_from_round_to_round_is_kept_for_the_drawn_ones(phones, style, name):
    options = {**STATEFUL[name], "cohort": PoissonCohort(0.4, secret=style == "user"), "rounds": 6}
    runs = [phones(style, folder, is_named=folder == "named", **options) for folder in ("alike", "named")]
    ends = [[result.weights.tolist() for result in seeded(study)] for study in runs]
    assert ends[0] == ends[1]


def test_state_with_secret_draws_that_depend_on_each_other_is_refused_for_a_population_too(phones):
    study = phones("user", cohort=FixedCohort(4, secret=True), **STATEFUL["scaffold"])
    with pytest.raises(InvalidArgument, match="clients must keep no state with a secret cohort of fixed size"):
        study.federation()


def test_only_clients_that_are_drawn_are_made_each_for_its_round(phones):
    study = phones(cohort=FixedCohort(4), count=1_000_000)
    results = list(study.federation())
    asked = [study.population.number(name) for result in results for name in result.participation.contributed]
    assert study.made == asked
    assert len(asked) == 16


def test_a_checkpoint_names_clients_that_took_part_and_no_others(phones):
    study = phones(cohort=FixedCohort(4), count=1_000_000)
    federation = study.federation()
    asked = set(next(federation).participation.contributed)
    assert set(federation._checkpoint.taken) == asked
    assert max(path.stat().st_size for path in study.directory().path.rglob("*") if path.is_file()) < 20_000


# ---- clients that cannot be made ----


def raises(number, name):
    raise ValueError(f"no records of {name}")


def exits(number, name):
    raise SystemExit(3)


class Panic(BaseException):
    """What a library in Rust raises at data that it did not think of: no Exception."""


def panics(number, name):
    raise Panic(f"no records of {name}")


def hangs(number, name):
    time.sleep(60)


BROKEN = {
    "raises": raises,
    "exits": exits,
    "panics": panics,
    "panics in training": lambda number, name: Panicking(name, ""),
    "nothing": lambda number, name: None,
    "another": lambda number, name: Ward("client-1", "", 5.0),
    "does not fit": lambda number, name: Misfit(name, ""),
    "too late": hangs,
}


class Panicking(Ward):
    def train(self, local, objective, source):
        raise Panic("a record of its own")


class Misfit(Ward):
    def rehearse(self, local, weights) -> None:
        raise ValueError("shapes differ")


@pytest.mark.parametrize("kind", [LocalRunner, EnsembleRunner, PoolRunner])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_client_that_cannot_be_made_contributes_zero_and_nobody_sees_it(phones, broken, kind):
    def make(number, name):
        return BROKEN[broken](number, name) if number == 2 else Ward(name, "", float(number))

    options = {"count": 4, "rounds": 1, "client_timeout": 3.0 if broken == "too late" else 600.0}
    study, whole = phones("user", "broken", **options), phones("user", "whole", **options)
    try:
        result = next(seeded(study, kind, make=make))
    except Panic as error:
        pytest.fail(f"one client stopped the round: {error}")
    assert sorted(result.participation.contributed) == ["client-0", "client-1", "client-3"]
    assert (result.participation.failed, list(result.participation.errors)) == (("client-2",), ["client-2"])
    expected = next(seeded(whole, kind))
    shown = [json.loads(json.dumps(each.facts())) for each in (result, expected)]
    assert shown[0].keys() == shown[1].keys()
    assert "client-" not in json.dumps(shown[0])
    assert shown[0]["spent"] == shown[1]["spent"]
    assert committed(study.ledger) == committed(whole.ledger)
    assert len(study.directory().rounds()) == 1


class InPlace(Ward):
    """Trains on the very memory it is given: torch does so, whatever numpy says of it."""

    by = 0.0

    def rehearse(self, local, weights) -> None:
        with warnings.catch_warnings(action="ignore"):
            torch.from_numpy(weights).add_(self.by)

    def train(self, local, objective, source):
        with warnings.catch_warnings(action="ignore"):
            torch.from_numpy(objective.start).add_(self.by)
        return np.zeros(DIMENSION)


@pytest.mark.parametrize("kind", [LocalRunner, EnsembleRunner])
@pytest.mark.parametrize("is_named", [False, True])
def test_a_client_that_writes_where_numpy_forbids_it_reaches_no_other_and_not_the_server(phones, kind, is_named):
    ends = []
    for by in (0.0, 1000.0):

        def make(number, name, by=by):
            made = InPlace(name, "") if number == 0 else Ward(name, "", float(number))
            made.by = by
            return made

        study = phones("user", f"{by:g}", count=4, rounds=2, is_named=is_named)
        study.clients = [make(*each) for each in enumerate(study.population.names)] if is_named else []
        ends.append([result.weights.tolist() for result in seeded(study, kind, make=make)])
    assert ends[0] == ends[1]


@pytest.mark.parametrize("kind", [LocalRunner, EnsembleRunner])
def test_a_run_goes_on_to_its_end_if_nobody_can_be_made(phones, kind):
    study = phones(cohort=PoissonCohort(0.5, secret=True))
    federation = seeded(study, kind, make=raises)
    assert [result.participation.contributed for result in federation] == [()] * 4
    assert federation.status == FINISHED
    assert study.committed_releases() == 4


def test_style_none_which_protects_nobody_stops_with_the_error_if_nobody_can_be_made(phones):
    with pytest.raises(ValueError, match="no records of client-0"):
        next(seeded(phones("none"), make=raises))


@pytest.mark.parametrize("drawn", [0, 1])
def test_a_round_in_which_nobody_was_drawn_moves_nothing_in_style_none(phones, drawn):
    study = phones("none", count=30, cohort=PoissonCohort(1e-9 if not drawn else 1.0))
    assert next(seeded(study)).weights.any() == bool(drawn)


# ---- what is refused before anything is charged ----


def test_an_example_that_does_not_fit_is_refused_before_anything_is_reserved(phones):
    study = phones()
    with pytest.raises(ValueError, match="shapes differ"):
        study.federation(study.runner(example=Misfit("anybody", "")))
    assert study.ledger.reservations() == ()
    study.federation(study.runner(example=Ward("anybody", "")))
    assert study.made == []


def test_a_list_of_clients_for_a_population_is_refused(phones):
    study = phones(count=2)
    runner = LocalRunner([Ward("client-0", ""), Ward("client-1", "")], study.ledger, study="study")
    with pytest.raises(InvalidArgument, match="give the runner ClientFactory"):
        study.federation(runner)


def test_a_factory_for_named_clients_is_refused(phones):
    study = phones(is_named=True)
    with pytest.raises(InvalidArgument, match="only for a plan over a Population"):
        study.federation(LocalRunner(ClientFactory(study.ward), study.ledger, study="study"))


def test_a_factory_is_a_function():
    with pytest.raises(InvalidArgument, match="make must be a function"):
        ClientFactory([Ward("client-0", "")])


def test_an_optimizer_that_an_algorithm_cannot_read_counts_as_a_client_that_cannot_be_made(phones):
    def make(number, name):
        ward = Ward(name, "", float(number))
        ward.takes_plain_steps = number != 2
        return ward

    study = phones("none", count=4, **STATEFUL["scaffold"])
    assert next(seeded(study, make=make)).participation.failed == ("client-2",)


def test_an_example_with_such_an_optimizer_is_refused_before_anything_is_charged(phones):
    study, example = phones(**STATEFUL["scaffold"]), Ward("anybody", "")
    example.takes_plain_steps = False
    with pytest.raises(InvalidArgument, match="take plain steps"):
        study.federation(study.runner(example=example))
    assert study.ledger.reservations() == ()


# ---- sensitivity, at zero noise ----


def released(study, updates) -> np.ndarray:
    """The mean of a first round without noise, with the updates of some clients by number; others cannot be made."""

    class Fixed(Ward):
        def train(self, local, objective, source):
            return updates[int(self.value)]

    def make(number, name):
        return Fixed(name, "", number) if number in updates else raises(number, name)

    return next(study.federation(study.runner(make=make), source=SilentSource())).weights


@pytest.mark.parametrize("case", ["all", "poisson, secret"])
def test_at_zero_noise_a_client_that_is_removed_moves_the_mean_by_at_most_what_is_charged(phones, case):
    long = np.array([1e3, 0.0, 0.0])
    updates = {number: long * (1 if number % 2 else 1e-5) for number in range(12)}
    study = phones("user", "whole", rounds=1, **CASES[case])
    whole, bound = released(study, updates), study.plan.sensitivity
    assert bound.adjacency == "add_remove"
    moved = []
    for gone in range(12):
        less = {number: update for number, update in updates.items() if number != gone}
        moved.append(np.linalg.norm(whole - released(phones("user", f"{gone}", rounds=1, **CASES[case]), less)))
    assert max(moved) <= float(bound) * (1 + 1e-12)
    assert max(moved) == pytest.approx(float(bound))


def test_at_zero_noise_a_client_that_is_replaced_moves_the_mean_by_at_most_what_is_charged(phones):
    case = {"rounds": 1, "cohort": FixedCohort(4, secret=True)}
    updates = {number: np.array([1e3, 0.0, 0.0]) for number in range(12)}
    study = phones("user", "whole", **case)
    whole, bound = released(study, updates), study.plan.sensitivity
    assert bound.adjacency == "replace_one"
    moved = [
        np.linalg.norm(whole - released(phones("user", f"{number}", **case), {**updates, number: -updates[number]}))
        for number in range(12)
    ]
    assert sorted(moved)[:8] == [0.0] * 8  # who is not drawn moves nothing
    assert max(moved) == pytest.approx(float(bound))
    assert max(moved) <= float(bound) * (1 + 1e-12)


# ---- crashes ----


def run_to_the_end(study) -> None:
    federation = study.federation()
    list(federation)
    assert federation.status == FINISHED


@pytest.mark.parametrize("case", ["poisson", "poisson, secret", "fixed, secret", "tree"])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_crash_at_each_durable_write_makes_nothing_free_and_loses_no_round(phones, case, is_after):
    options = {**CASES[case], "rounds": 2, "spare_rounds": 1}
    number, is_over = 0, False
    while not is_over:
        number += 1
        study = phones("user", str(number), **options)
        with crash_at(number, is_after=is_after), suppress(Crash):
            list(study.federation())
            is_over = True
        study.require_nothing_free()
        study.ledger.close()
        other = phones("user", str(number), **options)
        run_to_the_end(other)
        other.require_nothing_free()
        other.require_done()
        other.ledger.close()
    assert number > 5


def test_kill_9_makes_nothing_free_and_no_round_twice(tmp_path, campaign_scale):
    kills = 3 * campaign_scale
    options = {"cohort": PoissonCohort(1e-4, secret=True), "rounds": 6, "spare_rounds": 2 * kills}
    moments = np.random.default_rng(12 if campaign_scale == 1 else None)

    def opened() -> Phones:
        return Phones(tmp_path, "user", options, count=1_000_000)

    def work(say) -> None:
        study = opened()
        say("ready")
        run_to_the_end(study)

    for _ in range(kills):
        child = fork(work)
        child.hear()
        time.sleep(moments.uniform(0.0, 0.15))
        child.kill()
        child.end()
        study = opened()
        study.require_nothing_free()
        study.ledger.close()
    told(work)
    study = opened()
    study.require_nothing_free()
    study.require_done()
    study.ledger.close()


def test_a_run_goes_on_with_its_own_population_only(phones):
    next(phones(cohort=FixedCohort(4)).federation())
    with pytest.raises(InvalidArgument, match="holds another plan"):
        phones(cohort=FixedCohort(4), count=13).federation()
    with pytest.raises(InvalidArgument, match="holds another plan"):
        phones(cohort=FixedCohort(4), is_named=True).federation()


def test_a_cohort_on_disk_with_a_name_that_is_no_clients_is_refused(phones):
    study = phones("none", cohort=FixedCohort(4))
    federation = study.federation()
    federation._stored.write_cohort(1, ["client-0", "client-12"])
    with pytest.raises(InvalidArgument, match="no list of clients"):
        next(federation)


# ---- torch ----


def test_torch_clients_are_made_and_trained_together_as_a_list_of_them(tmp_path):
    draws = np.random.default_rng(0)
    inputs, labels = draws.normal(size=(6, 20, 30)).astype(np.float32), draws.integers(0, 2, (6, 20))
    model, ends = TorchModel(Logistic, "cross_entropy"), []

    def make(number, name):
        return TorchClient(name, (inputs[number], labels[number]), "", model)

    population = Population(6, EACH)
    for folder, clients in (("a", ClientFactory(make)), ("b", [make(*each) for each in enumerate(population.names)])):
        local = population if folder == "a" else dict.fromkeys(population.names, EACH)
        runner = EnsembleRunner(clients, source=SeededSource(1), chunk=32)
        plan = Plan("study", 2, local, style="none", cohort=FixedCohort(3))
        federation = Federation(
            plan, model.first_weights, runner, tmp_path / folder, layout=model.layout, source=SeededSource(2)
        )
        ends.append([result.weights.tolist() for result in federation])
    assert ends[0] == ends[1]


def test_records_of_a_form_that_cannot_be_trained_together_stop_no_round(tmp_path, monkeypatch):
    def breaks(*_):
        raise RuntimeError("of this form")

    monkeypatch.setattr("dpfed.federated.runners.together.Ensemble", breaks)
    model, data = TorchModel(Logistic, "cross_entropy"), (np.ones((20, 30), np.float32), np.zeros(20, int))
    runner = EnsembleRunner(ClientFactory(lambda number, name: TorchClient(name, data, "", model)))
    plan = Plan("study", 1, Population(6, EACH), style="none", cohort=FixedCohort(3))
    federation = Federation(plan, model.first_weights, runner, tmp_path, layout=model.layout)
    assert len(next(federation).participation.contributed) == 3


# ---- reports ----


def test_a_report_of_a_million_clients_names_none_but_the_first_and_the_last(phones, capsys):
    study = phones(cohort=PoissonCohort(1e-5, secret=True), count=1_000_000)
    list(study.federation())
    run = study.directory().path
    (site,) = shareable_facts(run)["sites"]
    assert (site["clients"], site["name"]) == (1_000_000, "1000000 clients from client-0 to client-999999")
    text = render_markdown(shareable_page(run))
    assert text.count("client-") == 2
    assert len(text) < 10_000
    with pytest.raises(SystemExit) as end:
        main(["report", str(run), "--markdown"])
    assert not end.value.code
    assert capsys.readouterr().out.strip() == text.strip()


def test_the_owners_report_names_those_that_were_asked(phones):
    study = phones(cohort=FixedCohort(4), count=1_000_000)
    results = list(study.federation())
    text = render_markdown(owner_page(study.directory().path))
    assert all(name in text for result in results for name in result.participation.contributed)
    assert len(text) < 20_000


def test_what_a_run_shows_of_a_population_is_its_plan(phones):
    study = phones(cohort=FixedCohort(4))
    next(study.federation())
    assert RunDirectory(study.directory().path).plan == study.plan
    assert study.plan.local == Population(12, EACH)

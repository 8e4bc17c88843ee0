"""A run over a network against the embedded run: the same model, also after crashes, and no figure too low.

All fault logic is here on a transport in memory; the real one carries the same bytes.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument, SiteRefused
from dpfed.events import DiscreteLaplace
from dpfed.federated import launch
from dpfed.federated.asks import AskBook, count_at_most
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.plan.costs import compute_spent
from dpfed.plan.plan import Plan
from dpfed.runs.directory import RunDirectory
from networks import SIZES, Network

NOISY = {"style": "sample", "record": {"noise_multiplier": 3.0, "delta": 1e-5, "clip_norm": 1.0}}  # not calibrated
SMALL = {"rounds": 2, "spare_rounds": 2, "local": {"steps": 1}, "privacy": NOISY}


@pytest.fixture
def make(tmp_path):
    made = []

    def makes(folder="net", **changes) -> Network:
        made.append(Network(tmp_path / folder, **changes))
        return made[-1]

    yield makes
    for each in made:
        each.close()


def embedded(network: Network) -> tuple:
    """Run the same file on one machine, and return the model and what was reported."""
    prepared = launch.prepare(RunConfig.of(network.values | {"runner": "one_by_one"}), network.folder)
    directory = network.folder / "embedded"
    with prepared.ledger(directory) as ledger:
        results = list(prepared.federation(directory, ledger))
    return results[-1].weights, results[-1].spent


def committed(network: Network, name: str) -> dict:
    """Return what the site's ledger says was committed, by event, read by somebody else than the site."""
    account = network.files[name].config.ledger.account
    with Ledger(network.files[name].ledger_url, create=False) as ledger:
        ledger.verify()
        found: dict = {}
        for line in ledger.statement(account).lines:
            if line.kind == "committed":
                found[line.event] = found.get(line.event, 0) + line.count
    return found


def plan_of(network: Network) -> Plan:
    return RunDirectory(network.folder / "run").plan


def recomputed(network: Network) -> float:
    """Return the ε of all that the sites' ledgers have committed, for the worst record."""
    plan = plan_of(network)
    charges = {name: committed(network, name) for name in network.sizes}
    return compute_spent(plan, {"record": 1e-5}, charges, {}).statements[0].epsilon


def test_the_model_equals_that_of_the_embedded_run_bit_for_bit(make):
    network = make()
    weights = network.run()
    expected, spent = embedded(network)
    assert np.array_equal(weights, expected)
    run = RunDirectory(network.folder / "run")
    with pytest.raises(InvalidArgument, match="is a run over a network, whose records are at its sites"):
        launch.resume_run(run.path)
    assert run.status == "finished"
    assert run.rounds()[-1]["spent"][0]["epsilon"] == spent[0].epsilon == recomputed(network)
    assert [sum(committed(network, name).values()) for name in SIZES] == [3, 3, 3]


def test_a_run_killed_after_round_two_goes_on_to_the_same_model(make):
    network = make()
    network.run(rounds=2)  # the server's process ends here
    for name in SIZES:
        network.restart(name)
    weights = network.run()
    assert np.array_equal(weights, embedded(network)[0])
    assert [sum(committed(network, name).values()) for name in SIZES] == [3, 3, 3]


def test_a_message_that_fails_is_asked_for_again_at_no_charge(make):
    faults = ["lost", "lost reply", "late", "altered", "altered request", "replayed", "oversized", "duplicated"]
    network = make(**SMALL | {"rounds": len(faults)})
    script = [each for fault in faults for each in ([fault] if fault == "duplicated" else [fault, "none"])]
    network.transport.faults[network.keys["south"]] = ["none", *script]
    weights = network.run()
    assert np.array_equal(weights, embedded(network)[0])
    assert [sum(committed(network, name).values()) for name in SIZES] == [len(faults)] * 3


def test_a_message_that_was_overtaken_is_refused_and_not_charged(make):
    network = make(**SMALL)
    network.transport.faults[network.keys["south"]] = ["none", "reordered"]
    network.run()
    assert sum(committed(network, "south").values()) == 2


def test_a_request_after_its_deadline_is_refused_and_charges_nothing(make):
    network = make(**SMALL)
    network.transport.faults[network.keys["south"]] = ["none", "stale"]
    network.run(rounds=1)
    assert committed(network, "south") == {}
    assert sum(committed(network, "north").values()) == 1


def test_a_site_that_is_away_has_failed_and_the_others_go_on(make):
    network = make(**SMALL)
    network.run(rounds=0)
    network.transport.away.add(network.keys["east"])
    with network.federation() as federation:
        result = next(federation)
    assert result.participation.failed == ("east",)
    assert result.participation.contributed == ("north", "south")


def test_a_hostile_site_neither_stops_the_server_nor_moves_the_model_beyond_its_clip(make):
    size = 62

    def forging(name="south", arrays=None, **changes):
        return lambda content: network.forge(name, content, arrays or {"value": np.ones(size)}, **changes)

    hostile = {
        "another shape": [forging(arrays={"value": np.ones((size, 2))})],
        "nan": [forging(arrays={"value": np.full(size, np.nan)})],
        "no value": [forging(arrays={"weights": np.ones(size)})],
        "a huge update": [forging(arrays={"value": np.full(size, 1e200)})],
        "another round": [forging(round=2)] * 3,
        "another site's name": [forging(site="north")] * 3,
        "another site's key": [forging(name="north")] * 3,
        "weights of its own": [forging(arrays={"value": np.full(size, np.inf)}, weight=1e9)],
        "a code that there is not": [forging(code="trust me")] * 3,
        "counts that cannot be": [forging(counts=["many"], head=7, last="x", code="unavailable")],
        "a last request of 4300 digits": [forging(arrays={"x": np.ones(1)}, counts=[0], last=10**4300 - 1)],
        "40 MB": ["oversized"] * 3,
        "no safetensors": [lambda content: b"dpfed/1\n" + bytes(100)] * 3,
    }
    network = make(**SMALL | {"rounds": len(hostile)})
    network.transport.faults[network.keys["south"]] = [
        "none",
        *[each for script in hostile.values() for each in script],
    ]
    with network.federation() as federation:
        for kind, result in zip(hostile, federation, strict=True):
            assert result.participation.contributed == ("north", "east"), kind
            assert np.isfinite(result.weights).all()
            assert np.abs(result.weights).max() < 100
    assert committed(network, "south") == {}


def test_one_site_that_refuses_a_new_run_leaves_no_reservation_at_the_others(make):
    network = make(**SMALL)
    with Ledger(network.files["east"].ledger_url) as ledger:
        ledger.freeze("east-records", reason="an audit")
    with pytest.raises(SiteRefused, match=r"east \(unavailable\)") as refusal:
        network.run()
    assert refusal.value.codes == {"east": "unavailable"}
    for name in ("north", "south"):
        with Ledger(network.files[name].ledger_url) as ledger:
            assert ledger.reservations() == ()
    with Ledger(network.files["east"].ledger_url) as ledger:
        ledger.unfreeze("east-records", reason="it is over", steward=None)
    network.run()
    assert [sum(committed(network, name).values()) for name in SIZES] == [2, 2, 2]


def test_the_server_counts_an_ask_as_charged_until_it_hears_otherwise(make):
    network = make(**SMALL)
    network.run(rounds=0)
    network.transport.faults[network.keys["south"]] = ["none"] + ["lost"] * 500
    with network.federation() as federation:
        result = next(federation)
        assert federation.runner.charged().local == {"north": 1, "south": 4, "east": 1}  # all that is reserved
        assert committed(network, "south") == {}
        assert result.spent[0].epsilon > recomputed(network)
    network.transport.faults.clear()
    with network.federation() as federation:
        assert federation.runner.charged().local == {"north": 1, "south": 0, "east": 1}  # heard, and exact


def test_a_site_whose_ledger_was_put_back_is_refused_and_the_higher_count_stays(make):
    network = make(**SMALL)
    network.run(rounds=0)
    network.sites["south"].close()
    ledger = network.folder / "south" / "ledger.db"
    shutil.copy(ledger, ledger.with_suffix(".old"))
    network.restart("south")
    network.run(rounds=1)
    network.sites["south"].close()
    for path in ledger.parent.glob("ledger.db*"):
        path.unlink()
    shutil.copy(ledger.parent / "ledger.old", ledger) if (ledger.parent / "ledger.old").exists() else None
    network.restart("south")
    with network.federation() as federation:
        result = next(federation)
        assert result.participation.failed == ("south",)
        assert federation.runner.charged().local["south"] >= 1


def test_a_book_of_asks_that_is_missing_or_changed_is_refused(make):
    network = make(**SMALL)
    network.run(rounds=1)
    book = network.folder / "run" / "asks.jsonl"
    content = book.read_text()
    book.write_text(content.replace('"round": 1', '"round": 2', 1))
    with pytest.raises(InvalidArgument, match="line 5: it was changed"):
        network.run()
    book.unlink()
    with pytest.raises(InvalidArgument, match="is missing, which says what sites were asked"):
        network.run()


@pytest.mark.parametrize(
    ("style", "changes"),
    [
        ("local", {"privacy": {"style": "local", "client": {"noise_multiplier": 3.0, "delta": 1e-5, "clip_norm": 1}}}),
        (
            "user",
            {
                "privacy": {"style": "user", "client": {"noise_multiplier": 3.0, "delta": 1e-5, "clip_norm": 1}},
                "weighting": "equal",
            },
        ),
        ("scaffold", {"algorithm": {"kind": "scaffold"}, "weighting": "equal"}),
        (
            "scaffold, clipped around the last release",
            {
                "privacy": {"style": "user", "client": {"noise_multiplier": 3.0, "delta": 1e-5, "clip_norm": 0.01}},
                "algorithm": {"kind": "scaffold"},
                "aggregation": {"kind": "centered_clipping", "max_faulty": 1},
                "weighting": "equal",
                "rounds": 3,
            },
        ),
    ],
)
def test_other_styles_and_algorithms_with_state_have_the_embedded_model_too(make, style, changes):
    cap = {"guarantee": Guarantee(50, 1e-5, "client", "replace_one")} if style == "local" else {}
    policy = {"styles": ["sample", "local", "user"], "epsilon_per_run": 50}
    network = make(**SMALL | changes, policy=policy, **cap)
    network.run(rounds=1)
    network.restart("south")
    assert np.array_equal(network.run(), embedded(network)[0])


class Killed(KeyboardInterrupt):
    """The process ends here: nothing of it catches this."""


FIGURES = {"metrics": {"release": ["accuracy"], "epsilon": 0.5}, "data": {"test_is_public": False}}
ONE = {**SMALL, **FIGURES, "rounds": 1, "sizes": {"north": 455}}
KINDS = ("round", "measured")
STEPS = ("site.py", "site_run.py", "sent.py", "network.py", "asks.py", "round.py", "engine.py", "charging.py")
STEPS += ("measured.py", "in_process.py", "directory.py", "unfinished.py", "checkpoint.py", "rounds.py")


class Steps:
    """The lines of a round, one after the other, in server and site; `reach` is called at each."""

    def __init__(self, reach):
        self.reach = reach
        self.seen = Counter()

    def __enter__(self):
        sys.settrace(self._enter)

    def __exit__(self, *_):
        sys.settrace(None)

    def _enter(self, frame, event, argument):
        path = Path(frame.f_code.co_filename)
        is_step = path.name in STEPS and {"federated", "runs"} & set(path.parts)
        return self._step if is_step else None

    def _step(self, frame, event, argument):
        if event == "line":
            place = Path(frame.f_code.co_filename).name, frame.f_lineno
            self.seen[place] += 1
            self.reach((*place, self.seen[place]))
        return self._step


def disk(folder):
    """Return what is durable in the folder, by size and time: not what is being written, nor SQLite's index."""
    found = set()
    for place, _, names in os.walk(folder):
        for name in names:
            if not name.endswith((".tmp", "-shm")):
                status = Path(place, name).stat()
                found.add((place, name, status.st_size, status.st_mtime_ns))
    return found


def find_moments(network):
    """Return the first step after every change of what is on disk, in a round without a crash."""
    moments, before = [], [set()]

    def look(step):
        now = disk(network.folder)
        if now != before[0]:
            moments.append(step)
        before[0] = now

    with network.federation() as federation, Steps(look):
        next(federation)
    return moments


def test_wherever_server_or_site_are_killed_the_figure_is_never_below_the_ledger(make):
    """At every moment at which anything durable has changed, one process is killed, and the run goes on."""
    network = make(**ONE)
    network.run(rounds=0)
    copy = network.folder.with_name("copy")
    network.close()
    shutil.copytree(network.folder, copy)
    network.restart("north")
    moments = find_moments(network)
    assert len(moments) > 8
    killed = {"site": 0, "server": 0}
    for moment in moments:
        network.close()
        shutil.rmtree(network.folder)
        shutil.copytree(copy, network.folder)
        network.restart("north")
        killed[kill_at(network, moment)] += 1
    assert min(killed.values()) > 2


def kill_at(network, moment):
    """Kill whoever reaches that moment, check what is promised, and return who it was."""
    killed = []

    def reach(step):
        if step == moment and not killed:
            killed.append("server")
            raise Killed

    def answer(content):
        try:
            return site.handle(content)
        except Killed:
            killed[0] = "site"
            raise

    site = network.sites["north"]
    network.transport.handles[network.keys["north"]] = answer
    try:
        with network.federation() as federation, Steps(reach):
            next(federation)
    except Killed:
        pass
    spent, kept = by_kind(committed(network, "north")), find_kept(network)
    booked = by_kind(count_by_book(network))
    assert all(booked[kind] >= spent[kind] for kind in KINDS)
    network.restart("north")
    with network.federation() as federation:
        for result in federation:
            assert result.spent[0].epsilon >= recomputed(network)
    assert by_kind(committed(network, "north")) == {kind: spent[kind] + (kind not in kept) for kind in KINDS}
    return killed[0]


def by_kind(charges):
    """Return how many charges there are of training and of measurements."""
    measured = sum(times for event, times in charges.items() if isinstance(event, DiscreteLaplace))
    return {"round": sum(charges.values()) - measured, "measured": measured}


def find_kept(network):
    """Return of what the site has the bytes that left."""
    return {kind for kind in KINDS if any((network.folder / "north").glob(f"sent/*/{kind}-*"))}


def count_by_book(network):
    """Return what the server would count while the site is away, from its book alone."""
    book = AskBook(network.folder / "run" / "asks.jsonl", network.study.derive("book of asks"))
    return count_at_most(plan_of(network), book, "north")

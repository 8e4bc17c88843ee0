"""Five hospitals train one model; no record leaves a hospital, and a ledger bounds what all of it can reveal.

    python examples/hospitals.py                                   # a run in runs/hospitals-<time>
    python examples/hospitals.py --directory runs/hospitals-<time> # go on with it after a crash or Ctrl-C
    python examples/hospitals.py --kill-in-round 6                 # `make demo`: kill -9 on the way, then go on

The data are scikit-learn's breast-cancer data in five parts. The model is a logistic regression in numpy.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from sklearn.datasets import load_breast_cancer

from dpfed.cli.main import main as dpfed
from dpfed.errors import PrivacyError
from dpfed.federated.client import Client
from dpfed.federated.engine import Federation, RoundResult
from dpfed.federated.runners.local import LocalRunner
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.plan import LocalPlan, Plan
from dpfed.runs import RunDirectory

# What each hospital declares in public; what it really holds is never counted.
SIZES = {"north": 182, "south": 114, "east": 68, "west": 55, "harbour": 36}
PROMISE = Guarantee(epsilon=4.0, delta=1e-5, unit="record", adjacency="add_remove")

# The range in which each of the thirty measurements is expected, as constants that anybody may know: round numbers
# of the size of a cell nucleus. A real study takes the ranges of its device. Means and deviations computed from the
# patients would be a release of their own; values outside a range are set to its end.
RANGES = """8 22, 10 30, 50 150, 150 1300, .07 .13, 0 .25, 0 .3, 0 .15, .12 .25, .05 .08,
    0 1, 0 3, 0 8, 0 120, 0 .015, 0 .08, 0 .1, 0 .03, 0 .04, 0 .01,
    8 28, 12 42, 50 190, 200 2000, .08 .19, 0 .7, 0 .8, 0 .25, .15 .45, .05 .13"""
LOW, HIGH = np.array([pair.split() for pair in RANGES.split(",")], dtype=float).T

SCREEN = Console()


class LogisticRegression:
    """The gradient of the logistic loss, record by record."""

    def gradients(self, weights, features, labels):
        """One row per record: (predicted probability − label) × features."""
        return (1 / (1 + np.exp(-np.clip(features @ weights, -30, 30))) - labels)[:, None] * features


class MortalRunner(LocalRunner):
    """A runner whose process is killed when two updates of that round are stored and a third is drawn."""

    kill_in_round = 0

    def train(self, task, cohort):
        """What the clients release, until the end."""
        for number, outcome in enumerate(super().train(task, cohort)):
            if task.round == self.kill_in_round and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield outcome


def prepared() -> tuple[list[Client], tuple]:
    """The five hospitals, and the public held-out set."""
    raw = load_breast_cancer()
    order = np.random.default_rng(2026).permutation(len(raw.data))
    scaled = np.clip(2 * (raw.data[order] - LOW) / (HIGH - LOW) - 1, -1, 1)
    features, labels = np.hstack([scaled, np.ones((len(scaled), 1))]), raw.target[order]
    *parts, held_out = np.split(np.arange(len(order)), np.cumsum(list(SIZES.values())))
    named = zip(SIZES, parts, strict=True)
    clients = [Client(name, (features[part], labels[part]), account=f"hospital-{name}") for name, part in named]
    return clients, (features[held_out], labels[held_out])


def planned() -> Plan:
    """Ten rounds of ten steps, with the least noise that keeps the promise in each hospital."""
    local = {
        name: LocalPlan(size=size, batch_size=16, steps=10, learning_rate=0.5, clip_norm=1.0)
        for name, size in SIZES.items()
    }
    return Plan("hospitals", rounds=10, local=local).calibrated(PROMISE)


def opened(directory: Path, clients: Iterable[Client]) -> Ledger:
    """The run's own ledger, with one account per hospital."""
    ledger = Ledger(f"sqlite:///{directory / 'ledger.db'}")
    for client in clients:
        if client.account not in ledger:
            ledger.open(client.account, **asdict(PROMISE), owner=f"dpo of {client.name}", purpose="breast cancer study")
    return ledger


def accuracy(weights: np.ndarray, held_out: tuple) -> float:
    """The share of the public held-out set that the model gets right."""
    features, labels = held_out
    return float(np.mean((features @ weights > 0) == labels))


def shown(result: RoundResult, score: float, *, header: bool) -> Table:
    """A round as a row: who took part, and how good the model is on public data."""
    row = Table(show_header=header, box=None, pad_edge=False)
    for title, width in (("round", 5), ("accuracy", 8), ("contributed", 13), ("", 48)):
        row.add_column(title, width=width)
    facts = result.facts()
    notes = "; ".join(f"{word}: {', '.join(facts[word])}" for word in ("reused", "exhausted", "failed") if facts[word])
    row.add_row(str(result.round), f"{score:.1%}", f"{len(result.contributed)} of {len(SIZES)}", notes)
    return row


def study(directory: Path, kill_in_round: int = 0) -> None:
    """Trains to the last round, from wherever the directory is."""
    if kill_in_round:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # in the child: its parent answers Ctrl-C
    clients, held_out = prepared()
    with opened(directory, clients) as ledger:
        runner = MortalRunner(clients, LogisticRegression(), ledger)
        runner.kill_in_round = kill_in_round
        federation = Federation(planned(), np.zeros(len(LOW) + 1), runner, directory)
        for number, result in enumerate(federation):
            SCREEN.print(shown(result, accuracy(result.weights, held_out), header=number == 0))


def stage_crash(directory: Path, kill_in_round: int) -> None:
    """Trains in a process of its own until that round kills it."""
    child = multiprocessing.get_context("fork").Process(target=study, args=(directory, kill_in_round))
    child.start()
    child.join()
    if child.exitcode != -signal.SIGKILL:
        sys.exit(f"the training process ended with {child.exitcode} instead of being killed")
    SCREEN.print(
        f"\n[bold red]kill -9[/] in the middle of round {kill_in_round}: all five were charged, two had stored their "
        "noised updates.\nResuming: what was stored is used again and costs nothing, the others pay once more.\n"
    )


def report(run: RunDirectory, ledger: Ledger, held_out: tuple) -> str:
    """The run as shareable Markdown: constants of the plan, released values and facts of the ledger only."""
    models = {checkpoint.round: checkpoint.weights for checkpoint in run.checkpoints()}
    rounds, accounts = run.rounds(), []
    for record in rounds:
        names = [", ".join(record[key]) or "–" for key in ("contributed", "reused", "exhausted", "failed")]
        record["cells"] = [f"{accuracy(models[record['round']], held_out):.1%}", *names, f"`{record['head'][:12]}…`"]
    for name in run.plan.local:
        statement = ledger.statement(f"hospital-{name}")
        committed = sum(line.count for line in statement.lines if line.kind == "committed")
        contributed = sum(name in record["contributed"] for record in rounds)
        terms = (f"hospital-{name}", statement.balance.cap, run.plan.rounds)
        accounts.append([*terms, committed, contributed, statement.balance.status])
    template = Path(__file__).with_name("hospitals_report.md").read_text(encoding="utf-8")
    return template.format(
        plan=run.plan,
        explained=run.plan.explain(),
        rounds=_rows([record["round"], *record["cells"]] for record in rounds),
        accounts=_rows(accounts),
        verified=ledger.verify(),
        weights=", ".join(f"{weight:.6g}" for weight in models[max(models)]),
    )


def _rows(rows: Iterable[list]) -> str:
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def conclude(directory: Path) -> None:
    """Writes the report, checks the ledger and shows one account's statement."""
    clients, held_out = prepared()
    with opened(directory, clients) as ledger:
        (directory / "report.md").write_text(report(RunDirectory(directory), ledger, held_out), encoding="utf-8")
        verified = ledger.verify()
    SCREEN.print("\nThe statement of one hospital's account:", style="bold")
    dpfed(["ledger", "statement", clients[2].account, "--ledger", str(directory / "ledger.db")], standalone_mode=False)
    SCREEN.print(f"\nThe ledger is verified: {verified.rows} entries, every balance recomputed.")
    SCREEN.print(f"The report, free to share: {directory / 'report.md'}", soft_wrap=True)


def main() -> int:
    """Runs what was asked for; 0 when it went to the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("runs") / time.strftime("hospitals-%Y%m%d-%H%M%S"))
    parser.add_argument("--kill-in-round", type=int, default=0, metavar="N")
    options = parser.parse_args()
    again = [sys.executable, sys.argv[0], "--directory", str(options.directory)]
    options.directory.mkdir(parents=True, exist_ok=True)
    try:
        SCREEN.print(Markdown(planned().explain()), "")
        if options.kill_in_round:
            stage_crash(options.directory, options.kill_in_round)
        study(options.directory)
        conclude(options.directory)
    except KeyboardInterrupt:
        SCREEN.print(f"\nStopped. Go on with:\n  {shlex.join(again)}", soft_wrap=True, markup=False)
        return 130
    except PrivacyError as error:
        SCREEN.print(f"Refused: {error}", style="red", markup=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

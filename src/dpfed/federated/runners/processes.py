"""Clients trained in processes of their own, several at a time: for models that take much longer than a fork.

A fork of a process with torch takes some hundredths of a second, and what torch sets up at a first step is set up for
each client: tiny models are trained many times faster by ``runner: auto``. One thread of torch for each process.

Charges and noise are those of `LocalRunner`: the whole cohort is charged here before the first process starts, and each
client draws from a stream of its own. A process is forked for one client and one round, so it gets model and data for
nothing and leaves nothing behind; only numbers come back, never a pickle.

>>> import numpy as np
>>> from dpfed.plan.plan import LocalPlan, Plan
>>> class Ward:
...     account = ""
...     def __init__(self, name): self.name = name
...     def rehearse(self, local, weights): ...
...     def train(self, local, objective, source):
...         return objective.start + len(self.name)
>>> runner = PoolRunner([Ward("ward"), Ward("clinic")])
>>> local = LocalPlan(size=8, batch_size=4, steps=3)
>>> _ = runner.enroll(Plan("study", 1, {"ward": local, "clinic": local}, style="none"), np.zeros(2))
>>> task = Task(1, {"weights": np.zeros(2)})
>>> sorted((each.client, *each.value.tolist()) for each in runner.train(task, ["ward", "clinic"]))
[('clinic', 6.0, 6.0), ('ward', 4.0, 4.0)]
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any

import numpy as np

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.federated.messages import FAILED, Client, Failure, Task, Update
from dpfed.federated.runners.factory import ClientFactory
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.torch.threads import share_cores
from dpfed.ledger.ledger import Ledger
from dpfed.randomness import RandomSource

_FORK = get_context("fork")


def build(_: str, clients: Iterable[Client], ledger: Ledger | None, **options: Any) -> PoolRunner:
    """Return the runner for the configuration's word."""
    return PoolRunner(clients, ledger, **options)


class PoolRunner(LocalRunner):
    """A runner that trains up to `workers` clients at a time, each in a forked process with one torch thread.

    Without `workers` there are as many as cores. Updates come in the order in which they are ready. With a seeded
    source they are those of `LocalRunner` with one torch thread. A process that dies, or takes longer than the plan's
    `client_timeout`, is a failure of its client, and what a client changes in itself is lost. Ctrl-C is the caller's
    to deal with: processes end when the caller stops asking for updates, or dies.
    """

    def __init__(
        self,
        clients: Iterable[Client] | ClientFactory,
        ledger: Ledger | None = None,
        *,
        study: str | None = None,
        source: RandomSource | None = None,
        workers: int | None = None,
    ) -> None:
        super().__init__(clients, ledger, study=study, source=source)
        self.workers = len(os.sched_getaffinity(0)) if workers is None else checks.count(workers=workers)

    def _train_all(self, names: Sequence[str], task: Task, head: str) -> Iterator[Update | Failure]:
        waiting = iter(names)
        running: dict[object, _Worker] = {}
        try:
            while True:
                for name in islice(waiting, self.workers - len(running)):
                    worker = _Worker(name, partial(self._train_one, name, task, head))
                    running[worker.pipe] = worker
                if not running:
                    return
                for pipe in wait([worker.pipe for worker in running.values()], self._seconds_left(running.values())):
                    worker = running.pop(pipe)
                    yield worker.receive_outcome(task.round, head)
                for worker in [each for each in running.values() if self._seconds_left([each]) <= 0]:
                    running.pop(worker.pipe).stop()
                    yield self._report_late(worker.client)
        finally:
            for worker in running.values():
                worker.stop()

    def _seconds_left(self, workers: Iterable[_Worker]) -> float:
        """Return the seconds until the first of these is late."""
        return min(worker.started for worker in workers) + self._plan.client_timeout - monotonic()


class _Worker:
    """A process that trains one client."""

    def __init__(self, client: str, train: Callable[[], Update | Failure]) -> None:
        self.client = client
        self.started = monotonic()
        self.pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_work, args=(self.pipe, theirs, train), daemon=True)
        self._process.start()
        theirs.close()

    def receive_outcome(self, round_number: int, head: str) -> Update | Failure:
        """Return the client's update or failure, once its process has begun to answer or has ended."""
        try:
            return Update(self.client, round_number, _receive(self.pipe), head)
        except (EOFError, OSError):
            self._process.join()
            why = f"the process of {self.client} ended with code {self._process.exitcode} before it was done"
            return Failure(self.client, FAILED, RuntimeError(why))
        except Exception as error:  # whatever a client sends
            return Failure(self.client, FAILED, error)
        finally:
            self.stop()

    def stop(self) -> None:
        """Kill the process, whatever it is doing."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _work(ours: Connection, pipe: Connection, train: Callable[[], Update | Failure]) -> None:
    ours.close()  # so that only the parent and later workers hold it, and none of them outlives the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    share_cores()
    outcome = train()
    if isinstance(outcome, Failure):
        pipe.send_bytes(json.dumps({"kind": type(outcome.error).__name__, "error": str(outcome.error)}).encode())
    else:
        pipe.send_bytes(json.dumps({"dtype": outcome.value.dtype.str, "shape": outcome.value.shape}).encode())
        pipe.send_bytes(outcome.value.tobytes())


def _end_with_parent(pipe: Connection) -> None:
    wait([pipe])  # nothing is ever sent this way: it is ready when the other end is closed
    os._exit(1)


def _receive(pipe: Connection) -> Floats:
    head = json.loads(pipe.recv_bytes())
    if "error" in head:
        kind = type(head["kind"], (RuntimeError,), {})  # of the same name as the client's own, for the owner's view
        raise kind(head["error"])
    return np.frombuffer(pipe.recv_bytes(), dtype=head["dtype"]).reshape(head["shape"])

"""Flower's simulation in `throughput.py`: its FedAvg over Ray, on loopback, one actor on one core.

The simulation is started once, with one round to warm it, and then waits in its server app for runs to make, so that
starting Ray is not counted. A client's process keeps model and data from one client to the next. What is counted is the
CPU time of all its processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from queue import Queue
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from bench import Task
from throughput_cases import BATCH, CASES, EXAMPLES, FLOWER, LEARNING_RATE, ROUNDS, Case, learned, tasks

BACKEND = {
    "init_args": {"num_cpus": 1, "_node_ip_address": "127.0.0.1", "include_dashboard": False, "log_to_driver": False},
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
}
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@cache
def world(name: str) -> tuple[nn.Module, list[tuple[Any, Any]]]:
    """Model and data of all clients, once for each process."""
    torch.set_num_threads(1)
    return CASES[name].model(), CASES[name].data()


def train(name: str, message: Message, context: Context) -> Message:
    """One client's local epoch."""
    model, data = world(name)
    inputs, targets = data[int(context.node_config["partition-id"])]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for rows in torch.split(torch.randperm(EXAMPLES), BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    record = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": EXAMPLES})}
    return Message(content=RecordDict(record), reply_to=message)


class Simulation:
    """A simulation in a thread of its own, which makes as many rounds as it is asked for."""

    def __init__(self, case: Case) -> None:
        self._asked: Queue[int] = Queue()
        self._found: Queue[float | Exception] = Queue()
        self._clients, self._first = case.clients, case.model().state_dict()
        server, client, name = ServerApp(), ClientApp(), case.name
        server.main()(self._serve)
        client.train()(lambda message, context: train(name, message, context))
        threading.Thread(target=self._simulate, args=(server, client), daemon=True).start()

    def learned(self, rounds: int) -> float:
        """How far the weights have moved after so many rounds."""
        self._asked.put(rounds)
        found = self._found.get()
        if isinstance(found, Exception):
            raise found
        return found

    def _simulate(self, server: ServerApp, client: ClientApp) -> None:
        try:
            run_simulation(server, client, num_supernodes=self._clients, backend_config=BACKEND)
        except Exception as error:
            self._found.put(error)

    def _serve(self, grid: Grid, context: Context) -> None:
        while True:
            rounds = self._asked.get()
            strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=self._clients, min_available_nodes=self._clients)
            result = strategy.start(grid, ArrayRecord(self._first), num_rounds=rounds)
            self._found.put(learned(self._first, result.arrays.to_torch_state_dict()))


def federation(case: Case) -> Callable[[], float]:
    """A run of all rounds from the first weights."""
    simulation = Simulation(case)
    simulation.learned(rounds=1)
    return lambda: simulation.learned(ROUNDS)


def load() -> dict[str, Task]:
    os.environ |= ENVIRONMENT
    return tasks(federation, FLOWER)

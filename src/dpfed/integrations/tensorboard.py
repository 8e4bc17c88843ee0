"""A run in TensorBoard: ε per unit and round, scores, the plan and the report to share as texts.

Every entry bears the time at which the tracker was made: how long a round took may tell who was in it. Needs
``pip install dpfed[tensorboard]``.

>>> from dpfed.plan import LocalPlan, Plan
>>> plan = Plan("study", rounds=2, local={"ward": LocalPlan(size=8, batch_size=4, steps=3)}, style="none")
>>> RunDirectory("run").begin(plan)
>>> federation = []  # a Federation in that directory
>>> with TensorBoardTracker("run", "logs") as tracker:
...     for result in federation:
...         tracker.log(result)
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from torch.utils.tensorboard import SummaryWriter

from dpfed.federated.results import RoundResult
from dpfed.integrations.tracked import constants, numbers
from dpfed.report.documents import markdown
from dpfed.report.run import shareable_page
from dpfed.runs import RunDirectory


class TensorBoardTracker:
    """Event files in `logs` for the federation in `directory`, with the rounds that it has already done.

    After a crash the same `logs` may be used again: what they showed before is replaced. Leaving the `with` block
    writes the report, as a text, and closes the files.
    """

    def __init__(self, directory: str | Path, logs: str | Path) -> None:
        run = RunDirectory(directory)
        plan = run.plan
        self._directory = run.path
        self._time = time.time()
        self._writer = SummaryWriter(str(logs), purge_step=0)
        lines = [f"| {name} | {value} |" for name, value in constants(plan).items()]
        self._write("plan", "\n".join(["| constant | value |", "|---|---|", *lines]), 0)
        for record in run.rounds():
            self._log(record)

    def log(self, result: RoundResult) -> None:
        """Nothing; writes what everyone may see of the round."""
        self._log(result.facts())

    def close(self) -> None:
        """Nothing; writes the report that may be shared and closes the files."""
        self._write("report", markdown(shareable_page(self._directory)), 0)
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _log(self, record: Mapping[str, Any]) -> None:
        step = record["round"]
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, step, walltime=self._time)
        for title, key in (("status", "status"), ("ledger head", "head"), ("noise", "noise")):
            if record.get(key) is not None:
                self._write(title, record[key], step)
        self._writer.flush()

    def _write(self, title: str, text: str, step: int) -> None:
        self._writer.add_text(title, text, step, walltime=self._time)

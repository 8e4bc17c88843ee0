"""A tracker for TensorBoard: ε per unit and round, scores, and as texts the plan and the shareable report.

Every entry bears the time at which the tracker was made: how long a round took may tell who was in it. Needs
``pip install dpfed[tensorboard]``.

>>> from dpfed.plan.plan import LocalPlan, Plan
>>> plan = Plan("study", rounds=2, local={"ward": LocalPlan(size=8, batch_size=4, steps=3)}, style="none")
>>> RunDirectory("run").begin(plan)
>>> federation = []  # a Federation in that directory
>>> with TensorBoardTracker("run", "logs") as tracker:
...     for result in federation:
...         tracker.log(result)
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

from torch.utils.tensorboard import SummaryWriter

from dpfed.config.run import RunConfig
from dpfed.federated.results import RoundResult
from dpfed.integrations.tracked import constants, numbers
from dpfed.report.documents import render_markdown
from dpfed.report.reports import shareable_page
from dpfed.runs.directory import RunDirectory
from dpfed.runs.rounds import RoundRecord


class TensorBoardTracker:
    """A tracker that writes event files to `logs` for the run in `directory`, with the rounds that are already done.

    After a crash the same `logs` may be used again: what was written before is replaced. Leaving the `with` block
    writes the report, as a text, and closes the files. `config` is the run's configuration, if it is read already.
    """

    def __init__(self, directory: str | Path, logs: str | Path, *, config: RunConfig | None = None) -> None:
        run = RunDirectory(directory)
        plan = run.plan
        self._directory, self._config = run.path, config
        self._time = time.time()
        self._writer = SummaryWriter(str(logs), purge_step=0)
        lines = [f"| {name} | {value} |" for name, value in constants(plan).items()]
        self._write("plan", "\n".join(["| constant | value |", "|---|---|", *lines]), 0)
        for record in run.rounds():
            self._log(record)

    def log(self, result: RoundResult) -> None:
        """Write what everyone may see of the round."""
        self._log(result.facts())

    def close(self) -> None:
        """Write the report that may be shared, and close the files."""
        self._write("report", render_markdown(shareable_page(self._directory, self._config)), 0)
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _log(self, record: RoundRecord) -> None:
        step = record["round"]
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, step, walltime=self._time)
        texts = {"status": record["status"], "ledger head": record["head"], "noise": record.get("noise")}
        for title, text in texts.items():
            if text is not None:
                self._write(title, text, step)
        self._writer.flush()

    def _write(self, title: str, text: str, step: int) -> None:
        self._writer.add_text(title, text, step, walltime=self._time)

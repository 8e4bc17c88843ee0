"""A tracker for MLflow: the plan as parameters, ε per unit and round, the shareable report, the ledger's head as a tag.

Every entry bears the time at which the tracker was made: how long a round took may tell who was in it. (Whoever runs
the server still sees when numbers arrive.) Needs ``pip install dpfed[mlflow]``::

    with MlflowTracker(directory, tracking_uri="http://localhost:5000") as tracker:
        for result in federation:
            tracker.log(result)

>>> MlflowTracker("elsewhere")
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: elsewhere holds no run: No such file or directory
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Self

from dpfed.config.run import RunConfig
from dpfed.federated.results import RoundResult
from dpfed.integrations.tracked import constants, numbers
from dpfed.report.documents import render_html
from dpfed.report.reports import SHAREABLE, shareable_page
from dpfed.runs.directory import RunDirectory
from dpfed.runs.rounds import RoundRecord

# MLflow sends usage data to its makers unless this is set; whoever wants that sets the variable.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

REFUSED = re.compile(r"[^\w\-. :/]")  # characters that MLflow does not allow in names


class MlflowTracker:
    """A tracker that makes an MLflow run for the run in `directory`, with the rounds that are already done.

    After a crash a new MLflow run begins, which holds all rounds; the interrupted one stays as it is. Leaving the
    `with` block ends the MLflow run, with the report attached unless there was an error. `config` is the run's
    configuration, if it is read already.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        experiment: str = "dpfed",
        tracking_uri: str | None = None,
        config: RunConfig | None = None,
    ) -> None:
        run = RunDirectory(directory)
        plan = run.plan
        self._directory, self._config = run.path, config
        self._client = MlflowClient(tracking_uri=tracking_uri)
        self._time = int(time.time() * 1000)
        started = self._client.create_run(self._find_experiment(experiment), start_time=self._time, run_name=plan.name)
        self.run_id: str = started.info.run_id
        self._client.log_text(self.run_id, plan.to_json(), "plan.json")
        params = [Param(_clean_name(name), value) for name, value in constants(plan).items()]
        self._client.log_batch(self.run_id, params=params)
        for record in run.rounds():
            self._log(record)

    def log(self, result: RoundResult) -> None:
        """Send what everyone may see of the round."""
        self._log(result.facts())

    def close(self, status: str = "FINISHED") -> None:
        """Attach the report that may be shared, and end the MLflow run."""
        if status == "FINISHED":
            report = render_html(shareable_page(self._directory, self._config))
            self._client.log_text(self.run_id, report, SHAREABLE)
        self._client.set_terminated(self.run_id, status, end_time=self._time)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.close("FINISHED" if kind is None else "FAILED")

    def _log(self, record: RoundRecord) -> None:
        step = record["round"]
        metrics = [Metric(_clean_name(name), value, self._time, step) for name, value in numbers(record).items()]
        tags = {"dpfed.status": record["status"], "dpfed.head": record["head"], "dpfed.noise": record.get("noise")}
        shown = [RunTag(name, value) for name, value in tags.items() if value is not None]
        self._client.log_batch(self.run_id, metrics=metrics, tags=shown)

    def _find_experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)


def _clean_name(name: str) -> str:
    return REFUSED.sub("_", name)

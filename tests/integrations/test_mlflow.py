"""What MLflow holds of a run: by schema, and with a secret cohort nothing that tells of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from dpfed.errors import InvalidArgument
from dpfed.federated.metrics import Score
from dpfed.federated.results import RUNNING, Participation, RoundResult
from dpfed.guarantee import Guarantee
from dpfed.integrations.mlflow import MlflowTracker
from dpfed.plan.plan import PoissonCohort
from dpfed.randomness import SeededSource
from dpfed.runs.directory import RunDirectory
from run_directories import ACCURACY, LOSS, made, plan_of

METRICS = {"epsilon/record", "epsilon/client"}
TAGS = {"mlflow.runName", "dpfed.status", "dpfed.head", "dpfed.noise"}
SECONDS = 61.8125
SECRET = {"cohort": PoissonCohort(rate=0.5, secret=True), "rounds": 4}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A tracking server's address; artifacts go below the working directory."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield f"sqlite:///{folder / 'mlflow.db'}"


def trouble(number: int) -> RoundResult:
    """A round of which the owner knows more than everyone."""
    return RoundResult(
        number,
        RUNNING,
        weights=None,
        cost=(Guarantee(0.5, 1e-5),),
        spent=(Guarantee(3.5, 1e-5),),
        worst_client="harbour",
        head="77:ab",
        metrics=(Score("accuracy", ACCURACY), Score("loss", LOSS)),
        participation=Participation(("north",), failed=("harbour",), refused={"south": "not_finite"}),
        seconds=SECONDS,
    )


def artifacts(client: MlflowClient, run_id: str) -> dict[str, str]:
    found = client.list_artifacts(run_id)
    return {each.path: Path(client.download_artifacts(run_id, each.path)).read_text() for each in found}


def history(client: MlflowClient, run_id: str) -> dict[str, list[tuple[int, float]]]:
    names = client.get_run(run_id).data.metrics
    return {name: [(each.step, each.value) for each in client.get_metric_history(run_id, name)] for name in names}


def test_a_tracker_holds_the_plan_the_rounds_the_report_and_the_head(server, tmp_path):
    directory = made(tmp_path / "run", plan_of("sample"), most=2)
    with MlflowTracker(directory, experiment="wards", tracking_uri=server) as tracker:
        tracker.log(trouble(3))
    client = MlflowClient(tracking_uri=server)
    run = client.get_run(tracker.run_id)
    earlier = [(each["round"], each["spent"][0]["epsilon"]) for each in RunDirectory(directory).rounds()]
    assert history(client, tracker.run_id)["epsilon/record"] == [*earlier, (3, 3.5)]
    assert (run.info.run_name, run.info.status, run.data.tags["dpfed.head"]) == ("wards", "FINISHED", "77:ab")
    assert (run.data.params["guarantee.epsilon"], run.data.params["rounds"]) == ("4.0", "3")
    kept = artifacts(client, tracker.run_id)
    assert set(kept) == {"plan.json", "report.html"}
    assert json.loads(kept["plan.json"])["name"] == "wards"


def test_nothing_of_the_owners_view_reaches_the_server(server, tmp_path):
    directory = made(tmp_path / "run", plan_of("sample"), ill="south", most=2)
    with MlflowTracker(directory, tracking_uri=server) as tracker:
        tracker.log(trouble(3))
    client = MlflowClient(tracking_uri=server)
    run = client.get_run(tracker.run_id)
    assert set(run.data.metrics) <= METRICS
    assert set(run.data.tags) <= TAGS
    stored = (
        Path(server.removeprefix("sqlite:///")).read_bytes()
        + "".join(artifacts(client, tracker.run_id).values()).encode()
    )
    for secret in ("not_finite", str(LOSS), str(SECONDS), "contributed", "account-"):
        assert secret.encode() not in stored


def test_no_time_on_the_server_tells_how_long_a_round_took(server, tmp_path):
    with MlflowTracker(made(tmp_path / "run", plan_of("sample")), tracking_uri=server) as tracker:
        pass
    client = MlflowClient(tracking_uri=server)
    run = client.get_run(tracker.run_id)
    times = {each.timestamp for name in run.data.metrics for each in client.get_metric_history(tracker.run_id, name)}
    assert times | {run.info.end_time} == {run.info.start_time}


def test_two_runs_with_other_secret_cohorts_look_the_same(server, tmp_path):
    plan, seen, attended = plan_of("hybrid", **SECRET), [], set()
    for seed in (1, 2):
        directory = made(tmp_path / str(seed), plan, source=SeededSource(seed))
        with MlflowTracker(directory, tracking_uri=server) as tracker:
            pass
        client = MlflowClient(tracking_uri=server)
        data = client.get_run(tracker.run_id).data
        seen.append((history(client, tracker.run_id), data.params, data.tags, artifacts(client, tracker.run_id)))
        attended.add(str([each["contributed"] for each in RunDirectory(directory).owner_rounds()]))
    assert len(attended) == 2
    assert seen[0] == seen[1]
    assert set(seen[0][0]) == METRICS
    assert "dpfed.head" not in seen[0][2]
    assert seen[0][2]["dpfed.noise"] == "NOT PRIVATE"


def test_a_loop_that_fails_leaves_a_failed_run_without_a_report(server, tmp_path):
    directory = made(tmp_path / "run", plan_of("none"), most=1)
    with pytest.raises(OSError, match="disk"), MlflowTracker(directory, tracking_uri=server) as tracker:
        raise OSError("no disk")
    client = MlflowClient(tracking_uri=server)
    assert client.get_run(tracker.run_id).info.status == "FAILED"
    assert set(artifacts(client, tracker.run_id)) == {"plan.json"}


def test_a_name_that_mlflow_does_not_allow_is_changed(server, tmp_path):
    with MlflowTracker(made(tmp_path / "run", plan_of("none"), most=1), tracking_uri=server) as tracker:
        tracker.log(RoundResult(2, RUNNING, None, (), (), None, None, (Score("<lambda>", 0.5, is_public=True),)))
    assert MlflowClient(tracking_uri=server).get_run(tracker.run_id).data.metrics["_lambda_"] == 0.5


def test_a_directory_without_a_run_is_refused_before_anything_is_sent(server, tmp_path):
    with pytest.raises(InvalidArgument, match="holds no run"):
        MlflowTracker(tmp_path / "nothing", tracking_uri=server)

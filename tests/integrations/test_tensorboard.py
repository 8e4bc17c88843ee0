"""What event files hold of a run: by schema, and with a secret cohort nothing that tells of it."""

from __future__ import annotations

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dpfed.federated.metrics import Score
from dpfed.federated.results import RUNNING, Participation, RoundResult
from dpfed.guarantee import Guarantee
from dpfed.integrations.tensorboard import TensorBoardTracker
from dpfed.plan.plan import PoissonCohort
from dpfed.randomness import SeededSource
from dpfed.runs.directory import RunDirectory
from run_directories import ACCURACY, LOSS, made, plan_of

TEXTS = {f"{title}/text_summary" for title in ("plan", "report", "status", "ledger head", "noise")}


def trouble(number: int) -> RoundResult:
    """A round of which the owner knows more than everyone."""
    known = Participation(("north",), failed=("harbour",), refused={"south": "not_finite"})
    scores = (Score("accuracy", ACCURACY), Score("loss", LOSS))
    spent = (Guarantee(3.5, 1e-5),)
    return RoundResult(number, RUNNING, None, spent, spent, "harbour", "77:ab", scores, True, known, 61.8125)


def read(logs) -> EventAccumulator:
    return EventAccumulator(str(logs)).Reload()


def scalars(logs) -> dict[str, list[tuple[int, float]]]:
    """The points by name; values are stored in 32 bits, so they are rounded."""
    found = read(logs)
    kept = {name: found.Scalars(name) for name in found.Tags()["scalars"]}
    return {name: [(each.step, round(each.value, 5)) for each in events] for name, events in kept.items()}


def texts(logs) -> dict[str, list[bytes]]:
    found = read(logs)
    kept = {name: found.Tensors(name) for name in found.Tags()["tensors"]}
    return {name: [each.tensor_proto.string_val[0] for each in events] for name, events in kept.items()}


def epsilons(directory) -> list[tuple[int, float]]:
    return [(each["round"], round(each["spent"][0]["epsilon"], 5)) for each in RunDirectory(directory).rounds()]


def test_event_files_hold_the_plan_the_rounds_the_report_and_the_head(tmp_path):
    directory = made(tmp_path / "run", plan_of("sample"), most=2)
    with TensorBoardTracker(directory, tmp_path / "logs") as tracker:
        tracker.log(trouble(3))
    assert scalars(tmp_path / "logs")["epsilon/record"] == [*epsilons(directory), (3, 3.5)]
    written = texts(tmp_path / "logs")
    assert written["ledger head/text_summary"][-1] == b"77:ab"
    assert b"guarantee.epsilon | 4.0" in written["plan/text_summary"][0]
    assert b"wards" in written["report/text_summary"][0]


def test_nothing_of_the_owners_view_is_in_the_files(tmp_path):
    directory = made(tmp_path / "run", plan_of("sample"), ill="south", most=2)
    with TensorBoardTracker(directory, tmp_path / "logs") as tracker:
        tracker.log(trouble(3))
    assert set(scalars(tmp_path / "logs")) == {"epsilon/record"}
    assert set(texts(tmp_path / "logs")) <= TEXTS
    stored = b"".join(path.read_bytes() for path in (tmp_path / "logs").iterdir())
    for secret in ("not_finite", str(LOSS), "61.8125", "contributed", "account-"):
        assert secret.encode() not in stored


def test_no_time_in_the_files_tells_how_long_a_round_took(tmp_path):
    directory = made(tmp_path / "run", plan_of("sample"))
    TensorBoardTracker(directory, tmp_path / "logs").close()
    found = read(tmp_path / "logs")
    entries = [each for name in found.Tags()["tensors"] for each in found.Tensors(name)]
    entries += [each for name in found.Tags()["scalars"] for each in found.Scalars(name)]
    assert len(entries) > 6
    assert len({each.wall_time for each in entries}) == 1


def test_two_runs_with_other_secret_cohorts_look_the_same(tmp_path):
    plan = plan_of("hybrid", cohort=PoissonCohort(rate=0.5, secret=True), rounds=4)
    runs = [made(tmp_path / str(seed), plan, source=SeededSource(seed)) for seed in (1, 2)]
    for run in runs:
        TensorBoardTracker(run, run / "logs").close()
    first, second = runs
    attended = {str([each["contributed"] for each in RunDirectory(run).owner_rounds()]) for run in runs}
    assert len(attended) == 2
    assert scalars(first / "logs") == scalars(second / "logs")
    assert texts(first / "logs") == texts(second / "logs")
    assert "ledger head/text_summary" not in texts(first / "logs")
    assert texts(first / "logs")["noise/text_summary"][0] == b"NOT PRIVATE"


def test_after_a_crash_no_round_is_shown_twice(tmp_path):
    directory = made(tmp_path / "run", plan_of("sample"))
    for _ in range(2):
        TensorBoardTracker(directory, tmp_path / "logs").close()
    assert scalars(tmp_path / "logs")["epsilon/record"] == epsilons(directory)

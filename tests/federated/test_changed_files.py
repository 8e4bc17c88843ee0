"""A run directory in which anything was changed, forged or swapped is refused before a round is run.

A flipped bit is noticed by a digest; a forged file, whose digest is right, by the seal of the run's ledger.
"""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load, save

from dpfed.errors import InvalidArgument, LedgerRolledBack, PrivacyError
from dpfed.federated.messages import Update
from dpfed.federated.state import checkpoint
from dpfed.federated.state.checkpoint import Checkpoint, Checkpoints
from dpfed.federated.state.export import newest
from dpfed.federated.state.unfinished import UnfinishedRound
from dpfed.ledger import lease
from dpfed.plan.cohort import FixedCohort
from dpfed.plan.plan import Released
from dpfed.runs.digests import Seal
from dpfed.runs.directory import RunDirectory
from studies import DIMENSION, Crash, crash_at

STYLES = ("sample", "user", "hybrid")
TELLING = "put back a copy|holds another plan"


@pytest.fixture
def stopped(open_study):
    """Opens a study that ended in the middle of round 3, with what that round had released."""

    def opens(style="sample", **options):
        options = {"cohort": FixedCohort(2), "spare_rounds": 2, **options}
        study = open_study(style, **options)
        federation = study.federation()
        next(federation), next(federation)
        with crash_at({"sample": 4, "user": 3, "hybrid": 4}[style], is_after=False), pytest.raises(Crash):
            next(federation)
        study.ledger.close()
        return open_study(style, **options)

    return opens


def entries(study) -> int:
    return study.ledger.head().sequence


def require_refused(study, match=TELLING) -> None:
    """Nothing is run, reserved or charged."""
    before, drawn = entries(study), len(study.diary.lines())
    with pytest.raises(PrivacyError, match=match):
        study.federation()
    assert entries(study) == before
    assert len(study.diary.lines()) == drawn


def run_of(study):
    return study.folder / "run"


def files_of(study) -> list[str]:
    found = [path for path in run_of(study).rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(run_of(study))) for path in found)


def what_is_read(study):
    """Everything that a resumed run takes from its files."""
    run = RunDirectory(run_of(study))
    federation_layout = checkpoint.Layout(("weights",), ((DIMENSION,),), "float64")
    found = Checkpoints(run, federation_layout).newest()
    stored = UnfinishedRound(run)
    values = [found.weights.tobytes(), found.head, found.clip_norm, dict(found.taken), found.round]
    values += [(name, update.value.tobytes(), update.head) for name, update in stored.updates(3).items()]
    release = stored.release(3)
    values += [] if release is None else [release[0].average.tobytes(), release[0].noisy_count, release[1], release[2]]
    return [*values, stored.cohort(3, run.plan.local), run.plan, run.rounds(), run.owner_rounds()]


@pytest.mark.parametrize("style", STYLES)
def test_a_run_that_was_not_touched_goes_on(stopped, style):
    study = stopped(style)
    expected = {"checkpoints/round-000002.safetensors", "plan.json", "rounds.jsonl", "owner.jsonl"}
    assert expected < set(files_of(study))
    assert any(name.startswith("released/") for name in files_of(study))
    assert ("owner/cohort-000003.json" in files_of(study)) == (style == "sample")
    results = list(study.federation())
    assert [result.number for result in results] == [3, 4]
    study.require_nothing_free()


@pytest.mark.parametrize("style", STYLES)
def test_a_flipped_bit_in_any_file_is_refused_or_changes_nothing_that_is_read(stopped, style, campaign_scale):
    """Some bits say nothing, such as a time in a zip: what is read is then the same to the last bit."""
    study = stopped(style)
    expected, draws = what_is_read(study), np.random.default_rng(3 if campaign_scale == 1 else None)
    read_back = {name: (run_of(study) / name).read_bytes() for name in files_of(study)}
    refused = 0
    for name in (name for name in read_back if "round-000001" not in name):
        content = read_back[name]
        for place in draws.choice(8 * len(content), size=min(8 * len(content), 25 * campaign_scale), replace=False):
            damaged = bytearray(content)
            damaged[place // 8] ^= 1 << (place % 8)
            (run_of(study) / name).write_bytes(damaged)
            try:
                found = what_is_read(study)
            except InvalidArgument:
                refused += 1
            else:
                if found != expected:
                    require_refused(study)
                    refused += 1
        (run_of(study) / name).write_bytes(content)
    assert refused > 40
    assert [result.number for result in study.federation()] == [3, 4]


@pytest.mark.parametrize(
    "name",
    ["plan.json", "rounds.jsonl", "owner.jsonl", "checkpoints/round-000002.safetensors", "owner/cohort-000003.json"],
)
@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"[]", b"{}\n", b"\xff\xfe\x00", b'{"round": 1}\n', b"null\n", b"[" * 10_000]
)
def test_garbage_in_a_file_is_refused_before_anything_is_run(stopped, name, content):
    study = stopped()
    (run_of(study) / name).write_bytes(content)
    require_refused(study, match="put back a copy|JSON form of a plan|another plan")


def flip_weights(study) -> None:
    path = run_of(study) / "checkpoints" / "round-000002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the sign of the last weight, or nearly
    path.write_bytes(content)


def test_a_flipped_bit_in_the_weights_is_noticed_by_whoever_reads_the_model(stopped):
    study = stopped()
    flip_weights(study)
    require_refused(study, match="does not match its digest")
    with pytest.raises(InvalidArgument, match="does not match its digest"):
        newest(RunDirectory(run_of(study)))


@pytest.mark.parametrize("key", ["round", "head", "clip_norm", "taken", "privacy", "files"])
def test_a_changed_note_of_a_checkpoint_is_refused(stopped, key):
    study = stopped("user")
    path = run_of(study) / "checkpoints" / "round-000002.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    note = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["dpfed"])
    note[key] = {"round": 3, "head": note["head"], "clip_norm": 9.0}.get(key, {})
    if key == "head":
        note[key] = note[key].replace(":", ":0")[:-1]
    path.write_bytes(save(load(content), {"dpfed": json.dumps(note)}))
    require_refused(study)


def forge(study, style: str, seal: Seal | None = None) -> None:
    """Writes a release of round 3 that nobody paid for, with a head that the ledger has."""
    run = RunDirectory(run_of(study))
    for path in (run.path / "released").iterdir():
        path.unlink()
    head = str(study.ledger.head())
    stored = UnfinishedRound(run, seal)
    if style == "sample":
        stored.write_updates(3, [Update(name, 3, np.ones(DIMENSION), head) for name in study.plan.local])
    else:
        stored.write_release(3, Released(np.ones(DIMENSION)), head, ["north", "west"])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("key", [None, b"", b"guessed"], ids=["none", "empty", "guessed"])
def test_a_forged_release_with_a_right_digest_and_a_known_head_is_not_used_un_charged(stopped, style, key):
    study = stopped(style)
    head = Checkpoints(study.directory(), study_layout()).newest().head
    forge(study, style, None if key is None else Seal(key, head))
    require_refused(study, match="its seal is not of this run")


def study_layout():
    return checkpoint.Layout(("weights",), ((DIMENSION,),), "float64")


@pytest.mark.parametrize("style", STYLES)
def test_a_release_without_any_digest_is_that_of_no_run_of_this_version(stopped, style):
    study = stopped(style)
    forge(study, style)
    (path,) = (run_of(study) / "released").iterdir()
    with np.load(io.BytesIO(path.read_bytes())) as arrays:
        plain = {name: arrays[name] for name in arrays.files if name not in ("digest", "seal")}
    np.savez(path, **plain)
    require_refused(study, match="it has no digest")


@pytest.mark.parametrize("style", STYLES)
def test_a_forged_checkpoint_with_a_right_digest_is_refused(stopped, style):
    study = stopped(style)
    forger = Checkpoints(study.directory(), study_layout())
    forger.write(replace(forger.newest(), weights=np.full(DIMENSION, 7.0)))
    require_refused(study, match="its seal is not of this run")


@pytest.mark.parametrize("style", STYLES)
def test_a_forged_last_checkpoint_does_not_end_a_run(stopped, style):
    """What is still reserved would be returned, and the forged model be that of a finished run."""
    study = stopped(style)
    run = study.directory()
    last, last_of_owner = run.rounds()[-1], run.owner_rounds()[-1]
    for number in (3, 4):
        run.append(last | {"round": number})
        run.append_owner(last_of_owner | {"round": number})
    forger, files = Checkpoints(run, study_layout()), run.digests({}, "")
    forger.write(replace(forger.newest(), round=4, weights=np.full(DIMENSION, 7.0), files=files))
    require_refused(study, match="its seal is not of this run")


def test_a_checkpoint_in_the_form_of_an_older_version_is_refused_in_a_run_of_this_one(stopped, monkeypatch):
    study = stopped()
    found = Checkpoints(study.directory(), study_layout()).newest()
    note = {"format": 1, "round": 2, "head": found.head, "layout": json.loads(study_layout().to_json())}
    note |= {"clip_norm": None, "taken": {}, "privacy": {}}
    content = save({"model/weights": np.full(DIMENSION, 7.0)}, {"dpfed": json.dumps(note)})
    (run_of(study) / "checkpoints" / "round-000002.safetensors").write_bytes(content)
    require_refused(study)


def test_saying_that_the_run_is_of_an_older_version_is_noticed(stopped):
    study = stopped()
    path = run_of(study) / "plan.json"
    plain = json.loads(path.read_text())
    for name in ("client_timeout", "max_update_norm", "dealing"):
        del plain[name]
    path.write_text(json.dumps(plain | {"version": 2}, indent=2))
    forge(study, "sample")
    require_refused(study, match="plan.json is not what this run wrote")


def downgrade(study) -> None:
    """Write every file of the run in the form of the version before digests, without any digest or seal."""
    run = run_of(study)
    plain = json.loads((run / "plan.json").read_text())
    for name in ("client_timeout", "max_update_norm", "dealing"):
        del plain[name]
    (run / "plan.json").write_text(json.dumps(plain | {"version": 2}, indent=2))
    for name in ("rounds.jsonl", "owner.jsonl"):
        records = [json.loads(line) for line in (run / name).read_text().splitlines()]
        lines = [json.dumps({key: value for key, value in record.items() if key != "digest"}) for record in records]
        (run / name).write_text("".join(line + "\n" for line in lines))
    for path in (run / "checkpoints").iterdir():
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        note = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["dpfed"])
        note = {key: value for key, value in note.items() if key not in ("digest", "seal", "files")} | {"format": 1}
        path.write_bytes(save(load(content), {"dpfed": json.dumps(note)}))
    for path in (run / "released").iterdir():
        with np.load(io.BytesIO(path.read_bytes())) as arrays:
            kept = {name: arrays[name] for name in arrays.files if name not in ("digest", "seal")}
        np.savez(path, **kept)
    for path in (run / "owner").glob("cohort-*.json"):
        path.write_text(json.dumps(json.loads(path.read_text())["cohort"]))


@pytest.mark.parametrize("style", STYLES)
def test_a_run_rewritten_as_a_whole_into_the_form_before_digests_is_refused(stopped, style):
    """The ledger says that the run has digests: a forged release would be used un-charged otherwise."""
    study = stopped(style)
    forge(study, style)
    downgrade(study)
    require_refused(study, match="plan.json is not what this run wrote .it says that the run is of a version")


@pytest.mark.parametrize("style", STYLES)
def test_without_its_checkpoints_too_a_run_is_of_the_version_that_reserved_it(stopped, style):
    """Records are dealt in another way in older runs: a record would be charged at one client and released at two."""
    study = stopped(style)
    downgrade(study)
    shutil.rmtree(run_of(study) / "checkpoints")
    require_refused(study, match="plan.json is not what this run wrote .it says that the run is of a version")


def test_a_run_that_an_older_dpfed_reserved_may_be_without_digests(stopped, monkeypatch):
    monkeypatch.setattr(lease, "describe_start", lease.this_process)
    study = stopped("user")
    downgrade(study)
    assert [result.number for result in study.federation()] == [3, 4]


def kept_copies(study) -> dict[int, dict[str, bytes]]:
    """The files of the run after each of its first rounds."""
    federation, copies = study.federation(), {}
    for result in federation:
        copies[result.number] = {name: (run_of(study) / name).read_bytes() for name in files_of(study)}
        if result.number == 3:
            return copies
    return copies


@pytest.mark.parametrize("name", ["rounds.jsonl", "owner.jsonl"])
@pytest.mark.parametrize("style", STYLES)
def test_an_older_file_of_the_same_run_in_place_of_the_new_one_is_refused(open_study, style, name):
    study = open_study(style)
    copies = kept_copies(study)
    for content in (copies[1][name], copies[2][name], b""):
        (run_of(study) / name).write_bytes(content)
        require_refused(open_study(style), match=f"{name} is not what this run wrote")
    (run_of(study) / name).unlink()
    require_refused(open_study(style), match=f"{name} is not what this run wrote")


@pytest.mark.parametrize("style", STYLES)
def test_an_older_checkpoint_under_the_name_of_the_newest_is_refused(open_study, style):
    study = open_study(style)
    kept_copies(study)
    folder = run_of(study) / "checkpoints"
    shutil.copy(folder / "round-000002.safetensors", folder / "round-000003.safetensors")
    require_refused(open_study(style), match="it is of another round")


def test_a_release_of_another_round_under_the_name_of_this_one_is_refused(stopped):
    study = stopped("user")
    folder = run_of(study) / "released"
    UnfinishedRound(study.directory()).write_release(2, Released(np.zeros(DIMENSION)), "1:a", ())
    shutil.move(folder / "round-000002.npz", folder / "round-000003.npz")
    require_refused(study, match="does not match its digest")


@pytest.mark.parametrize("style", STYLES)
def test_a_release_that_goes_with_another_checkpoint_of_the_round_before_is_refused(stopped, style):
    """It was paid for, but was made from another model: a run that went on from both would be neither."""
    study = stopped(style)
    run, copy = run_of(study), study.folder / "copy"
    shutil.copytree(run, copy)
    (run / "checkpoints" / "round-000002.safetensors").unlink()
    federation = study.federation()
    assert next(federation).number == 2  # done again, from the checkpoint before
    for folder in ("released", "owner"):
        shutil.copytree(copy / folder, run / folder, dirs_exist_ok=True)
    require_refused(study, match="its seal is not of this run")


@pytest.mark.parametrize("style", STYLES)
def test_files_of_another_ledger_are_refused(tmp_path, open_study, stopped, style):
    study = stopped(style)
    (tmp_path / "other").mkdir()
    other = open_study(style, folder=tmp_path / "other", cohort=FixedCohort(2), spare_rounds=2)
    next(other.federation())
    shutil.rmtree(run_of(other))
    shutil.copytree(run_of(study), run_of(other))
    with pytest.raises((LedgerRolledBack, InvalidArgument)):
        other.federation()


def test_a_round_that_wrote_its_lines_and_no_checkpoint_is_done_again(stopped):
    study = stopped()
    run = study.directory()
    run.append(run.rounds()[-1] | {"round": 3})
    run.append_owner(run.owner_rounds()[-1] | {"round": 3})
    assert [result.number for result in study.federation()] == [3, 4]
    assert [record["round"] for record in study.directory().rounds()] == [1, 2, 3, 4]


def test_a_line_that_was_added_to_a_round_that_is_done_is_refused(stopped):
    study = stopped()
    run = study.directory()
    run.append(run.rounds()[-1] | {"metrics": {}, "noise": "other"})
    require_refused(study, match=r"rounds.jsonl is not what this run wrote")


def test_a_status_that_is_none_is_refused(stopped):
    study = stopped()
    (run_of(study) / "status").write_text("finishes")
    with pytest.raises(InvalidArgument, match="does not say how the run ended"):
        _ = study.directory().status


def test_a_run_goes_on_with_the_terms_it_was_begun_with(open_study):
    study = open_study()
    next(study.federation(terms="seed: 1"))
    study.ledger.close()
    with pytest.raises(InvalidArgument, match=r"config.yaml is not what the run was begun with"):
        open_study().federation(terms="seed: 2")
    assert next(open_study().federation(terms="seed: 1")).number == 2


def test_the_key_of_a_run_is_in_none_of_its_files_and_no_head(open_study):
    study = open_study()
    heads = [result.head for result in study.federation()]
    key = study.runner().key(study.plan)
    assert len(key) == 64
    assert not any(key in (run_of(study) / name).read_bytes() for name in files_of(study))
    assert not any(key.decode() in head for head in heads)


def test_a_checkpoint_knows_every_file_of_its_run(open_study):
    study = open_study(cohort=FixedCohort(2))
    next(study.federation())
    found = Checkpoints(study.directory(), study_layout()).newest()
    assert isinstance(found, Checkpoint)
    known = {*found.files, "checkpoints/round-000000.safetensors", "checkpoints/round-000001.safetensors"}
    assert set(files_of(study)) <= known

"""A run's directory: the plan, what every round released, and what only the owner may see.

What is in `plan.json`, `rounds.jsonl` and `status` are constants of the plan, released values and facts of the
ledger, and may be shown. Everything else is for the owner alone (mode 0600). A file appears whole or not at all
(written beside, synced, renamed), and no pickle is ever read::

    plan.json          the plan, constants only
    features.json      the names of a table's features, in the order of the model's inputs
    ranges.json        ranges of columns that the run released before its first round
    rounds.jsonl       one line per round: what it cost, metrics with their marks, the ledger's head
    status             how the run ended, once it did
    owner.jsonl        one line per round: every metric, who took part, failed or was refused, how long it took
    owner/             the cohort of the round that is under way
    released/          noised values of the round that is under way: used again after a crash, at no cost
    clients/           what an algorithm keeps at clients of this process, until the run has ended
    asks.jsonl         of a run over a network: what sites were asked, and what they said they charged
    checkpoints/       the model after the last rounds, and digests of the other files when it was written

Every line of a .jsonl file ends in a digest of itself and of all before it, and checkpoints and released values carry
one each, sealed by the run's ledger (`dpfed.runs.digests`): what was changed is refused before a round is run. A
checkpoint has the digests of all the other files (`WHOLE`, the lines, the terms in config.yaml), and whoever reads the
run looks at them: a round counts once its checkpoint is written.

>>> import tempfile
>>> run = RunDirectory(tempfile.mkdtemp())
>>> run.append({"round": 1, "head": "3:ab"})
>>> run.rounds(), run.status
([], 'running')
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from dpfed.errors import InvalidArgument
from dpfed.plan import files
from dpfed.plan.plan import Plan
from dpfed.runs import checkpoint_notes
from dpfed.runs import rounds as round_files
from dpfed.runs.checkpoint_notes import Note
from dpfed.runs.digests import digest
from dpfed.runs.rounds import OwnerRecord, RoundRecord

OWNER_ONLY = 0o600
NO_HEAD = "0:none"  # of a run without a ledger
NOT_PRIVATE = "NOT PRIVATE"  # the stamp on a round whose noise can be predicted
CONFIG = "config.yaml"  # what `dpfed run` was given
LEFT_OUT = "rows-left-out"  # under owner/: how many rows were more than a person may have
FEATURES = "features.json"  # the names of a table's features, in the order of the model's inputs
RANGES = "ranges.json"  # ranges of columns that the run released before its first round
ORIGIN = "origin"  # under owner/: the folder of that file, where others that it names are looked up
OWN_LEDGER = "ledger.db"  # of a run whose configuration names none
RUNNING, FINISHED, BUDGET_EXHAUSTED = "running", "finished", "budget_exhausted"
STOPPED = "stopped"  # by a released figure that got no better
ENDS = (FINISHED, BUDGET_EXHAUSTED, STOPPED)
ROUNDS, OWNER_ROUNDS = "rounds.jsonl", "owner.jsonl"
DIGESTED = 3  # the first version of plan.json whose run has digests
NUMBERED = 4  # and the first whose clients draw from a seed by the number of their own charge
HELD_OUT_BY_HASH = 6  # and the first whose hold-outs are chosen by hashes, whatever the partition
STATUS, CHECKPOINTS = "status", "checkpoints"
CLIENTS = "clients"
ASKS = "asks.jsonl"
ORIGIN_FILE, LEFT_OUT_FILE = f"owner/{ORIGIN}", f"owner/{LEFT_OUT}"
WHOLE = ("plan.json", FEATURES, LEFT_OUT_FILE, ORIGIN_FILE, STATUS)  # files that are written once
LINES = (ROUNDS, OWNER_ROUNDS)
TERMS = "terms"  # among the digests of a checkpoint: that of what the run was begun with beside its plan


class RunDirectory:
    """The files of one run, to be read and written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        # Even the length of owner.jsonl or of the ledger tells how many took part: its owner alone may list it.
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def begin(self, plan: Plan) -> None:
        """Write the plan; a directory that already holds another one is refused."""
        if not (self.path / "plan.json").exists():
            write_durably(self.path / "plan.json", plan.to_json().encode())
        elif self.plan != plan:
            message = f"{self.path} holds another plan than this one: go on with that one or choose a new directory"
            raise InvalidArgument("directory", message)
        self.require_readable()

    def require_readable(self) -> None:
        """Refuse a run whose records nobody could report in the end, before anything else is done for it."""
        _ = self.plan, self.status
        self._require_unchanged(*(name for name in WHOLE if name != ORIGIN_FILE))  # which is checked where it is used
        self._records(ROUNDS, round_files.PUBLIC)
        self._records(OWNER_ROUNDS, round_files.OWNER)

    @cached_property
    def plan(self) -> Plan:
        """The plan of this run."""
        try:
            text = (self.path / "plan.json").read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidArgument("directory", f"{self.path} holds no run: {error.strerror}") from None
        except UnicodeDecodeError:
            text = ""
        try:
            return Plan.from_json(text)
        except (InvalidArgument, RecursionError) as error:
            what = "it is nested too deeply" if isinstance(error, RecursionError) else error
            message = f"{self.path / 'plan.json'} is no plan ({what}): put back a copy of it, or begin another run"
            raise InvalidArgument("directory", message) from None

    @property
    def origin(self) -> Path:
        """The folder of the file that the run was begun with; what is no such folder is not shown."""
        self._require_unchanged(ORIGIN_FILE)
        path = self.path / ORIGIN_FILE
        try:
            folder = Path(path.read_text(encoding="utf-8"))
            if folder.is_absolute() and folder.is_dir():
                return folder
        except (OSError, ValueError):
            pass
        remedy = f"if the data were moved, `dpfed resume {self.path} --moved-to FOLDER` says where to"
        raise InvalidArgument("directory", f"{path} names no folder that there is: {remedy}")

    def write_origin(self, folder: Path) -> None:
        """Write the folder in which files that the configuration names are looked up."""
        write_durably(self.folder("owner") / ORIGIN, str(folder).encode(), mode=OWNER_ONLY)

    @cached_property
    def _version(self) -> int:
        """The version of plan.json by which the run was begun; 0 if there is none."""
        path = self.path / "plan.json"
        return files.version_of(path.read_bytes().decode(errors="replace") if path.exists() else "")

    @property
    def is_older(self) -> bool:
        """Whether the run was begun by a version whose files had no digests."""
        return 0 < self._version < DIGESTED

    @property
    def has_other_seeds(self) -> bool:
        """Whether the run was begun by a version that drew other noise from a seed."""
        return 0 < self._version < NUMBERED

    @property
    def is_shuffled(self) -> bool:
        """Whether the run was begun by a version that could hold records out by a shuffle of all."""
        return 0 < self._version < HELD_OUT_BY_HASH

    @property
    def is_networked(self) -> bool:
        """Whether the clients of the run are sites behind a network, each with its own ledger."""
        return (self.path / ASKS).exists()

    def folder(self, name: str) -> Path:
        """Return a folder of the run that its owner alone may open, making it if needed."""
        path = self.path / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def append(self, record: Mapping[str, Any]) -> None:
        """Add the public record of a round to rounds.jsonl, durably."""
        round_files.append(self.path / ROUNDS, record, mode=0o666)

    def append_owner(self, record: Mapping[str, Any]) -> None:
        """Add what only the owner may see of a round to owner.jsonl, durably."""
        round_files.append(self.path / OWNER_ROUNDS, record, mode=OWNER_ONLY)

    def rounds(self) -> list[RoundRecord]:
        """Return the public records of all rounds in order; a round written twice because of a crash counts once.

        A round whose checkpoint is not written does not count: it is under way, or something else wrote its line.
        Scores on data that nobody declared public, which earlier versions wrote here, are left out.
        """
        found = cast(list[RoundRecord], self._records(ROUNDS))
        for record in found:
            if "metrics" in record:
                record["metrics"] = {name: score for name, score in record["metrics"].items() if not score["mark"]}
        return found

    def owner_rounds(self) -> list[OwnerRecord]:
        """Return the owner's records of all rounds in order."""
        return cast(list[OwnerRecord], self._records(OWNER_ROUNDS))

    def digests(self, before: Mapping[str, str], terms: str, *, has_ended: bool = False) -> dict[str, str]:
        """Return the digests of the run's other files and of its terms, for a checkpoint.

        Those of files that are written once are the ones of the checkpoint `before`, whatever became of the files; the
        status is among them once the run `has_ended`.
        """
        known = {name: before[name] for name in WHOLE if name in before and name != STATUS}
        wanted = [name for name in WHOLE if name not in known and (has_ended or name != STATUS)]
        new = {name: digest((self.path / name).read_bytes()) for name in wanted if (self.path / name).exists()}
        lines = {name: round_files.last_digest(self.path / name) for name in LINES}
        return known | new | lines | {TERMS: digest(terms.encode())}

    def _require_unchanged(self, *names: str) -> None:
        """Refuse files, written once, that are not those the last checkpoint was written with."""
        known = self.note().files
        for name in known.keys() & set(names):
            path = self.path / name
            if not path.is_file() or digest(path.read_bytes()) != known[name]:
                raise self._changed_error(name)

    def require_terms(self, terms: str, files: str = CONFIG) -> None:
        """Refuse a configuration that is not the one which the run was begun with."""
        expected = self.note().files.get(TERMS)
        if expected is not None and digest(terms.encode()) != expected:
            message = f"{self.path / files} is not what the run was begun with: put back a copy"
            raise InvalidArgument("directory", f"{message}; only track, runner and the ledger's url may change")

    @property
    def has_begun(self) -> bool:
        """Whether the run was reserved: its ledger must then be there, and is not made anew."""
        return bool(checkpoint_notes.list_paths(self.path / CHECKPOINTS))

    def note(self) -> Note:
        """Return what the last checkpoint says of the other files; of a run without any, that no round is done."""
        return checkpoint_notes.read_newest(self.path / CHECKPOINTS) or Note(0)

    def _records(self, name: str, needed: Sequence[str] = ("round",)) -> list[dict[str, Any]]:
        """Return the records of the rounds that the last checkpoint confirms; its digest of them must be theirs.

        What a round after that one had written before a crash may be there as well: the round is done again.
        """
        note = self.note()  # before the lines, to which a run that goes on adds
        lines = round_files.read(self.path / name, needed, may_lack=self.is_older)
        confirmed = [(record, known) for record, known in lines if record["round"] <= note.round]
        found = confirmed[-1][1] if confirmed else digest()
        if note.files.get(name, digest()) != found and not self._lacks_digests(note):
            raise self._changed_error(name)
        return round_files.drop_repeated(confirmed)

    def _lacks_digests(self, note: Note) -> bool:
        """Return whether it is a checkpoint of an older version, which knew no other file."""
        return self.is_older and not note.files

    def _changed_error(self, name: str) -> InvalidArgument:
        why = "it is not the one that the last checkpoint was written with"
        return round_files.changed_error(self.path / name, why)

    def end(self, status: str) -> None:
        """Write how the run ended: one of `ENDS`."""
        write_durably(self.path / STATUS, status.encode())

    @property
    def status(self) -> str:
        """How the run ended; before that, what its last round said.

        An end that no checkpoint knows of is none: the program ended before, or something else wrote it.
        """
        path, note = self.path / STATUS, self.note()
        if path.exists():
            found = path.read_bytes().decode("utf-8", errors="replace")
            if found not in ENDS:
                message = f"{path} does not say how the run ended: write {' or '.join(ENDS)} into it, or remove it"
                raise InvalidArgument("directory", message)
            if STATUS in note.files or self._lacks_digests(note):
                return found
        rounds = self.rounds()
        return str(rounds[-1].get("status", RUNNING)) if rounds else RUNNING

    def follow(self, poll_seconds: float = 0.2) -> Iterator[RoundRecord]:
        """Yield the records of a run as they are written, to its last round; works from another process."""
        seen, last = 0, self.plan.rounds
        while seen < last:
            for record in self.rounds()[seen:]:
                seen = record["round"]
                yield record
            if seen < last and self.status == STOPPED:
                return
            if seen < last:
                time.sleep(poll_seconds)


def sequence(head: str) -> int:
    """Return the number of the ledger's entry that a head names; none comes twice in a ledger."""
    return int(head.partition(":")[0])


def write_durably(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write the content whole and durably, or not at all; nobody beyond `mode` and the umask ever reads it."""
    write_whole(path, content, mode)
    directory = os.open(path.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write the content whole or not at all; a power cut in the next seconds may take it away again."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)

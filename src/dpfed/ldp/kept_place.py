"""Where the persons of a data file keep their responses: one file, whichever is named first, and no second one.

With another kept file everybody in the data would report anew, at twice the ε that is printed. So the folder of the
data has a note of the kept file: its place, and a digest of its key, by which a file that was moved is known again.

>>> import tempfile
>>> data = Path(tempfile.mkdtemp()) / "visits.csv"
>>> choose_place(data, None).name
'visits.csv.kept'
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfed.errors import InvalidArgument
from dpfed.ldp.files import Kept, follow, locked, read_kept
from dpfed.runs.directory import OWNER_ONLY, write_durably


def choose_place(data: Path, named: Path | None) -> Path:
    """Return the kept file of the data: the one that is noted, else the one named, else the one beside the data.

    Privacy: whoever has reported from this data file is in the file that is returned, or it is refused.
    """
    noted = _read_note(data)
    if noted is None:
        return _choose_first(_find_usual(data), named)
    place, digest = noted
    if named is None and place.exists():
        return place
    asked = _find_usual(data) if named is None else named
    if _is_same(asked, place):
        return asked
    if place.exists() or not asked.exists() or _digest(read_kept(asked)) != digest:
        raise InvalidArgument(
            "kept",
            f"{place} has responses of these persons already, and with {asked} they would report anew: leave --kept "
            "out if that file is there, or name it where it was moved to",
        )
    return asked


@contextmanager
def hold_place(data: Path, named: Path | None) -> Iterator[Path]:
    """Hold the data and its kept file for this process: two collections at once would both draw new responses."""
    with locked(data):
        place = choose_place(data, named)
        with locked(place):
            yield place


def note_place(data: Path, place: Path, kept: Kept) -> None:
    """Note where the persons of the data keep their responses, durably: before any of these are sent."""
    note = {"kept": str(follow(place).absolute()), "key": _digest(kept)}
    write_durably(_note_of(data), json.dumps(note).encode(), OWNER_ONLY)


def _is_same(one: Path, other: Path) -> bool:
    """Return whether both are one file, or one place of a file that is gone, which is for its reader to say."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return follow(one).absolute() == other


def _choose_first(usual: Path, named: Path | None) -> Path:
    """Return the file of data without a note; one beside the data is not left aside."""
    if named is None or not usual.exists() or (named.exists() and named.samefile(usual)):
        return named or usual
    raise InvalidArgument(
        "kept",
        f"{usual} has responses of these persons already, and with another --kept they would report anew: leave --kept "
        "out, or move that file there",
    )


def _read_note(data: Path) -> tuple[Path, str] | None:
    path = _note_of(data)
    if not path.exists():
        return None
    try:
        note = json.loads(path.read_bytes())
        return Path(note["kept"]), str(note["key"])
    except (OSError, ValueError, KeyError, TypeError):
        message = f"{path} is damaged, so nobody can tell where these persons keep their responses"
        raise InvalidArgument("kept", f"{message}: name that file by --kept, and remove {path}") from None


def _find_usual(data: Path) -> Path:
    real = follow(data)
    return real.with_name(f"{real.name}.kept")


def _note_of(data: Path) -> Path:
    real = follow(data)
    return real.with_name(f".{real.name}.kept-at")


def _digest(kept: Kept) -> str:
    return hashlib.sha256(b"kept file " + kept.key).hexdigest()

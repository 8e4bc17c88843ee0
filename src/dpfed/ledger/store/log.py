"""Whether the file of a SQLite ledger and its log hold what this process has committed.

SQLite believes what it has in memory: who writes an old copy over the file or the log, or cuts them short, is not
noticed by it, and what is committed then is not in what is opened next. Two facts reveal it. The file changes only when
a part of the log is taken into it, which the log's index counts. And every frame of the log up to the last commit,
which the index names too, carries the log's own salt and a checksum over all before it, of which the index knows the
last.

>>> Progress.of(bytes(136)) is None
True
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# The index begins with two copies of what it knows and goes on with how much of the log was taken into the file.
_KNOWN = struct.Struct("=12xBBHI4x2I8s8x")
_TAKEN = struct.Struct("=I28xI")
INDEX_BYTES = 2 * _KNOWN.size + _TAKEN.size
_LENGTH, _LENGTH_AT = struct.Struct("=HI"), 14  # size of a page and number of frames
_LOG_HEADER, _FRAME_HEADER = 32, 24
_SALT = slice(8, 16)  # of a frame
_LOG_CHECKSUM = struct.Struct(">24x2I")
_WORDS = 2**32
# Seconds within which somebody who takes the log into the file has counted it.
_PATIENCE = 2.0
_PAUSE = 0.01
# Size and times of the ledger's file, and whose it is.
File = tuple[int, ...]
_HAS_ALL = "SELECT count(*) = (SELECT seq FROM head) FROM entries NOT INDEXED"


class Progress(NamedTuple):
    """The progress of a log: its salt and frames, the checksum of the last one, and how many the file has taken."""

    salt: bytes
    frames: int
    checksum: tuple[int, int]
    page: int
    taken: tuple[int, int]

    @classmethod
    def of(cls, index: bytes) -> Progress | None:
        """Return what the index says; None while it is being written, or made anew."""
        first, second = index[: _KNOWN.size], index[_KNOWN.size : 2 * _KNOWN.size]
        if len(index) < INDEX_BYTES or first != second:
            return None
        is_made, _, page, frames, *checksum, salt = _KNOWN.unpack(first)
        if not is_made:
            return None
        taken = _TAKEN.unpack_from(index, 2 * _KNOWN.size)
        return cls(salt, frames, (checksum[0], checksum[1]), (page & 0xFE00) + ((page & 1) << 16), taken)

    @property
    def restarts(self) -> int:
        """How often the log was restarted, from wherever the count began."""
        return int.from_bytes(self.salt[:4], "big")

    def place(self, frame: int) -> int:
        """Return where in the log the frame of that number is, from 1."""
        return _LOG_HEADER + (frame - 1) * (_FRAME_HEADER + self.page)


class Contents:
    """The file, the log and its index as they were when last inspected.

    Log and index are given by the numbers under which this process has them open.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        # Threads look at once. Each takes what is known before it reads, so that what it reads is never older; and how
        # far the log is before it looks at the file, so that a change of the file is never counted before it is seen.
        self._progress: Progress | None = None
        self._known: tuple[Progress | None, File] = (None, ())

    def note(self, index: int) -> None:
        """Record the files as they are now, taken to be whole."""
        self._progress = _read(index)
        self._known = self._progress, self._look()

    def is_log_whole(self, log: int, index: int) -> bool:
        """Return whether the log holds all that it did, and all that was committed since."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            before, now = self._progress, _read(index)
            if now is None:  # somebody writes it at this moment
                time.sleep(_PAUSE)
            elif _holds(log, before, now):
                self._progress = now
                return True
            else:
                again = _read(index)
                if again is not None and again.salt == now.salt:  # else the log was begun anew meanwhile
                    return False
        return True  # SQLite will make the index anew from the log

    def is_file_whole(self, index: int) -> bool:
        """Return whether the file has changed by what it took of the log alone."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            (before, old), now = self._known, _read(index)
            new = self._look()
            was_given = new[:2] == old[:2] and new[3:] != old[3:]  # to another owner, or other rights
            if now is not None and (
                new == old or was_given or _is_explained(before, now) or self._has_all(before, now)
            ):
                self._known = now, new
                return True
            if time.monotonic() > deadline:
                return now is None
            time.sleep(_PAUSE)

    @property
    def is_settled(self) -> bool:
        """Whether the log goes on; otherwise the next commit restarts it, without notice."""
        return _goes_on(self._known[0])

    def _has_all(self, before: Progress | None, now: Progress) -> bool:
        """Return whether the log was begun anew, so that more may have come into the file, and every entry is there."""
        if before is None or now.salt == before.salt:
            return False
        try:
            with closing(sqlite3.connect(self._path, isolation_level=None)) as link:
                return bool(link.execute(_HAS_ALL).fetchone()[0])
        except (sqlite3.Error, TypeError):
            return False

    def _look(self) -> File:
        try:
            found = Path(self._path).stat()
        except OSError:
            return ()
        return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode, found.st_uid, found.st_gid


def _holds(log: int, known: Progress | None, now: Progress) -> bool:
    """Return whether the frames since the last look, with the last one before it, are on disk and follow each other."""
    before = known if known is not None and known.salt == now.salt else None
    first = 1 if before is None else max(before.frames, 1)
    if now.frames == 0:
        return before is None or before.frames == 0
    start = now.place(max(first - 1, 1))  # each checksum goes on from the one before
    try:
        header = os.pread(log, _LOG_HEADER, 0)
        frames = os.pread(log, now.place(now.frames + 1) - start, start)
    except OSError:
        return False
    if now.frames < first or header[16:24] != now.salt or len(frames) < now.place(now.frames + 1) - start:
        return False
    do_follow, found = _follow(header, frames, now)
    is_known = before is None or before.frames == 0 or _is(found[before.frames - now.frames - 1], before)
    return do_follow and is_known and _is(found[-1], now)


def _is_explained(before: Progress | None, now: Progress) -> bool:
    """Return whether a part of the log was taken into the file since."""
    if before is None or now.salt == before.salt:
        return before is None or now.taken != before.taken
    # With the next log all of the one before is in the file.
    is_next = now.restarts == (before.restarts + 1) % _WORDS
    return not is_next or now.taken != (0, 0) or _goes_on(before)


def _goes_on(progress: Progress | None) -> bool:
    return progress is not None and progress.taken[0] < progress.frames


def _follow(header: bytes, frames: bytes, now: Progress) -> tuple[bool, Any]:
    """Return whether each of the last frames follows from the one before, and the checksum that each has."""
    whole = np.frombuffer(frames, np.uint8).reshape(-1, _FRAME_HEADER + now.page)
    words = np.concatenate([whole[:, :8], whole[:, _FRAME_HEADER:]], axis=1)
    values = words.view(">u4" if header[3] & 1 else "<u4").astype(np.uint32)
    stored = whole[:, 16:_FRAME_HEADER].copy().view(">u4").astype(np.uint32)
    before = stored[:-1]
    if len(whole) == now.frames:  # the first frame goes on from the log's own header
        before = np.concatenate([np.array([_LOG_CHECKSUM.unpack(header)], np.uint32), before])
    ours, carry = _weights(values.shape[1] // 2)
    sums = np.stack([(values * weight).sum(axis=1, dtype=np.uint32) for weight in ours], axis=1)
    expected = sums[len(whole) - len(before) :] + before @ carry.T
    is_salted = bool((whole[:, _SALT] == np.frombuffer(now.salt, np.uint8)).all())
    return is_salted and bool((expected == stored[len(whole) - len(before) :]).all()), stored


def _is(checksum: Any, known: Progress) -> bool:
    return tuple(map(int, checksum)) == known.checksum


@lru_cache(maxsize=4)
def _weights(pairs: int) -> tuple[list[Any], Any]:
    """Return what each word, and the checksum before, counts in a checksum over so many pairs of words.

    SQLite adds pair by pair: a += x + b, b += y + a. That is linear, so it can be done for all words at once.
    """
    carry = [[1, 0], [0, 1]]
    ours: list[list[int]] = [[], []]
    for _ in range(pairs):  # from the last pair to the first
        for row, mine in zip(carry, ours, strict=True):
            mine[:0] = [(row[0] + row[1]) % _WORDS, row[1]]
        carry = [[(row[0] + row[1]) % _WORDS, (row[0] + 2 * row[1]) % _WORDS] for row in carry]
    return [np.array(mine, np.uint32) for mine in ours], np.array(carry, np.uint32)


def last_byte(index: int) -> int:
    """Return where the last frame of the log ends; its beginning where it has none."""
    page, frames = _LENGTH.unpack(os.pread(index, _LENGTH.size, _LENGTH_AT))
    return _LOG_HEADER - 1 + frames * (_FRAME_HEADER + (page & 0xFE00) + ((page & 1) << 16)) if frames else 0


def _read(index: int) -> Progress | None:
    return Progress.of(os.pread(index, INDEX_BYTES, 0))

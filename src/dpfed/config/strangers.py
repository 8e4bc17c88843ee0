"""Refuses files that are no configuration, before their content can get into an error message.

Whoever types ``dpfed run patients.csv`` must not read the patients in the error message, nor find them in a log of it
later. So a file is inspected first: only one that has keys of a configuration is quoted, and of all others a refusal
names the kind.

>>> require_configuration("age,ill\\n61,yes\\n47,no\\n", "ward.csv")
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: ward.csv is a table (CSV) and no configuration: name it as data.source of a YAML file, ...
"""

from __future__ import annotations

import re

from dpfed.errors import InvalidArgument

LARGEST = 10_000_000  # bytes; a configuration has thousands
SEPARATORS = ",;\t|"
BEGINNINGS = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"BM": "a BMP image",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzip file",
    b"PK\x03\x04": "a ZIP archive or a spreadsheet",
    b"SQLite format 3": "a SQLite database, maybe a ledger",
    b"\x93NUMPY": "a NumPy array",
    b"%PDF": "a PDF file",
    b"\xff\xfe": "text in UTF-16: save it as UTF-8",
    b"\xfe\xff": "text in UTF-16: save it as UTF-8",
}
# Any one of the first says that a file describes a run; the others are words of many files, so it takes two of them.
DECISIVE = frozenset({"rounds", "local", "privacy", "cohort", "algorithm"})
COMMON = frozenset({"name", "data", "model", "ledger", "track", "seed", "runner", "weighting"})
_KEY = re.compile(rf"(?:^|[{{,])\s*[\"']?({'|'.join(sorted(DECISIVE | COMMON))})[\"']?\s*:(?=\s|$|[\"'{{\[])", re.M)

INIT = "`dpfed init hospitals` writes one to begin with"


def decode_text(content: bytes, file: str) -> str:
    """Return the text of a file; refuse what is no text in UTF-8 by naming its kind."""
    for beginning, kind in BEGINNINGS.items():
        if content.startswith(beginning) and (len(beginning) > 2 or b"\0" in content or not _is_utf8(content)):
            raise _make_refusal(file, kind, "its name goes into data.source of a YAML file if it holds the records")
    if len(content) > LARGEST:
        raise _make_refusal(file, f"larger than {LARGEST // 10**6} MB", INIT)
    if b"\0" in content or not _is_utf8(content):
        raise _make_refusal(file, "a binary file, or text in another encoding than UTF-8", INIT)
    return content.decode("utf-8-sig")


def require_configuration(text: str, file: str) -> None:
    """Refuse a text that has no key of a configuration, without quoting it."""
    found = set(_KEY.findall(text))
    if found & DECISIVE or len(found) > 1 or not text.strip():
        return
    if text.lstrip()[0] in "[{":
        raise _make_refusal(file, "JSON of something else", INIT)
    if _is_table(text):
        init = f"`dpfed init {file or 'FILE.csv'} --label COLUMN --site-column COLUMN` writes one"
        raise _make_refusal(file, "a table (CSV)", f"name it as data.source of a YAML file, {init}")
    raise _make_refusal(file, "a text without the keys data, model, rounds, local and privacy", INIT)


def _make_refusal(file: str, kind: str, remedy: str) -> InvalidArgument:
    return InvalidArgument("path", f"{file or 'the text'} is {kind} and no configuration: {remedy}")


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _is_table(text: str) -> bool:
    """Return whether the first lines have equally many cells, and more than one."""
    lines = [line for line in text.splitlines()[:20] if line.strip()][:3]
    return any(len({line.count(mark) for line in lines}) == 1 and mark in lines[0] for mark in SEPARATORS)

"""Text of a table file, however a spreadsheet saved it: its encoding and the separator of its cells.

Neither follows from another record: the separator is that of the first line, and a line that is not UTF-8 is read as
Windows' Latin-1, in which each byte is a letter. Were it the whole file, one record with a stray byte would give every
person with a letter beyond ASCII another name, and a name decides who is held out.

>>> find_separator("alter;größe;'a,b'")
';'
>>> decode("größe".encode("latin-1"), "ward.csv")
'größe'
"""

from __future__ import annotations

import re
from pathlib import Path

from dpfed.errors import InvalidArgument

SEPARATORS = ",;\t|"
_OTHERS = "^~: "  # for a first line that has none of the usual ones
_QUOTED = re.compile(r'"[^"]*"')
_DECLARED = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)  # as Excel writes it
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_TWICE = re.compile("[\xc2\xc3][\x80-\xbf]")  # a letter of UTF-8, read as Latin-1
_CONTROLS = bytes([*range(9), *range(14, 32)])


def read_text(path: str | Path, most: int = -1) -> str:
    """Return the text of a file in UTF-8, UTF-16 with its mark, or Latin-1; with `most`, of its first bytes alone."""
    name = Path(path).name
    try:
        with Path(path).open("rb") as file:
            content = file.read(most)
        return decode(content if len(content) < most or most < 0 else content[: content.rfind(b"\n")], name)
    except OSError as error:
        raise InvalidArgument("source", f"{path} cannot be read: {error.strerror}") from None
    except MemoryError:
        raise InvalidArgument("source", f"{name} is larger than this machine's memory: split it") from None


def decode(content: bytes, name: str) -> str:
    """Return the content as text; refuse what is no text."""
    mark = next((mark for mark in _MARKS if content.startswith(mark)), None)
    try:
        text = content.decode("utf-8" if mark is None else _MARKS[mark])
    except UnicodeDecodeError:
        if mark is not None:
            message = f"{name} begins as {_MARKS[mark]} does, but goes on in another encoding: save it as UTF-8"
            raise InvalidArgument("source", message) from None
        text = "".join(_decode_line(line, name) for line in content.splitlines(keepends=True))
    plain = content if mark is None else text.encode()
    if len(plain.translate(None, _CONTROLS)) < len(plain):
        raise InvalidArgument("source", f"{name} is no text but a file of another kind: save the table as CSV")
    return text


def split_declaration(text: str) -> tuple[str | None, str]:
    """Return the separator that a first line such as ``sep=;`` declares, and the rest of the text."""
    found = _DECLARED.match(text)
    return (None, text) if found is None else (found[1], text[found.end() :])


def find_separator(header: str) -> str:
    """Return what separates the names of the columns: of the usual separators, the one that is there most often."""
    bare = _QUOTED.sub("", header)
    for choices in (SEPARATORS, _OTHERS):
        best = max(choices, key=bare.count)
        if best in bare:
            return best
    return ","


def _decode_line(line: bytes, name: str) -> str:
    """Return a line as UTF-8 if it is that, else as Latin-1; refuse one that is both."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        text = line.decode("latin-1")
    if _TWICE.search(text):
        message = f"{name} has a line that is partly UTF-8 and partly another encoding, so a name in it would be wrong"
        raise InvalidArgument("source", f"{message}: save it as UTF-8")
    try:
        return line.decode("cp1252")
    except UnicodeDecodeError:
        return text

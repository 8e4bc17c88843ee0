"""Unexpected errors, described in one line that shows nothing of any data file.

Python's traceback ends with the text of the exception, and that may be from a record: ``could not convert string to
float: 'Smith'``. So the type and the place are printed, never the text. ``DPFED_TRACEBACK=1`` adds the lines of code
that led there, also without the text.

>>> try:
...     float("Smith")
... except ValueError as error:
...     describe_fault(error).startswith("stopped by a ValueError in ")
True
>>> describe_fault(PermissionError(13, "Permission denied", "/model.safetensors"))
'/model.safetensors cannot be read or written: Permission denied'
"""

from __future__ import annotations

import errno
import os
import re
import traceback

REFUSED = 2
FAULT = 70  # EX_SOFTWARE of sysexits.h: whoever runs dpfed in a script can tell it from a refusal
SWITCH = "DPFED_TRACEBACK"
_BESIDE = re.compile(r"\.\d+\.tmp$")  # of a file that is written beside its place first


def describe_fault(error: Exception) -> str:
    """Describe an exception that is no refusal of dpfed, without its text."""
    from dpfed.references import place_of

    if is_system_error(error):
        return _describe_system_error(error)
    switch = "" if os.environ.get(SWITCH) else f" ({SWITCH}=1 shows the lines of code that led there)"
    what = f"stopped by {place_of(error)}, which dpfed does not expect: please report it"
    return f"{what}; its text may quote a record and is not shown{switch}"


def is_system_error(error: Exception) -> bool:
    """Return whether the cause is the file system, a name in it or memory, and neither dpfed nor the user's code."""
    is_of_a_name = isinstance(error, ValueError) and "null byte" in str(error)
    return is_of_a_name or isinstance(error, OSError | MemoryError | UnicodeEncodeError)


def traceback_lines(error: Exception) -> list[str]:
    """Return the traceback without the exception's text; an empty list unless ``DPFED_TRACEBACK`` is set."""
    return traceback.format_tb(error.__traceback__) if os.environ.get(SWITCH) else []


def _describe_system_error(error: Exception) -> str:
    if isinstance(error, OSError):
        path = next((str(name) for name in (error.filename2, error.filename) if name is not None), "a file")
        room = ": make room, then go on by `dpfed resume`" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        reason = os.strerror(error.errno) if error.errno else "the operating system refuses"
        return f"{_BESIDE.sub('', path)} cannot be read or written: {reason}{room}"
    if isinstance(error, MemoryError):
        return "this takes more memory than there is: use less data or a smaller model"
    if isinstance(error, UnicodeEncodeError):
        return "a name that was given is not UTF-8: rename the file or folder"
    return "a name that was given has a NUL character in it, which no file name can have: correct the name"

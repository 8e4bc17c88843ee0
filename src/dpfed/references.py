"""Your own model, loss, metric, data or algorithm, by the name ``package.module:name`` in a configuration file.

Whoever may write the file may run code: read a configuration from somebody else before you run it.

>>> resolve("math:sqrt")(9.0)
3.0
>>> is_reference("math:sqrt"), is_reference("data.csv"), is_reference("sklearn:digits")
(True, False, False)
"""

from __future__ import annotations

import dis
import importlib
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from dpfed.errors import InvalidArgument

_OF_TORCH = (RuntimeError, IndexError)  # what its compiled code raises: shapes, types and places
_FORM = re.compile(r"(?!sklearn:)[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_reference(text: str) -> bool:
    """Return whether the text has the form package.module:name."""
    return _FORM.fullmatch(text) is not None


def resolve(reference: str, directory: str | Path | None = None) -> Any:
    """Return what the reference names; modules beside the configuration file, in `directory`, are found first."""
    if not is_reference(reference):
        raise InvalidArgument(
            "reference",
            f"a reference has the form package.module:name, such as my_models.nets:Small, got {reference!r}",
        )
    module, _, name = reference.partition(":")
    try:
        with _finding_first(directory):
            return reduce(getattr, name.split("."), importlib.import_module(module))
    except ImportError as error:
        message = f"{reference}: the module {module} cannot be imported here ({error})"
        raise InvalidArgument("reference", message) from error
    except AttributeError:
        raise InvalidArgument(
            "reference", f"{reference}: the module {module} has no {name}: check its spelling"
        ) from None
    except Exception as error:  # whatever a module does while it is imported, reading records among it
        message = (
            f"{reference}: the module {module} fails while it is imported ({place_of(error)}): import it in Python"
        )
        raise InvalidArgument("reference", message) from None


def explain_failure(error: Exception) -> str:
    """Explain why a user's own code failed: where, or with which wrong arguments if it was never entered."""
    steps = traceback.extract_tb(error.__traceback__)
    is_ours = bool(steps) and Path(steps[-1].filename).is_relative_to(Path(__file__).parent)
    is_of_the_call = isinstance(error, TypeError) and is_ours
    return f"TypeError: {error}" if is_of_the_call else place_of(error)


def explain_torch_error(error: Exception) -> str:
    """Return the text of torch's own errors, and only type and place of others, whose text may be from a record."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    if step is None:
        return place_of(error)
    code = step.tb_frame.f_code
    is_of_torch = "torch" in Path(code.co_filename).parts
    is_raised = dis.opname[code.co_code[step.tb_lasti]] == "RAISE_VARARGS"  # by Python, and not by a call of torch's
    return str(error) if is_of_torch or (type(error) in _OF_TORCH and not is_raised) else place_of(error)


def place_of(error: BaseException) -> str:
    """Return type and place of an exception, and nothing of its text, which may be from a record."""
    steps = traceback.extract_tb(error.__traceback__)
    file, line = (steps[-1].filename, steps[-1].lineno) if steps else ("", None)
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    where = f" in {Path(file).name}, line {line}" if file else ""
    kind = type(error).__name__
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}{where}"


@contextmanager
def _finding_first(directory: str | Path | None) -> Iterator[None]:
    path = str(Path.cwd() if directory is None else Path(directory).resolve())
    sys.path.insert(0, path)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(path)

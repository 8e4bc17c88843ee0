"""Studies in a folder of the test's own."""

from __future__ import annotations

import pytest

from studies import SilentSource, Study


@pytest.fixture
def open_study(tmp_path):
    """Opens a study in the test's folder, as a new process would: the same one each time for the same options."""
    opened = []

    def opens(style="sample", sizes=None, folder=None, **options) -> Study:
        named = {} if sizes is None else {"sizes": sizes}
        opened.append(Study(folder or tmp_path, style, options, **named))
        return opened[-1]

    yield opens
    for each in opened:
        each.ledger.close()


@pytest.fixture
def study(open_study):
    return open_study()


@pytest.fixture
def again(open_study):
    """The same study as a new process would open it."""
    return open_study


@pytest.fixture
def silent():
    return SilentSource()

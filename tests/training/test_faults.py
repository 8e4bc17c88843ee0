from __future__ import annotations

import warnings

import pytest

from dpfed.training.faults import STOPS, warnings_hidden


def test_no_warning_is_shown_inside_and_the_usual_way_comes_back(monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: shown.append(str(message)))
    with warnings_hidden():
        warnings.showwarning(UserWarning("of a record"), UserWarning, "file", 1)
    warnings.showwarning(UserWarning("of a user"), UserWarning, "file", 1)
    assert shown == ["of a user"]


def test_a_warning_that_is_an_error_stays_one_and_the_usual_way_comes_back_after_it():
    usual = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="told"), warnings_hidden():
            warnings.warn("told", UserWarning, stacklevel=1)
    assert warnings.showwarning is usual


def test_only_who_wants_the_program_to_end_stops_it():
    assert all(issubclass(kind, STOPS) for kind in (KeyboardInterrupt, SystemExit, GeneratorExit))
    assert not issubclass(Exception, STOPS)

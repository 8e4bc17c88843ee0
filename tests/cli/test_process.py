"""Garbage is looked for again once everything is loaded, whatever happened."""

from __future__ import annotations

import gc

import pytest

from dpfed.cli.process import gc_paused


def test_garbage_is_looked_for_again_also_after_a_failure():
    with pytest.raises(ZeroDivisionError), gc_paused():
        1 / int(gc.isenabled())
    assert gc.isenabled()


def test_who_did_not_want_it_before_does_not_get_it():
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

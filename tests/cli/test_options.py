from __future__ import annotations

import io

import click
import pytest

from dpfed import events as ev
from dpfed.cli.options import read_run


def test_steps_with_noise_are_what_the_options_describe():
    assert read_run(1.5, 0.01, 10, None) == ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.5), 0.01), 10)
    assert read_run(1.5, None, None, None) == ev.Gaussian(1.5)


def test_an_event_of_a_file_is_the_whole_run():
    event = ev.Repeated(ev.Laplace(2.0), 3)
    assert read_run(None, None, None, io.BytesIO(ev.dumps(event).encode())) == event
    with pytest.raises(click.UsageError, match="--event describes the whole run"):
        read_run(None, None, 3, io.BytesIO(ev.dumps(event).encode()))


def test_a_run_without_noise_is_asked_for():
    with pytest.raises(click.UsageError, match="--noise-multiplier"):
        read_run(None, 0.01, 10, None)


def test_a_picture_in_another_format_than_svg_is_refused_before_anything_is_computed(dpfed):
    result = dpfed("sweep nowhere.yaml --plot sweep.png")
    assert result.exit_code == 2
    assert "'--plot': it must end in .svg, the format that is written, got 'sweep.png'" in result.output

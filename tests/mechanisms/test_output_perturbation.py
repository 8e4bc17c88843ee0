"""Output perturbation: the mechanism's promise at the algorithm's sensitivity."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.gaussian import GaussianMechanism
from dpfed.mechanisms.laplace import LaplaceMechanism
from dpfed.mechanisms.output_perturbation import OutputPerturbation
from dpfed.mechanisms.sensitivity import Sensitivity, fedavg_step, iadmm_step
from dpfed.randomness import SeededSource

N = 100_000
ALPHA = 1e-6


def test_laplace_noise_has_scale_sensitivity_over_epsilon() -> None:
    sensitivity = fedavg_step(clip_norm=1.0, learning_rate=0.1, records=500)
    step = OutputPerturbation(LaplaceMechanism(0.5, 1.0, source=SeededSource(1)), sensitivity)
    assert step.scale == pytest.approx(0.0004 / 0.5)
    noise = step.add_noise(np.zeros(N))
    assert stats.kstest(noise / step.scale, "laplace").pvalue > ALPHA
    assert not step.is_private
    assert "NOT PRIVATE" in repr(step)


def test_a_replace_one_sensitivity_is_charged_under_replace_one_only() -> None:
    laplace = OutputPerturbation(LaplaceMechanism(0.5, 1.0), fedavg_step(1.0, 0.1, 500))
    assert laplace.event == ev.PureDP(0.5, adjacency="replace_one")
    gaussian = OutputPerturbation(
        GaussianMechanism.from_noise_multiplier(2.0, 1.0), iadmm_step(1.0, 1.0, 500, norm="l2")
    )
    assert gaussian.event == ev.ZeroConcentratedDP(1 / 8, adjacency="replace_one")


def test_an_add_remove_sensitivity_is_charged_as_the_noise_itself() -> None:
    sensitivity = fedavg_step(1.0, 0.1, 500, adjacency="add_remove")
    step = OutputPerturbation(LaplaceMechanism(0.5, 1.0), sensitivity)
    assert step.event == ev.Laplace(2.0)
    assert step.scale == pytest.approx(0.0002 / 0.5)


def test_a_bare_number_keeps_the_adjacency_of_the_mechanism() -> None:
    step = OutputPerturbation(LaplaceMechanism(0.5, Sensitivity(1.0, "l1", "replace_one")), 0.25)
    assert step.scale == 0.5
    assert step.event == ev.PureDP(0.5, adjacency="replace_one")
    assert OutputPerturbation(LaplaceMechanism(0.5, 1.0), 0.25).event == ev.Laplace(2.0)


def test_a_sensitivity_in_the_other_norm_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="L2 sensitivity"):
        OutputPerturbation(GaussianMechanism(1.0, 1e-5, 1.0), fedavg_step(1.0, 0.1, 500, norm="l1"))


@pytest.mark.parametrize("mechanism", [None, LaplaceMechanism, "laplace"])
def test_what_is_no_mechanism_is_refused(mechanism: object) -> None:
    with pytest.raises(InvalidArgument, match="mechanism"):
        OutputPerturbation(mechanism, 1.0)

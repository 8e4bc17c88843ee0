from __future__ import annotations

import pytest

from dpfed.accounting.closed_forms import gaussian_delta, gaussian_epsilon
from dpfed.accounting.queries import delta, epsilon, epsilon_bounds
from dpfed.errors import InvalidArgument
from dpfed.events import Gaussian, Repeated

RUN = Repeated(Gaussian(4.0), 4)  # one Gaussian of μ = 1/2


def test_each_question_has_the_answer_of_the_closed_form():
    assert epsilon(RUN, 1e-5) == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=1e-9)
    assert delta(RUN, 1.0) == pytest.approx(gaussian_delta(0.5, 1.0), rel=1e-9)
    low, high = epsilon_bounds(RUN, 1e-5)
    assert low <= gaussian_epsilon(0.5, 1e-5)
    assert high == epsilon(RUN, 1e-5)
    assert high - low < 1e-6


def test_replacing_a_record_moves_the_release_twice_as_far():
    found = epsilon(RUN, 1e-5, adjacency="replace_one")
    assert found == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-9)
    assert delta(RUN, found, adjacency="replace_one") == pytest.approx(1e-5, rel=1e-6)


def test_another_notion_costs_more_and_an_unknown_one_is_refused():
    assert epsilon(RUN, 1e-5, notion="rdp") > epsilon(RUN, 1e-5)
    with pytest.raises(InvalidArgument, match="notion"):
        epsilon(RUN, 1e-5, notion="moments")

from __future__ import annotations

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.runners.factory import ClientFactory
from dpfed.plan.plan import LocalPlan, Plan, Population
from studies import DIMENSION, Ward

EACH = LocalPlan(size=20, batch_size=10, steps=2)
PLAN = Plan("study", 1, Population(5, EACH), style="none")
WEIGHTS = np.zeros(DIMENSION)


def test_a_client_is_made_from_its_number_and_name_and_rehearsed():
    made = []

    def make(number, name):
        made.append((number, name))
        return Ward(name, "", float(number))

    factory = ClientFactory(make)
    assert factory.client("client-3", PLAN, WEIGHTS).value == 3.0
    assert made == [(3, "client-3")]
    with pytest.raises(ValueError, match="shapes differ"):
        factory.client("client-3", PLAN, np.zeros(DIMENSION + 1))


def test_a_client_of_another_name_is_refused():
    factory = ClientFactory(lambda number, name: Ward("client-1", ""))
    with pytest.raises(InvalidArgument, match="give it the name it was made for"):
        factory.client("client-3", PLAN, WEIGHTS)


def test_an_example_is_rehearsed_and_a_plan_that_names_its_clients_is_refused():
    factory = ClientFactory(Ward, Ward("anybody", ""))
    factory.rehearse(PLAN, WEIGHTS)
    with pytest.raises(ValueError, match="shapes differ"):
        factory.rehearse(PLAN, np.zeros(DIMENSION + 1))
    with pytest.raises(InvalidArgument, match="only for a plan over a Population"):
        factory.rehearse(Plan("study", 1, {"north": EACH}, style="none"), WEIGHTS)


def test_what_makes_nothing_is_no_factory():
    with pytest.raises(InvalidArgument, match="make must be a function"):
        ClientFactory([Ward("client-0", "")])

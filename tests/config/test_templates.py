from __future__ import annotations

from dpfed.config import RunConfig
from dpfed.config.defaults import choose
from dpfed.config.templates import TEMPLATES, hospitals, make_common


def test_the_hospitals_round_trip_and_are_those_of_the_design():
    config = RunConfig.parse(hospitals().to_yaml())
    assert config == hospitals().config
    assert (config.rounds, config.privacy.record.epsilon, config.local.batch_size) == (10, 4.0, 16)
    assert list(TEMPLATES) == ["hospitals"]


def test_what_every_first_run_has_is_complete_but_for_its_data():
    data = {"source": "sklearn:iris", "partition": {"kind": "iid", "clients": 2}, "sizes": 50}
    chosen = choose([50, 50], 4.0)
    config = RunConfig.of(make_common("study", data, chosen))
    assert (config.local.batch_size, config.privacy.record.delta) == (chosen.batch_size, chosen.delta)

"""The run file of a trial; that it runs is in test_flower_node.py, for real."""

from __future__ import annotations

import socket

import pytest

from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.integrations.trial import free_port, make_trial_file


@pytest.mark.parametrize("count", [1, 3, 7])
def test_all_records_are_dealt_to_as_many_hospitals_as_asked(count):
    file = make_trial_file(count)
    assert len(file.config.data.names) == count
    assert sum(file.config.data.partition.sizes) == 455
    assert RunConfig.parse(file.content.decode()) == file.config


@pytest.mark.parametrize("count", [0, -1, 21])
def test_a_number_of_sites_that_makes_no_trial_is_refused(count):
    with pytest.raises(InvalidArgument, match="between 1 and 20 sites"):
        make_trial_file(count)


def test_a_free_port_can_be_listened_at():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))

"""Bytes come out of a Flower message as they went in, few or many; what another app sent is not read."""

from __future__ import annotations

import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from dpfed.integrations.flower_messages import CONTENT, FEW, RECORD, unwrap, wrap


@pytest.mark.parametrize("size", [0, 1, FEW, FEW + 1])
def test_bytes_come_back_as_they_were(size):
    assert unwrap(wrap(bytes(size))) == bytes(size)


@pytest.mark.parametrize(
    "record",
    [ConfigRecord({}), ConfigRecord({CONTENT: "text"}), ConfigRecord({CONTENT: [b"a"]}), ArrayRecord(), MetricRecord()],
    ids=["empty", "text", "a list", "no array", "metrics"],
)
def test_records_of_another_app_hold_nothing_for_us(record):
    assert unwrap(RecordDict({RECORD: record})) is None
    assert unwrap(RecordDict({"other": ConfigRecord({CONTENT: b"x"})})) is None

from __future__ import annotations

import pytest

from dpfed.config import RunConfig
from dpfed.config.fields import blocks_in
from dpfed.errors import InvalidArgument


@pytest.mark.parametrize(
    "text",
    [
        "rounds: @MARKER",
        "rounds: !MARKER 1",
        "rounds: &MARKER 1\nlocal: &MARKER 2",
        "%MARKER\nrounds: 1",
        "rounds: *MARKER",
        "rounds: [MARKER MARKER\nlocal: 1",
        "rounds: MARKER MARKER MARKER MARKER MARKER MARKER MARKER",
        "rounds: [MARKER]",
        "rounds: {MARKER: 1}",
        "rounds: 1\ndata: [[MARKER, 1], [MARKER, 2]]",
        "rounds: 1\ndata: {classes: [[MARKER]], sizes: {ward: MARKER MARKER MARKER MARKER MARKER MARKER MARKER}}",
        "rounds: 1\ndata: {feature_bounds: [[MARKER, MARKER, MARKER]]}",
        "rounds: 1\nledger: MARKER",
        "rounds: 1\nledger: postgresql://ann:MARKER@db/ledger",
        "rounds: 1\nledger: {url: [MARKER], account: {MARKER: 1}}",
        "rounds: 1\ntrack: {kind: mlflow, tracking_uri: [MARKER]}",
        "rounds: 1\nmodel: postgresql://ann:MARKER@db/ledger",
        "rounds: 1\nledger: {'postgresql://ann:MARKER@db/ledger': 1}",
    ],
)
def test_a_refusal_shows_no_list_no_long_text_and_no_address(text):
    with pytest.raises(InvalidArgument) as refused:
        RunConfig.parse(text)
    assert "MARKER" not in str(refused.value)


def test_every_setting_has_an_effect():
    def all_settings(block):
        for name, field in block.model_fields.items():
            yield block, name, field
            for inner in blocks_in(field):
                yield from all_settings(inner)

    for block, name, field in all_settings(RunConfig):
        assert field.description, f"{block.__name__}.{name}"

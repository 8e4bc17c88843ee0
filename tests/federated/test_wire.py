"""Messages: what was signed comes out as it went in, and anything else is one refusal."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from safetensors.numpy import save

from dpfed.errors import MessageRefused
from dpfed.federated import wire
from dpfed.federated.keys import SigningKey
from dpfed.federated.wire import Message


@pytest.fixture(scope="module")
def key():
    return SigningKey.make()


def signed(key, blob: bytes) -> bytes:
    return wire.MAGIC + key.sign(wire.MAGIC + wire.REQUEST + blob) + blob


@pytest.mark.parametrize("dtype", wire.DTYPES)
def test_header_and_arrays_come_out_bit_for_bit(key, dtype):
    arrays = {"value": np.array([1.0, -0.0, 5e-324, np.nan, np.inf]).astype(dtype), "empty": np.zeros(0, dtype)}
    header = {"verb": "train", "round": 3, "ratio": 0.1, "text": "ε", "none": None, "list": [1, 2]}
    found = wire.unpack(wire.pack(Message(header, arrays), key, wire.REPLY), key.public, wire.REPLY, 10_000)
    assert found.header == header
    assert {name: array.tobytes() for name, array in found.arrays.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }


def test_every_flipped_byte_is_refused(key):
    content = wire.pack(Message({"verb": "train"}, {"value": np.ones(3)}), key, wire.REPLY)
    for place in range(len(content)):
        altered = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        with pytest.raises(MessageRefused):
            wire.unpack(altered, key.public, wire.REPLY, 10_000)


def test_a_message_is_refused_by_its_size_before_its_signature_is_looked_at(key):
    with pytest.raises(MessageRefused, match="has 1000001 bytes, and at most 1000000 are read"):
        wire.unpack(bytes(1_000_001), key.public, wire.REPLY, 1_000_000)


def test_a_request_does_not_pass_as_a_reply(key):
    content = wire.pack(Message({"verb": "train"}), key, wire.REQUEST)
    with pytest.raises(MessageRefused, match="no valid signature"):
        wire.unpack(content, key.public, wire.REPLY, 10_000)


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        bytes(8),
        (2**62).to_bytes(8, "little"),
        pickle.dumps({"verb": "train"}),
        save({"value": np.ones(2)}),
        save({"value": np.ones(2)}, metadata={"header": "[" * 100_000}),
        save({"value": np.ones(2)}, metadata={"header": "[1]"}),
        save({"value": np.ones(2, dtype=np.int64)}, metadata={"header": "{}"}),
        save({"value": np.ones(2)}, metadata={"header": "{"}),
        save({"value": np.ones(2)}, metadata={"header": "{}"})[:-8],
    ],
)
def test_a_blob_that_is_none_is_refused_even_if_it_is_signed(key, blob):
    with pytest.raises(MessageRefused, match=r"cannot be read|other things"):
        wire.unpack(signed(key, blob), key.public, wire.REQUEST, 10**6)


def test_a_header_has_no_number_that_json_has_not(key):
    with pytest.raises(ValueError, match="JSON"):
        wire.pack(Message({"x": float("nan")}), key, wire.REPLY)


def test_the_digest_of_a_task_follows_all_that_an_answer_depends_on():
    base = wire.digest_task({"weights": np.ones(2)}, 1.0, 0)
    others = [
        wire.digest_task({"weights": np.ones(2, dtype=np.float32)}, 1.0, 0),
        wire.digest_task({"weights": np.array([1.0, 1.0 + 2**-52])}, 1.0, 0),
        wire.digest_task({"weights": np.ones(2), "control": np.ones(2)}, 1.0, 0),
        wire.digest_task({"weights": np.ones(2)}, None, 0),
        wire.digest_task({"weights": np.ones(2)}, 1.0, 1),
    ]
    assert len({base, *others}) == 6
    assert base == wire.digest_task({"weights": np.ones(2)}, 1.0, 0)


def test_codes_are_the_fixed_list():
    assert json.dumps(wire.CODES) == json.dumps(
        ["ok", "budget", "policy", "unavailable", "busy", "exhausted", "stale", "rolled_back"]
    )

"""Messages between a study and its sites: one safetensors blob with a JSON header, signed with Ed25519.

No code and no pickle can be in it: a header of plain values, and arrays of floats. Size and signature are looked at
before anything is parsed, and what is signed begins with the role of the sender, so that no request passes as a reply.

>>> from dpfed.federated.keys import SigningKey
>>> study = SigningKey.make()
>>> content = pack(Message({"verb": "train"}, {"weights": np.ones(2)}), study, REQUEST)
>>> unpack(content, study.public, REQUEST, limit=1000)
Message(header={'verb': 'train'})
>>> unpack(content, study.public, REPLY, limit=1000)
Traceback (most recent call last):
    ...
dpfed.errors.MessageRefused: the message has no valid signature: it is altered, or of somebody else
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dpfed.errors import MessageRefused
from dpfed.federated.keys import SIGNATURE, PublicKey, SigningKey
from dpfed.runs.digests import digest, digest_arrays

MAGIC = b"dpfed/1\n"
REQUEST, REPLY = b"request\0", b"reply\0"
HEADER = "header"
LONGEST_HEADER = 16_000_000  # bytes; a plan names its clients in it
OVERHEAD = LONGEST_HEADER + 10_000
DTYPES = ("float32", "float64")
CENTRE = "centre/"  # the array of the last release; no vector of an algorithm has a name with a stroke

ENROLL, TRAIN, MEASURE, STATUS, FINISH = "enroll", "train", "measure", "status", "finish"
VERBS = (ENROLL, TRAIN, MEASURE, STATUS, FINISH)
CHARGED = (TRAIN, MEASURE)  # verbs for which a site may be charged
OK, BUDGET, POLICY, UNAVAILABLE = "ok", "budget", "policy", "unavailable"
BUSY, SPENT, STALE, ROLLED_BACK = "busy", "exhausted", "stale", "rolled_back"
CODES = (OK, BUDGET, POLICY, UNAVAILABLE, BUSY, SPENT, STALE, ROLLED_BACK)
ECHOED = ("verb", "site", "run", "round", "plan", "model", "nonce", "number")  # by value, in every reply

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Message:
    """A header of plain values, and named arrays."""

    header: Mapping[str, Any]
    arrays: Arrays = field(default_factory=dict, repr=False)


def pack(message: Message, key: SigningKey, role: bytes) -> bytes:
    """Return the signed bytes of a message."""
    blob = to_blob(message)
    return MAGIC + key.sign(MAGIC + role + blob) + blob


def unpack(content: bytes, key: PublicKey, role: bytes, limit: int) -> Message:
    """Return the message, if it is not larger than the limit and its owner of the key has signed it in that role."""
    if len(content) > limit:
        raise MessageRefused(f"the message has {len(content)} bytes, and at most {limit} are read")
    start = len(MAGIC) + SIGNATURE
    if not content.startswith(MAGIC) or len(content) < start:
        raise MessageRefused("the message is none of dpfed's, or of another version: use the same on both sides")
    blob = content[start:]
    if not key.verifies(content[len(MAGIC) : start], MAGIC + role + blob):
        raise MessageRefused("the message has no valid signature: it is altered, or of somebody else")
    return from_blob(blob)


def to_blob(message: Message) -> bytes:
    """Return header and arrays as one safetensors blob."""
    header = json.dumps(message.header, sort_keys=True, allow_nan=False)
    # A blob needs an array: the header alone may be all there is.
    arrays = {name: np.ascontiguousarray(array) for name, array in message.arrays.items()} or {"": np.zeros(0)}
    return bytes(save(arrays, metadata={HEADER: header}))


def from_blob(blob: bytes) -> Message:
    """Return header and arrays of a blob; whatever is wrong with it is one refusal."""
    try:
        length = int.from_bytes(blob[:8], "little")
        if length > LONGEST_HEADER:
            raise ValueError
        header = json.loads(json.loads(blob[8 : 8 + length])["__metadata__"][HEADER])
        json.dumps(header, allow_nan=False)  # an answer echoes what it was sent: all of it can be written again
        arrays = load(blob)
    except (ValueError, TypeError, KeyError, RecursionError, SafetensorError, AttributeError):
        raise MessageRefused("the message cannot be read: it is damaged") from None
    arrays.pop("", None)
    if not isinstance(header, dict) or not all(str(array.dtype) in DTYPES for array in arrays.values()):
        raise MessageRefused("the message holds other things than a header and floats")
    return Message(header, arrays)


def digest_text(text: str) -> str:
    """Return the digest of a plan or a recipe, as it is sent."""
    return digest(text.encode())


def digest_task(vectors: Arrays, clip_norm: float | None, counted: int) -> str:
    """Return the digest of what a site is sent to train from: the model, and all else that its answer depends on."""
    return digest(digest_arrays(vectors), repr(clip_norm).encode(), str(counted).encode())


def largest_message(numbers: int, vectors: int = 4) -> int:
    """Return the bytes of the largest message about a model of so many numbers."""
    return OVERHEAD + 8 * numbers * vectors

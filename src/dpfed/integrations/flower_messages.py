"""What a Flower message holds for dpfed: raw bytes in one record, which Flower neither reads nor unpacks.

Few bytes go as one value, since each part of a message is a request of its own; many as an array, which Flower sends in
chunks. Neither is ever turned into an object of Python: the bytes are dpfed's own signed message.

>>> unwrap(wrap(b"signed"))
b'signed'
"""

from __future__ import annotations

import os

# Flower sends usage data to its makers and asks them for updates unless these are set; whoever wants that sets them.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

TYPE = "query.dpfed"  # of Flower's messages: the category is Flower's, the action ours
RECORD, CONTENT = "dpfed", "content"
FEW = 4_000_000  # bytes


def wrap(content: bytes) -> RecordDict:
    """Return Flower's records with the bytes in them."""
    if len(content) <= FEW:
        return RecordDict({RECORD: ConfigRecord({CONTENT: content})})
    array = Array(dtype="uint8", shape=(len(content),), stype="dpfed.bytes", data=content)
    return RecordDict({RECORD: ArrayRecord({CONTENT: array})})


def unwrap(records: RecordDict) -> bytes | None:
    """Return the bytes that were wrapped, or None if these are records of another app."""
    match records.get(RECORD):
        case ConfigRecord() as record:
            content = record.get(CONTENT)
        case ArrayRecord() as record:
            content = record[CONTENT].data if CONTENT in record else None
        case _:
            content = None
    return content if isinstance(content, bytes) else None

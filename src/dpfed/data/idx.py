"""Images and labels in IDX, the format of MNIST, plain or gzipped: unsigned bytes behind a header of sizes.

Pixels are divided by 255, the range of the format and not of the data.

>>> import numpy as np
>>> header = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2])
>>> _ = Path("images").write_bytes(header + bytes([0, 255, 51, 0]))
>>> _ = Path("labels").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 0]))
>>> found = read_images(Path("images"), ["no", "yes"], labels="labels")
>>> found.features.shape, found.features[0].ravel().tolist(), found.labels.tolist()
((2, 1, 1, 2), [0.0, 1.0], [1, 0])
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from dpfed.data.records import Records
from dpfed.errors import InvalidArgument

GZIP = b"\x1f\x8b"
BYTES = b"\x00\x00\x08"  # how a file of unsigned bytes begins; the number of sizes follows
LARGEST = 1 << 34  # bytes; no set of this format comes near


def read_images(path: Path, classes: Sequence[str], *, labels: str) -> Records:
    """Return the images of a file, each of shape (1, height, width), with the labels of another file beside it."""
    images, codes = read(path, 3), read(path.parent / labels, 1).astype(np.int64)
    if len(images) != len(codes):
        raise InvalidArgument(
            "labels", f"{labels} must hold one label for each image of {path.name}: name the file that belongs to it"
        )
    if classes:
        require_codes(codes, classes, labels)
    return Records(images[:, None] / np.float32(255), codes, classes=tuple(classes))


def read(path: Path, sizes: int) -> NDArray[np.uint8]:
    """Return the bytes of a file in the shape that its header gives; the header must have `sizes` sizes."""
    try:
        with _open(path) as stream:
            shape = _read_shape(stream.read(4 + 4 * sizes), sizes, path.name)
            length = math.prod(shape)
            # One byte more tells whether there is more; what a small file unpacks to beyond that is never read.
            content = stream.read(length + 1) if length <= LARGEST else b""
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InvalidArgument("source", f"{path.name} is a damaged gzip file: download it again") from None
    except MemoryError:
        raise InvalidArgument("source", f"{path.name} is larger than this machine's memory: split it") from None
    except OSError as error:
        raise InvalidArgument("source", f"{path} cannot be read: {error.strerror}") from None
    if len(content) != length:
        raise InvalidArgument(
            "source", f"{path.name} is not as long as its header says, so part of it is missing: download it again"
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def require_codes(codes: NDArray[Any], classes: Sequence[str], name: str) -> None:
    """Refuse a label that is none of the declared classes."""
    if len(codes) and codes.max() >= len(classes):
        message = f"{name} has a label that is none of the {len(classes)} declared classes: declare all of them"
        raise InvalidArgument("classes", message)


def _read_shape(header: bytes, sizes: int, name: str) -> list[int]:
    if header[:4] != BYTES + bytes([sizes]) or len(header) < 4 + 4 * sizes:
        what = "images" if sizes > 1 else "labels"
        raise InvalidArgument("source", f"{name} is no IDX file of {what} (unsigned bytes): name the file of {what}")
    return [int.from_bytes(header[place : place + 4], "big") for place in range(4, len(header), 4)]


def _open(path: Path) -> BinaryIO:
    stream = path.open("rb")
    is_packed = stream.read(len(GZIP)) == GZIP
    stream.close()
    return cast(BinaryIO, gzip.open(path, "rb")) if is_packed else path.open("rb")

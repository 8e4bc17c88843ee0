from __future__ import annotations

import gzip

import numpy as np
import pytest

from dpfed.data.idx import read
from dpfed.data.sources import load
from dpfed.errors import InvalidArgument

IMAGES = np.random.default_rng(1).integers(0, 256, (5, 3, 4), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 1, 0], dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    """The array in IDX; big-endian sizes behind the type (8: unsigned bytes) and their number."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()


@pytest.fixture
def source(tmp_path):
    def write(images=IMAGES, labels=LABELS, pack=bytes):
        (tmp_path / "images").write_bytes(pack(idx(images)))
        (tmp_path / "labels").write_bytes(pack(idx(labels)))
        return lambda classes=("a", "b", "c"), **options: load(
            "idx:images", classes=classes, options={"labels": "labels", **options}, directory=tmp_path
        )

    return write


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_images_and_labels_are_those_of_the_files(source, pack):
    records = source(pack=pack)()
    assert records.features.dtype == np.float32
    assert np.array_equal(np.rint(records.features[:, 0] * 255), IMAGES)
    assert (records.features.min() >= 0, records.features.max() <= 1) == (True, True)
    assert (records.labels.tolist(), records.classes) == (LABELS.tolist(), ("a", "b", "c"))


def test_the_range_of_pixels_is_the_formats_and_not_the_datas(source):
    assert source(images=np.full_like(IMAGES, 51))().features.max() == np.float32(0.2)


def test_a_label_beyond_the_declared_classes_is_refused(source):
    with pytest.raises(InvalidArgument, match="labels has a label that is none of the 2 declared classes"):
        source()(classes=("a", "b"))


def test_without_classes_labels_are_numbers(source):
    assert source()(classes=()).labels.tolist() == LABELS.tolist()


def test_there_must_be_a_label_for_each_image(source):
    with pytest.raises(InvalidArgument, match="labels must hold one label for each image of images"):
        source(labels=LABELS[:4])()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is no IDX file of images"),
        (idx(LABELS), "is no IDX file of images"),
        (idx(IMAGES).replace(b"\x08", b"\x0d", 1), "unsigned bytes"),
        (idx(IMAGES)[:-1], "not as long as its header says"),
        (idx(IMAGES) + b"x", "not as long as its header says"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "not as long as its header says"),
        (gzip.compress(idx(IMAGES), mtime=0)[:-9], "is a damaged gzip file"),
        (gzip.compress(idx(IMAGES), mtime=0)[:20] + b"\xff" * 40, "not as long as its header says|damaged gzip file"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_refused_by_name(tmp_path, content, what):
    (tmp_path / "images").write_bytes(content)
    with pytest.raises(InvalidArgument, match=f"images .*{what}"):
        read(tmp_path / "images", 3)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
        read(tmp_path / "images", 3)


def test_a_small_file_that_unpacks_to_a_large_one_is_refused_without_unpacking_it(source, monkeypatch):
    read = []
    plain = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: read.append(size) or plain(self, size))
    with pytest.raises(InvalidArgument, match="images is not as long as its header says"):
        source(pack=lambda content: gzip.compress(content + bytes(10**7)))()
    assert read == [16, IMAGES.size + 1]

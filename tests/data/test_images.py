from __future__ import annotations

import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from dpfed.config.data import Data
from dpfed.data.sources import load
from dpfed.errors import InvalidArgument
from dpfed.federated.data import prepare

SIZE = [3, 4]


def grey() -> np.ndarray:
    return np.random.randint(0, 256, SIZE, dtype=np.uint8)


def save(path, pixels) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def scans(tmp_path):
    """Two images of one class and one of another, by the path of each."""
    names = ("ill/1.png", "ill/2.png", "well/1.png")
    return {name: save(tmp_path / "scans" / name, grey()) for name in names}


@pytest.fixture
def cases(tmp_path):
    """Three cases of two channels with their segmentations."""
    for case in ("a_1", "b_2", "c_3"):
        for channel in (0, 1):
            save(tmp_path / "set" / "imagesTr" / f"{case}_{channel:04d}.png", grey())
        save(tmp_path / "set" / "labelsTr" / f"{case}.png", grey() % 3)
    return tmp_path / "set"


def from_folder(tmp_path, classes=("well", "ill"), **options):
    return load("image-folder:scans", classes=classes, options={"size": SIZE, **options}, directory=tmp_path)


def from_cases(tmp_path, classes=("none", "rim", "core"), **options):
    options = {"size": SIZE, "channels": 2, **options}
    return load("nnunet:set", classes=classes, options=options, directory=tmp_path)


def test_the_class_of_an_image_is_its_folder(scans, tmp_path):
    records = from_folder(tmp_path)
    assert (records.labels.tolist(), records.classes) == ([1, 1, 0], ("well", "ill"))
    assert records.features.dtype == np.float32
    assert np.array_equal(np.rint(records.features[:, 0] * 255), np.stack(list(scans.values())))


def test_colours_are_channels(tmp_path):
    pixels = save(tmp_path / "scans" / "ill" / "1.png", np.random.randint(0, 256, (*SIZE, 3), dtype=np.uint8))
    records = from_folder(tmp_path, channels=3)
    assert records.features.shape == (1, 3, *SIZE)
    assert np.array_equal(np.rint(records.features[0] * 255), pixels.transpose(2, 0, 1))


def test_folders_of_clients_make_a_federation(tmp_path):
    for client in ("north", "south"):
        for number in range(4):
            save(tmp_path / "scans" / client / "ill" / f"{number}.png", grey())
    records = from_folder(tmp_path, by_client=True)
    assert records.groups["client"].tolist() == ["north"] * 4 + ["south"] * 4
    config = Data(
        source="image-folder:scans",
        options={"size": SIZE, "by_client": True},
        classes=("well", "ill"),
        partition={"kind": "column", "column": "client"},
        sizes={"north": 4, "south": 4},
        test_fraction=0,
    )
    parts = prepare(config, tmp_path).clients
    assert {name: len(part) for name, part in parts.items()} == {"north": 4, "south": 4}


@pytest.mark.parametrize(
    ("name", "pixels", "what"),
    [
        ("ill/3.png", np.zeros((4, 3), np.uint8), r"3\.png: its height and width must be the declared \[3, 4\]"),
        ("ill/3.png", np.zeros((3, 4, 3), np.uint8), r"3\.png: its mode must be L and is RGB"),
        ("ill/3.png", np.zeros((3, 4), np.uint16), r"3\.png: its mode must be L and is I;16"),
        ("odd/1.png", np.zeros((3, 4), np.uint8), "odd is none of the declared classes well, ill"),
        ("3.png", np.zeros((3, 4), np.uint8), r"3\.png is a file where only folders may be"),
    ],
)
def test_an_image_that_is_not_as_declared_is_refused_by_name(scans, tmp_path, name, pixels, what):
    save(tmp_path / "scans" / name, pixels)
    with pytest.raises(InvalidArgument, match=what):
        from_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("3.png", r"3\.png cannot be read as an image"),
        ("3.txt", r"3\.txt is none of \.png"),
        ("3.nii.gz", r"3\.nii\.gz is a volume, and dpfed reads flat images"),
    ],
)
def test_a_file_that_is_no_image_is_refused_by_name(scans, tmp_path, name, what):
    (tmp_path / "scans" / "ill" / name).write_bytes(b"no image")
    with pytest.raises(InvalidArgument, match=what):
        from_folder(tmp_path)


def test_an_image_that_is_cut_off_is_refused(scans, tmp_path):
    path = tmp_path / "scans" / "ill" / "1.png"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InvalidArgument, match=r"1\.png cannot be read as an image"):
        from_folder(tmp_path)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"classes": ()}, "classes must list what an image of scans may show"),
        ({"channels": 2}, "channels must be 1"),
        ({"size": 64}, r"size must be \[height, width\] in pixels, got 64"),
        ({"size": [64, 0]}, "size must be"),
        ({"sizes": 3}, r"options of image-folder: are size \(needed\), channels, by_client; got size, sizes"),
    ],
)
def test_what_is_not_declared_is_refused(scans, tmp_path, options, what):
    with pytest.raises(InvalidArgument, match=what):
        from_folder(tmp_path, **options)


def test_the_size_must_be_declared(scans, tmp_path):
    with pytest.raises(InvalidArgument, match=r"size \(needed\).*; got none"):
        load("image-folder:scans", classes=("well", "ill"), directory=tmp_path)


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / "scans" / "ill").mkdir(parents=True)
    with pytest.raises(InvalidArgument, match="holds no image of any declared class"):
        from_folder(tmp_path)
    with pytest.raises(InvalidArgument, match="cannot be read as a folder"):
        load("image-folder:none", classes=("a",), options={"size": SIZE}, directory=tmp_path)


def test_without_pillow_the_refusal_says_what_to_install(scans, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InvalidArgument, match=r"needs pillow: pip install dpfed\[data\]"):
        from_folder(tmp_path)


def test_cases_have_channels_and_a_class_for_each_pixel(cases, tmp_path):
    records = from_cases(tmp_path)
    assert (records.features.shape, records.labels.shape) == ((3, 2, *SIZE), (3, *SIZE))
    second = np.asarray(Image.open(cases / "imagesTr" / "b_2_0001.png"))
    assert np.array_equal(np.rint(records.features[1, 1] * 255), second)
    assert np.array_equal(records.labels[1], np.asarray(Image.open(cases / "labelsTr" / "b_2.png")))


@pytest.mark.parametrize("lost", ["imagesTr/b_2_0001.png", "labelsTr/b_2.png"])
def test_a_case_that_is_not_whole_is_refused_by_name(cases, tmp_path, lost):
    (cases / lost).unlink()
    with pytest.raises(InvalidArgument, match=r"b_2_000\d\.png is missing, or has no label"):
        from_cases(tmp_path)


def test_a_pixel_of_no_declared_class_is_refused(cases, tmp_path):
    with pytest.raises(InvalidArgument, match=r"\.png has a label that is none of the 2 declared classes"):
        from_cases(tmp_path, classes=("none", "rim"))


@pytest.mark.parametrize("options", [{"channels": 0}, {"channels": "two"}, {"size": [3]}])
def test_channels_and_size_of_cases_are_whole_numbers(cases, tmp_path, options):
    with pytest.raises(InvalidArgument, match=f"{next(iter(options))} must be"):
        from_cases(tmp_path, **options)


def test_volumes_are_refused(cases, tmp_path):
    (cases / "imagesTr" / "d_0000.nii.gz").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="the promise for a record is then one for a slice"):
        from_cases(tmp_path)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IEND", b"")


PIXELS = chunk(b"IDAT", zlib.compress(b"\0" * 15))


@pytest.mark.parametrize(
    "content",
    [
        png(12_000, 12_000, PIXELS),  # Pillow warns
        png(60_000, 60_000, PIXELS),  # Pillow refuses
        png(2**31 - 1, 2**31 - 1, PIXELS),
        png(4, 3, chunk(b"zTXt", b"note\0\0" + zlib.compress(b"MARKER" * 10**6)), PIXELS),
        png(4, 3, chunk(b"iTXt", b"MARKER"), PIXELS),
        png(4, 3, chunk(b"zTXt", b"MARKER\0\0MARKER"), PIXELS),
        png(4, 3, chunk(b"tRNS", b""), chunk(b"gAMA", b""), chunk(b"pHYs", b"1"), PIXELS),
        png(4, 3, chunk(b"IDAT", b"MARKER")),
        png(4, 3, chunk(b"IDAT", zlib.compress(b"\7" * 15))),
        png(4, 3),
        png(4, 3)[:20],
        b"\xff\xd8\xff\xe0MARKER",
        b"BM" + b"MARKER" * 9,
    ],
)
def test_bombs_and_broken_chunks_are_refused_by_name_or_read_as_the_image_they_are(scans, tmp_path, content, recwarn):
    (tmp_path / "scans" / "ill" / "3.png").write_bytes(content)
    said = ""
    try:
        assert from_folder(tmp_path).features.shape == (4, 1, *SIZE)
    except InvalidArgument as refused:
        said = str(refused)
    assert not said or "3.png" in said
    assert "MARKER" not in said
    assert not recwarn.list

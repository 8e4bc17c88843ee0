"""Folders of images: one folder for each class, or images with their segmentations as nnU-Net keeps them.

Size and number of channels are declared, never taken from the images; an image that differs is refused by name.
Pixels of 8 bits are divided by 255, the range of the format and not of the data. Needs ``pip install dpfed[data]``.

>>> from PIL import Image
>>> for kind, grey in (("ill", 255), ("well", 0)):
...     Path("scans", kind).mkdir(parents=True)
...     Image.new("L", (4, 2), grey).save(f"scans/{kind}/1.png")
>>> found = read_folder(Path("scans"), ["well", "ill"], size=[2, 4])
>>> found.features.shape, found.features.max(axis=(1, 2, 3)).tolist(), found.labels.tolist()
((2, 1, 2, 4), [1.0, 0.0], [1, 0])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed.data.idx import require_codes
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
NIFTI = (".nii", ".nii.gz")
MODES = {1: ("L",), 3: ("RGB",)}  # of an image with so many channels, 8 bits each
CODES = ("L", "P")  # of a segmentation: a pixel is the number of its class
CLIENT = "client"  # the group column, as of any loader of parts by client

Size = Sequence[int]


def read_folder(
    path: Path, classes: Sequence[str], *, size: Size, channels: int = 1, by_client: bool = False
) -> Records:
    """Return the images of PATH/CLASS/FILE, or of PATH/CLIENT/CLASS/FILE, each of shape (channels, height, width)."""
    _require_declared(path, classes, size)
    if channels not in MODES:
        raise InvalidArgument("channels", f"channels must be 1 (grey) or 3 (red, green, blue), got {channels!r}")
    roots = _list_folders(path) if by_client else [path]
    found = [(root.name, *each) for root in roots for each in _list_labelled(root, classes)]
    if not found:
        raise InvalidArgument("source", f"{path} holds no image of any declared class: check the path and classes")
    pixels = [_read_pixels(file, size, MODES[channels]) for _, _, file in found]
    features = np.stack(pixels).reshape(len(found), *size, channels).transpose(0, 3, 1, 2) / np.float32(255)
    groups = {CLIENT: np.array([client for client, _, _ in found])} if by_client else {}
    return Records(features, np.array([code for _, code, _ in found]), groups=groups, classes=tuple(classes))


def read_segmentations(path: Path, classes: Sequence[str], *, size: Size, channels: int = 1) -> Records:
    """Return the cases of PATH/imagesTr/CASE_0000.png (one file per channel), labelled by PATH/labelsTr/CASE.png."""
    _require_declared(path, classes, size)
    checks.count(channels=channels)
    cases = [file.stem for file in _list_files(path / "labelsTr")]
    wanted = {f"{case}_{channel:04d}.png" for case in cases for channel in range(channels)}
    stray = sorted(wanted ^ {file.name for file in _list_files(path / "imagesTr")})
    if stray or not cases:
        what = f"{stray[0]} is missing, or has no label in labelsTr" if stray else "there is no case"
        message = f"{path / 'imagesTr'}: {what}; each case needs a label and {channels} image(s)"
        raise InvalidArgument("source", message)
    files = [[path / "imagesTr" / f"{case}_{channel:04d}.png" for channel in range(channels)] for case in cases]
    images = [[_read_pixels(file, size, MODES[1]) for file in channel_files] for channel_files in files]
    labels = [_read_codes(path / "labelsTr" / f"{case}.png", size, classes) for case in cases]
    return Records(np.array(images) / np.float32(255), np.stack(labels), classes=tuple(classes))


def _list_labelled(root: Path, classes: Sequence[str]) -> Iterator[tuple[int, Path]]:
    for part in _list_folders(root):
        if part.name not in classes:
            raise InvalidArgument(
                "classes",
                f"{part} is none of the declared classes {', '.join(classes)}: declare it, or move the folder",
            )
        yield from ((list(classes).index(part.name), file) for file in _list_files(part))


def _list_folders(path: Path) -> list[Path]:
    inside = _list_entries(path)
    stray = [each for each in inside if not each.is_dir()]
    if stray:
        raise InvalidArgument("source", f"{stray[0]} is a file where only folders may be: move it or remove it")
    return inside


def _list_files(path: Path) -> list[Path]:
    inside = _list_entries(path)
    for file in inside:
        if file.name.lower().endswith(NIFTI):
            message = "write its slices as PNG, and remember that the promise for a record is then one for a slice"
            raise InvalidArgument("source", f"{file} is a volume, and dpfed reads flat images: {message}")
        if file.suffix.lower() not in SUFFIXES:
            raise InvalidArgument("source", f"{file} is none of {', '.join(SUFFIXES)}: move it or remove it")
    return inside


def _list_entries(path: Path) -> list[Path]:
    try:
        return sorted(each for each in path.iterdir() if not each.name.startswith("."))
    except OSError as error:
        raise InvalidArgument("source", f"{path} cannot be read as a folder: {error.strerror}") from None


def _read_codes(path: Path, size: Size, classes: Sequence[str]) -> NDArray[np.int64]:
    codes = _read_pixels(path, size, CODES).astype(np.int64)
    require_codes(codes, classes, path.name)
    return codes


def _read_pixels(path: Path, size: Size, modes: Sequence[str]) -> NDArray[np.uint8]:
    """Return the bytes of an image; refuse one whose header has another size or mode than declared."""
    try:
        from PIL import Image
    except ImportError:
        raise InvalidArgument("source", f"reading {path.name} needs pillow: pip install dpfed[data]") from None
    try:
        with catch_warnings(action="error", category=Image.DecompressionBombWarning), Image.open(path) as image:
            _require_form(path, (image.height, image.width), tuple(size), image.mode, modes)
            return np.asarray(image, dtype=np.uint8)
    except InvalidArgument:
        raise
    except Exception:  # broken chunks and bombs raise whatever Pillow stumbles over
        raise InvalidArgument("source", f"{path} cannot be read as an image: repair it or remove it") from None


def _require_form(path: Path, found: tuple[int, int], size: tuple[int, ...], mode: str, modes: Sequence[str]) -> None:
    if found != size:
        message = f"its height and width must be the declared {list(size)} and are {list(found)}: resize it"
        raise InvalidArgument("size", f"{path}: {message}")
    if mode not in modes:
        raise InvalidArgument("channels", f"{path}: its mode must be {' or '.join(modes)} and is {mode}: convert it")


def _require_declared(path: Path, classes: Sequence[Any], size: Any) -> None:
    if not classes:
        raise InvalidArgument(
            "classes", f"classes must list what an image of {path.name} may show, such as [well, ill]"
        )
    if not isinstance(size, list | tuple) or len(size) != 2:
        raise InvalidArgument("size", f"size must be [height, width] in pixels, got {size!r}")
    for pixels in size:
        checks.count(size=pixels)

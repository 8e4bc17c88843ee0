"""What a mutant is: our own code with one fault put into it, and the tests that must find it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dpfed"


@dataclass(frozen=True)
class Mutant:
    """A fault: in `file` of src/dpfed, `old` (which must stand there exactly once) becomes `new`.

    `killers` are tests by their node ids, each of which must fail because of it.
    """

    name: str
    file: str
    old: str
    new: str
    killers: tuple[str, ...]

    @property
    def text(self) -> str:
        """The file with the fault; refuses a place that is not there, or is there twice."""
        before = (SOURCE / self.file).read_text()
        if before.count(self.old) != 1 or self.old == self.new:
            message = f"{self.name!r} must change a text that {self.file} has exactly once, found {self.old!r}"
            raise ValueError(f"{message} {before.count(self.old)} times: adapt the mutant to the code")
        return before.replace(self.old, self.new)

    def write_to(self, folder: Path) -> None:
        """Write the whole package with the fault into the folder."""
        text = self.text
        # Compiled files are kept, so that only the changed module is compiled again.
        stale = shutil.ignore_patterns(f"{Path(self.file).stem}.*.pyc")
        shutil.copytree(SOURCE, folder / "dpfed", ignore=stale)
        (folder / "dpfed" / self.file).write_text(text)

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

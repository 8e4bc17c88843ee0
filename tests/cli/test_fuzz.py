"""Two thousand corrupted inputs: one sentence, exit code 2, nothing spent, no traceback, nothing of a record shown.

Which cases there are follows from the number of each, so that one that fails is found again by it. An input that is
still sound after what was done to it may be used; a run of it is then as good as any.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import marked_inputs as inputs
from marked_inputs import head_of, invoke, is_one_sentence, public_files, shows_a_cell, spent_in

COUNTS = {"yaml": 400, "csv": 300, "parquet": 200, "images": 200, "run": 700, "url": 200}
BATCHES = 10
RUNS = "runs-of-every-style"
READERS = (
    "report kept",
    "report kept --json",
    "report kept --owner --markdown",
    "runs .",
    "runs . --json",
    "export kept",
    "evaluate kept --json",
    "resume kept",
    "resume kept --json",
    "resume kept",
    "resume kept --moved-to .",
    "plan kept/config.yaml",
    "run kept/config.yaml --directory kept",
    "ledger show --ledger kept/ledger.db",
    "ledger head --ledger kept/ledger.db",
)

NASTY = [
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    ".nan",
    "[]",
    "{}",
    "[[1]]",
    "{a: {b: c}}",
    '"\\0"',
    "!!timestamp soon",
    "!!float x",
    "!!python/name:os.system x",
    "*x",
    "&x 1",
    "9" * 400,
    "x" * 5000,
    "../../..",
    "/dev/null",
    "/",
    "postgresql://ann:MARKER@127.0.0.1:1/db",
    "sklearn:iris",
    "os:abort_",
    "no.such:thing",
    "image-folder:.",
    "idx:ward.csv",
    "nnunet:.",
    "ward.csv",
    "ward.parquet",
    "ÿ",
    "\N{RIGHT-TO-LEFT OVERRIDE}",
    "'",
    "- 1",
    "|",
    "? x",
    "% 1",
    "1_000",
    "0x10",
]


def flip(content: bytes, draws: random.Random) -> bytes:
    """Turn a few bits around."""
    changed = bytearray(content)
    for _ in range(draws.choice([1, 1, 2, 8, 64])):
        if changed:
            changed[draws.randrange(len(changed))] ^= 1 << draws.randrange(8)
    return bytes(changed)


def cut(content: bytes, draws: random.Random) -> bytes:
    """Take a part away."""
    start, end = sorted(draws.randrange(len(content) + 1) for _ in range(2))
    return content[:start] if draws.random() < 0.5 else content[:start] + content[end:]


def insert(content: bytes, draws: random.Random) -> bytes:
    """Put something in that does not belong there."""
    place = draws.randrange(len(content) + 1)
    what = draws.choice([b"\0", b"\xff\xfe", b'"', b"\n", b",", b"{", b"OTHER", draws.randbytes(20), b"9" * 5000])
    return content[:place] + what + content[place:]


def double(content: bytes, draws: random.Random) -> bytes:
    """Write a part twice."""
    start, end = sorted(draws.randrange(len(content) + 1) for _ in range(2))
    return content[:end] + content[start:]


def replace(content: bytes, draws: random.Random) -> bytes:
    """Put something else in the place of all of it."""
    return draws.choice(
        [b"", b"\n", b"OTHER", b"[]", b"{}", b"null", b"7", b'"OTHER"', b"[" * 5000, draws.randbytes(200)]
    )


def a_line(content: bytes, draws: random.Random) -> bytes:
    """Change a line as a whole, or a cell of it."""
    lines = content.split(b"\n")
    place = draws.randrange(len(lines))
    other = draws.choice(lines)
    lines[place] = draws.choice([b"", other, lines[place] + b",OTHER", lines[place].replace(b",", b";"), other[::-1]])
    return b"\n".join(lines)


CHANGES = [flip, cut, insert, double, replace, a_line]


def changed(path: Path, draws: random.Random) -> None:
    """Corrupt a file in one of these ways."""
    path.write_bytes(draws.choice(CHANGES)(path.read_bytes(), draws))


def yaml_changed(path: Path, draws: random.Random) -> None:
    """Corrupt a configuration: its bytes, or a value of it."""
    if draws.random() < 0.4:
        return changed(path, draws)
    lines = path.read_text().splitlines()
    for _ in range(draws.choice([1, 1, 2])):
        place = draws.randrange(len(lines))
        key, colon, _ = lines[place].partition(":")
        lines[place] = f"{key}{colon} {draws.choice(NASTY)}"
    path.write_text("\n".join(lines))
    return None


def json_changed(path: Path, draws: random.Random) -> None:
    """Corrupt a JSON file: its bytes, or a value of it."""
    lines = path.read_text().splitlines()
    try:
        place = draws.randrange(len(lines))
        is_whole = path.suffix == ".json"
        value = json.loads(path.read_text() if is_whole else lines[place])
        _change_a_value(value, draws)
    except (ValueError, IndexError, TypeError):
        return changed(path, draws)
    text = json.dumps(value)
    path.write_text(text if is_whole else "\n".join([*lines[:place], text, *lines[place + 1 :], ""]))
    return None


def _change_a_value(value: object, draws: random.Random) -> None:
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))  # type: ignore[arg-type]
    key = draws.choice(keys)
    if isinstance(value[key], dict | list) and value[key] and draws.random() < 0.7:  # type: ignore[index]
        return _change_a_value(value[key], draws)  # type: ignore[index]
    if isinstance(value, dict) and draws.random() < 0.2:
        del value[key]
    else:
        value[key] = draws.choice([None, [], {}, "OTHER", -1, 1e300, 10**40, True, [{}], "7:x"])  # type: ignore[index]
    return None


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sound inputs of every kind, and runs of every style, some of which crashed on the way."""
    folder = tmp_path_factory.mktemp("sound")
    inputs.write_csv(folder / "ward.csv")
    inputs.write_parquet(folder / "ward.parquet")
    inputs.write_images(folder / "scans")
    inputs.write_config(folder / "run.yaml")
    inputs.write_config(folder / "parquet.yaml", source="ward.parquet")
    (folder / "images.yaml").write_text(inputs.IMAGES)
    for name in ("run", "parquet", "images"):
        assert invoke("plan", str(folder / f"{name}.yaml")).exit_code == 0
    for style in inputs.PRIVACY:
        config = folder / RUNS / f"{style}.yaml"
        config.parent.mkdir(exist_ok=True)
        inputs.write_config(config, source="../ward.csv", style=style)
        inputs.crash_in_the_last_round(config, folder / RUNS / f"{style}-stopped")
        done = invoke("run", str(config), "--directory", str(folder / RUNS / f"{style}-done"))
        assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def here(tmp_path: Path, sound: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    restore(sound, folder)
    monkeypatch.chdir(folder)
    return folder


def a_yaml(draws: random.Random, here: Path) -> list[str]:
    yaml_changed(here / "run.yaml", draws)
    if draws.random() < 0.1:
        return ["run", "run.yaml", "--directory", "new"]
    return ["plan", "run.yaml", *draws.choice([[], [], ["--no-code"]])]


def a_csv(draws: random.Random, here: Path) -> list[str]:
    changed(here / "ward.csv", draws)
    columns = ["--label", draws.choice(["ill", "weight", "il"]), "--site-column", draws.choice(["site", "note"])]
    init = ["init", "ward.csv", *columns, "--output", "made.yaml"]
    return draws.choice([["plan", "run.yaml"], ["plan", "run.yaml"], init, ["run", "ward.csv"]])


def a_parquet(draws: random.Random, here: Path) -> list[str]:
    changed(here / "ward.parquet", draws)
    return draws.choice([["plan", "parquet.yaml"], ["plan", "parquet.yaml"], ["run", "ward.parquet"]])


def an_image(draws: random.Random, here: Path) -> list[str]:
    changed(draws.choice(sorted((here / "scans").rglob("*.png"))), draws)
    return ["plan", "images.yaml"]


def a_run(draws: random.Random, here: Path, sound: Path) -> list[str]:
    name, other = draws.sample(sorted(path.name for path in (sound / RUNS).iterdir() if path.is_dir()), 2)
    run = Path(shutil.copytree(sound / RUNS / name, here / "kept"))
    path = draws.choice(sorted(path for path in run.rglob("*") if path.is_file() and path.name != "ledger.db-shm"))
    if path.suffix in (".json", ".jsonl") and draws.random() < 0.4:
        json_changed(path, draws)
    else:
        draws.choice([changed, by_a_folder, by_odd_numbers, by_that_of(sound / RUNS / other, run)])(path, draws)
    return draws.choice(READERS).split()


def by_a_folder(path: Path, draws: random.Random) -> None:
    """Put a folder in the place of the file, or of that in which it is, or nothing, or a link to itself."""
    place = path if draws.random() < 0.7 or path.parent.name == "kept" else path.parent
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    draws.choice([place.mkdir, lambda: place.symlink_to(place), lambda: None, lambda: place.write_bytes(b"OTHER")])()


def by_odd_numbers(path: Path, draws: random.Random) -> None:
    """Put numbers that are none, or too large or too deep, in the place of one that is there."""
    content = path.read_bytes()
    places = list(re.finditer(rb"\d+(\.\d+)?", content)) or list(re.finditer(b"", content))
    place = draws.choice(places)
    odd = draws.choice([b"NaN", b"-Infinity", b"1e999", b"1e308", b"9" * 400, b"-0", b"[" * 3000, b'{"a":' * 3000])
    path.write_bytes(content[: place.start()] + odd + content[place.end() :])


def by_that_of(other: Path, run: Path) -> Callable[[Path, random.Random], None]:
    """Put the file of another run in the place of this one's, or another file of its own."""

    def change(path: Path, draws: random.Random) -> None:
        same = other / path.relative_to(run)
        files = sorted(each for each in run.rglob("*") if each.is_file())
        shutil.copy(same if same.is_file() and draws.random() < 0.7 else draws.choice(files[1:]), path.with_name("x"))
        path.with_name("x").replace(path)

    return change


URLS = [
    "sqlite:///ledger.db",
    "sqlite://",
    "sqlite:////nowhere/ledger.db",
    "postgresql://ann:MARKER@127.0.0.1:1/db",
    "postgresql+psycopg://ann:MARKER@127.0.0.1:1/db?connect_timeout=1",
    "ledger.db",
    "mysql://ann:MARKER@127.0.0.1/db",
    "sqlite:///ledger.db?mode=ro&uri=true",
    "postgresql://127.0.0.1:1/db?password=MARKER",
]
OPTIONS = [
    "?timeout=soon",
    "?timeout=-1",
    "?nonsense=1",
    "?check_same_thread=maybe",
    "?mode=zzz&uri=true",
    "?uri=true",
    "?sslmode=zzz",
    "?port=many",
    "?isolation_level=none",
    "?factory=os",
    "?cached_statements=x",
    "?detect_types=x",
    "?vfs=none&uri=true",
    "?autocommit=x",
    "#x",
    "?",
    "&",
    "?a=b=c",
    "?connect_timeout=x",
    "%",
    "%00",
    "\0",
    ":x",
    "@",
]


def a_url(draws: random.Random, here: Path) -> list[str]:
    url = draws.choice(URLS) + draws.choice(OPTIONS)
    if draws.random() < 0.3:
        url = flip(url.encode(), draws).decode("utf-8", errors="replace")
    if "127.0.0.1" not in url and "://" in url and not url.startswith("sqlite"):
        url = "sqlite:///" + url  # no name of a host is looked up here
    if draws.random() < 0.5:
        return ["ledger", draws.choice(["show", "head", "verify"]), "--ledger", url]
    text = (here / "run.yaml").read_text()
    (here / "run.yaml").write_text(text + f"ledger: {{url: {json.dumps(url)}, client_accounts: 'client-{{id}}'}}\n")
    return ["run", "run.yaml", "--directory", "new"]


KINDS: dict[str, Callable[[random.Random, Path], list[str]]] = {
    "yaml": a_yaml,
    "csv": a_csv,
    "parquet": a_parquet,
    "images": an_image,
    "url": a_url,
}


def restore(sound: Path, here: Path) -> None:
    """Put the sound inputs back, and take away what was made."""
    for path in here.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(sound, here, dirs_exist_ok=True, ignore=shutil.ignore_patterns(RUNS))


def faults(kind: str, number: int, here: Path, sound: Path) -> list[str]:
    """Return what is wrong with the answer to one corrupted input."""
    draws = random.Random(f"{kind} {number}")  # noqa: S311 - which cases there are is no secret
    arguments = a_run(draws, here, sound) if kind == "run" else KINDS[kind](draws, here)
    before = spent_in(here / "kept" / "ledger.db")
    known = set(here.rglob("*"))
    result = invoke(*arguments)
    after, made = spent_in(here / "kept" / "ledger.db"), head_of(here / "new" / "ledger.db")
    is_used = result.exit_code == 0
    checks = {
        "it is no refusal in one sentence": is_used or is_one_sentence(result),
        "something was spent": is_used or (made in (None, 0) and before == after),
        "a cell is shown": not shows_a_cell(result.output),
        "a cell is written": not any(
            shows_a_cell(path.read_text(errors="replace")) for path in public_files(here, known)
        ),
    }
    return [
        f"{kind} {number}: {what}: {arguments}\n{result.output[-600:]}" for what, held in checks.items() if not held
    ]


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("kind", COUNTS)
def test_a_corrupted_input_is_refused_in_one_sentence_and_nothing_is_spent(kind, batch, sound, here):
    found = []
    for number in range(batch, COUNTS[kind], BATCHES):
        found += faults(kind, number, here, sound)
        restore(sound, here)
    assert not found, "\n".join(found)


def test_there_are_two_thousand():
    assert sum(COUNTS.values()) == 2000

"""From one's own table to predictions, as a newcomer types it, each time from an empty directory."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import select
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dpfed.cli.main import main
from dpfed.config import RunConfig
from dpfed.federated.data import prepare
from dpfed.federated.predicting import open_predictor
from dpfed.runs.directory import RunDirectory

ROWS = 240
DECLARED = "--bounds age=0:110 --bounds weight=30:200 --epsilon 30"  # little noise: what is tested is the way
PUBLIC = "--public categories,classes,sites,sizes"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def dpfed(line: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == code, result.output
    return result.output


def make_rows(count: int = ROWS) -> list[dict[str, str]]:
    draws = np.random.default_rng(7)
    ages, weights = draws.integers(20, 90, count), np.round(draws.normal(75, 14, count), 1)
    ill = ages - 55 + weights - 75 + draws.normal(0, 5, count) > 0
    return [
        {
            "age": str(age),
            "weight": str(weight),
            "sex": "f" if number % 2 else "m",
            "hospital": "north" if number % 3 else "south",
            "outcome": "yes" if sick else "no",
        }
        for number, (age, weight, sick) in enumerate(zip(ages, weights, ill, strict=True))
    ]


def write(rows, path="ward.csv", *, separator=",", encoding="utf-8") -> None:
    with Path(path).open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)


def read_predictions(path="said.csv") -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def score(rows) -> float:
    said = [row["prediction"] for row in read_predictions()]
    return float(np.mean([found == row["outcome"] for found, row in zip(said, rows, strict=True)]))


def test_a_clean_table_takes_three_commands_and_no_edited_line():
    rows = make_rows()
    write(rows)
    told = dpfed(f"init ward.csv --label outcome --site-column hospital {DECLARED} {PUBLIC}")
    assert "Next: dpfed run ward.yaml" in told
    ran = dpfed("run ward.yaml")
    assert "Predict new records: dpfed predict runs/ward-1 NEW.csv" in ran
    assert "better than guessing" in ran
    write([{key: row[key] for key in ("sex", "weight", "age")} for row in rows], "new.csv")  # no label, another order
    dpfed("predict runs/ward-1 new.csv -o said.csv --keep age")
    assert score(rows) > 0.8
    assert set(read_predictions()[0]) == {"age", "prediction", "p(no)", "p(yes)"}


def name_patients(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row | {"patient": f"{row['hospital']}-{place // 6:03}"} for place, row in enumerate(rows)]


def write_messy(kind: str, rows: list[dict[str, str]]) -> str:
    """Write the table in one of seven messy ways, and return the options that it needs beside."""
    if kind == "semicolon":
        write(rows, separator=";")
    elif kind == "decimal comma":
        write([row | {"weight": row["weight"].replace(".", ",")} for row in rows], separator=";")
    elif kind == "BOM":
        write(rows, encoding="utf-8-sig")
    elif kind == "Latin-1":
        write([row | {"hospital": row["hospital"].replace("south", "Süd")} for row in rows], encoding="latin-1")
    elif kind == "missing":
        write([row | ({"age": "", "sex": "NA"} if place % 9 == 0 else {}) for place, row in enumerate(rows)])
        return "--fill age=50 --indicator age --indicator sex"
    elif kind == "dates":
        start = date(2024, 1, 1)
        write([row | {"seen": str(start + timedelta(days=place))} for place, row in enumerate(rows)])
        return "--ignore seen"
    else:
        write(name_patients(rows))
        return "--person-column patient --rows-per-person 3"
    return ""


@pytest.mark.parametrize(
    "kind", ["semicolon", "decimal comma", "BOM", "Latin-1", "missing", "dates", "repeated patients"]
)
def test_a_messy_table_gives_predictions_too(kind):
    rows = make_rows()
    options = write_messy(kind, rows)
    line = f"init ward.csv --label outcome --site-column hospital {DECLARED} {PUBLIC}"
    told = dpfed(line)
    if options:  # each trouble is named, with what to type
        assert options.split()[0] in told
        told = dpfed(f"{line} --force {options}")
    assert "Next: dpfed run ward.yaml" in told
    dpfed("run ward.yaml")
    dpfed("predict runs/ward-1 ward.csv -o said.csv")
    assert score(rows) > 0.75


def test_decimal_commas_semicolons_and_marks_make_the_same_records():
    found = {}
    for kind in ("clean", "semicolon", "decimal comma", "BOM"):
        write(make_rows()) if kind == "clean" else write_messy(kind, make_rows())
        dpfed(f"init ward.csv --label outcome --site-column hospital {DECLARED} {PUBLIC} --force")
        data = prepare(RunConfig.read("ward.yaml").data)
        found[kind] = {name: part.features.tolist() for name, part in data.clients.items()}
    assert all(each == found["clean"] for each in found.values())


def test_one_owner_trains_without_a_federation():
    rows = [{key: value for key, value in row.items() if key != "hospital"} for row in make_rows()]
    write(rows)
    dpfed(f"init ward.csv --label outcome {DECLARED} --public categories,classes --size 190")
    ran = dpfed("run ward.yaml")
    assert "10 rounds with 1 client," in ran
    assert "SIMULATION" not in ran
    dpfed("predict runs/ward-1 ward.csv -o said.csv")
    assert score(rows) > 0.8
    dpfed("export runs/ward-1")
    program = re.search(r"```python\n(.*?)```", Path("model.md").read_text("utf-8"), re.DOTALL)[1]
    scope: dict[str, object] = {}
    exec(program, scope)  # noqa: S102 (the card's own program, which needs no dpfed)
    said = scope["predict"](rows[:20])
    wanted = [[float(row["p(no)"]), float(row["p(yes)"])] for row in read_predictions()[:20]]
    assert np.allclose(said, wanted, atol=1e-5)
    owner = dpfed("evaluate runs/ward-1")
    assert "For the owner alone" in owner
    assert "The model is better than guessing" in owner
    assert {"auc", "sensitivity", "confusion"} <= set(json.loads(dpfed("evaluate runs/ward-1 --json"))["assessment"])


def test_every_error_on_the_way_ends_in_what_to_type(here):
    rows = make_rows()
    write([row | {"note": f"words of {place}"} for place, row in enumerate(rows)])
    assert "--label COLUMN" in dpfed("init ward.csv", 2)
    dpfed("init ward.csv --label outcome --site-column hospital --public classes,sites,sizes --ignore note")
    assert "data.feature_bounds of age, weight, sex is not declared yet: write" in dpfed("plan ward.yaml", 2)
    text = Path("ward.yaml").read_text("utf-8")
    filled = text.replace("{age: null, weight: null, sex: null}", "{age: [0, 110]}")
    Path("ward.yaml").write_text(filled, "utf-8")
    assert "declare its categories" in dpfed("run ward.yaml", 2)
    filled = re.sub(r"#  categories: .*", "  categories: {sex: [f, m]}", filled)
    Path("ward.yaml").write_text(filled, "utf-8")
    assert "add `weight: [LOW, HIGH]`" in dpfed("run ward.yaml", 2)
    assert not Path("runs").exists()  # refused runs leave nothing behind
    assert "`dpfed runs` lists" in dpfed("predict runs/none ward.csv", 2)
    assert sorted(path.name for path in here.iterdir()) == ["ward.csv", "ward.yaml"]


def test_counts_are_in_no_file_of_the_run():
    rows = make_rows()
    write([row | ({"age": ""} if place < 37 else {}) for place, row in enumerate(rows)])
    public = "--public categories,classes,sites --size north=130 --size south=64 --fill age=50"
    dpfed(f"init ward.csv --label outcome --site-column hospital {DECLARED} {public}")
    dpfed("run ward.yaml")
    run = RunDirectory("runs/ward-1")
    shared = [Path("ward.yaml"), *(run.path / name for name in ("plan.json", "rounds.jsonl", "features.json"))]
    for path in shared:
        assert not re.search(rf"(?<![\w.])(37|{ROWS}|{ROWS - 37})(?![\w.])", path.read_text("utf-8")), path


def test_on_a_terminal_questions_are_asked_one_by_one(here):
    write(name_patients(make_rows()))
    answers = ["outcome", "hospital", "y", "0:110", "30:200", "found", "found", "north,south", "found"]
    shown = type_answers([sys.executable, "-m", "dpfed", "init", "ward.csv"], answers)
    assert max(map(len, shown.splitlines())) <= 80
    assert "Classes: no" in shown  # counts, for the owner on a terminal
    config = RunConfig.read("ward.yaml")
    assert config.data.person_column == "patient"
    assert config.data.feature_bounds == {"age": (0, 110), "weight": (30, 200)}
    assert config.data.sizes_are_public


def type_answers(command: list[str], answers: list[str]) -> str:
    """Run a command on a terminal of 80 columns, answer each question when it is asked, and return what was shown."""
    own, other = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment)
    os.close(other)
    shown, waiting = "", list(answers)
    while select.select([own], [], [], 60)[0]:
        try:
            part = os.read(own, 4096).decode("utf-8", "replace")
        except OSError:  # the terminal is closed
            break
        shown += part
        if re.search(r"(: |\]: )$", part) and waiting:
            os.write(own, f"{waiting.pop(0)}\n".encode())
    assert process.wait(60) == 0, shown
    os.close(own)
    return shown.replace("\r", "")


def test_a_quantity_is_predicted_in_its_own_unit():
    rows = [row | {"outcome": str(2 * int(row["age"]) + 40)} for row in make_rows()]
    write(rows)
    line = f"init ward.csv --label outcome --site-column hospital {DECLARED} {PUBLIC}"
    assert "--bounds outcome=LOW:HIGH" in dpfed(line)
    assert "label_bounds: [LOW, HIGH]" in dpfed("run ward.yaml", code=2)
    dpfed(f"{line} --force --bounds outcome=0:300")
    assert RunConfig.read("ward.yaml").data.label_bounds == (0, 300)
    dpfed("run ward.yaml")
    dpfed("predict runs/ward-1 ward.csv -o said.csv")
    said = np.array([float(row["prediction"]) for row in read_predictions()])
    truth = np.array([float(row["outcome"]) for row in rows])
    assert np.sqrt(np.mean((said - truth) ** 2)) < 0.5 * truth.std()
    found = json.loads(dpfed("evaluate runs/ward-1 --json"))
    assert found["assessment"]["rmse"] < 0.6 * truth.std()
    dpfed("export runs/ward-1 model.safetensors")
    card = json.loads(Path("model.json").read_text())
    assert card["label_bounds"] == [0, 300]
    scope: dict = {}
    exec(re.search("```python\n(.*?)```", Path("model.md").read_text(), re.DOTALL)[1], scope)  # noqa: S102
    own = scope["predict"]([row | {"age": float(row["age"]), "weight": float(row["weight"])} for row in rows])
    assert own == pytest.approx(said, abs=1e-2)


def count_exactly(run: str) -> tuple[dict[str, int], list[int]]:
    """Return what nobody but the owner may know of the records held out: their numbers, and the confusion matrix."""
    data = prepare(RunConfig.read("ward.yaml").data)
    found = open_predictor(run).predict_features(data.test.features).argmax(axis=1)
    table = np.zeros((2, 2), dtype=int)
    np.add.at(table, (data.test.labels, found), 1)
    sites = {name: len(part) for name, part in data.held_out.items()}
    trained = {f"trained at {name}": len(part) for name, part in data.clients.items()}
    return {"all": len(data.test), "hits": int(np.trace(table)), **sites, **trained}, table.ravel().tolist()


def read_shared(run: RunDirectory, said: str) -> dict[str, str]:
    """Return all that may be shared of a run as texts, without drawings and without the counts that were noised."""
    html = re.sub("(?s)<(svg|style|script).*?</\\1>", "", (run.path / "report.html").read_text("utf-8"))
    rounds = [{key: value for key, value in each.items() if key != "released"} for each in run.rounds()]
    files = {name: (run.path / name).read_text("utf-8") for name in ("plan.json", "features.json", "status")}
    told = {
        "terminal": said,
        "markdown": dpfed(f"report {run.path} --markdown"),
        "ward.yaml": Path("ward.yaml").read_text(),
    }
    return {"report.html": html, "rounds.jsonl": json.dumps(rounds), **files, **told}


def test_released_figures_are_in_the_report_to_share_and_nothing_exact_is():
    write(make_rows(3000))
    public = "--public categories,classes,sites --size north=1500 --size south=750 --epsilon 4"
    dpfed(f"init ward.csv --label outcome --site-column hospital {DECLARED} {public}")
    with Path("ward.yaml").open("a", encoding="utf-8") as file:
        file.write("metrics: {release: [accuracy], epsilon: 0.2}\n")
    said = dpfed("run ward.yaml")
    run = RunDirectory("runs/ward-1")
    released = run.rounds()[-1]["released"]
    shared, (counts, table) = read_shared(run, said), count_exactly("runs/ward-1")
    figure = released["figures"]["accuracy"]
    value, interval = f"{figure['value']:.3f}", f"{figure['low']:.3f} to {figure['high']:.3f}"
    assert 0.5 < figure["low"] < figure["value"] <= figure["high"]
    for text in (shared["report.html"], shared["markdown"]):
        assert "ε = 0.2 of the promise" in text
        assert re.search(rf"accuracy\W[^0-9]*{re.escape(value)}\W[^0-9]*{re.escape(interval)}", text)
    assert f"accuracy {value} (95 %: {interval})" in said
    # Noise has a standard deviation of 10 in each of the four counts: all of them are exact one in 10⁵ times.
    assert released["counts"] != table
    constants = set(re.findall(r"\d+", dpfed("plan ward.yaml --json")))  # made of the first line of the table alone
    exact = {str(count) for count in (*counts.values(), *table) if count >= 100} - constants
    exact.add(f"{counts['hits'] / counts['all']:.6f}"[:7])
    assert {str(counts[name]) for name in ("all", "north", "south")} <= exact
    for name, text in shared.items():
        assert not re.search(rf"(?<![\w.])({'|'.join(map(re.escape, exact))})(?![\w.])", text), name
    assert counts["hits"] / counts["all"] == pytest.approx(figure["value"], abs=0.15)


def test_ranges_that_nobody_knows_are_released_by_the_run_and_in_its_shareable_report():
    rows = [{key: value for key, value in row.items() if key != "hospital"} for row in make_rows(1500)]
    write(rows)
    line = "init ward.csv --label outcome --bounds age=0:110 --epsilon 30 --public categories,classes --size 1200"
    assert "--private-bounds weight" in dpfed(f"{line} -o open.yaml")
    assert "Next: dpfed run ward.yaml" in dpfed(f"{line} --private-bounds weight")
    ran = dpfed("run ward.yaml")
    assert "Released ranges: weight 32 to 128" in ran
    dpfed("predict runs/ward-1 ward.csv -o said.csv")
    assert score(rows) > 0.8
    assert "weight 32 to 128" in dpfed("report runs/ward-1 --markdown")
    assert "a sweep releases no ranges" in dpfed("sweep ward.yaml --epsilon 8", code=2)

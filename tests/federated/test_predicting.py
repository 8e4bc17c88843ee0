from __future__ import annotations

import numpy as np
import pytest

from done_runs import RUN, table
from dpfed.data.tables import read_table
from dpfed.errors import InvalidArgument
from dpfed.federated.launch import create_run
from dpfed.federated.predicting import open_predictor


@pytest.fixture
def run(tmp_path):
    (tmp_path / "iris.csv").write_text(table())
    (tmp_path / "run.yaml").write_text(RUN)
    launch = create_run(tmp_path / "run.yaml", tmp_path / "run")
    with launch.ledger(tmp_path / "run") as ledger:
        list(launch.federation(tmp_path / "run", ledger))
    return tmp_path


def test_predictions_are_those_of_the_model_on_the_same_features(run):
    predictor, cells = open_predictor(run / "run"), read_table(run / "iris.csv")
    found = predictor.predict(cells)
    outputs, _ = predictor.model.predict(predictor.weights, (predictor.read(cells), np.zeros(len(found), dtype=int)))
    assert found.argmax(axis=1).tolist() == outputs.argmax(axis=1).tolist()
    assert found.sum(axis=1) == pytest.approx(1)


def test_features_of_an_older_run_are_read_from_its_table(run):
    kept = open_predictor(run / "run").features
    (run / "run" / "features.json").unlink()
    assert open_predictor(run / "run").features == kept == ("a", "b", "c", "d")


def test_a_run_on_other_data_is_refused(run):
    (run / "nothing").mkdir()
    with pytest.raises(InvalidArgument, match="not trained on a table"):
        open_predictor(run / "nothing")


def test_missing_cells_are_refused_with_what_still_helps_a_finished_run(run):
    names, first, *others = (run / "iris.csv").read_text().splitlines()
    place = names.split(",").index("b")
    cells = first.split(",")
    cells[place] = ""
    (run / "new.csv").write_text("\n".join([names, ",".join(cells), *others]))
    with pytest.raises(InvalidArgument) as refused:
        open_predictor(run / "run").predict(read_table(run / "new.csv"))
    said = str(refused.value)
    assert "new.csv: cells are missing in b (1, the first in line 2)" in said
    assert "write a value into these cells of new.csv, or leave their records out" in said
    assert "`dpfed run` it anew" in said
    assert "under data: write" not in said  # which would come too late

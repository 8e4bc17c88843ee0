"""The two reports of a run: one that may be shared, and one for its owner alone.

Both are made of facts, and each comes as HTML, Markdown and JSON. Nothing here needs torch.

>>> from dpfed.plan.plan import LocalPlan, Plan
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

from dpfed.config.kept import read_kept
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.report import owner_page as run_owner_page
from dpfed.report import page
from dpfed.report.documents import Document, render_html
from dpfed.report.facts import collect_facts
from dpfed.report.owner_facts import collect_owner_facts
from dpfed.report.statement import collect_balance
from dpfed.runs.directory import OWNER_ONLY, RunDirectory, write_durably

SHAREABLE = "report.html"
OWNER = "report-owner.html"


def write(directory: str | Path, config: RunConfig | None = None) -> tuple[Path, Path]:
    """Write both reports into the run's directory; return the path of the shareable one and that of the owner's.

    `config` is the run's configuration, if it is read already.
    """
    run, config = _open_run(directory, config)
    facts = collect_facts(run, config)
    everything = collect_owner_facts(run, config, facts)
    write_durably(run.path / SHAREABLE, render_html(page.make_page(facts)).encode())
    write_durably(run.path / OWNER, render_html(run_owner_page.make_page(everything)).encode(), mode=OWNER_ONLY)
    return run.path / SHAREABLE, run.path / OWNER


def shareable_page(directory: str | Path, config: RunConfig | None = None) -> Document:
    """Return the report that may be shared; `config` is the run's configuration, if it is read already."""
    return page.make_page(collect_facts(*_open_run(directory, config)))


def owner_page(directory: str | Path) -> Document:
    """Return the owner's report."""
    return run_owner_page.make_page(collect_owner_facts(*_open_run(directory)))


def shareable_facts(directory: str | Path) -> dict[str, Any]:
    """Return the facts that may be shared, as plain values."""
    return asdict(collect_facts(*_open_run(directory)))


def owner_facts(directory: str | Path) -> dict[str, Any]:
    """Return the facts for the owner, as plain values."""
    facts = collect_owner_facts(*_open_run(directory))
    return {
        **asdict(facts.run),
        "attendance": [asdict(each) for each in facts.by_round],
        "left_out": facts.left_out,
        "accounts": [collect_balance(balance) for balance in facts.accounts],
        "problem": facts.problem,
    }


def _open_run(directory: str | Path, config: RunConfig | None = None) -> tuple[RunDirectory, RunConfig | None]:
    path = Path(directory)
    if not (path / "plan.json").exists():
        raise InvalidArgument("directory", f"{path} holds no run: give the directory that dpfed run made")
    run = RunDirectory(path)
    run.require_readable()
    return run, config or read_kept(run)

"""The command ``dpfed``: every command is listed here, under the heading of the help page that it belongs to."""

from __future__ import annotations

import click

from dpfed import __version__
from dpfed.cli import (
    attack,
    audit,
    bounds,
    check,
    compare,
    deploy,
    doctor,
    epsilon,
    evaluate,
    export,
    init,
    ldp,
    ledger,
    pate,
    personalise,
    plan,
    predict,
    report,
    run,
    runs,
    sensitivity,
    site,
    sweep,
)
from dpfed.cli.sections import Group


@click.group(
    cls=Group,
    sections={
        "Train": (init.init, bounds.bounds, plan.plan, run.run, run.resume, pate.pate, doctor.doctor, check.check),
        "Look at results": (
            runs.runs,
            report.report,
            evaluate.evaluate,
            predict.predict,
            export.export,
            personalise.personalise,
        ),
        "Compute how private a run is": (epsilon.epsilon, epsilon.delta, compare.compare),
        "Choose settings": (epsilon.calibrate, sensitivity.sensitivity),
        "Prove it by attack": (attack.attack, audit.audit, sweep.sweep),
        "Manage budgets": (ledger.ledger,),
        "Ask without trust": (ldp.ldp,),
        "Take part over a network": (site.site, deploy.deploy),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="dpfed", message="%(prog)s %(version)s")
def main() -> None:
    """Train models across data owners, under a privacy budget that is calibrated, enforced and checkable.

    \b
      dpfed init hospitals && dpfed run hospitals.yaml

    Every number is a proved upper bound, rounded up. Each command that ends by itself takes --json.
    """

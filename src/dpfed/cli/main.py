"""The command ``dpfed``: the library's verbs on the command line."""

from __future__ import annotations

import click

from dpfed import __version__
from dpfed.cli import (
    accounting,
    check,
    comparison,
    doctor,
    evaluate,
    export,
    init,
    ledger,
    plan,
    report,
    runs,
    sensitivity,
    training,
)
from dpfed.cli.sections import Group


@click.group(
    cls=Group,
    sections={
        "Train": ("init", "plan", "run", "resume", "doctor", "check"),
        "What came of it": ("runs", "report", "evaluate", "export"),
        "How private is a run": ("epsilon", "delta", "compare"),
        "What to set": ("calibrate", "sensitivity"),
        "What was spent": ("ledger",),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="dpfed", message="%(prog)s %(version)s")
def main() -> None:
    """Federated learning under a privacy budget that is calibrated, enforced and checkable.

    \b
      dpfed init hospitals && dpfed run hospitals.yaml

    Every number is a proved upper bound, rounded up. Each command takes --json.
    """


main.add_command(init.init)
main.add_command(plan.plan)
main.add_command(training.run)
main.add_command(training.resume)
main.add_command(doctor.doctor)
main.add_command(check.check)
main.add_command(runs.runs)
main.add_command(evaluate.evaluate)
main.add_command(export.export)
main.add_command(accounting.epsilon)
main.add_command(accounting.delta)
main.add_command(accounting.calibrate)
main.add_command(comparison.compare)
main.add_command(sensitivity.sensitivity)
main.add_command(ledger.ledger)
main.add_command(report.report)

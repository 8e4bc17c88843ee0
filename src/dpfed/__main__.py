"""``python -m dpfed`` is the command ``dpfed``."""

from __future__ import annotations

from dpfed.cli.main import main

main(prog_name="dpfed")

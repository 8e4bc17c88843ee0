"""All mutants: the proof of the product. A part that adds a promise adds the mutants that would break it."""

from __future__ import annotations

from mutants.of_accounting import ACCOUNTING
from mutants.of_admm import ADMMS
from mutants.of_engine import ENGINE
from mutants.of_federation import FEDERATION
from mutants.of_inputs import INPUTS
from mutants.of_ledger import LEDGER
from mutants.of_mechanisms import MECHANISMS
from mutants.of_robust import ROBUST_RULES
from mutants.of_training import TRAINING

MUTANTS = (*TRAINING, *ENGINE, *FEDERATION, *ADMMS, *INPUTS, *LEDGER, *MECHANISMS, *ACCOUNTING, *ROBUST_RULES)

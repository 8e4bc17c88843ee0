"""All mutants: the proof of the product. A part that adds a promise adds the mutants that would break it."""

from __future__ import annotations

from mutants.of_accounting import ACCOUNTING
from mutants.of_admm import ADMMS
from mutants.of_audit import AUDIT, add_audits
from mutants.of_carrying import CARRYING
from mutants.of_engine import ENGINE
from mutants.of_federation import FEDERATION
from mutants.of_figures import FIGURES
from mutants.of_flower import FLOWER
from mutants.of_inputs import INPUTS
from mutants.of_ldp import LOCAL
from mutants.of_ledger import LEDGER
from mutants.of_mechanisms import MECHANISMS
from mutants.of_network import NETWORKS
from mutants.of_pate import PATE
from mutants.of_robust import ROBUST_RULES
from mutants.of_shuffling import SHUFFLING
from mutants.of_tables import TABLES
from mutants.of_training import TRAINING

MUTANTS = (
    *add_audits((*TRAINING, *ENGINE, *FEDERATION)),
    *ADMMS,
    *CARRYING,
    *FIGURES,
    *FLOWER,
    *INPUTS,
    *LEDGER,
    *LOCAL,
    *MECHANISMS,
    *ACCOUNTING,
    *SHUFFLING,
    *TABLES,
    *PATE,
    *AUDIT,
    *ROBUST_RULES,
    *NETWORKS,
)

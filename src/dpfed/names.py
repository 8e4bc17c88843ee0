"""Load names when they are first used, and find modules by the paths they had before they moved.

A package says in one table where its public names live; nothing is imported before somebody asks. `EARLIER` is the
one place that knows old paths: each was in the README or the docs, and goes on working.

>>> import dpfed.cohort, dpfed.plan.cohort
>>> dpfed.cohort is dpfed.plan.cohort
True
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

EARLIER = {
    "dpfed.accounting.participation": "dpfed.accounting.tree_sensitivity",
    "dpfed.accounting.questions": "dpfed.accounting.queries",
    "dpfed.adaptive": "dpfed.plan.adaptive",
    "dpfed.algorithm": "dpfed.plan.algorithm",
    "dpfed.budget": "dpfed.manager.budget",
    "dpfed.client_plan": "dpfed.plan.client",
    "dpfed.cohort": "dpfed.plan.cohort",
    "dpfed.config.start": "dpfed.config.templates",
    "dpfed.data.clients": "dpfed.federated.data",
    "dpfed.federated.checkpoint": "dpfed.federated.state.checkpoint",
    "dpfed.federated.client_states": "dpfed.federated.state.clients",
    "dpfed.federated.persons": "dpfed.federated.torch.persons",
    "dpfed.federated.released": "dpfed.federated.state.export",
    "dpfed.federated.run_lock": "dpfed.federated.state.run_lock",
    "dpfed.federated.runners.ensemble": "dpfed.federated.runners.together",
    "dpfed.federated.runners.local": "dpfed.federated.runners.in_process",
    "dpfed.federated.runners.pool": "dpfed.federated.runners.processes",
    "dpfed.federated.torch_client": "dpfed.federated.torch.client",
    "dpfed.federated.torch_factory": "dpfed.federated.torch.factory",
    "dpfed.federated.torch_model": "dpfed.federated.torch.model",
    "dpfed.federated.update": "dpfed.federated.messages",
    "dpfed.federated.weights": "dpfed.federated.state.layout",
    "dpfed.local_plan": "dpfed.plan.local",
    "dpfed.plan_fits": "dpfed.plan.fits",
    "dpfed.report.run": "dpfed.report.reports",
    "dpfed.report.run_facts": "dpfed.report.facts",
    "dpfed.report.run_owner": "dpfed.report.owner_facts",
    "dpfed.report.run_owner_page": "dpfed.report.owner_page",
    "dpfed.report.run_page": "dpfed.report.page",
    "dpfed.server_release": "dpfed.plan.server",
    "dpfed.structure": "dpfed.arrays",
    "dpfed.training.canaries": "dpfed.audit.canaries",
    "dpfed.training.clip": "dpfed.training.engine.clip",
    "dpfed.training.compat": "dpfed.training.layers.compat",
    "dpfed.training.ensemble": "dpfed.training.many.ensemble",
    "dpfed.training.entropy": "dpfed.training.many.entropy",
    "dpfed.training.gradients": "dpfed.training.engine.gradients",
    "dpfed.training.model_check": "dpfed.training.checking.findings",
    "dpfed.training.passes": "dpfed.training.sampling",
    "dpfed.training.recipe": "dpfed.training.optimizing",
    "dpfed.training.schedules": "dpfed.training.optimizing",
    "dpfed.training.segments": "dpfed.training.many.segments",
    "dpfed.tree_noise": "dpfed.plan.tree",
}


def load_lazily(
    package: str, home: Mapping[str, str], modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package whose names load when they are first used."""

    def load(name: str) -> Any:
        if name in home:
            return getattr(import_module(home[name]), name)
        if name in modules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted([*home, *modules])


class _EarlierPath(MetaPathFinder, Loader):
    """A finder that gives the module itself to whoever imports it by an earlier path."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in EARLIER else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(EARLIER[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state  # the import system has just put the earlier path's there


def find_earlier_paths() -> None:
    """Make the import system look for `EARLIER` paths, after everything else has failed."""
    if not any(isinstance(finder, _EarlierPath) for finder in sys.meta_path):
        sys.meta_path.append(_EarlierPath())

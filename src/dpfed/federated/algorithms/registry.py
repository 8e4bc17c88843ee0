"""An algorithm by its name, as a configuration file gives it, or your own by ``package.module:name``.

>>> build("fedprox", proximal=0.1)
FedProx(proximal=0.1, server_learning_rate=1.0)
>>> build("dpfed.federated.algorithms.fedavg:FedAvg", server_learning_rate=0.5)
FedAvg(server_learning_rate=0.5)
"""

from __future__ import annotations

import inspect
import math
import pkgutil
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from dpfed.errors import InvalidArgument
from dpfed.federated import algorithms
from dpfed.federated.algorithms.earlier import EarlierAlgorithm, ServerSide
from dpfed.federated.algorithms.protocol import FederatedAlgorithm, ModelChange
from dpfed.federated.messages import Client
from dpfed.plan import rules
from dpfed.plan.algorithm import server_rate
from dpfed.plan.plan import Plan
from dpfed.references import is_reference, resolve

VERBS = ("keeps_state", "needs_plain_sgd", "bound_to", "start", "task", "objective", "leaves", "keeps", "step")


def _find_kinds() -> dict[str, type[ModelChange]]:
    """Return the algorithms in the modules beside this one, by the name that a configuration file gives them."""
    names = [info.name for info in pkgutil.iter_modules(algorithms.__path__)]
    modules = [import_module(f"{algorithms.__name__}.{name}") for name in names if name != "registry"]
    classes = [thing for module in modules for thing in vars(module).values() if inspect.isclass(thing)]
    return {vars(thing)["kind"]: thing for thing in classes if issubclass(thing, ModelChange) and "kind" in vars(thing)}


KINDS = _find_kinds()


def build(kind: str, *, directory: str | Path | None = None, **options: Any) -> FederatedAlgorithm:
    """Return the algorithm of that kind; modules of your own are looked for in `directory` first."""
    if kind not in KINDS and not is_reference(kind):
        raise InvalidArgument("kind", f"kind must be one of {', '.join(KINDS)} or package.module:name, got {kind!r}")
    make = KINDS[kind] if kind in KINDS else resolve(kind, directory)
    _require_options(kind, make, options)
    return require_algorithm(make(**options))


def of_plan(plan: Plan) -> FederatedAlgorithm:
    """Return the algorithm that the plan names, bound to the plan's constants."""
    return bind(build_named(plan), plan)


def build_named(plan: Plan, directory: str | Path | None = None) -> FederatedAlgorithm:
    """Return the algorithm that the plan names, not bound yet; modules of your own are looked for in `directory`."""
    options = {**server_rate(plan.server_learning_rate), **plan.algorithm.parameters}
    return build(plan.algorithm.name, directory=directory, **options)


def bind(algorithm: Any, plan: Plan) -> FederatedAlgorithm:
    """Return the algorithm with the plan's constants; refuse a plan that it must not be used with."""
    made = require_algorithm(algorithm)
    _require_stateful(made, plan)
    found = made.bound_to(plan)
    _require_stateful(found, plan)  # it may be another one
    return found


def require_fitting_steps(algorithm: FederatedAlgorithm, clients: Iterable[Client]) -> None:
    """Refuse clients with an optimizer of their own where the algorithm's equations are those of plain steps."""
    if algorithm.needs_plain_sgd and not all(getattr(client, "takes_plain_steps", True) for client in clients):
        raise optimizer_refusal(type(algorithm).__name__.lower())


def optimizer_refusal(name: str) -> InvalidArgument:
    """Return the refusal of an optimizer that is not plain gradient descent."""
    message = f"{name} is defined for clients that take plain steps of one length, and reads them from what is sent"
    remedy = "choose optimizer: sgd without momentum, weight_decay and schedule"
    return InvalidArgument("optimizer", f"{message}: {remedy}")


def require_algorithm(algorithm: Any) -> FederatedAlgorithm:
    """Return the algorithm itself, if it is one; one of the earlier form gets the usual client's side."""
    if inspect.isclass(algorithm) or not isinstance(algorithm, FederatedAlgorithm | EarlierAlgorithm):
        name = algorithm.__name__ if inspect.isclass(algorithm) else type(algorithm).__name__
        message = f"an algorithm has {', '.join(VERBS)}; {name} lacks one: derive it from ModelChange"
        raise InvalidArgument("algorithm", message)
    if isinstance(algorithm, FederatedAlgorithm):
        return algorithm
    strength = algorithm.proximal
    if not isinstance(strength, float | int) or not 0 <= strength < math.inf:
        raise InvalidArgument("proximal", f"proximal must be a finite number of at least 0, got {strength!r}")
    return ServerSide(algorithm)


def _require_stateful(algorithm: FederatedAlgorithm, plan: Plan) -> None:
    if algorithm.keeps_state:
        rules.require_stateful(plan)
        _require_frozen(algorithm)


def _require_frozen(algorithm: FederatedAlgorithm) -> None:
    """Refuse an algorithm that could carry something of one client's to another past the clip: it serves them all.

    Its own class must be frozen: an instance of a mere subclass of a frozen one can be given new attributes.
    """
    if not getattr(vars(type(algorithm)).get("__dataclass_params__"), "frozen", False):
        name = type(algorithm).__name__
        message = f"{name} keeps state at clients, so nothing may change in itself: make it a frozen dataclass"
        raise InvalidArgument("algorithm", message)


def _require_options(kind: str, make: Any, options: dict[str, Any]) -> None:
    if not callable(make):
        raise InvalidArgument("kind", f"{kind} is no class or function that makes an algorithm: name one that does")
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(make).parameters)
        raise InvalidArgument("options", f"{kind}: {error}; its options are: {known or 'none'}") from None

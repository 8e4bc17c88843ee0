"""A site ledger around a Flower client of your own: what its code returns does not leave; what its policy allows does.

`private_app` takes a `client_fn` or a whole `ClientApp`, as ``flwr new`` makes them, and gives a `ClientApp` that is
used in its place::

    app = private_app(client_fn, policy)

In style `local` the wrapper takes the update that the client returns, clips it and adds noise. In style `sample` the
client trains through `private_model`, and the wrapper reads the parameters from there. Metrics, counts of examples,
evaluations, properties, queries and the texts of errors stay at the site.

>>> private_model(None, None, None)
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: no round of style 'sample' is open here, so nothing is paid for: call private_model in \
the training of a client that private_app wraps, in the thread that runs it
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextvars import ContextVar
from copy import copy, deepcopy
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from dpfed.arrays import Floats
from dpfed.errors import (
    BudgetExceeded,
    InvalidArgument,
    LeaseHeld,
    LeaseLost,
    LedgerError,
    LedgerRolledBack,
    NotReserved,
)
from dpfed.federated.deadline import INTERRUPTS
from dpfed.integrations.flower_policy import SitePolicy
from dpfed.integrations.flower_records import Request, read_arrays
from dpfed.integrations.flower_round import Arrays, SampleRound
from dpfed.training.loop import Private
from dpfed.training.screening import Loss

# Flower sends usage data to its makers and asks them for updates unless these are set; whoever wants that sets them.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from flwr.app import ConfigRecord, Context, Error, Message
from flwr.clientapp import ClientApp

ClientFn = Callable[[Context], Any]
PolicyOf = Callable[[Context], SitePolicy]

# All that a server is ever told of a training without a model; none of them follows from a record.
BUDGET, EXHAUSTED, BUSY, UNAVAILABLE, ROLLED_BACK = "budget", "exhausted", "busy", "unavailable", "rolled_back"
POLICY, REQUEST, FAILED, WITHHELD = "policy", "request", "failed", "withheld"
RAISED = 2  # Flower's code for an app that raised
KEPT, HEAD = "dpfed.ledger", "head"  # what a node remembers of the ledger between two messages of a run
_LOG = logging.getLogger(__name__)
_ROUND: ContextVar[SampleRound | None] = ContextVar("dpfed_round", default=None)


def private_app(client: ClientFn | ClientApp, policy: SitePolicy | PolicyOf) -> ClientApp:
    """Return a Flower app that lets out what the site's policy allows of the client, and charges for it before.

    `policy` is the site's, or a function of Flower's context, which has the site's own ``node_config``; its
    ``run_config``, which is the server's, is empty there.
    """
    inner = client if isinstance(client, ClientApp) else ClientApp(client_fn=client)
    return PrivateClientApp(inner, policy)


def private_model(
    model: nn.Module,
    optimizer: Optimizer,
    data: Dataset[Any] | DataLoader[Any],
    *,
    loss: Loss | None = None,
    max_physical_batch: int | None = None,
    device: torch.device | str | None = None,
) -> Private:
    """Load the server's parameters into the model, and return it in private training: once in a round.

    It is `make_private` by the plan of the site's policy, for a round that is paid for already.
    """
    own = _ROUND.get()
    if own is None:
        message = "no round of style 'sample' is open here, so nothing is paid for"
        remedy = "call private_model in the training of a client that private_app wraps, in the thread that runs it"
        raise InvalidArgument("policy", f"{message}: {remedy}")
    return own.make_private(model, optimizer, data, loss=loss, max_physical_batch=max_physical_batch, device=device)


class PrivateClientApp(ClientApp):
    """A `ClientApp` around another one; made by `private_app`.

    Privacy: a training is charged to the site's account before the client's code runs (`SitePolicy.pay`). In style
    `local` what leaves is ``plan.client_release`` of the update that the client returns; where it returns none, or
    fails, noise around zero leaves, so that nobody sees it. In style `sample` it is what the steps of the private
    model released (`SampleRound`); where there is no such model, the code `failed`. Everything else in an answer is
    the server's own, or a constant of the policy. Not covered: `flower_policy.NOT_COVERED`, and in style `sample`
    whether the client failed.
    """

    def __init__(self, inner: ClientApp, policy: SitePolicy | PolicyOf) -> None:
        super().__init__()
        self._inner = inner
        self._policy = policy
        self._call = self._answer  # Flower refuses to register functions beside it

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message of the server: with a model that may leave, or with a fixed code."""
        try:
            return self._answer(message, context)
        except INTERRUPTS:
            raise
        except BaseException:
            return _refuse(message, FAILED)

    def lifespan(self) -> NoReturn:
        """Refuse: what runs around this app would raise errors past it."""
        raise InvalidArgument("lifespan", "register the lifespan with the app that is given to private_app")

    def _answer(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type.partition(".")[0] != "train":
            return _refuse(message, WITHHELD)
        try:
            request = Request.read(message.content)
        except Exception:
            return _refuse(message, REQUEST)
        try:
            policy = self._find_policy(context)
            number, head = policy.pay(_read_heads(context))
            context.state[KEPT] = ConfigRecord({HEAD: head})
        except INTERRUPTS:
            raise
        except BaseException as error:
            return _refuse(message, _find_code(error))
        # The client gets a copy: what it writes into a message's metadata would be in the answer.
        released = self._train(request, policy, number, deepcopy(message), context)
        return Message(request.answer(released, policy.weight), reply_to=message)

    def _find_policy(self, context: Context) -> SitePolicy:
        """Return the site's policy; a function that makes it sees what the site was started with, and no run's word."""
        if isinstance(self._policy, SitePolicy):
            return self._policy
        own = copy(context)
        own.run_config = {}
        return self._policy(own)

    def _train(self, request: Request, policy: SitePolicy, number: int, message: Message, context: Context) -> Arrays:
        if not policy.plan.noises_updates:
            return self._train_steps(request, policy, number, message, context)
        update = self._find_update(request, message, context)
        source = policy.noise_source(number).once("release")
        return request.place(policy.plan.client_release.release(update, request.dimension, source))

    def _find_update(self, request: Request, message: Message, context: Context) -> Floats | None:
        """Return the update of the client's own training; None where it fails, which counts as zero."""
        try:
            answer = self._inner(message, context)
            (record,) = answer.content.array_records.values()
            return request.subtract_from(read_arrays(record))
        except INTERRUPTS:
            raise
        except BaseException:
            _log("the client's training failed, and noise around zero is sent in its place")
            return None

    def _train_steps(
        self, request: Request, policy: SitePolicy, number: int, message: Message, context: Context
    ) -> Arrays:
        own = SampleRound(request.sent, policy.steps, policy.noise_source(number))
        token = _ROUND.set(own)
        try:
            self._inner(message, context)
            return own.released()
        finally:
            _ROUND.reset(token)
            own.close()


def _refuse(message: Message, code: str) -> Message:
    """Return the answer that is not a model: a code of a fixed list. Details are in the site's log."""
    if code != WITHHELD:
        _log(f"a request was answered with {code!r}")
    return Message(Error(code=RAISED, reason=f"dpfed: {code}"), reply_to=message)


def _read_heads(context: Context) -> list[str]:
    return [str(record[HEAD]) for key, record in context.state.config_records.items() if key == KEPT]


def _log(what: str) -> None:
    _LOG.warning("for the owner alone: %s", what, exc_info=True)


def _find_code(error: BaseException) -> str:
    codes: dict[type[BaseException], str] = {
        LeaseHeld: BUSY,
        LeaseLost: BUSY,
        NotReserved: EXHAUSTED,
        BudgetExceeded: BUDGET,
        LedgerRolledBack: ROLLED_BACK,
        LedgerError: UNAVAILABLE,
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), POLICY)

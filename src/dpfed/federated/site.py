"""A data owner with its own machine, ledger and policy: bytes in, bytes out, and the site decides.

A request is answered only if the study's key has signed it, for this site, in time, and with a higher number than any
before. Whatever is wrong, the answer is one of a fixed list of words, none of which depends on a record; details are
in the site's own log. What the site executes is what it reserved: the plan that it checked itself. It commits before it
trains, stores what leaves before it answers, and sends the same again when asked again, at no charge.

>>> Site.handle.__doc__.partition(".")[0]
'Return the signed answer to a request, whatever the request is'
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpfed import errors
from dpfed.arrays import Floats
from dpfed.config.site import SiteFile
from dpfed.errors import MessageRefused, PrivacyError
from dpfed.federated import wire
from dpfed.federated.deadline import INTERRUPTS
from dpfed.federated.keys import PublicKey, SigningKey
from dpfed.federated.messages import EXHAUSTED, Failure
from dpfed.federated.recipe import Recipe
from dpfed.federated.sent import MEASURED, SentStore, read_key
from dpfed.federated.site_data import hold_out, load_site_records, scale_for, scale_held_out
from dpfed.federated.site_policy import require_allowed_measurement, require_allowed_plan, require_allowed_recipe
from dpfed.federated.site_run import SiteRun
from dpfed.federated.torch.client import TorchClient
from dpfed.federated.wire import Message
from dpfed.ledger import inputs
from dpfed.ledger.ledger import Ledger
from dpfed.plan.plan import Plan
from dpfed.randomness import RandomSource, SeededSource, or_system

SHUT = ("frozen", "expired")  # states of an account from which nothing leaves, also not again
KEPT = 2  # rounds whose noised values stay: as many as a run has checkpoints
_LOG = logging.getLogger("dpfed.site")
_CODES: tuple[tuple[type[BaseException], str], ...] = (
    (errors.BudgetExceeded, wire.BUDGET),
    (errors.NotReserved, wire.SPENT),
    (errors.LedgerRolledBack, wire.ROLLED_BACK),
    (errors.LeaseHeld, wire.BUSY),
    (errors.LeaseLost, wire.BUSY),
    (errors.LedgerUnavailable, wire.BUSY),
    (errors.LedgerError, wire.UNAVAILABLE),
    (MessageRefused, wire.POLICY),
    (PrivacyError, wire.POLICY),
)


class _Refused(Exception):
    """A request that is answered with a code and no more."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True)
class _Request:
    """The checked header of a request."""

    verb: str
    run: str
    round: int
    plan: str
    model: str
    number: int
    deadline: float
    head: str


class Site:
    """A site by its file. `handle` answers one request at a time; it is all that a transport needs.

    Privacy: what leaves is what the plan releases, charged to the site's own account before; a raw update leaves only
    in styles that the policy names, as often as the plan has rounds and spare rounds and no more often in all runs than
    the policy says, encrypted at rest, and is deleted once a later round was asked for. A run that has ended does not
    begin again under its name. A frozen site sends nothing, also nothing again.
    """

    def __init__(
        self, file: SiteFile, *, source: RandomSource | None = None, now: Callable[[], float] = time.time
    ) -> None:
        config = file.config
        self.name = config.site
        self._config = config
        self._key = SigningKey.read(file.find(config.key))
        self._study = PublicKey.parse(config.server_key, "server_key")
        self._records, self._held_out = hold_out(load_site_records(config.data, file.folder), config.data)
        key = read_key(file.find(config.sent_key))
        self._store = SentStore(file.find(config.sent), key, config.policy.most_raw_updates)
        self._ledger = Ledger(file.ledger_url, create=False)
        self._delta = self._ledger.terms([config.ledger.account])[config.ledger.account].delta
        seeded = None if config.seed is None else SeededSource(config.seed)
        self._source = or_system(seeded if source is None else source)
        self._now = now
        self._runs: dict[str, SiteRun] = {}
        self._lock = threading.Lock()

    @property
    def public_key(self) -> str:
        """The line by which a run file pins the site's answers."""
        return self._key.public.text

    @property
    def most_bytes(self) -> int:
        """The largest message that is read."""
        return self._config.policy.most_bytes

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def handle(self, content: bytes) -> bytes:
        """Return the signed answer to a request, whatever the request is.

        No error leaves: what raises is one of the codes, and its reason is in the log.
        """
        try:
            request = wire.unpack(content, self._study, wire.REQUEST, self.most_bytes)
        except MessageRefused as error:
            _LOG.warning("refused a message: %s", error)
            return self._pack({"code": wire.POLICY, "site": self.name})
        echo = {name: request.header.get(name) for name in wire.ECHOED}
        if not self._lock.acquire(blocking=False):
            return self._pack(echo | {"code": wire.BUSY})
        try:
            return self._answer_or_refuse(request, echo)
        finally:
            self._lock.release()

    def release_asked(self) -> None:
        """End the runs for which the owner typed `dpfed site release` while this process holds them."""
        with self._lock:
            for run, reason in self._store.asked_releases().items():
                self._release(run, reason)

    def _release(self, run: str, reason: str) -> None:
        try:
            if any(held.run == run for held in self._ledger.reservations()):
                self._ledger.release(run, reason=reason)
            head = str(self._ledger.head())
        except PrivacyError as error:
            _LOG.warning("%s was not released: %s", run, error)
            self._store.withdraw_release(run)
            return
        self._runs.pop(run, None)
        self._store.forget(run, head)
        _LOG.info("released %s: %s", run, reason)

    def _answer_or_refuse(self, request: Message, echo: dict[str, Any]) -> bytes:
        facts: dict[str, Any] = {"code": wire.OK}
        arrays: Mapping[str, Any] = {}
        try:
            checked = self._check(request.header)
            arrays = self._answer(checked, request)
        except INTERRUPTS:
            raise
        except BaseException as error:
            facts["code"] = _find_code(error)
            _LOG.warning("answered %s: %s", facts["code"], _explain(error))
        return self._pack(echo | facts | self._describe(request.header.get("run")), arrays)

    def _check(self, header: Mapping[str, Any]) -> _Request:
        """Return the header of a request for this site that is not too late."""
        try:
            request = _Request(
                str(header["verb"]),
                inputs.name(run=header["run"]),
                int(header["round"]),
                str(header["plan"]),
                str(header["model"]),
                int(header["number"]),
                float(header["deadline"]),
                str(header["head"]),
            )
            is_own = header["site"] == self.name and request.verb in wire.VERBS
        except (KeyError, TypeError, ValueError, OverflowError):
            is_own = False
        if not is_own:
            raise _Refused(wire.POLICY, "the request is for another site, or has no such form")
        if not self._now() <= request.deadline:
            raise _Refused(wire.STALE, "the request's deadline is over")
        return request

    def _answer(self, request: _Request, message: Message) -> Mapping[str, Any]:
        verbs = {wire.ENROLL: self._enroll, wire.TRAIN: self._train, wire.STATUS: self._note, wire.FINISH: self._finish}
        verbs[wire.MEASURE] = self._measure
        return verbs[request.verb](request, message) or {}

    def _enroll(self, request: _Request, message: Message) -> None:
        """Check plan and policy, reserve in the site's ledger, and keep what was agreed to."""
        terms = Message({"plan": message.header.get("plan_text"), "recipe": message.header.get("recipe")})
        if request.plan != wire.digest_text(str(terms.header["plan"])):
            raise MessageRefused("the plan is not the one that its digest names")
        if self._store.has_ended(request.run):
            raise _Refused(wire.STALE, "the run has ended at this site")
        known = self._store.plan(request.run)
        if known is not None and dict(known.header) != dict(terms.header):
            raise MessageRefused("the run was agreed to with another plan or recipe")
        self._open(request.run, terms, request.head)
        self._store.keep_plan(request.run, terms)
        self._store.advance(request.run, request.number, str(self._ledger.head()))

    def _train(self, request: _Request, message: Message) -> Mapping[str, Any]:
        """Return the value that leaves: the one that left before, or a new one, charged first."""
        run = self._find(request)
        self._require_open_account()
        header = message.header
        counted, clip_norm = int(header.get("counted") or 0), header.get("clip_norm")
        task = run.make_task(request.round, message.arrays, None if clip_norm is None else float(clip_norm), counted)
        if request.model != wire.digest_task(message.arrays, task.clip_norm, counted):
            raise MessageRefused("the model is not the one that its digest names")
        self._advance(request)
        confirmed = request.round if run.is_raw() else request.round - KEPT
        self._store.confirm(request.run, confirmed, counted)
        value = run.find_kept(request.round, request.plan, request.model)
        return {"value": _require_sent(run.answer(task, request.plan, request.model)) if value is None else value}

    def _measure(self, request: _Request, message: Message) -> Mapping[str, Any]:
        """Return the counts of what the site holds out: those that left before, or new ones, charged first."""
        run = self._find(request)
        self._require_open_account()
        task = run.make_measurement(request.round, message.arrays)
        if request.model != wire.digest_task(message.arrays, None, 0):
            raise MessageRefused("the model is not the one that its digest names")
        self._advance(request)
        value = run.find_kept(request.round, request.plan, request.model, MEASURED)
        return {"value": _require_sent(run.count(task, request.plan, request.model)) if value is None else value}

    def _note(self, request: _Request, _: Message) -> None:
        """Note the request, so that none before it is answered any more; counts are in every answer."""
        self._find(request)
        self._advance(request)

    def _finish(self, request: _Request, _: Message) -> None:
        """Return what was never committed to the account, and delete what was kept."""
        self._find(request).finish(request.run)
        del self._runs[request.run]
        self._store.forget(request.run, str(self._ledger.head()))

    def _find(self, request: _Request) -> SiteRun:
        """Return a run that the site agreed to, opened again after a restart."""
        if request.run not in self._runs:
            terms = self._store.plan(request.run)
            if terms is None:
                raise _Refused(wire.STALE, "the site has agreed to no such run, or it has ended")
            # One that was agreed to is not new, even if nothing of it is left, or the server has forgotten the head.
            self._open(request.run, terms, request.head or str(self._ledger.head()))
        elif request.head:
            self._ledger.require(request.head)
        run, terms = self._runs[request.run], self._store.plan(request.run)
        if terms is None or request.plan != wire.digest_text(str(terms.header["plan"])):
            raise MessageRefused("the request is for another plan than the one agreed to")
        return run

    def _open(self, name: str, terms: Message, head: str) -> None:
        if name in self._runs:
            if head:
                self._ledger.require(head)
            return
        plan, recipe = Plan.from_json(str(terms.header["plan"])), Recipe.parse(str(terms.header["recipe"]))
        config = self._config
        require_allowed_measurement(config.policy, plan, config.data)
        require_allowed_plan(config.policy, plan, self.name, config.data.size, self._delta)
        require_allowed_recipe(config.policy, recipe, config.data)
        self._require_open_account()
        self._require_known_past()
        model = recipe.make_model()
        data = scale_for(self._records, recipe, config.data)
        held_out = scale_held_out(self._held_out, recipe, config.data)
        client = TorchClient(self.name, data, config.ledger.account, model, held_out=held_out)
        run = SiteRun(name, replace(plan, name=name), client, self._ledger, self._store, self._source)
        run.open(model.first_weights, [head] if head else [])
        self._runs[name] = run

    def _require_known_past(self) -> None:
        """Refuse a ledger that lacks what it had: what the server says of its past is not all that is known of it."""
        for known, run in self._store.heads().items():
            try:
                self._ledger.require(known)
            except errors.LedgerRolledBack:
                what = "run %s knows of entries that the ledger lacks; if it was restored from a backup, and somebody"
                _LOG.warning(f"{what} has answered for what is missing, type `dpfed site release %s`", run, run)
                raise

    def _require_open_account(self) -> None:
        status = self._ledger.balance(self._config.ledger.account).status
        if status in SHUT:
            raise _Refused(wire.UNAVAILABLE, f"the account is {status}: nothing leaves")

    def _advance(self, request: _Request) -> None:
        if not self._store.advance(request.run, request.number, str(self._ledger.head())):
            raise _Refused(wire.STALE, "a request with that number or a higher one was answered before")

    def _describe(self, run: Any) -> dict[str, Any]:
        """Return what every answer about an open run says: what was charged, and the ledger's head; no round."""
        found = self._runs.get(run) if isinstance(run, str) else None
        facts: dict[str, Any] = {"is_private": self._source.is_private}
        if found is None:
            return facts
        try:
            return facts | {"counts": found.counts, "head": found.charging.head, "last": self._store.last(found.run)}
        except PrivacyError as error:  # a ledger that is busy or broken: its counts are heard another time
            _LOG.warning("answered without counts: %s", error)
            return facts

    def _pack(self, header: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> bytes:
        return wire.pack(Message(header, arrays or {}), self._key, wire.REPLY)


def _require_sent(found: Floats | Failure) -> Floats:
    """Return what leaves; answer with a code where nothing does."""
    if isinstance(found, Failure):
        code = wire.SPENT if found.reason == EXHAUSTED else wire.UNAVAILABLE
        raise _Refused(code, f"the client has {found.reason} ({type(found.error).__name__})")
    return found


def _find_code(error: BaseException) -> str:
    if isinstance(error, _Refused):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), wire.UNAVAILABLE)


def _explain(error: BaseException) -> str:
    """Return what the site's log says of an error: of one that is not dpfed's, which may quote a record, its kind."""
    return str(error) if isinstance(error, PrivacyError | _Refused) else type(error).__name__

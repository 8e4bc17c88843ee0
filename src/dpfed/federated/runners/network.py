"""Sites behind a network, each with its own ledger: they charge themselves, and the server counts what it asked.

An ask is in the durable book before it is sent, and counts as charged until the site has answered. What comes back is
used only if the site's key has signed it for this very request, by value: run, round, plan, model and nonce. Whatever
else comes (late, lost, altered, of somebody else, too large) is a failure of that site in that round, and a message
that may have been lost is asked for again: a site that has the answer sends the same, at no charge.

>>> line = SigningKey.make().public.text
>>> Peer.of(SiteKeys(key=f"{line} north")).node == line
True
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from dpfed.config.network import SiteKeys
from dpfed.errors import InvalidArgument, MessageRefused, SiteRefused
from dpfed.events import Event
from dpfed.federated import wire
from dpfed.federated.algorithms.protocol import FederatedAlgorithm
from dpfed.federated.asks import Ask, AskBook, Heard, count_at_most
from dpfed.federated.keys import PublicKey, SigningKey, shorten
from dpfed.federated.messages import EXHAUSTED, FAILED, Charged, Failure, Task, Update
from dpfed.federated.recipe import Recipe
from dpfed.federated.runners.charging import SharedLedger, split_all
from dpfed.federated.state.layout import Vector
from dpfed.federated.transport import REFUSED, Arrived, Transport
from dpfed.federated.wire import Message
from dpfed.ledger.ledger import Ledger
from dpfed.plan.by_round import count_left
from dpfed.plan.measuring import count_releases, list_client_charges
from dpfed.plan.plan import Plan
from dpfed.runs.rounds import is_head

PAUSE = 0.1  # seconds between two looks at what has arrived
PATIENCE, MOST_PATIENCE = 0.25, 10.0  # seconds before the same is asked for again: twice as long each time
MOST_REFUSED = 3  # answers of one site in a round that are not what they should be, before it is given up
ABSENT = "absent"  # of a site from which nothing was heard
SETTLING = (wire.OK, wire.SPENT)  # codes of a site that has looked for the head it was asked about
MOST_NUMBER = 2**53
LAST_WORDS = 30.0  # seconds that the end of a run waits for its sites
_LOG = logging.getLogger("dpfed.network")


@dataclass(frozen=True)
class Peer:
    """A site as the server knows it: the key that signs its answers, and that by which its node is found."""

    key: PublicKey
    node: str

    @classmethod
    def of(cls, keys: SiteKeys) -> Peer:
        """Return the site with these keys."""
        return cls(PublicKey.parse(keys.key), shorten(keys.address))


class StudyAccount(SharedLedger):
    """The charges of the server's releases; sites have ledgers of their own."""

    def charges(self, plan: Plan) -> dict[str, dict[Event, int]]:
        """Return what the plan takes from the study's account; nothing where the server adds no noise."""
        if plan.server_noises and self.study is None:
            raise InvalidArgument("study", f"style {plan.style!r} needs a study account of unit client: give study=")
        return {self.study: plan.study_charges()} if self.study is not None and plan.server_noises else {}


@dataclass
class _Open:
    """A request that has no answer yet: when it is sent again, and how often it was answered wrongly."""

    site: str
    nonce: str = ""
    number: int = 0
    token: str | None = None
    again: float = 0.0
    tries: int = 0
    refused: int = 0


class NetworkRunner:
    """A runner whose clients are sites behind a transport.

    Privacy: `charged` is what sites have said they charged, and every ask since that they may have charged: never
    less than what is in their ledgers, as long as they tell the truth. The statement is "as attested by the sites".
    """

    def __init__(
        self,
        transport: Transport,
        peers: Mapping[str, Peer],
        key: SigningKey,
        book: AskBook,
        plan: Plan,
        recipe: Recipe,
        *,
        ledger: Ledger | None = None,
        study: str | None = None,
        deadline: float = 300.0,
        now: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._transport = transport
        self._peers = dict(peers)
        self._key = key
        self._book = book
        self._plan, self._text = plan, plan.to_json()
        self._recipe = recipe.text
        self._seconds = deadline
        self._now, self._pause = now, pause
        self._study = StudyAccount(ledger, {}, study)
        self._limit = wire.OVERHEAD
        self._answered: dict[str, int] = {}

    @property
    def is_private(self) -> bool:
        """Whether no site has said that its noise can be predicted."""
        return all(self._book.heard(name).is_private for name in self._peers)

    def enroll(
        self,
        plan: Plan,
        weights: Vector,
        heads: Iterable[str] = (),
        *,
        algorithm: FederatedAlgorithm | None = None,
        folder: Path | None = None,
        counted: Iterable[tuple[str, int]] | None = None,
    ) -> str:
        """Return the server's own head once every site has reserved its part of the plan.

        If one refuses a new run, the others are told to release, and the run does not begin. A run that goes on does so
        without a site that is away or refuses: it is asked again in every round.
        """
        self._require_supported(plan)
        known = list(heads)
        self._limit = wire.largest_message(weights.size)
        is_new = counted is None
        if not self._book.run:
            self._require_beginning(is_new)
            self._book.begin(f"{plan.name}-{secrets.token_hex(6)}")
        refused = self._ask_all(wire.ENROLL, self._seconds, plan_text=self._text, recipe=self._recipe)
        if refused and is_new:
            self._dissolve(refused)
        if refused:
            _LOG.warning("going on without %s", _format_codes(refused))
        self._reserve_own(plan, known, is_new=is_new)
        return self._study.head

    def key(self, plan: Plan, heads: Iterable[str] = ()) -> bytes:
        """Return what the run's files are sealed with: of the server's ledger, or made from the study's key."""
        if plan.server_noises:
            return self._study.key(plan, heads)
        return self._key.derive(f"files of run {plan.name}")

    def seals_files(self, plan: Plan) -> bool:
        """Return true: no run over a network is older than seals."""
        return True

    def train(self, task: Task, cohort: Iterable[str]) -> Iterator[Update | Failure]:
        """Yield each site's update as it arrives, or why there is none.

        Privacy: every ask is in the book before it is sent, also each one that is sent again.
        """
        names = list(dict.fromkeys(cohort))
        able = [name for name in names if self._may_pay(name, task.round)]
        yield from (Failure(name, EXHAUSTED) for name in names if name not in able)
        messages = {name: self._make_task(task, name) for name in able}
        yield from self._ask_charged(wire.TRAIN, task, messages)

    def measure(self, task: Task, clients: Iterable[str]) -> Iterator[Update | Failure]:
        """Yield each site's counts of what it holds out, or why there are none.

        Privacy: as in `train`, every ask is in the book before it is sent.
        """
        names = list(dict.fromkeys(clients))
        able = [name for name in names if self._may_measure(name)]
        yield from (Failure(name, EXHAUSTED) for name in names if name not in able)
        message = Message({"model": wire.digest_task(task.vectors, None, 0)}, task.vectors)
        yield from self._ask_charged(wire.MEASURE, task, dict.fromkeys(able, message))

    def charge_measurement(self) -> str:
        """Commit one measurement to the study's account, and return the server's head."""
        return self._study.commit_measured_release()

    def charge_release(self, times: int, number: int) -> str:
        """Commit that many client events of the round to the study's account, and return the server's head."""
        return self._study.commit_release(times, number)

    def charged(self) -> Charged:
        """Return the most that can be committed: what sites have said, what they were asked since, and the server's."""
        own = self._study.charged()
        names = self._plan.local if self._plan.charges_clients else ()
        most = {name: count_at_most(self._plan, self._book, name) for name in names}
        by_client, measured = split_all(most, list_client_charges(self._plan))
        return replace(own, by_client=by_client, measured=measured)

    def finish(self, run: str) -> None:
        """Tell the sites to release what was never committed; one that is away is told by its owner."""
        self._study.release(run)
        if not self._book.run:
            return
        absent = self._ask_all(wire.FINISH, min(self._seconds, LAST_WORDS))
        gone = [name for name, code in absent.items() if code != wire.STALE]  # which has ended already
        if gone:
            remedy = f"its owner releases what is left by `dpfed site release {self._book.run}`"
            _LOG.warning("%s did not hear that the run has ended: %s", ", ".join(gone), remedy)

    def _require_supported(self, plan: Plan) -> None:
        if plan != self._plan:
            raise InvalidArgument("runner", "this runner is for another plan: give each run a runner of its own")
        if set(self._peers) != set(plan.local):
            raise InvalidArgument("sites", f"the plan is for {', '.join(plan.local)}: give the keys of each of them")
        if plan.is_secret and plan.charges_clients:
            message = "sites pay in their own ledgers, which show who was asked, so the cohort cannot be secret"
            raise InvalidArgument("cohort", f"{message}: leave secret out, or choose style user")
        if plan.client is not None and plan.client.shuffle_users is not None:
            message = "the server receives each site's report under its name, so that no shuffler hides it"
            raise InvalidArgument("shuffle", f"{message}: leave shuffle out")

    def _require_beginning(self, is_new: bool) -> None:
        if not is_new:
            message = "the book of asks is missing, which says what sites were asked"
            raise InvalidArgument("directory", f"{message}: put back a copy of the run's directory")

    def _reserve_own(self, plan: Plan, heads: list[str], *, is_new: bool) -> None:
        """Reserve what the server releases; if that is refused, the sites are told to release."""
        try:
            self._study.reserve(plan, heads)
        except Exception:
            if is_new:
                self._ask_all(wire.FINISH, min(self._seconds, LAST_WORDS))
                self._book.drop()
            raise

    def _dissolve(self, refused: Mapping[str, str]) -> None:
        """Tell the sites that agreed to release, and raise who did not."""
        agreed = [name for name in self._peers if refused.get(name) in (None, ABSENT, REFUSED)]
        self._ask_all(wire.FINISH, min(self._seconds, LAST_WORDS), agreed)
        self._book.drop()
        message = f"not all sites take part: {_format_codes(refused)}; why, each site's own log says"
        raise SiteRefused(f"{message}. Nothing was spent: change the plan, or ask their owners", refused)

    def _ask_all(self, verb: str, seconds: float, names: Iterable[str] | None = None, **fields: Any) -> dict[str, str]:
        """Return the code of each site that did not answer ok."""
        messages = {name: Message(dict(fields)) for name in (self._peers if names is None else names)}
        answers = dict(self._exchange(verb, messages, 0, seconds))
        codes = {name: answer if isinstance(answer, str) else answer.header["code"] for name, answer in answers.items()}
        return {name: code for name, code in codes.items() if code != wire.OK}

    def _make_task(self, task: Task, name: str) -> Message:
        counted = task.counted.get(name, 0)
        arrays = dict(task.vectors) if task.centre is None else {**task.vectors, wire.CENTRE: task.centre}
        model = wire.digest_task(arrays, task.clip_norm, counted)
        return Message({"model": model, "clip_norm": task.clip_norm, "counted": counted}, arrays)

    def _ask_charged(self, verb: str, task: Task, messages: Mapping[str, Message]) -> Iterator[Update | Failure]:
        for name, answer in self._exchange(verb, messages, task.round, self._seconds):
            yield self._read_update(name, task.round, answer)

    def _read_update(self, name: str, number: int, answer: Message | str) -> Update | Failure:
        code = answer if isinstance(answer, str) else answer.header["code"]
        if isinstance(answer, str) or code != wire.OK or "value" not in answer.arrays:
            return Failure(name, EXHAUSTED if code == wire.SPENT else FAILED, RuntimeError(f"{name}: {code}"))
        return Update(name, number, answer.arrays["value"], self._study.head)

    # ---- one exchange: the same question to several sites, asked again until it is answered ----

    def _exchange(
        self, verb: str, messages: Mapping[str, Message], number: int, seconds: float
    ) -> Iterator[tuple[str, Message | str]]:
        """Yield each site's answer as it arrives, or at the deadline why there is none."""
        deadline = self._now() + seconds
        open_ = {name: _Open(name) for name in messages}
        while open_ and self._now() < deadline:
            self._send(verb, [each for each in open_.values() if self._is_due(each)], messages, number, deadline)
            for name, answer in list(self._collect(open_, verb, messages, number)):
                del open_[name]
                yield name, answer
            if open_:
                self._pause(PAUSE)
        yield from ((name, ABSENT) for name in open_)

    def _is_due(self, each: _Open) -> bool:
        return each.token is None and self._now() >= each.again

    def _send(
        self, verb: str, due: Collection[_Open], messages: Mapping[str, Message], number: int, deadline: float
    ) -> None:
        """Write down what is asked of the sites that are connected, then send it."""
        addresses = {shorten(key): address for key, address in self._transport.sites().items()} if due else {}
        here = [each for each in due if self._peers[each.site].node in addresses]
        for each in here:
            after = 1 + self._answered.get(each.site, 0)
            each.nonce, each.number = secrets.token_hex(16), max(after, self._book.next_number(each.site))
        if verb in wire.CHARGED and here:
            self._book.ask([Ask(each.site, each.number, number, verb == wire.MEASURE) for each in here])
        for each in here:
            content = self._sign(verb, each, messages[each.site], number, deadline)
            address = addresses[self._peers[each.site].node]
            each.token = self._transport.push(address, content, deadline=deadline).token

    def _sign(self, verb: str, each: _Open, message: Message, number: int, deadline: float) -> bytes:
        header = self._expect(verb, each, message, number)
        header |= {"deadline": deadline, "head": self._book.heard(each.site).head}
        return wire.pack(Message({**message.header, **header}, message.arrays), self._key, wire.REQUEST)

    def _expect(self, verb: str, each: _Open, message: Message, number: int) -> dict[str, Any]:
        """Return what an answer must echo."""
        return {
            "verb": verb,
            "site": each.site,
            "run": self._book.run,
            "round": number,
            "plan": wire.digest_text(self._text),
            "model": message.header.get("model", ""),
            "nonce": each.nonce,
            "number": each.number,
        }

    def _collect(
        self, open_: Mapping[str, _Open], verb: str, messages: Mapping[str, Message], number: int
    ) -> Iterator[tuple[str, Message | str]]:
        under_way = {each.token: each for each in open_.values() if each.token is not None}
        arrivals = self._transport.pull(list(under_way)) if under_way else []
        for arrived in {arrived.token: arrived for arrived in reversed(arrivals)}.values():
            each = under_way.get(arrived.token)
            if each is not None:
                answer = self._take(each, arrived, self._expect(verb, each, messages[each.site], number))
                if answer is not None:
                    yield each.site, answer

    def _take(self, each: _Open, arrived: Arrived, expected: Mapping[str, Any]) -> Message | str | None:
        """Return the answer that arrived; None if the site is to be asked again."""
        each.token, each.tries = None, each.tries + 1
        each.again = self._now() + min(PATIENCE * 2**each.tries, MOST_PATIENCE)
        try:
            answer = self._open_answer(each.site, arrived, expected)
        except MessageRefused as error:
            _LOG.warning("%s: %s", each.site, error)
            each.refused += 1
            return REFUSED if each.refused >= MOST_REFUSED else None
        if answer is None:
            return None
        code, last = answer.header["code"], answer.header.get("last")
        self._hear(each.site, answer.header)
        if code == wire.BUSY or (code == wire.STALE and _is_number(last) and last >= each.number):
            return None  # it has answered a request that this directory does not know of: the next number is higher
        return answer

    def _open_answer(self, site: str, arrived: Arrived, expected: Mapping[str, Any]) -> Message | None:
        if arrived.content is None:
            return None
        answer = wire.unpack(arrived.content, self._peers[site].key, wire.REPLY, self._limit)
        if any(answer.header.get(name) != value for name, value in expected.items()):
            raise MessageRefused("the answer is to another request")
        if answer.header.get("code") not in wire.CODES:
            raise MessageRefused("the answer has no code that there is")
        return answer

    # ---- what sites are charged ----

    def _hear(self, site: str, header: Mapping[str, Any]) -> None:
        """Write down what the site says of itself, as far as it can be true.

        Privacy: counts settle earlier asks only if the site's ledger had the head that was last heard of: those of a
        ledger that was rolled back are too low.
        """
        counts, last, head = header.get("counts"), header.get("last"), header.get("head")
        if not _is_number(last):
            last = None
        else:
            self._answered[site] = max(last, self._answered.get(site, 0))
        reserved = self._plan.local_charges(site).values()
        if header["code"] not in SETTLING or last is None or not _are_counts(counts, reserved):
            self._book.hear(site, Heard(is_private=header.get("is_private") is True))
            return
        known = head if isinstance(head, str) and is_head(head) else ""
        self._book.hear(site, Heard(last, tuple(counts), known, header.get("is_private") is True))

    def _may_pay(self, name: str, number: int) -> bool:
        """Return whether the site may have a charge left for the round, by what it has said; it knows best itself."""
        if not self._plan.charges_clients:
            return True
        rounds, _ = self._split_heard(name)
        return not rounds or count_left(self._plan, name, number, rounds) > 0

    def _may_measure(self, name: str) -> bool:
        """Return whether the site may have a charge left for a measurement, by what it has said."""
        return not self._plan.charges_clients or self._split_heard(name)[1] < count_releases(self._plan)

    def _split_heard(self, name: str) -> tuple[dict[Event, int], int]:
        """Return what a site has said that it charged for rounds, and how often for measurements."""
        heard = dict(zip(self._plan.local_charges(name), self._book.heard(name).counts, strict=False))
        rounds, measured = split_all({name: heard}, list_client_charges(self._plan))
        return rounds[name], measured[name]


def _is_number(last: Any) -> TypeGuard[int]:
    """Return whether a site can have answered a request of that number; no larger one is ever counted up from."""
    return isinstance(last, int) and 0 <= last < MOST_NUMBER


def _are_counts(counts: Any, reserved: Collection[int]) -> TypeGuard[list[int]]:
    """Return whether a site can have charged so often."""
    if not isinstance(counts, list) or len(counts) != len(reserved):
        return False
    return all(isinstance(count, int) and 0 <= count <= most for count, most in zip(counts, reserved, strict=True))


def _format_codes(codes: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({code})" for name, code in sorted(codes.items()))

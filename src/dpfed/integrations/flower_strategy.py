"""A Flower strategy for plain Flower apps: weights are public, rules are dpfed's own, and noise is paid for first.

Flower's FedAvg weighs by counts that clients send, dies of a wrong shape and averages NaN. Here every node counts
alike, what is malformed contributes zero, and no metric of a client is read::

    strategy = PrivateStrategy(clients=10, rule=TrimmedMean(max_faulty=2))  # sites noise what they send
    strategy = PrivateStrategy.user(...)                                    # the server clips, sums and noises

>>> strategy = PrivateStrategy(clients=2)
>>> strategy.rule, strategy.promise
(Mean(), None)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Self

import numpy as np

from dpfed import checks
from dpfed.aggregation.rules import Mean, Rule
from dpfed.aggregation.screening import Arrival, UpdateCheck
from dpfed.arrays import Floats
from dpfed.errors import BreakdownError, InvalidArgument, NotReserved
from dpfed.federated.runners.charging import SharedLedger
from dpfed.guarantee import CLIENT, Guarantee
from dpfed.integrations.flower_records import Request, read_arrays
from dpfed.ledger.ledger import Ledger
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan, Population
from dpfed.randomness import RandomSource, or_system

# Flower sends usage data to its makers and asks them for updates unless these are set; whoever wants that sets them.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

LONGEST = 1e6  # the norm above which an update is nonsense


class PrivateStrategy(FedAvg):
    """A strategy that asks every connected node and averages over `clients`, a declared constant.

    Without noise of its own it is for sites that noise what they send: then any `rule` is post-processing. Too few
    updates for a rule leave the model as it is. `PrivateStrategy.user` makes one that clips and noises.

    Privacy: with a plan, a round is ``plan.server`` (`ServerRelease`): the sum of all updates within the clip norm,
    noised on a grid from a source of its own and divided by `clients`. A client that is not there, fails or sends
    something else contributes zero, and noise is released all the same, so adding or removing one moves the sum by at
    most the clip norm. Each round is committed to the study's account before its noise is drawn. A client is one node.
    Nothing else that a client sends is read. Not covered: who is connected, how long a round takes, and the server
    itself, which sees every update.
    """

    def __init__(
        self,
        *,
        clients: int,
        rule: Rule | None = None,
        max_update_norm: float = LONGEST,
        source: RandomSource | None = None,
        min_available_nodes: int | None = None,
    ) -> None:
        self.clients = checks.count(clients=clients)
        least = self.clients if min_available_nodes is None else checks.count(min_available_nodes=min_available_nodes)
        super().__init__(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=least)
        self.rule: Rule = Mean() if rule is None else rule
        self._largest = checks.positive(max_update_norm=max_update_norm)
        self._source = or_system(source)
        self.plan: Plan | None = None
        self._charging = SharedLedger(None, {})
        self._request: Request | None = None
        self._asked: frozenset[str] = frozenset()
        self._last: Floats | None = None

    @classmethod
    def user(
        cls,
        run: str,
        *,
        clients: int,
        rounds: int,
        clip_norm: float,
        epsilon: float,
        ledger: Ledger,
        account: str,
        rule: Rule | None = None,
        spare_rounds: int = 0,
        source: RandomSource | None = None,
        min_available_nodes: int | None = None,
    ) -> Self:
        """Return the strategy with the least noise at which all rounds keep ε for one client, reserved on the account.

        δ and the neighbouring relation are the account's. After a crash the run goes on with what is left of it.
        """
        chosen: Rule = Mean() if rule is None else rule
        terms = ledger.terms([account])[account]
        part = LocalPlan(size=1, batch_size=1, steps=1)  # how clients train is their own business
        plan = Plan(
            run,
            rounds,
            Population(checks.count(clients=clients), part),
            style="user",
            client=ClientPlan(clip_norm=clip_norm),
            aggregation=chosen,
            spare_rounds=spare_rounds,
        ).calibrated(Guarantee(epsilon, terms.delta, CLIENT, terms.adjacency))
        made = cls(clients=clients, rule=chosen, source=source, min_available_nodes=min_available_nodes)
        made.plan, made._charging = plan, SharedLedger(ledger, {}, account)
        made._charging.reserve(plan, heads=[str(ledger.head())])
        return made

    @property
    def promise(self) -> Guarantee | None:
        """What all rounds together keep for one client; None where the strategy adds no noise."""
        return None if self.plan is None else self.plan.client_guarantee

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask every connected node; refuse a round that is not reserved before anybody is asked."""
        if self.plan is not None and not any(self._charging.charged().left.values()):
            message = f"all {self.plan.client_charges} rounds of run {self.plan.name!r} are charged"
            raise NotReserved(f"{message}: plan a new run under another name")
        self._request = Request("arrays", read_arrays(arrays))
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._asked = frozenset(str(message.metadata.dst_node_id) for message in messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next model; no metrics, which would be the clients' own."""
        request, self._request = self._request, None
        if request is None:
            raise InvalidArgument("replies", "these replies are to no open round: call configure_train before")
        updates = self._screen(request, server_round, replies)
        try:
            average = self._average(updates, request.dimension, server_round)
        except BreakdownError:
            return None, None
        self._last = average
        return request.answer(request.place(average), weight=1).array_records["arrays"], None

    def _screen(self, request: Request, server_round: int, replies: Iterable[Message]) -> dict[str, Floats]:
        """Return the updates of nodes that were asked, each once; what is malformed is left out."""
        largest = self._largest if self.plan is None else self.plan.largest_norm(request.dimension)
        check = UpdateCheck(server_round, {"update": (request.dimension,)}, self._asked, largest)
        answers = (reply for reply in replies if reply.has_content())
        arrivals = (Arrival(str(reply.metadata.src_node_id), server_round, _read(request, reply)) for reply in answers)
        return check.screen(arrivals).accepted

    def _average(self, updates: dict[str, Floats], dimension: int, server_round: int) -> Floats:
        centre = np.zeros(dimension) if self._last is None else self._last
        if self.plan is None:
            weights = dict.fromkeys(updates, 1 / self.clients)
            return self.rule.combined(updates, dimension, weights, centre=centre, source=self._source)
        self._charging.commit_release(1, server_round)
        source = self._source.once(f"release {self._charging.charged().release_number} {self.plan.name}")
        return self.plan.server.release(updates, dimension, source, centre=centre).average


def _read(request: Request, reply: Message) -> Floats:
    """Return the update in a reply; nothing that is one where the reply is not of the model's form."""
    try:
        (record,) = reply.content.array_records.values()
        return request.subtract_from(read_arrays(record))
    except Exception:  # of whatever a client sent
        return np.zeros(0)

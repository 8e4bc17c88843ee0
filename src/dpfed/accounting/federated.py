"""What each client of a federation has spent, round by round, at two levels that are never mixed up.

*Sample* level protects one record of a client's data and is spent where that client trains; *user* level
protects a whole client and is spent by the server. Rates and steps differ between clients, so the
record-level figure of a federation is its **worst client's**: an average would promise
the smallest site a privacy that it does not have.

>>> accountant = FederatedAccountant(target_delta=1e-5)
>>> for round_num in (1, 2):
...     accountant.record_round(
...         round_num, noise_multiplier_sample=1.0, sample_rate_sample=0.1, steps_sample=100
...     )
>>> round(accountant.get_cumulative_sample_epsilon(), 2)
9.97
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpfed import checks
from dpfed.accounting.calibrate import dp_sgd_event
from dpfed.accounting.round_history import RoundHistory, RoundRecord, client_name, read_history
from dpfed.accounting.tally import Tally
from dpfed.checks import ADD_REMOVE
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee

VERSION = 1
SAMPLE = "sample"
USER = "user"
# A checkpoint without its histories would have spent nothing.
_FIELDS = {"target_delta", "sample_history", "user_history"}


def epsilon_by_round(
    noise_multiplier: float,
    sample_rate: float,
    steps_per_round: int,
    num_rounds: int,
    delta: float,
    *,
    adjacency: str = ADD_REMOVE,
) -> tuple[float, ...]:
    """Return the cumulative ε after each round of a plan whose rounds are all alike."""
    event = dp_sgd_event(noise_multiplier, sample_rate, checks.count(steps_per_round=steps_per_round))
    delta = checks.probability(delta=delta)
    tally, table = Tally(checks.adjacency(adjacency)), []
    for _ in range(checks.count(num_rounds=num_rounds)):
        tally.add(event)
        table.append(tally.epsilon(delta))
    return tuple(table)


@dataclass(frozen=True)
class ConservativeTotal:
    """The two levels' ε added up, and their δ too: one number for those who must have one.

    It promises nothing that ``statements`` do not promise better. The units differ (a record, a client),
    which is why the sum is no `Guarantee` and has no unit of its own.
    """

    epsilon: float
    delta: float
    statements: tuple[Guarantee, ...]

    def __str__(self) -> str:
        parts = " and ".join(map(str, self.statements)) or "nothing recorded"
        return f"ε = {self.epsilon:.6g}, δ = {self.delta:.6g} in all (conservative; {parts})"


class FederatedAccountant:
    """A running count of what every client has spent, at sample level and at user level, composed exactly.

    A round is recorded for a named client, or for every client at once (client None). Both compose: what is
    recorded for every client also counts for each named one, whether it was named before or is named later. A
    client that sat a round out, or stopped early, is recorded with what it did. One round is recorded at most
    once per client and level.
    """

    def __init__(
        self,
        target_delta: float = 1e-5,
        *,
        target_delta_user: float | None = None,
        adjacency: str = ADD_REMOVE,
    ) -> None:
        self.target_delta = checks.positive_probability(target_delta=target_delta)
        user = target_delta if target_delta_user is None else target_delta_user
        self.target_delta_user = checks.positive_probability(target_delta_user=user)
        self.adjacency = checks.adjacency(adjacency)
        self._levels = {
            SAMPLE: RoundHistory(self.target_delta, self.adjacency),
            USER: RoundHistory(self.target_delta_user, self.adjacency),
        }

    def record_round(
        self,
        round_num: int,
        noise_multiplier_sample: float | None = None,
        sample_rate_sample: float | None = None,
        steps_sample: int | None = None,
        noise_multiplier_user: float | None = None,
        sample_rate_user: float | None = None,
        steps_user: int | None = None,
        client: str | int | None = None,
    ) -> None:
        """Record one round at either level or both; refused as a whole if any part of it is.

        A level is recorded when its noise multiplier is given. Without a sample rate it took part for
        certain, and without steps_user the server made one release.
        """
        name = client_name(client)
        sample = _record(SAMPLE, round_num, name, noise_multiplier_sample, sample_rate_sample, steps_sample)
        user = _record(USER, round_num, name, noise_multiplier_user, sample_rate_user, steps_user)
        given = {level: record for level, record in ((SAMPLE, sample), (USER, user)) if record is not None}
        if not given:
            raise InvalidArgument(
                "noise_multiplier_sample",
                "a round needs noise_multiplier_sample, noise_multiplier_user or both",
            )
        for level, record in given.items():
            self._levels[level].require_new(record, level)
        for level, record in given.items():
            self._levels[level].add(record)

    def get_cumulative_sample_epsilon(self) -> float:
        """Return the record-level ε of the worst client so far, at target_delta; 0.0 before anything."""
        return self._levels[SAMPLE].worst()

    def get_cumulative_user_epsilon(self) -> float:
        """Return the client-level ε of the worst client so far, at target_delta_user; 0.0 before anything."""
        return self._levels[USER].worst()

    def get_client_epsilon(self, client: str | int, level: str = SAMPLE) -> float:
        """Return the ε of one client so far; one that was never named has what was recorded for every client."""
        return self._level(level).epsilon(client_name(client))

    def clients(self, level: str = SAMPLE) -> tuple[str, ...]:
        """Return the clients that were ever named at a level."""
        return self._level(level).names()

    def worst_client(self, level: str = SAMPLE) -> str | None:
        """Return the client whose ε is reported; None where it is that of any client that was never named."""
        return self._level(level).worst_name()

    def epsilon_by_round(self, level: str = SAMPLE) -> dict[int, float]:
        """Return the worst client's cumulative ε after each recorded round."""
        return self._level(level).by_round()

    def guarantees(self) -> tuple[Guarantee, ...]:
        """Return one statement per level that was recorded: for a record, for a client."""
        rows = ((SAMPLE, "record", self.target_delta), (USER, "client", self.target_delta_user))
        return tuple(
            Guarantee(self._levels[level].worst(), delta, unit=unit, adjacency=self.adjacency)
            for level, unit, delta in rows
            if self._levels[level].records
        )

    def conservative_total(self) -> ConservativeTotal:
        """Add up both levels, ε and δ; see `guarantees` for what is really promised."""
        parts = self.guarantees()
        return ConservativeTotal(sum(part.epsilon for part in parts), sum(part.delta for part in parts), parts)

    def state_dict(self) -> dict[str, Any]:
        """Return the privacy block of a checkpoint, as plain JSON values; loading believes the histories only."""
        return {
            "version": VERSION,
            "target_delta": self.target_delta,
            "target_delta_user": self.target_delta_user,
            "adjacency": self.adjacency,
            "sample_history": self._levels[SAMPLE].history(),
            "user_history": self._levels[USER].history(),
            "cumulative_sample_epsilon": _finite(self.get_cumulative_sample_epsilon()),
            "cumulative_user_epsilon": _finite(self.get_cumulative_user_epsilon()),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> FederatedAccountant:
        """Return the accountant that `state_dict` described; bare (σ, q, T) rows are rounds of every client.

        Every ε is computed anew: a stored one is never believed.
        """
        if not isinstance(state, Mapping) or state.get("version", VERSION) != VERSION:
            raise InvalidArgument(
                "state", f"state must be what state_dict() returned in version {VERSION}, got {state!r:.80}"
            )
        missing = _FIELDS - state.keys()
        if missing:
            raise InvalidArgument(
                "state", f"state must be all that state_dict() returned, but lacks {', '.join(sorted(missing))}"
            )
        accountant = cls(
            state["target_delta"],
            target_delta_user=state.get("target_delta_user"),
            adjacency=state.get("adjacency", ADD_REMOVE),
        )
        for level, key in ((SAMPLE, "sample_history"), (USER, "user_history")):
            for record in read_history(state[key]):
                accountant._levels[level].require_new(record, level)
                accountant._levels[level].add(record)
        return accountant

    def __repr__(self) -> str:
        parts = "; ".join(map(str, self.guarantees())) or "nothing recorded"
        return f"<FederatedAccountant: {parts}>"

    def _repr_html_(self) -> str:
        return "".join(part._repr_html_() for part in self.guarantees()) or "<p>nothing recorded</p>"

    def _level(self, name: str) -> RoundHistory:
        if name not in self._levels:
            raise InvalidArgument("level", f"level must be {SAMPLE!r} or {USER!r}, got {name!r}")
        return self._levels[name]


def _record(
    level: str,
    round_num: int,
    client: str | None,
    noise_multiplier: float | None,
    sample_rate: float | None,
    steps: int | None,
) -> RoundRecord | None:
    if noise_multiplier is None:
        if sample_rate is not None or steps is not None:
            raise InvalidArgument(
                f"noise_multiplier_{level}", f"a {level}-level round needs noise_multiplier_{level}, got none"
            )
        return None
    if steps is None and level == SAMPLE:
        raise InvalidArgument("steps_sample", "a sample-level round needs steps_sample, got none")
    return RoundRecord(
        round_num,
        client,
        checks.positive(**{f"noise_multiplier_{level}": noise_multiplier}),
        checks.rate(**{f"sample_rate_{level}": 1.0 if sample_rate is None else sample_rate}),
        checks.count(**{f"steps_{level}": 1 if steps is None else steps}),
    )


def _finite(epsilon: float) -> float | None:
    """Return the ε as strict JSON can hold it: None for ∞."""
    return epsilon if epsilon < math.inf else None

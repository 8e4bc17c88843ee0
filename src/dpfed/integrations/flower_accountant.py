"""Flower's accountant on a ledger: each release of its fixed clipping is on disk before the model leaves the strategy.

Flower's own accountant lives in memory, counts a release after it was made, and states ε for adding or removing a
client where its strategy protects one that is replaced. Give this one in its place::

    accountant = LedgerAccountant(
        ledger, "study", run="study-12", rounds=3, noise_multiplier=4.0, population_size=10, arrays=initial_arrays
    )
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(...), 4.0, 1.0, 10, accountant=accountant)

>>> from flwr.app import Array
>>> from dpfed.ledger.ledger import Ledger
>>> arrays = ArrayRecord({"weight": Array(np.zeros(2, np.float32))})
>>> with Ledger("sqlite:///ledger.db") as ledger:
...     _ = ledger.open("study", epsilon=8.0, delta=1e-5, unit="client", adjacency="replace_one")
...     accountant = LedgerAccountant(
...         ledger, "study", run="study-12", rounds=3, noise_multiplier=4.0, population_size=10, arrays=arrays
...     )
...     accountant.compose(GaussianPrivacyEvent(4.0, sample_size=10, population_size=10))
...     accountant.num_releases, round(accountant.get_epsilon(1e-5), 3)
(1, 1.993)
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from dpfed import checks
from dpfed.accounting.queries import delta as delta_of
from dpfed.accounting.queries import epsilon as epsilon_of
from dpfed.checks import REPLACE_ONE
from dpfed.errors import AdjacencyMismatch, InvalidArgument, LedgerRolledBack
from dpfed.events import Event, Gaussian, Repeated
from dpfed.guarantee import CLIENT
from dpfed.ledger.ledger import Ledger

# Flower sends usage data to its makers and asks them for updates unless these are set; whoever wants that sets them.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from flwr.app import ArrayRecord
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

STATE_WORDS = 624  # of 32 bits, in the state of numpy's global generator
METHOD = "dpfed ledger, replace-one, exact"


class LedgerAccountant:
    """The `PrivacyAccountant` of a Flower strategy with fixed clipping, on an account of a ledger.

    It reserves `rounds` releases of that noise under the name `run`, and after a crash goes on with what is left of
    them. `arrays` are those that the strategy starts from. Flower has no word for what its fixed clipping protects, so
    its `config` says add-or-remove-one; every ε from here is for replace-one.

    Privacy: a release is the mean of n updates within the clip norm C, with noise of noise_multiplier · C/n in each
    number; n is fixed, and Flower releases nothing where fewer answer. So one client less is another one in its place,
    or no release at all: what is protected is that a client's data are replaced by any others, which moves the mean by
    2C/n. That is ``Gaussian(noise_multiplier)`` on an account for replace_one, whose accountant doubles the shift. No
    cohort is counted as secret. The commit is durable before the noised model is returned; if it is refused, nothing
    is. Flower clips no array without dimensions (a learned temperature), and noises only floats: both are refused.

    Flower draws its noise from numpy's global generator, which apps often seed: it is seeded anew, by the operating
    system, before each round.

    Not covered: an update with NaN or infinite numbers, which Flower does not clip: it makes the model NaN, for all to
    see; metrics, which Flower averages without noise; whether a round was released; that generator, which is no
    cipher; rounding in float32, which may move the mean of n clients by n·(n + 2)·2⁻²⁴·‖model‖/C of its sensitivity
    more; a strategy of your own that asks one client twice in a round; with client-side clipping, clients that do not
    clip. `PrivateStrategy.user` has none of these. ε is that of this run; the account's statement has all runs.
    """

    def __init__(
        self,
        ledger: Ledger,
        account: str,
        *,
        run: str,
        rounds: int,
        noise_multiplier: float,
        population_size: int,
        arrays: ArrayRecord,
    ) -> None:
        _require_clippable(arrays)
        terms = ledger.terms([account])[account]
        if terms.unit != CLIENT:
            message = f"Flower clips whole clients, and account {account} is for one {terms.unit}"
            raise InvalidArgument("account", f"{message}: give an account whose unit is {CLIENT}")
        if terms.adjacency != REPLACE_ONE:
            message = (
                f"account {account} is for {terms.adjacency}; Flower's fixed number of clients protects who is replaced"
            )
            raise AdjacencyMismatch(f"{message}: give an account that was opened for {REPLACE_ONE}")
        self._ledger = ledger
        self._account = account
        self._delta = terms.delta
        self._event = Gaussian(checks.positive(noise_multiplier=noise_multiplier))
        self._rounds = checks.count(rounds=rounds)
        self._config = PrivacyConfig(
            target_delta=terms.delta,
            population_size=checks.count(population_size=population_size),
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
            max_epsilon=ledger.balance(account).cap.epsilon,
        )
        self._held = ledger.account(account).reserve({self._event: self._rounds}, run=run)

    @property
    def config(self) -> PrivacyConfig:
        """Flower's settings; its word for the neighbouring relation is weaker than what is stated here."""
        return self._config

    @property
    def num_releases(self) -> int:
        """How many releases of the run are committed, by whichever process."""
        return self._rounds - self._held.left(self._event)

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Commit the releases: durable when it returns, and refused if the run did not reserve them."""
        self._held.commit(self._read(event), checks.count(count=count))

    def would_exceed(self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Return whether so many more releases are not reserved, or take ε above a limit that is given."""
        own, more = self._read(event), checks.count(count=count)
        _reseed()  # Flower asks before each round, and nothing of ours is called before it draws noise
        if own != self._event or self._held.left(self._event) < more:
            return True
        limit = self._config.max_epsilon if max_epsilon is None else checks.positive(max_epsilon=max_epsilon)
        return limit is not None and self._epsilon(self.num_releases + more, self._delta) > limit

    def get_epsilon(self, delta: float) -> float:
        """Return the ε of the releases so far (ex post) for one client that is replaced, rounded up."""
        return self._epsilon(self.num_releases, delta)

    def get_delta(self, epsilon: float) -> float:
        """Return the δ of the releases so far at that ε, rounded up."""
        taken = self.num_releases
        return delta_of(self._repeat(taken), epsilon, adjacency=REPLACE_ONE) if taken else 0.0

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Return what the releases so far cost, at the account's δ unless another one is given."""
        chosen = self._delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(chosen), chosen, self.num_releases, METHOD)

    def state_dict(self) -> dict[str, object]:
        """Return where the state is: the ledger keeps it, and a checkpoint of Flower only points there."""
        head = str(self._ledger.head())
        return {"backend": METHOD, "account": self._account, "run": self._held.run, "head": head}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Refuse a checkpoint of another run, or one that has seen more of the ledger than there is."""
        own = self.state_dict()
        if any(state.get(name) != own[name] for name in ("backend", "account", "run")):
            message = "this checkpoint is of another account or run, or of another accountant"
            raise InvalidArgument("state", f"{message}: go on with the run that it was made in")
        if not isinstance(head := state.get("head"), str):
            raise LedgerRolledBack("the checkpoint does not say what it has seen of the ledger: use one as it was made")
        self._ledger.require(head)

    def _epsilon(self, releases: int, delta: float) -> float:
        return epsilon_of(self._repeat(releases), delta, adjacency=REPLACE_ONE) if releases else 0.0

    def _repeat(self, releases: int) -> Event:
        return Repeated(self._event, releases)

    def _read(self, event: GaussianPrivacyEvent) -> Gaussian:
        if event.population_size != self._config.population_size:
            message = f"a release among {event.population_size} clients, and the accountant is for "
            remedy = "give both the same population_size"
            raise InvalidArgument("event", f"{message}{self._config.population_size}: {remedy}")
        return Gaussian(event.noise_multiplier)


def _reseed() -> None:
    """Seed numpy's global generator with as many bits as its state has, so that nobody can repeat what it draws."""
    np.random.seed(np.frombuffer(os.urandom(4 * STATE_WORDS), np.uint32))


def _require_clippable(arrays: ArrayRecord) -> None:
    """Refuse a model of which Flower would not clip and noise every number."""
    if not arrays:
        raise InvalidArgument("arrays", "there is no array to protect: give those that the strategy starts from")
    for name, array in arrays.items():
        value = array.numpy()
        if value.ndim < 1:
            message = f"{name} is a single number without dimensions, which Flower does not clip"
            raise InvalidArgument("arrays", f"{message}: give it the shape (1,)")
        if value.dtype not in (np.float32, np.float64):
            message = f"{name} is of {value.dtype}, which Flower does not noise, or with too few digits"
            raise InvalidArgument("arrays", f"{message}: send parameters of float32 or float64, and no counters")

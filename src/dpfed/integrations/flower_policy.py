"""What may leave a site that runs its own Flower client: a plan, the account that pays for it, a public weight.

On a stock SuperNode the server proposes no plan: the site's own policy is the plan, and a message that asks for
training is one participation in it, charged before the site's code sees a record.

>>> from dpfed.ledger.ledger import Ledger
>>> with Ledger("sqlite:///ledger.db") as ledger:
...     _ = ledger.open("north-2026", epsilon=9.0, delta=1e-5, unit="client", adjacency="replace_one")
>>> policy = SitePolicy.local(
...     "study", rounds=3, clip_norm=1.0, epsilon=8.0, delta=1e-5, ledger="sqlite:///ledger.db", account="north-2026"
... )
>>> [policy.pay().number for _ in range(2)]
[1, 2]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from dpfed import checks
from dpfed.checks import REPLACE_ONE
from dpfed.errors import InvalidArgument, NotReserved
from dpfed.federated.runners.charging import SharedLedger
from dpfed.guarantee import CLIENT, LOCAL, Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.randomness import RandomSource, or_system
from dpfed.runs.directory import OWNER_ONLY, write_durably

SITE, SAMPLE = "site", "sample"  # the one client of a site's own plan, and the style of private steps
TRUST = (
    "On a stock SuperNode the site runs the app bundle that it is sent, this wrapper included: it trusts whoever can "
    "start runs on its SuperLink with all its records. Where that is too much, run `dpfed site serve` instead."
)
HEAD = ".head"  # the end of the name of the file beside the ledger
NOT_COVERED = "how long training took, whether the site answered at all, and what its own code writes elsewhere"


class _HeadFile:
    """The head after the last charge, in a file beside a ledger that is a file; one in a server's care has none."""

    def __init__(self, ledger: Path | None) -> None:
        self._path = None if ledger is None else ledger.with_name(f"{ledger.name}{HEAD}")

    def read(self) -> list[str]:
        """Return the head; nothing before the first charge."""
        if self._path is None or not self._path.exists():
            return []
        return [self._path.read_text(encoding="ascii")]

    def write(self, head: str) -> None:
        """Store the head durably, before anything that was charged leaves."""
        if self._path is not None:
            write_durably(self._path, head.encode("ascii"), mode=OWNER_ONLY)


class Payment(NamedTuple):
    """One training that is paid for: its number in the run, and the ledger's head after it."""

    number: int
    head: str


@dataclass(frozen=True)
class SitePolicy:
    """The plan of one site, its ledger and account, and the weight that its update is averaged with.

    `weight` is what the server is told instead of a count of examples: a public constant, the same in every round.
    `source` gives the noise; leave it out but in tests.

    Privacy: each training is one ``plan.local_event`` for the account, durable before the site's code runs; all that
    the plan reserves together is its guarantee. In style `local` that is of the whole site, replace_one, and other
    accounts on the same data pay as well (`SharedLedger`); in style `sample` of one record or person.
    """

    plan: Plan
    ledger: str
    account: str
    weight: int = 1
    source: RandomSource | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan) or self.plan.style not in (LOCAL, SAMPLE):
            message = "a site adds noise to its update or to its steps, so its plan has style 'local' or 'sample'"
            raise InvalidArgument("plan", f"{message}: use SitePolicy.local(...) or SitePolicy.sample(...)")
        if set(self.plan.local) != {SITE}:
            message = f"the plan must be of this site alone, under the name {SITE!r}"
            raise InvalidArgument("plan", f"{message}: use SitePolicy.local(...) or SitePolicy.sample(...)")
        if self.plan.noise_schedule is not None or (self.plan.client and self.plan.client.shuffle_users):
            message = "a message does not prove in which round it is asked, nor that a shuffler is on the way"
            raise InvalidArgument("plan", f"{message}: leave noise_schedule and shuffle_users out")
        object.__setattr__(self, "weight", checks.count(weight=self.weight))
        self.plan.local_charges(SITE)  # a plan without noise is refused now

    @classmethod
    def local(
        cls,
        run: str,
        *,
        rounds: int,
        clip_norm: float,
        epsilon: float,
        delta: float,
        ledger: str,
        account: str,
        weight: int = 1,
        source: RandomSource | None = None,
    ) -> Self:
        """Return the policy of a site whose whole update is clipped and noised before it leaves.

        Privacy: (ε, δ) for the whole site over all rounds, if its records are replaced by any others.
        """
        part = LocalPlan(size=1, batch_size=1, steps=1)  # how the site trains is its own code's business
        plan = Plan(run, rounds, {SITE: part}, style=LOCAL, client=ClientPlan(clip_norm=clip_norm))
        promise = Guarantee(epsilon, delta, CLIENT, REPLACE_ONE)
        return cls(plan.calibrated(promise), ledger, account, weight, source)

    @classmethod
    def sample(
        cls,
        run: str,
        *,
        rounds: int,
        steps: LocalPlan,
        epsilon: float,
        delta: float,
        ledger: str,
        account: str,
        weight: int = 1,
        source: RandomSource | None = None,
    ) -> Self:
        """Return the policy of a site that trains by `make_private`; `steps` is its part of one round.

        Privacy: (ε, δ) for one record or person (`steps.unit`) over all rounds, under the adjacency of `steps`.
        """
        promise = Guarantee(epsilon, delta, steps.unit, steps.adjacency)
        return cls(Plan(run, rounds, {SITE: steps}).calibrated(promise), ledger, account, weight, source)

    @property
    def steps(self) -> LocalPlan:
        """The site's part of a round in style `sample`."""
        return self.plan.local[SITE]

    def pay(self, heads: Iterable[str] = ()) -> Payment:
        """Commit one training to the site's ledger: durable when it returns.

        A ledger that lacks one of the `heads`, or the one in the file beside it, was replaced by an older copy, and is
        refused: also after the SuperNode was started again.
        """
        with Ledger(self.ledger, create=False) as ledger:
            charging, known = SharedLedger(ledger, {SITE: self.account}), _HeadFile(ledger.file)
            heads = [*heads, *known.read(), charging.head]
            charging.reserve(self.plan, heads=heads)  # a spent run is refused below, not there
            if charging.left(SITE, 1) < 1:
                message = f"all {self.plan.record_charges} trainings of run {self.plan.name!r} are charged"
                raise NotReserved(f"{message}: plan a new run under another name")
            charging.commit_local([SITE], 1)
            known.write(charging.head)
            return Payment(charging.times(SITE), charging.head)

    def noise_source(self, number: int) -> RandomSource:
        """Return the source of randomness of that charge: no charge comes twice, so no noise does."""
        return or_system(self.source).once(f"charge {number} {self.plan.name}")

    def explain(self) -> str:
        """Return in words what is promised, whom the site trusts, and what is not covered."""
        promises = "\n".join(f"- {promise}" for promise in self.plan.guarantees)
        what = (
            "its whole update, clipped and noised" if self.plan.noises_updates else "the model that private steps made"
        )
        seeded = "NOT PRIVATE: its noise comes from a source that others can repeat."
        lines = (
            "" if or_system(self.source).is_private else seeded,
            f"Run {self.plan.name}: the site answers at most {self.plan.record_charges} trainings.",
            f"What leaves it is {what}, and the weight {self.weight}, a constant.",
            promises,
            TRUST,
            f"Not covered: {NOT_COVERED}.",
        )
        return "\n".join(line for line in lines if line)

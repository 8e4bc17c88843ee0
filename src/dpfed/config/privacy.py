"""The blocks ``privacy:`` and ``ledger:``: what is promised to whom, and which accounts are charged.

>>> Privacy(style="none").record is None
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from dpfed.config.fields import Block, Number, SettingError, Whole, quote, setting
from dpfed.guarantee import LOCAL, UNITS_OF_STYLE

Factor = Annotated[Number, Field(gt=0)]
PERSON = "person"  # stands wherever a record does, if the data name the person of each row


class Adaptive(Block):
    """A clip norm that follows a quantile (Andrew et al. 2021)."""

    quantile: Number = setting(
        0.5, symbol="γ", effect="the share of contributions that is to stay unclipped", gt=0, lt=1
    )
    learning_rate: Number = setting(0.2, symbol="η_C", effect="how fast the clip norm follows", gt=0)
    count_noise: Number = setting(
        symbol="σ_b", effect="noise on the count of unclipped contributions; it is charged together with the sum", gt=0
    )


class PassTree(Block):
    """Correlated noise over the steps of a round, and no sampling (DP-FTRL)."""

    max_participations: Whole = setting(
        1, effect="the passes over the data in one round, at most: a second one must be declared", ge=1
    )
    restarts: Whole = setting(0, effect="how often a new tree is started", ge=0)


class RoundsTree(Block):
    """Correlated noise over the rounds, and no amplification by a secret cohort (DP-FTRL)."""

    min_separation: Whole = setting(1, effect="rounds from one participation of a client to its next, at least", ge=1)
    restarts: Whole = setting(0, effect="how often a new tree is started", ge=0)


class Shuffle(Block):
    """A shuffler between clients and server, which mixes the reports of a round and strips their names."""

    users: Whole = setting(
        symbol="n",
        effect=(
            "honest reports in each round, at least: with fewer the shuffler hands on nothing; more of them hide each "
            "one better"
        ),
        ge=1,
    )


class UnitPrivacy(Block):
    """A promise for one unit, or the noise to use."""

    epsilon: Number | None = setting(
        None,
        symbol="ε",
        effect="the promise for the whole run: smaller is more private; noise is calibrated to it",
        gt=0,
    )
    epsilon_per_round: Number | None = setting(
        None,
        symbol="ε̄",
        effect=(
            "the promise for one round alone, in place of epsilon (with norm: l1 at δ = 0); that of the whole run is "
            "composed by the accountant and printed beside it"
        ),
        gt=0,
    )
    delta: Number = setting(
        symbol="δ",
        effect="the chance that the promise does not hold; far below one over the number of those protected",
        gt=0,
        lt=1,
    )
    clip_norm: Number = setting(
        symbol="C",
        effect=(
            "each contribution (a record's or person's gradient, a client's update) is scaled down to at most this "
            "length: smaller needs less noise and distorts more"
        ),
        gt=0,
    )
    noise_multiplier: Number | None = setting(
        None, symbol="σ", effect="noise over the clip norm, in place of epsilon", gt=0
    )
    adaptive: Adaptive | None = setting(None, effect="let the clip norm follow a quantile; clip_norm is then the first")

    @model_validator(mode="after")
    def _require_one_aim(self) -> Self:
        given = [self.epsilon, self.epsilon_per_round, self.noise_multiplier]
        if given.count(None) != 2:
            raise SettingError(
                "epsilon",
                "and noise_multiplier are two ways to say how much noise there is, and epsilon_per_round a third: give "
                "one of them",
            )
        return self


class RecordPrivacy(UnitPrivacy):
    """The promise for one record, or one person, of a client: DP-SGD on the client's side."""

    norm: Literal["l2", "l1"] = setting("l2", effect="l2 with Gaussian noise, or l1 with Laplace noise")
    noise: Literal["own", "shared"] = setting(
        "own", effect="own: each client adds the noise that it needs; shared: all add that of the one that needs most"
    )
    layers: Literal["together", "each"] = setting("together", effect="clip the whole gradient or each layer of it")
    tree: PassTree | None = setting(None, effect="passes with correlated noise in place of samples (DP-FTRL)")

    @model_validator(mode="after")
    def _require_one_noise(self) -> Self:
        if self.adaptive is not None and self.norm == "l1":
            raise SettingError(
                "adaptive", "goes with norm: l2 only: it splits Gaussian noise between the sum and a count"
            )
        if self.tree is not None and (self.adaptive is not None or self.norm == "l1"):
            raise SettingError("tree", "goes with norm: l2 and without adaptive only: it is proved for one clip norm")
        return self


class ClientPrivacy(UnitPrivacy):
    """The promise for a client as a whole: clipped updates, and noise at the server or at the client itself."""

    norm: Literal["l2", "l1"] = setting(
        "l2", effect="l2 with Gaussian noise, or l1 with Laplace noise, where each client adds it (local)"
    )
    tree: RoundsTree | None = setting(
        None, effect="noise correlated over the rounds (DP-FTRL); max_participations bounds the rounds of a client"
    )

    shuffle: Shuffle | None = setting(
        None, effect="mix the reports of all clients (local, with norm: l1): a second, smaller ε is printed beside"
    )

    @model_validator(mode="after")
    def _require_one_clip_norm(self) -> Self:
        if self.tree is not None and self.adaptive is not None:
            raise SettingError("tree", "goes without adaptive only: it is proved for one clip norm")
        if self.tree is not None and self.epsilon_per_round is not None:
            raise SettingError("epsilon_per_round", "goes without tree only: the rounds of a tree are one release")
        return self


class GeometricSchedule(Block):
    """Factors of noise from the first round to the last, each by the same ratio from the one before."""

    first: Number = setting(effect="the factor of the first round", gt=0)
    last: Number = setting(effect="the factor of the last round", gt=0)


def _find_form(value: Any) -> str:
    """Return which form a schedule has, so that a mistake in one is not judged as the other."""
    return "ends" if isinstance(value, Mapping | GeometricSchedule) else "list"


Schedule = Annotated[
    Annotated[tuple[Factor, ...], Tag("list")] | Annotated[GeometricSchedule, Tag("ends")], Discriminator(_find_form)
]


class Privacy(Block):
    """The promises of a run, and whom they protect."""

    style: Literal["none", "sample", "user", "hybrid", "local"] = setting(
        effect=(
            "sample protects a record or person, user a client with all it holds, hybrid both in two statements, local "
            "a client from the server too: each adds noise to its own update"
        )
    )
    record: RecordPrivacy | None = setting(None, effect="the promise for one record (sample, hybrid)")
    person: RecordPrivacy | None = setting(
        None, effect="the promise for one person with all rows, in place of record; needs data.person_column"
    )
    client: ClientPrivacy | None = setting(None, effect="the promise for one client (user, hybrid, local)")
    noise_schedule: Schedule | None = setting(
        None, effect="public factors of the noise by round: a list with one for each round, or first and last"
    )

    @field_validator("noise_schedule", mode="before")
    @classmethod
    def _require_schedule(cls, given: Any) -> Any:
        if not isinstance(given, list | tuple | Mapping | GeometricSchedule | None):
            raise ValueError(f"must be a list with a factor for each round, or first and last, got {quote(given)}")
        return given

    @property
    def local(self) -> RecordPrivacy | None:
        """The promise that clients keep by noise of their own, for one record or one person."""
        return self.person if self.record is None else self.record

    @model_validator(mode="after")
    def _require_blocks_of_the_style(self) -> Self:
        if self.record is not None and self.person is not None:
            raise SettingError(PERSON, "and record are two units of the same noise: give one of them")
        given = {"record": self.local, "client": self.client}
        for unit, block in given.items():
            is_given, is_needed = block is not None, unit in UNITS_OF_STYLE[self.style]
            if is_needed and not is_given:
                raise SettingError(unit, f"is missing: style {self.style} protects a {unit}")
            if is_given and not is_needed:
                extra = PERSON if unit == "record" and self.person is not None else unit
                raise SettingError(extra, f"must be left out: style {self.style} does not protect a {extra}")
        if self.client is not None:
            self._require_noise_of_the_style(self.client)
        return self

    def _require_noise_of_the_style(self, client: ClientPrivacy) -> None:
        if self.style != LOCAL and client.norm == "l1":
            raise SettingError(
                "client.norm", f"must be l2: style {self.style} adds up updates that are clipped in L2, local does not"
            )
        if client.shuffle is not None and (self.style != LOCAL or client.norm != "l1"):
            raise SettingError(
                "client.shuffle",
                "goes with style: local and norm: l1 only: its gain is proved for reports with their own Laplace noise",
            )
        for key in ("tree", "adaptive"):
            if self.style == LOCAL and getattr(client, key) is not None:
                raise SettingError(
                    f"client.{key}",
                    "must be left out: in style local a client sends its noised update and nothing else",
                )


class LedgerBlock(Block):
    """The ledger that is charged; without it a run has a ledger of its own in its directory."""

    url: str = setting(effect="the ledger's database, such as sqlite:///ledger.db", repr=False)  # may hold a password
    account: str | None = setting(None, effect="the account of the study, whose unit is the client (user, hybrid)")
    client_accounts: str | None = setting(
        None, effect="the account of each client's records; {id} stands for the client's name (sample, hybrid, local)"
    )

    @model_validator(mode="after")
    def _require_one_account_each(self) -> Self:
        if self.client_accounts is not None and "{id}" not in self.client_accounts:
            raise SettingError("client_accounts", "must contain {id}, so that every client has an account of its own")
        return self

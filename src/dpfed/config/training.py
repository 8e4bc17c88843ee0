"""The blocks ``model:``, ``cohort:``, ``local:`` and ``algorithm:``: what is trained, by whom and how.

>>> Local(epochs=2, batch_size=16, learning_rate="1e-1").learning_rate
0.1
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from dpfed.config.fields import OWN, Block, Number, SettingError, Whole, as_number, quote, setting
from dpfed.references import is_reference

COHORT = "who takes part in a round"
SECRECY = "whether the server keeps secret who took part: only then sampling clients amplifies their privacy"
SCHEDULE = "how the learning rate changes with the number of the step; it never follows a loss"
ALGORITHM = "how updates become the next model"
SERVER_RATE = "how far the model follows the mean update"


class Model(Block):
    """The model, its loss and its metric."""

    kind: str = setting(effect="logistic, mlp, cnn, resnet, transformer, unet or package.module:name")
    options: dict[str, Any] = setting(
        {}, effect="arguments of the model, such as {hidden: [64]}; features and classes follow from the data"
    )
    init: str | None = setting(None, effect="a .safetensors file of public weights to start from")
    loss: str = setting("cross_entropy", effect="cross_entropy, binary_cross_entropy, mse or package.module:name")
    metric: str = setting("accuracy", effect="accuracy, dice, mse or package.module:name, measured on what is held out")


class AllClients(Block):
    """A cohort of all clients."""

    kind: Literal["all"] = setting(effect=COHORT)


class PoissonClients(Block):
    """A cohort by Poisson sampling: each client with the same probability."""

    kind: Literal["poisson"] = setting(effect=COHORT)
    rate: Number = setting(symbol="q", effect="the probability of each client to be in a round", gt=0, le=1)
    secret: bool = setting(False, effect=SECRECY)


class FixedClients(Block):
    """A cohort of fixed size, drawn without replacement."""

    kind: Literal["fixed"] = setting(effect=COHORT)
    size: Whole = setting(symbol="k", effect="how many clients are in a round, drawn without replacement", ge=1)
    secret: bool = setting(False, effect=SECRECY)


Cohort = Annotated[AllClients | PoissonClients | FixedClients, Field(discriminator="kind")]


class ConstantBlock(Block):
    """A constant learning rate."""

    kind: Literal["constant"] = setting(effect=SCHEDULE)


class CosineBlock(Block):
    """A learning rate that falls along half a cosine."""

    kind: Literal["cosine"] = setting(effect=SCHEDULE)
    floor: Number = setting(0.0, effect="the share of the learning rate that is left at the end", ge=0, lt=1)


class StepBlock(Block):
    """A learning rate that is multiplied by a factor after every so many steps."""

    kind: Literal["step"] = setting(effect=SCHEDULE)
    every: Whole = setting(effect="after how many steps the rate is multiplied", ge=1)
    by: Number = setting(0.1, effect="what it is multiplied by", gt=0)


Schedule = Annotated[ConstantBlock | CosineBlock | StepBlock, Field(discriminator="kind")]


class Local(Block):
    """The training of a client in a round."""

    steps: Whole | None = setting(None, symbol="τ", effect="steps of a client in a round; or give epochs", ge=1)
    epochs: Number | None = setting(
        None, symbol="E", effect="passes over the declared size in a round; or give steps", gt=0
    )
    batch_size: Whole = setting(
        symbol="b",
        effect="expected records in a step: larger drowns more noise and samples each record more often",
        ge=1,
    )
    optimizer: Literal["sgd", "adam", "adamw"] = setting("sgd", effect="the client's own optimizer")
    learning_rate: Number = setting(symbol="η", effect="how far a client goes in a step", gt=0)
    momentum: Number = setting(0.0, symbol="β", effect="momentum of sgd", ge=0, lt=1)
    weight_decay: Number = setting(0.0, symbol="λ", effect="how strongly weights are drawn to zero", ge=0)
    schedule: Schedule = setting(ConstantBlock(kind="constant"), effect=SCHEDULE)

    @model_validator(mode="after")
    def _require_one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise SettingError("steps", "and epochs are two ways to say how long a client trains: give one of them")
        if self.momentum and self.optimizer != "sgd":
            raise SettingError("momentum", f"goes with optimizer: sgd only, not with {self.optimizer}")
        return self


class FedAvgBlock(Block):
    """The mean update (McMahan et al. 2017)."""

    kind: Literal["fedavg"] = setting(effect=ALGORITHM)
    server_learning_rate: Number = setting(1.0, symbol="η_s", effect=SERVER_RATE, gt=0)


class FedProxBlock(Block):
    """Clients are held near the model they were sent (Li et al. 2020)."""

    kind: Literal["fedprox"] = setting(effect=ALGORITHM)
    proximal: Number = setting(symbol="μ", effect="how strongly clients are held near the model they were sent", ge=0)
    server_learning_rate: Number = setting(1.0, symbol="η_s", effect=SERVER_RATE, gt=0)


class FedOptBlock(Block):
    """An optimizer on the server takes the mean update for a gradient (Reddi et al. 2021)."""

    kind: Literal["fedopt"] = setting(effect=ALGORITHM)
    optimizer: Literal["momentum", "adam", "yogi", "adagrad"] = setting("adam", effect="the server's optimizer")
    server_learning_rate: Number = setting(0.1, symbol="η_s", effect=SERVER_RATE, gt=0)
    beta1: Number = setting(0.9, symbol="β₁", effect="momentum: how long mean updates are remembered", ge=0, lt=1)
    beta2: Number = setting(0.99, symbol="β₂", effect="how long their squares are remembered (adam, yogi)", ge=0, lt=1)
    tau: Number = setting(1e-3, symbol="τ", effect="keeps the step bounded where updates are small", gt=0)


class ScaffoldBlock(Block):
    """Clients correct their steps by how their gradient differs from everyone's (Karimireddy et al. 2020)."""

    kind: Literal["scaffold"] = setting(effect=ALGORITHM)
    server_learning_rate: Number = setting(1.0, symbol="η_s", effect=SERVER_RATE, gt=0)
    option: Whole = setting(
        2, effect="the paper's option for the control variate; 1 needs gradients on all records", ge=1
    )


class FedDynBlock(Block):
    """Clients' losses are regularised so that all have the optimum of their mean (Acar et al. 2021)."""

    kind: Literal["feddyn"] = setting(effect=ALGORITHM)
    alpha: Number = setting(symbol="α", effect="how strongly clients are held near the model they were sent", gt=0)


def _as_numbers(value: Any) -> Any:
    return [as_number(each) for each in value] if isinstance(value, list) else as_number(value)


ByRound = Annotated[float | list[float], BeforeValidator(_as_numbers)]


class AdmmSettings(Block):
    """The penalty of an ADMM: public, and the same whatever the data."""

    rho: ByRound = setting(symbol="ρ", effect="how strongly clients are held to one model; or a list, one by round")
    rho_factor: Number = setting(1.0, effect="by which rho is multiplied after each round", gt=0)


class ExactAdmmBlock(AdmmSettings):
    """Clients minimise their part exactly: a reference for convex models, without privacy (Boyd et al. 2011)."""

    kind: Literal["admm"] = setting(effect=ALGORITHM)


class IadmmBlock(AdmmSettings):
    """Clients take one step a round (Ryu and Kim 2022)."""

    kind: Literal["iadmm"] = setting(effect=ALGORITHM)


class IceadmmBlock(AdmmSettings):
    """Clients take some steps, and send primal and dual as one vector (Zhou and Li 2021)."""

    kind: Literal["iceadmm"] = setting(effect=ALGORITHM)


class IiadmmBlock(AdmmSettings):
    """Clients take some steps, and both sides follow the duals, which nobody sends (Ryu and Kim 2022)."""

    kind: Literal["iiadmm"] = setting(effect=ALGORITHM)


class OwnAlgorithmBlock(Block):
    """An algorithm of your own."""

    kind: str = setting(effect=ALGORITHM)
    options: dict[str, Any] = setting({}, effect="arguments of your own algorithm")
    server_learning_rate: Number = setting(1.0, symbol="η_s", effect=SERVER_RATE, gt=0)

    @field_validator("kind")
    @classmethod
    def _require_reference(cls, kind: str) -> str:
        if not is_reference(kind):
            raise ValueError(f"must be package.module:name, got {quote(kind)}")
        return kind


def _find_kind(value: Any) -> str | None:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return OWN if isinstance(kind, str) and is_reference(kind) else kind


Algorithm = Annotated[
    Annotated[FedAvgBlock, Tag("fedavg")]
    | Annotated[FedProxBlock, Tag("fedprox")]
    | Annotated[FedOptBlock, Tag("fedopt")]
    | Annotated[ScaffoldBlock, Tag("scaffold")]
    | Annotated[FedDynBlock, Tag("feddyn")]
    | Annotated[ExactAdmmBlock, Tag("admm")]
    | Annotated[IadmmBlock, Tag("iadmm")]
    | Annotated[IceadmmBlock, Tag("iceadmm")]
    | Annotated[IiadmmBlock, Tag("iiadmm")]
    | Annotated[OwnAlgorithmBlock, Tag(OWN)],
    Discriminator(_find_kind),
]

"""Opacus under a ledger: each step is on disk before it is applied to the model.

Opacus keeps its history in memory and divides by a batch size taken from the data. Attached to a
reservation, an engine commits each step's event first, samples as Poisson or not at all, and divides by a
constant of the plan::

    reservation = ledger.reserve({"icu": {step_event: steps}}, run="study-12")
    engine = opacus.PrivacyEngine()
    attach(engine, reservation, account="icu", expected_batch_size=64)
    model, optimizer, loader = engine.make_private(module=model, optimizer=optimizer, data_loader=loader, …)

>>> attach(object(), None, account="icu", expected_batch_size=64)
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: privacy_engine must be an opacus.PrivacyEngine, got object
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.events import Event, Gaussian, PoissonSampled
from dpfed.ledger.reservation import Reservation


def attach(
    privacy_engine: Any, reservation: Reservation, *, account: str, expected_batch_size: int | None = None
) -> None:
    """Make the engine charge the reservation before every step. Call it before ``make_private``.

    Privacy: each step is the event ``PoissonSampled(Gaussian(noise_multiplier), sample_rate)`` for one record
    under add-or-remove, provided that batches are Poisson samples and that the sum of clipped gradients is
    divided by a constant. Opacus draws the noise before it calls us, but the commit comes before the noised
    step reaches the model: if it is refused, the step is not taken. The engine's own ε is not used. Not covered:
    Opacus draws samples and noise from torch's generator, which is no cipher and which ``torch.manual_seed`` makes
    predictable (its ``secure_mode`` does not), and steps joined by hand with ``signal_skip_step``.
    """
    for verb in ("make_private", "make_private_with_epsilon", "accountant"):
        if not hasattr(privacy_engine, verb):
            kind = type(privacy_engine).__name__
            raise InvalidArgument("privacy_engine", f"privacy_engine must be an opacus.PrivacyEngine, got {kind}")
    if expected_batch_size is None:
        raise InvalidArgument(
            "expected_batch_size",
            "Opacus divides by int(len(data) × rate), which changes with one record: declare expected_batch_size, "
            "a constant of the plan, and it is used instead",
        )
    if privacy_engine.dataset is not None:
        raise InvalidArgument("privacy_engine", "attach must come before make_private: give it a new PrivacyEngine")
    planned = _list_planned(reservation, account)
    batch_size = checks.count(expected_batch_size=expected_batch_size)
    privacy_engine.accountant.step = _charge_before(privacy_engine.accountant.step, reservation, account)
    privacy_engine.make_private = _check_before(privacy_engine.make_private, planned, batch_size)


def _list_planned(reservation: Reservation, account: str) -> list[Event]:
    events, unit = list(reservation.events(account)), reservation.terms(account).unit
    if unit != "record":
        raise InvalidArgument(
            "account",
            f"Opacus clips and protects one record, and {account} is for one {unit}: charge an account whose unit is "
            "record",
        )
    for event in events:
        if not isinstance(event, Gaussian | PoissonSampled):
            raise InvalidArgument(
                "reservation",
                f"Opacus takes steps of Gaussian noise on Poisson samples, and {account} reserved {event}",
            )
    return events


def _charge_before(record: Callable[..., None], reservation: Reservation, account: str) -> Callable[..., None]:
    def step(*, noise_multiplier: float, sample_rate: float) -> None:
        reservation.commit({account: _make_event(noise_multiplier, sample_rate)})
        record(noise_multiplier=noise_multiplier, sample_rate=sample_rate)

    return step


def _check_before(make_private: Callable[..., Any], planned: list[Event], batch_size: int) -> Callable[..., Any]:
    def checked(*positional: Any, poisson_sampling: bool = True, **others: Any) -> Any:
        if poisson_sampling is not True:
            raise InvalidArgument(
                "poisson_sampling",
                "poisson_sampling=False makes batches that are no Poisson samples, which the reserved events assume: "
                "leave it True",
            )
        _require_covered(others)
        made = make_private(*positional, poisson_sampling=True, **others)
        optimizer = next(part for part in made if hasattr(part, "expected_batch_size"))
        if getattr(optimizer, "world_size", 1) != 1:
            raise InvalidArgument(
                "module",
                "distributed training divides each worker's batch by its own size, which is private: use one worker",
            )
        _require_planned(_make_event(optimizer.noise_multiplier, 1 / len(made[-1])), planned)
        optimizer.expected_batch_size = batch_size
        return made

    return checked


def _require_covered(others: Mapping[str, Any]) -> None:
    """Refuse an option that makes a step release more than the reserved event says."""
    if others.get("clipping", "flat") not in ("flat", "per_layer"):
        raise InvalidArgument(
            "clipping",
            f"clipping={others['clipping']!r} divides by the number of records in each sample, which has no noise: "
            "use flat or per_layer",
        )
    if others.get("rand_on_empty"):
        raise InvalidArgument(
            "rand_on_empty",
            "rand_on_empty=True puts an invented record where there is none, so that one record more or less moves "
            "the sum by twice the clip norm: leave it False",
        )
    if others.get("noise_generator") is not None:
        raise InvalidArgument(
            "noise_generator", "noise_generator makes noise that whoever knows its seed can subtract: leave it None"
        )


def _require_planned(event: Event, planned: list[Event]) -> None:
    if event not in planned:
        raise InvalidArgument(
            "noise_multiplier",
            f"Opacus would take steps of {event}, and reserved were {', '.join(map(str, planned))}: its rate is "
            "1 / (number of batches); reserve that event, or make the loader fit the plan",
        )


def _make_event(noise_multiplier: float, sample_rate: float) -> Event:
    noise = Gaussian(float(noise_multiplier))
    return noise if sample_rate == 1 else PoissonSampled(noise, float(sample_rate))

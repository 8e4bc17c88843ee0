"""A real Opacus engine under a real ledger."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import dpfed
from dpfed.errors import InvalidArgument, NotReserved
from dpfed.events import Gaussian, PoissonSampled
from dpfed.integrations.opacus import attach

NOISE, BATCH, SIZE = 1.5, 16, 64
EVENT = PoissonSampled(Gaussian(NOISE), 1 / (SIZE // BATCH))


@pytest.fixture
def ledger(tmp_path):
    with dpfed.Ledger(f"sqlite:///{tmp_path}/ledger.db") as opened:
        opened.open("icu", epsilon=50.0, delta=1e-5)
        yield opened


def an_engine():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import PrivacyEngine

        return PrivacyEngine()


def made_private(engine, *, noise_multiplier=NOISE, size=SIZE, batch=BATCH, **others):
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(size, 3), torch.randint(0, 2, (size,)).float())
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(data, batch_size=batch),
            noise_multiplier=noise_multiplier,
            max_grad_norm=1.0,
            **others,
        )


def take_step(model, optimizer, loader):
    inputs, labels = next(iter(loader))
    optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], labels).backward()
        optimizer.step()


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_each_step_is_charged_to_the_reservation(ledger):
    reservation = ledger.reserve({"icu": {EVENT: 3}}, run="study")
    engine = an_engine()
    attach(engine, reservation, account="icu", expected_batch_size=BATCH)
    parts = made_private(engine)
    for left in (2, 1, 0):
        take_step(*parts)
        assert reservation.left("icu", EVENT) == left
    assert len(engine.accountant) > 0


def test_a_step_that_is_not_paid_for_never_reaches_the_model(ledger):
    reservation = ledger.reserve({"icu": {EVENT: 1}}, run="study")
    engine = an_engine()
    attach(engine, reservation, account="icu", expected_batch_size=BATCH)
    parts = made_private(engine)
    take_step(*parts)
    before = weights(parts[0])
    with pytest.raises(NotReserved):
        take_step(*parts)
    assert all(torch.equal(old, new) for old, new in zip(before, weights(parts[0]), strict=True))


def test_the_charge_is_durable_when_the_model_changes(ledger, monkeypatch):
    reservation = ledger.reserve({"icu": {EVENT: 2}}, run="study")
    engine = an_engine()
    attach(engine, reservation, account="icu", expected_batch_size=BATCH)
    parts = made_private(engine)
    seen = []
    apply = parts[1].original_optimizer.step
    monkeypatch.setattr(
        parts[1].original_optimizer, "step", lambda *a: (seen.append(reservation.left("icu", EVENT)), apply(*a))[1]
    )
    take_step(*parts)
    assert seen == [1]


def test_batches_that_are_no_poisson_samples_are_refused(ledger):
    engine = an_engine()
    attach(engine, ledger.reserve({"icu": {EVENT: 3}}, run="study"), account="icu", expected_batch_size=BATCH)
    with pytest.raises(InvalidArgument, match="poisson_sampling=False"):
        made_private(engine, poisson_sampling=False)


def test_a_batch_size_taken_from_the_data_is_refused(ledger):
    with pytest.raises(InvalidArgument, match="declare expected_batch_size"):
        attach(an_engine(), ledger.reserve({"icu": {EVENT: 3}}, run="study"), account="icu")


@pytest.mark.parametrize("size", [SIZE, SIZE - 1, SIZE - 9])
def test_the_sum_is_divided_by_the_declared_size_whatever_the_data(ledger, size):
    """Opacus itself divides by 16, 15 and 13 here: one record changes what every other contributes."""
    engine = an_engine()
    attach(engine, ledger.reserve({"icu": {EVENT: 3}}, run="study"), account="icu", expected_batch_size=BATCH)
    assert made_private(engine, size=size)[1].expected_batch_size == BATCH
    assert made_private(an_engine(), size=size)[1].expected_batch_size == size // 4


@pytest.mark.parametrize("wrong", [{"noise_multiplier": 1.0}, {"batch": 8}])
def test_steps_that_were_not_reserved_are_refused_before_training(ledger, wrong):
    engine = an_engine()
    attach(engine, ledger.reserve({"icu": {EVENT: 3}}, run="study"), account="icu", expected_batch_size=BATCH)
    with pytest.raises(InvalidArgument, match="reserved were"):
        made_private(engine, **wrong)


def test_an_engine_that_was_used_already_is_refused(ledger):
    engine = an_engine()
    made_private(engine)
    with pytest.raises(InvalidArgument, match="before make_private"):
        attach(engine, ledger.reserve({"icu": {EVENT: 3}}, run="study"), account="icu", expected_batch_size=BATCH)


@pytest.mark.filterwarnings("ignore")
def test_calibrating_by_epsilon_goes_through_the_same_door(ledger):
    engine = an_engine()
    attach(engine, ledger.reserve({"icu": {EVENT: 3}}, run="study"), account="icu", expected_batch_size=BATCH)
    data = TensorDataset(torch.randn(SIZE, 3), torch.zeros(SIZE))
    model = torch.nn.Linear(3, 1)
    with pytest.raises(InvalidArgument, match="poisson_sampling=False"):
        engine.make_private_with_epsilon(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=BATCH),
            target_epsilon=8.0,
            target_delta=1e-5,
            epochs=1,
            max_grad_norm=1.0,
            poisson_sampling=False,
        )


@pytest.mark.parametrize(
    "other",
    [{"clipping": "adaptive"}, {"rand_on_empty": True}, {"noise_generator": torch.Generator()}],
    ids=lambda other: next(iter(other)),
)
def test_what_the_reserved_event_does_not_cover_is_refused(ledger, other):
    """Un-noised sample sizes, an invented record in place of none (which moves the sum by 2C), and known noise."""
    engine = an_engine()
    attach(engine, ledger.reserve({"icu": {EVENT: 3}}, run="study"), account="icu", expected_batch_size=BATCH)
    with pytest.raises(InvalidArgument, match=next(iter(other))):
        made_private(engine, **other)


def test_an_account_for_another_unit_is_refused(ledger):
    ledger.open("people", epsilon=50.0, delta=1e-5, unit="person")
    reservation = ledger.reserve({"people": {EVENT: 3}}, run="study")
    with pytest.raises(InvalidArgument, match="one record"):
        attach(an_engine(), reservation, account="people", expected_batch_size=BATCH)

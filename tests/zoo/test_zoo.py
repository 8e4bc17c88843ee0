"""Every specimen of the zoo is trained through the public API: one record moves the sum by at most the clip norm.

A short run removes three records (the first, the last and the unusual one) at the clip norm that cuts them all;
DPFED_CAMPAIGN=1 removes each one in turn, at two clip norms.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from zoo import listing, measure
from zoo.measure import EVERYONE
from zoo.records import SIZE, UNUSUAL
from zoo.specimen import Specimen
from zoo.specimens import SPECIMENS

RANDOM = [specimen for specimen in SPECIMENS if specimen.is_random]
REPEATABLE = [specimen for specimen in SPECIMENS if specimen.may_train and not specimen.is_random]
# The engine cuts to a little less than the clip, and rounds in float32.
SLACK = 1e-3
RIGHT = 1e-4


def every(specimens: list[Specimen]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("specimen", specimens, ids=str)


class Traced(TorchDispatchMode):
    """The names of the operations that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def traced(specimen: Specimen) -> frozenset[str]:
    model = specimen.make()
    inputs, targets = specimen.batch(EVERYONE)
    with Traced() as trace:
        specimen.loss_of(model)(model(inputs), targets).sum().backward()
    return frozenset(trace.names)


def test_there_are_ninety_specimens_and_no_two_alike_in_operations_and_layout():
    pairs = Counter((specimen.operations, specimen.layout) for specimen in SPECIMENS)
    assert len(pairs) == len(SPECIMENS) >= 90
    assert len({specimen.name for specimen in SPECIMENS}) == len(SPECIMENS)


def test_by_what_torch_runs_there_are_ninety_distinct_pairs_too():
    """Fewer than by name: a Function of one's own, a hook or a checkpoint is no operation to torch."""
    assert len({(traced(specimen), specimen.layout) for specimen in SPECIMENS}) >= 90


def test_the_page_lists_all_specimens():
    assert listing.PAGE.read_text(encoding="utf-8") == listing.page(), "run python -m zoo.listing in tests/"


@every(REPEATABLE)
def test_a_record_removed_moves_the_sum_by_at_most_the_clip_norm(specimen, campaign_scale):
    clips = measure.clip_norms(measure.alone(specimen))
    for clip_norm in clips if campaign_scale > 1 else clips[:1]:
        whole = measure.release(specimen, EVERYONE, clip_norm)
        for record in EVERYONE if campaign_scale > 1 else (0, UNUSUAL, SIZE - 1):
            rest = measure.release(specimen, measure.without(record), clip_norm)
            assert (whole is None) == (rest is None), "whether it is refused depends on one record"
            if whole is None or rest is None:
                continue
            assert float((whole.total - rest.total).norm()) <= 1 + SLACK
            for name, kept in whole.buffers.items():
                assert torch.equal(kept, rest.buffers[name]), f"the buffer {name} tells of one record"


@every(REPEATABLE)
def test_the_sum_is_that_of_a_loop_over_single_records_or_the_model_is_refused(specimen):
    gradients = measure.alone(specimen)
    for clip_norm, bound in zip(measure.clip_norms(gradients), (SLACK, RIGHT), strict=True):
        found = measure.release(specimen, EVERYONE, clip_norm)
        if found is None:
            assert specimen.may_be_refused
            continue
        expected = measure.clipped_sum(gradients, clip_norm)
        assert float((found.total - expected).norm()) <= bound * float(expected.norm())


@every(SPECIMENS)
def test_whether_a_model_is_refused_does_not_depend_on_the_records_drawn(specimen):
    draws = (EVERYONE, [0], [UNUSUAL], [1, UNUSUAL])
    is_refused = {measure.release(specimen, draw, 1.0) is None for draw in draws}
    assert len(is_refused) == 1
    assert specimen.may_be_refused if is_refused.pop() else specimen.may_train


@every(RANDOM)
def test_a_specimen_with_randomness_adds_at_most_one_clip_norm_for_each_record(specimen):
    """Its draws differ from run to run, so two sums cannot be compared; that of a single record can be bounded."""
    for draw in (EVERYONE, *([record] for record in EVERYONE)):
        if found := measure.release(specimen, draw, 1e-3):
            assert float(found.total.norm()) <= len(draw) * (1 + SLACK)


@every(RANDOM)
def test_what_a_specimen_draws_does_not_follow_public_seeds_and_leaves_them_alone(specimen):
    """Each draws at least 16 bits a step, most of them hundreds: all together have a false alarm below 2e-5."""
    steps = [measure.seeded_step(specimen, seed=42) for _ in range(2)]
    if None in steps:
        assert specimen.may_be_refused
        return
    assert all(step.is_given_back for step in steps)
    assert float((steps[0].total - steps[1].total).norm()) > 1e-5 * float(steps[0].total.norm())

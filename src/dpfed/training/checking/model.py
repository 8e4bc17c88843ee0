"""A check whether a model and a loss of your own can be trained privately, on made-up records, before they see data.

By construction one record moves what a step releases by at most the clip norm. `check` tries to show the contrary, in
every mode that dpfed has. It says as well which layers have a fast way, and what a step costs.

>>> import torch
>>> from torch import nn
>>> from dpfed.training import check
>>> model, loss = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), nn.CrossEntropyLoss(reduction="none")
>>> found = check(model, loss, (torch.zeros(4), 2), searches=1)
>>> found.is_sound, [layer.way for layer in found.layers]
(True, ['linear', 'linear'])
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Generator, nn

from dpfed import checks
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.references import explain_torch_error
from dpfed.training import screening, slowness
from dpfed.training.checking import modes
from dpfed.training.checking.findings import BATCH, LayerCheck, ModeCheck, ModelCheck
from dpfed.training.checking.made_up import MadeUp
from dpfed.training.checking.modes import SLOWLY, Mode, Unused
from dpfed.training.checking.search import ADDED, REMOVED, REPLACED, Movement, Search, model_restored
from dpfed.training.engine.attribution import Way
from dpfed.training.engine.clip import Clip, group_of
from dpfed.training.engine.forward import Forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.generators import pinned
from dpfed.training.layers import compat
from dpfed.training.screening import Loss

POOL = 8  # records on which every mode is tried first
TIMES = 5
SAME = 1e-4  # clip norms that rounding may put between two sums of the same


def check(
    model: nn.Module, loss: Loss, example: Any, *, clip_norm: float = 1.0, searches: int = 3, seed: int = 0
) -> ModelCheck:
    """Try to move a clipped sum of the model's gradients further than one record may, and return what came of it.

    `loss` takes the model's output and the targets and gives one number per record. `example` is a pair of inputs and
    target, of one record or of a small batch; tensors may stand in tuples and dicts. It is taken for a batch if all
    tensors have the same first axis. Only shapes and types of it are used, and of whole numbers the largest: let it
    have the last class, and the last token of the vocabulary. `searches` is the number of random starts in each mode.

    The model runs in its present mode and is given back as it was. What dpfed refuses to train is refused here with
    the same words.

    Privacy: sees no data, and proves nothing. What a step promises follows from how it is made (`ClippedGradients`).
    """
    Clip(clip_norm)
    checks.count(searches=searches)
    generator = Generator().manual_seed(seed)
    with pinned(), model_restored(model), ExitStack() as stack:
        made_up = _find_records(model, loss, example, generator)
        search = Search(model, loss, made_up, clip_norm, generator)
        found = modes.list_modes(model, loss, clip_norm, search.make_forward(POOL), stack)
        used = [mode for mode in found if isinstance(mode, Mode)]
        way, cost = _inspect(model, clip_norm, search.make_forward(BATCH))
        movements, remarks = _search(model, search, used, searches)
        return ModelCheck(
            model=f"{type(model).__name__}, {sum(p.numel() for p in model.parameters() if p.requires_grad):,} numbers",
            searches=search.runs,
            pairs=search.pairs,
            modes=tuple(_summarise(mode, movements) for mode in used),
            unused=tuple(mode for mode in found if isinstance(mode, Unused)),
            worst=max(movements, key=lambda each: each.share),
            layers=_list_layers(model, way),
            slow=way.why,
            remarks=(*_suggest_remedies(model, way), *remarks, *_describe_bounds(made_up)),
            cost=cost,
        )


def _find_records(model: nn.Module, loss: Loss, example: Any, generator: Generator) -> MadeUp:
    """Return made-up records on which model and loss run: normal numbers, or else numbers between 0 and 1."""
    compat.check(model)
    errors: list[Exception] = []
    for bounded in ((), (1,), (0, 1)):
        made_up = MadeUp(example, bounded)
        try:
            screening.try_out(model, loss, *made_up.draw(screening.TRIED, generator))
        except PrivacyError:
            raise
        except Exception as error:
            errors.append(error)
        else:
            return made_up
    message = f"the model or the loss fails on made-up records {made_up.shapes} ({explain_torch_error(errors[0])})"
    remedy = "give the shapes that the model takes, and how many classes or tokens it has"
    raise InvalidArgument("example", f"{message}: {remedy}") from errors[0]


def _search(
    model: nn.Module, search: Search, used: Sequence[Mode], searches: int
) -> tuple[list[Movement], tuple[str, ...]]:
    """Run all searches; return the movements, and remarks on a model that draws random numbers."""

    def runs(kinds: Sequence[str]) -> list[Movement]:
        return [each for mode in used for _ in range(searches) for each in search.run(mode, kinds)]

    if not _is_random(search, used[0]):
        return runs([REMOVED, ADDED, REPLACED]), ()
    replaced = runs([REPLACED])
    model.eval()
    remark = "The model draws random numbers: a record was replaced while the others kept theirs"
    if _is_random(search, used[0]):
        return replaced, (f"{remark}; none was removed or added, which shifts them.",)
    return replaced + runs([REMOVED, ADDED]), (f"{remark}, and removed or added with the model in eval().",)


def _is_random(search: Search, mode: Mode) -> bool:
    """Return whether a sum depends on random numbers; refuse a model that is not reproducible with a seed."""
    point, rows = search.make_point(4), [0, 1, 2]
    for seed in (1, 2):  # a program that is new is looked at, which takes random numbers as well
        search.sum(mode, point, rows, seed)
    one = search.sum(mode, point, rows, 1)
    search.sum(mode, point, [3, 0], 1)
    again, other = (search.sum(mode, point, rows, seed) for seed in (1, 2))
    if not search.distance(mode, one, again) <= SAME:
        message = "the model gives other gradients on the same records with the same seed, so nothing can be compared"
        remedy = "let it keep nothing from one call to the next, and draw random numbers of torch only"
        raise InvalidArgument("model", f"{message}: {remedy}")
    return search.distance(mode, one, other) > SAME


def _summarise(mode: Mode, movements: Sequence[Movement]) -> ModeCheck:
    def furthest(*kinds: str) -> float | None:
        own = (each for each in movements if each.mode == mode.name and each.change.kind in kinds)
        return max((each.distance for each in own), default=None)

    return ModeCheck(mode.name, furthest(REMOVED, ADDED), furthest(REPLACED))


def _inspect(model: nn.Module, clip_norm: float, forward: Forward) -> tuple[Way, float]:
    """Return how the gradients of a pass are computed, and their cost in steps of plain SGD."""
    with ClippedGradients(model, clip_norm=clip_norm, takes_losses=False) as gradients:
        private = _measure(lambda: gradients.clipped(forward))
        way = gradients.way(forward)  # after the pass: a general rule may turn out not to work
    trained = [value for value in model.parameters() if value.requires_grad]
    plain = _measure(lambda: torch.autograd.grad(forward.losses().mean(), trained, allow_unused=True))
    return way, private / plain


def _measure(work: Callable[[], object]) -> float:
    """Return the least CPU time of several runs of the work, after one that may have to prepare something.

    On one thread: the time in which threads wait for each other would count as well, a hundredfold on a busy machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        work()
        return min(_measure_once(work) for _ in range(TIMES))
    finally:
        torch.set_num_threads(threads)


def _measure_once(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return max(time.process_time() - start, 1e-9)


def _list_layers(model: nn.Module, way: Way) -> tuple[LayerCheck, ...]:
    """Return the modules with trainable parameters of their own, and the rules that compute their gradients."""
    trained = {name: value.numel() for name, value in model.named_parameters() if value.requires_grad}
    rules: dict[str, list[str]] = {name: [] for name in trained}
    for claim in way.parts:
        for name in claim.names.values():
            rules[name].append(claim.rule.name)
    layers = []
    for path in dict.fromkeys(map(group_of, trained)):
        names = [name for name in trained if group_of(name) == path]
        served = dict.fromkeys(rule for name in names for rule in rules[name])
        kind = type(model.get_submodule(path)).__name__
        layers.append(LayerCheck(path, kind, sum(trained[name] for name in names), ", ".join(served) or SLOWLY))
    return tuple(layers)


def _suggest_remedies(model: nn.Module, way: Way) -> list[str]:
    remedy = None if way.why is None else slowness.find_remedy(model, way.why)
    return [] if remedy is None else [f"To make it fast: {remedy}."]


def _describe_bounds(made_up: MadeUp) -> list[str]:
    parts = [name for number, name in enumerate(("inputs", "targets")) if number in made_up.bounded]
    return [f"Real numbers of {' and '.join(parts)} were between 0 and 1: others have no finite loss."] if parts else []

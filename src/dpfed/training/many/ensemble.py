"""K models of one architecture, trained at once: the cost of Python and dispatch is paid once instead of K times.

The model's own forward pass runs under ``vmap`` over the models. To see each layer's output gradient without
differentiating weights, a zero that wants a gradient is added to every layer's output; inputs come out beside the
losses. From there on it is book-keeping over K·B examples (`segments`); only the weighted sums are per model. As long
as all models are the same, in their first step, K·B examples go through one model in one ordinary pass.

A model is taken only if every trainable parameter belongs to a layer with a rule that is called exactly once, and if on
made-up examples and weights the result is that of autograd, one example at a time. Others go one after the other.

>>> import torch
>>> from torch import nn
>>> model, loss = nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none")
>>> ensemble = Ensemble(model, loss, (torch.randn(4, 2), torch.zeros(4, dtype=torch.long)))
>>> many = ensemble.stacked(3)
>>> inputs, targets, mask = torch.randn(3, 5, 2), torch.zeros(3, 5, dtype=torch.long), torch.ones(3, 5)
>>> ensemble.clipped_sums(many, inputs, targets, mask, torch.ones(3))["weight"].shape
torch.Size([3, 2, 2])
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.func import functional_call, vmap

from dpfed.errors import InvalidArgument
from dpfed.training import screening
from dpfed.training.engine.capture import form_of
from dpfed.training.engine.clip import TOLERANCE, require_full_precision
from dpfed.training.engine.copied import copy_on_write
from dpfed.training.engine.forward import anomaly_mode_off, make_forward
from dpfed.training.engine.gradients import REACH
from dpfed.training.engine.kept import Snapshots
from dpfed.training.engine.placing import FRONT
from dpfed.training.engine.programs import Programs
from dpfed.training.engine.rules.contributions import Call
from dpfed.training.engine.rules.registry import BAG
from dpfed.training.engine.watch.calls import CallRecorder
from dpfed.training.faults import STOPS
from dpfed.training.layers import compat
from dpfed.training.many import segments
from dpfed.training.many.entropy import adapt_loss
from dpfed.training.many.segments import Layer, Stacked
from dpfed.training.screening import Loss

Parameters = Mapping[str, Tensor]
AGREEMENT = 1e-4


class Unsupported(InvalidArgument):
    """An error for models that cannot be trained at once, with the reason `why`."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            "model", f"these models cannot be trained at once: {why}; train them one by one with make_private"
        )


class Ensemble:
    """K models of one architecture, with their clipped sums and plain gradients; `like` is a small made-up batch.

    Privacy: adding or removing one example of a model moves that model's sum by at most its clip norm, as in
    `ClippedGradients`, and leaves the sums of all other models as they are: to the last bit if as many examples stand
    in a row as before. Only programs of which every operation is on the allow-list are taken, and each form of their
    graph is looked at before its sums are given. Models that share one pass are apart for that reason alone;
    otherwise ``vmap`` keeps them apart, and look-ups are kept inside each model's own table. Where a step fails, the
    records on which it fails alone count as zero, and the others are served as if these were not there; if it still
    fails, for how many there are, it is computed one example at a time instead.
    """

    def __init__(self, model: nn.Module, loss: Loss, like: tuple[Tensor, Tensor]) -> None:
        compat.check(model)
        screening.probe(model, loss, *like)
        self._model = model
        self._snapshots = Snapshots(list(model.modules()))
        self._loss = adapt_loss(loss)
        self._layers = _find_layers(model, loss, like)
        self.like = like
        self._offsets: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self._forms: set[Hashable] = set()
        self._is_tried = False
        self._require_agreement(like)
        self._is_tried = True

    @property
    def bytes_per_model(self) -> int:
        """The bytes of one model's trainable parameters."""
        return sum(p.numel() * p.element_size() for p in self._model.parameters() if p.requires_grad)

    @property
    def bytes_per_example(self) -> int:
        """The bytes that a step holds for one example, about."""
        inputs, _ = self.like
        return inputs[0].numel() * inputs.element_size() + 4 * sum(layer.numbers for layer in self._layers)

    def stacked(self, count: int, weights: Mapping[str, Tensor] | None = None) -> Stacked:
        """Return `count` stacked copies of the model's trainable parameters, or of these weights."""
        first = weights or {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        return {name: value.detach().expand(count, *value.shape).clone() for name, value in first.items()}

    def mean_gradients(
        self, parameters: Parameters, inputs: Tensor, targets: Tensor, mask: Tensor, *, is_shared: bool = False
    ) -> Stacked:
        """Return the gradient of each model's mean loss over its examples, unclipped and not private.

        Padding must have a gradient too: 0 times NaN is NaN. `is_shared` is that of `clipped_sums`.
        """
        if is_shared:
            sums = segments.average(self._layers, self._record_calls(parameters, inputs, targets, is_shared=True), mask)
            return {name: sums[name] for name in parameters}
        wanted = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        with self._in_bounds():
            losses = _map_models(self._losses, wanted, inputs, targets)
        means = torch.where(mask > 0, losses, 0.0).sum(1) / mask.sum(1).clamp(min=1)
        found = dict(zip(wanted, torch.autograd.grad(means.sum(), list(wanted.values())), strict=True))
        for layer in self._layers:
            padding = getattr(layer.module, "padding_idx", None)
            if padding is not None:  # vmap has forgotten that this row never learns
                found[layer.names["weight"]][:, padding] = 0
        return found

    def clipped_sums(
        self,
        parameters: Parameters,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        clip_norms: Tensor,
        *,
        is_shared: bool = False,
    ) -> Stacked:
        """Return Σ maskᵢ·min(1, clip/‖gᵢ‖)·gᵢ of each model, for examples (K, B, …) and one clip norm per model.

        With `is_shared` the parameters are those of one model, which all still equal: one pass over K·B examples.
        """
        require_full_precision(inputs.device.type)
        calls = self._try_calls(parameters, inputs, targets, is_shared=is_shared)
        if calls is None:
            weights = self.stacked(len(inputs), parameters) if is_shared else parameters
            mask = self._find_passing(weights, inputs, targets, mask)
            calls = self._try_calls(parameters, *segments.fill_masked(mask, inputs, targets), is_shared=is_shared)
            if calls is None:
                return self._sum_one_by_one(weights, inputs, targets, mask, clip_norms)
        sums = segments.sum_clipped(self._layers, calls, mask, clip_norms)
        return {name: sums[name] for name in parameters}

    def _try_calls(
        self, parameters: Parameters, inputs: Tensor, targets: Tensor, *, is_shared: bool
    ) -> list[Call] | None:
        """Return the recorded calls; None if the pass of a tried model fails: an error would tell of records."""
        before = self._snapshots.take_or_keep()
        try:
            values = (_map_tensors(copy_on_write, part) for part in (parameters, inputs, targets))
            return self._record_calls(*values, is_shared=is_shared)
        except STOPS:
            raise
        except BaseException:  # caused by the records, or their number
            if not self._is_tried:
                raise
            return None
        finally:
            before.bring_back()

    def _find_passing(self, weights: Parameters, inputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Return the mask of the examples on which a pass works, each tried alone.

        The others go on as if it had not failed: a pass over single examples rounds otherwise, which by positions that
        cancel is more than a clip norm of many, and of models that have no such record.
        """
        passing = torch.zeros_like(mask)
        for model, place in self._walk(mask):
            passing[model, place] = self._differentiate_one(weights, inputs, targets, model, place) is not None
        return passing

    def _walk(self, mask: Tensor) -> Iterator[tuple[int, int]]:
        """Yield model and place of every example of the mask; the modules are restored before each, and afterwards."""
        before = self._snapshots.take_or_keep()
        try:
            for model, place in mask.nonzero().tolist():
                before.bring_back()
                yield model, place
        finally:
            before.bring_back()

    def is_better_shared(self, *, is_private: bool) -> bool:
        """Return whether the first step is cheaper in one pass: not if it alone would write gradients out."""
        return is_private or not any(layer.is_written for layer in self._layers)

    def _record_calls(self, parameters: Parameters, inputs: Tensor, targets: Tensor, *, is_shared: bool) -> list[Call]:
        """Run forward and backward; return every layer's inputs and output gradients for all K·B examples."""
        if is_shared:  # one model that has everybody's examples
            parameters, inputs, targets = (
                _map_tensors(lambda part: part.unsqueeze(0), part)
                for part in (parameters, inputs.flatten(0, 1), targets.flatten(0, 1))
            )
        offsets = self._make_zeros(inputs.shape[0], inputs.shape[1], inputs)
        with self._recording() as recorded, self._in_bounds():
            losses, given = _map_models(partial(self._run_recorded, recorded), parameters, inputs, targets, offsets)
        self._require_known(losses, recorded.asked, inputs[0], targets[0])
        with anomaly_mode_off():
            found = torch.autograd.grad(losses.sum(), offsets)
        return [segments.make_call(*parts) for parts in zip(self._layers, given, found, strict=True)]

    def _losses(self, parameters: Stacked, inputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(functional_call(self._model, parameters, (inputs,)), targets)

    def _run_recorded(
        self, recorded: _Recorder, parameters: Stacked, inputs: Tensor, targets: Tensor, offsets: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        recorded.begin(offsets)
        with CallRecorder(len(inputs), (inputs, targets), has_sources=False) as calls:
            losses = self._losses(parameters, inputs, targets)
        recorded.asked = calls.log.calls
        return losses, recorded.inputs()

    @contextmanager
    def _in_bounds(self) -> Iterator[None]:
        """Clamp indices of embeddings: under vmap, an index beyond a table reads the next model's table."""
        tables = [layer.module for layer in self._layers if isinstance(layer.module, nn.Embedding)]
        handles = [table.register_forward_pre_hook(_clamp_indices) for table in tables]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _require_known(self, losses: Tensor, asked: Hashable, inputs: Tensor, targets: Tensor) -> None:
        """Check the program again if its graph, or what it asks of torch, is new: are rows still examples?"""
        form = (form_of(losses), asked)
        if form not in self._forms:
            with self._in_bounds():
                _find_layers(self._model, self._loss, (inputs, targets), asked)
            self._forms.add(form)

    @contextmanager
    def _recording(self) -> Iterator[_Recorder]:
        recorded = _Recorder()
        handles = [
            layer.module.register_forward_hook(partial(recorded.note, number), prepend=True)
            for number, layer in enumerate(self._layers)
        ]
        try:
            yield recorded
        finally:
            for handle in handles:
                handle.remove()

    def _make_zeros(self, models: int, size: int, like: Tensor) -> tuple[Tensor, ...]:
        """Return zeros to add to every layer's output; cached, since nothing ever changes them."""
        if (models, size) not in self._offsets:
            if len(self._offsets) > 8:
                self._offsets.clear()
            dtype = next(p.dtype for p in self._model.parameters() if p.requires_grad)
            self._offsets[models, size] = tuple(
                torch.zeros((models, size, *layer.output), dtype=dtype, device=like.device, requires_grad=True)
                for layer in self._layers
            )
        return self._offsets[models, size]

    def _require_agreement(self, like: tuple[Tensor, Tensor]) -> None:
        """Refuse the model if two copies with made-up weights do not get the gradients that autograd gives."""
        inputs, targets = like
        generator = torch.Generator().manual_seed(0)
        weights = self.stacked(2)
        for value in weights.values():  # what is zero at first would hide much
            value += 0.05 * torch.randn(value.shape, dtype=value.dtype, generator=generator)
        mask, clip_norms = torch.ones(2, len(inputs)), torch.tensor([1.0, 0.01])
        mask[1, 0] = 0
        pair = (torch.stack([inputs, inputs]), torch.stack([targets, targets]))
        try:
            clipped = self.clipped_sums(weights, *pair, mask, clip_norms)
            _require_close(clipped, self._sum_one_by_one(weights, *pair, mask, clip_norms))
            means = self.mean_gradients(weights, *pair, mask)
            sums = {name: value * _broadcast(mask.sum(1), value) for name, value in means.items()}
            _require_close(sums, self._sum_one_by_one(weights, *pair, mask, torch.full((2,), torch.inf)))
            one = {name: value[0] for name, value in weights.items()}
            clipped = self.clipped_sums(one, *pair, mask, clip_norms, is_shared=True)
            _require_close(clipped, self._sum_one_by_one(self.stacked(2, one), *pair, mask, clip_norms))
        except (RuntimeError, TypeError, LookupError, AttributeError) as error:
            raise Unsupported(f"vmap refuses them ({error})") from error

    def _sum_one_by_one(
        self,
        weights: Parameters,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        clip_norms: Tensor,
    ) -> Stacked:
        """Return the clipped sums by autograd, one example at a time; an example that fails counts as zero."""
        sums = {name: torch.zeros_like(value) for name, value in weights.items()}
        for model, place in self._walk(mask):
            found = self._differentiate_one(weights, inputs, targets, model, place)
            if found is None:
                continue
            length = torch.linalg.vector_norm(torch.cat([value.flatten() for value in found]), dtype=torch.float64)
            if not length <= REACH * clip_norms[model]:
                continue
            for name, value in zip(weights, found, strict=True):
                sums[name][model] += value * (clip_norms[model] * (1 - TOLERANCE) / length).clamp(max=1.0).to(value)
        return sums

    def _differentiate_one(
        self, weights: Parameters, inputs: Tensor, targets: Tensor, model: int, place: int
    ) -> tuple[Tensor, ...] | None:
        """Return the gradient of one example's loss; None if it fails."""
        own = {name: value[model].detach().clone().requires_grad_() for name, value in weights.items()}
        pair = (part[model, place : place + 1].clone() for part in (inputs, targets))
        try:
            with self._in_bounds():
                losses = self._losses(own, *pair)
            with anomaly_mode_off():
                return torch.autograd.grad(losses.sum(), list(own.values()), materialize_grads=True)
        except STOPS:
            raise
        except BaseException:
            if not self._is_tried:
                raise
            return None


class _Recorder:
    """A recorder of one pass: the inputs of all layers, and the zeros that are added to their outputs."""

    def __init__(self) -> None:
        self.asked: Hashable = None  # of torch, in this pass
        self._offsets: tuple[Tensor, ...] = ()
        self._inputs: dict[int, Tensor] = {}

    def begin(self, offsets: tuple[Tensor, ...]) -> None:
        """Begin a new pass."""
        self._offsets = offsets
        self._inputs = {}

    def note(self, number: int, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        """Record the input of a layer, and return its output plus its zeros."""
        if number in self._inputs or len(arguments) != 1:
            raise Unsupported(f"a layer of type {type(module).__name__} is called twice, or with several arguments")
        self._inputs[number] = arguments[0]
        with DisableTorchFunction():  # this is not the model's doing
            return output + self._offsets[number]

    def inputs(self) -> tuple[Tensor, ...]:
        """Return the recorded inputs, in the order of the layers."""
        return tuple(self._inputs[number] for number in range(len(self._offsets)))


def _clamp_indices(table: nn.Embedding, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (arguments[0].clamp(0, table.num_embeddings - 1), *arguments[1:])


def _require_close(found: Stacked, expected: Stacked) -> None:
    for number in range(2):
        largest = max(float(value[number].abs().max()) for value in expected.values())
        apart = max(float((found[name] - value)[number].abs().max()) for name, value in expected.items())
        if not apart <= AGREEMENT * largest:
            raise Unsupported("at once they do not get the gradients that they get alone")


def _broadcast(values: Tensor, like: Tensor) -> Tensor:
    """Return one number per model, in a shape that broadcasts to stacked tensors."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _map_models(function: Callable[..., Any], parameters: Parameters, *stacked: Any) -> Any:
    """Call the function for every model and stack the results; by vmap, if there are several."""
    if len(next(iter(parameters.values()))) > 1:
        return vmap(function, randomness="error")(parameters, *stacked)
    alone = function(*(_map_tensors(lambda part: part[0], part) for part in (parameters, *stacked)))
    return _map_tensors(lambda part: part.unsqueeze(0), alone)


def _map_tensors(function: Callable[[Tensor], Tensor], parts: Any) -> Any:
    """Apply the function to a tensor, or to each tensor in a dict or a tuple."""
    if isinstance(parts, dict):
        return {name: function(part) for name, part in parts.items()}
    return tuple(_map_tensors(function, part) for part in parts) if isinstance(parts, tuple) else function(parts)


def _find_layers(model: nn.Module, loss: Loss, like: tuple[Tensor, Tensor], asked: Hashable = None) -> list[Layer]:
    """Return the layers with parameters; refuse a model in which one has no rule, or shares its parameters.

    `asked` is what another pass over as many examples asked of torch: this one must ask the same.
    """
    forward = make_forward(model, loss, *like)
    programs = Programs(model, {})
    try:
        run = programs.run(forward)
        way = programs.way(run, forward)
    finally:
        programs.close()
    if way.why is not None:
        raise Unsupported(way.why)
    if asked not in (None, run.asked.calls):
        raise Unsupported("what is computed changes from pass to pass")
    if way.met:
        raise Unsupported(f"{way.met[0].name} is used outside a layer")
    parts = way.parts_of(run.calls)
    for part in parts:
        if part.place != FRONT:
            raise Unsupported(f"{part.call.path or 'the model'} has not the example as first axis")
        if part.is_shared or not part.rule.is_known or part.rule is BAG:
            raise Unsupported(f"{part.call.path or 'the model'} has no rule, or shares its parameters")
    return [
        Layer(part.call.path, part.call.module, part.rule, part.names, tuple(part.call.shape[1:])) for part in parts
    ]

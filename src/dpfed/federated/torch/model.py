"""One torch model of a process that all clients in it train in turn, filled from a flat vector and read back.

Building a model for each of a thousand small clients would take longer than training them. Its parameters are windows
on one row of numbers, so weights go in and out by one copy. Nothing else stays from one client to the next: modules,
buffers, hooks and attributes are what the model was built with, and gradients and optimizers are dropped.

>>> from dpfed.models.logistic import Logistic
>>> model = TorchModel(Logistic, "cross_entropy")
>>> model.layout.names, model.layout.size
(('linear.weight', 'linear.bias'), 62)
>>> test = np.zeros((4, 30)), np.array([0, 1, 1, 1])
>>> [str(score) for score in model.evaluate(np.zeros(62), test, is_public=True)]
['loss 0.6931', 'accuracy 0.25']
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.federated import metrics
from dpfed.federated.deadline import INTERRUPTS, Late
from dpfed.federated.metrics import Metric, Score
from dpfed.federated.state.layout import Layout, Vector
from dpfed.federated.torch import losses
from dpfed.federated.torch.examples import Examples, Form, Tensors, examples, make_records
from dpfed.federated.torch.persons import ByPerson, PersonRows, by_person
from dpfed.federated.torch.threads import computing
from dpfed.models.seeds import seeded
from dpfed.randomness import RandomSource, or_system
from dpfed.references import explain_failure, explain_torch_error
from dpfed.training import screening
from dpfed.training.generators import Generators, devices_of
from dpfed.training.layers import compat
from dpfed.training.optimizing import OptimizerSettings
from dpfed.training.pristine import Pristine

Factory = Callable[[], nn.Module]
_DTYPES = {torch.float32: "float32", torch.float64: "float64"}
_BLANKS = 4
_AT_ONCE = 512


def layout_of(model: nn.Module) -> Layout:
    """Return names and shapes of what is trained; frozen parameters and buffers never leave the model."""
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    kinds = {value.dtype for value in trained.values()}
    if not trained or any(isinstance(value, nn.UninitializedParameter) for value in trained.values()):
        message = "model must have trainable parameters, and none whose shape is not known yet"
        raise InvalidArgument("model", f"{message}: call lazy layers once, and leave requires_grad on")
    if len(kinds) != 1 or not kinds <= set(_DTYPES):
        found = ", ".join(sorted(map(str, kinds)))
        raise InvalidArgument(
            "model", f"trainable parameters must all be float32 or all float64, got {found}: use model.float()"
        )
    return Layout(tuple(trained), tuple(tuple(value.shape) for value in trained.values()), _DTYPES[kinds.pop()])


class TorchModel:
    """A model by a factory without arguments, which runs under a public seed, and its loss: one number per record.

    It computes with one thread if it is small, with as many as torch likes if not, or with `threads` (see
    `dpfed.federated.torch.threads`).

    Privacy: what a client leaves behind in the model or its loss is thrown away before the next one trains
    (`dpfed.training.pristine`). A model whose forward pass keeps anything elsewhere, such as in a global, must not be
    used. First weights follow from the seed.
    """

    def __init__(
        self, factory: Factory, loss: str | losses.Loss, *, recipe: OptimizerSettings | None = None, seed: int = 0
    ) -> None:
        self._arguments = (factory, loss, recipe, seed)
        self.recipe = OptimizerSettings() if recipe is None else recipe
        self.loss = losses.find_loss(loss)
        self.threads: int | None = None
        self._lock = threading.Lock()
        self._rehearsed: set[tuple[bool, type[Examples], Form | None]] = set()
        self._widths: dict[Form, int] = {}

    @property
    def layout(self) -> Layout:
        """The names and shapes of the parameters in a vector."""
        return self._built[1]

    @property
    def module(self) -> nn.Module:
        """The torch module that all clients of this process train in turn."""
        return self._built[0]

    @cached_property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The trained parameters, in the layout's order."""
        own = dict(self.module.named_parameters())
        return tuple(own[name] for name in self.layout.names)

    @cached_property
    def first_weights(self) -> Vector:
        """The weights that every run starts from: public, from the seed alone."""
        _ = self._row
        return self._first

    @cached_property
    def by_person(self) -> tuple[nn.Module, Any]:
        """The model and its loss for examples that are all rows of a person."""
        return ByPerson(self.module), by_person(self.loss)

    def learner(self, examples: Examples) -> tuple[nn.Module, Any]:
        """Return what is run on fetched examples, and what gives one loss for each of them: a row, or a person."""
        return self.by_person if isinstance(examples, PersonRows) else (self.module, self.loss)

    @property
    def dtype(self) -> torch.dtype:
        """The precision in which the model computes."""
        return self._row.dtype

    def examples(self, data: Any) -> Examples:
        """Return the data in the model's precision."""
        return examples(data, self.dtype)

    @contextmanager
    def borrow(self, weights: Vector, source: RandomSource | None = None) -> Iterator[Tensor]:
        """Yield the row of numbers behind all trained parameters, set to these weights; the next caller waits.

        Dropout and the like draw from the source, or from the system's if there is none; the generators of torch, numpy
        and Python are left as they were (`dpfed.training.generators`).
        """
        values = np.asarray(weights)
        if values.shape != (self.layout.size,):
            raise InvalidArgument("weights", f"weights must have {self.layout.size} numbers, got shape {values.shape}")
        with (
            self._lock,
            computing(self.layout.size, self.threads),
            Generators(or_system(source), self._devices).scope(),
            torch.enable_grad(),  # and as it was at the end, whatever a client does to it
        ):
            self._restore()
            self._row.copy_(torch.from_numpy(np.require(values, requirements=["C", "W"])))
            try:
                yield self._row
            finally:
                for parameter in self.parameters:
                    parameter.grad = None

    def rehearse(self, data: Examples, weights: Vector, *, is_private: bool) -> None:
        """Refuse a model that fails on made-up records of the data's shape, or mixes records where it must not."""
        form = data.form
        known = is_private, type(data), form
        if known in self._rehearsed:
            return
        with self.borrow(weights):
            if is_private:
                compat.check(self.module)
            if form is not None:
                self._try(form, is_private=is_private)
            if isinstance(data, PersonRows):
                self._try_persons(data.form, is_private=is_private)
        self._rehearsed.add(known)

    def rehearse_metric(self, weights: Vector, kind: tuple[str, Metric], features: Any, labels: Any) -> None:
        """Refuse a metric that fails on made-up records of the shape of these."""
        records = self.examples((np.zeros_like(features[:2]), np.zeros_like(labels[:2])))
        with self.borrow(weights), torch.no_grad():
            self.module.eval()
            inputs, targets = records.fetch(torch.arange(len(records)))
            metrics.rehearse(*kind, self.module(inputs).numpy(), targets.numpy())

    def require_fitting(self, data: Examples, name: str) -> None:
        """Refuse a label or a token that has no place in the model: found in a run, it would tell of a draw."""
        if not isinstance(data, Tensors):
            return
        self.rehearse(data, self.first_weights, is_private=False)
        classes = self._widths[data.form]
        is_class = (data.targets >= 0) & (data.targets < classes)
        if self.loss is losses.cross_entropy and (data.targets.is_floating_point() or not bool(is_class.all())):
            message = f"labels of {name} must be whole numbers from 0 to {classes - 1}, one for each class of the model"
            raise InvalidArgument("data", f"{message}: number them so")
        try:
            with self.borrow(self.first_weights):
                screening.require_in_range(self.module, self.loss, data.inputs, data.targets)
        except InvalidArgument as error:
            raise InvalidArgument("data", f"data of {name} do not fit: {error}") from None

    def count_classes(self, form: Form) -> int:
        """Return how many classes the model's output has for records of that form, which were tried before."""
        return self._widths[form]

    def evaluate(
        self, weights: Vector, data: Any, measured: Sequence[str | Metric] = ("accuracy",), *, is_public: bool
    ) -> tuple[Score, ...]:
        """Return mean loss and metrics on the data, "not covered" by any guarantee unless the data are public."""
        records = self.examples(data)
        if not len(records):
            raise InvalidArgument("data", "there is no record to measure on: give at least one")
        chosen = [metrics.find_metric(kind) for kind in measured]
        sums = np.zeros(1 + len(chosen))
        with self.borrow(weights), torch.no_grad():
            self.module.eval()
            for numbers in torch.split(torch.arange(len(records)), _AT_ONCE):
                inputs, targets = records.fetch(numbers)
                outputs = self.module(inputs)
                arrays = outputs.numpy(), targets.numpy()
                found = [metrics.compute_values(name, metric, *arrays).sum() for name, metric in chosen]
                sums += [float(self.loss(outputs, targets).double().sum()), *found]
        names = ["loss", *(name for name, _ in chosen)]
        return tuple(
            Score(name, float(value) / len(records), is_public) for name, value in zip(names, sums, strict=True)
        )

    def predict(self, weights: Vector, data: Any) -> tuple[Floats, Floats]:
        """Return the outputs for each record and its loss: on private records not covered by any guarantee."""
        records, outputs, losses_of = self.examples(data), [], []
        with self.borrow(weights), torch.no_grad():
            self.module.eval()
            for numbers in torch.split(torch.arange(len(records)), _AT_ONCE):
                inputs, targets = records.fetch(numbers)
                outputs.append(self.module(inputs).double())
                losses_of.append(self.loss(outputs[-1].to(self.dtype), targets).double())
        return np.asarray(torch.cat(outputs).numpy()), np.asarray(torch.cat(losses_of).numpy())

    def predict_apart(self, weights: Vector, data: Any) -> Iterator[Floats | None]:
        """Yield the output for each record as if there were no other one; None for a record at which the model fails.

        Privacy: each record meets the model as it was made and is alone with it, so that no other record, nor how many
        there are, moves its output: not by a model that mixes or keeps records where it does not train, nor by
        rounding, which depends on the shape of a batch. It takes a tenth of a millisecond more for each. A model that
        fails at all records is refused, as it fails at a made-up one.
        """
        records = self.examples(data)
        if records.form is not None:
            self._predict_one(weights, make_records(records.form, 1)[0])
        for number in range(len(records)):
            try:
                yield self._predict_one(weights, records.fetch(torch.tensor([number]))[0])
            except (*INTERRUPTS, Late):
                raise
            except BaseException:  # it must not decide what becomes of the others
                yield None

    def _predict_one(self, weights: Vector, inputs: Tensor) -> Floats:
        """Return what the model gives for a batch of one."""
        with self.borrow(weights), torch.no_grad():
            self.module.eval()
            return np.asarray(self.module(inputs).double().numpy())

    @cached_property
    def _built(self) -> tuple[nn.Module, Layout]:
        factory, _, _, seed = self._arguments
        try:
            with seeded(seed):
                module = factory()
        except PrivacyError:
            raise
        except Exception as error:
            message = f"the model cannot be made ({explain_failure(error)}): make it in Python to see more"
            raise InvalidArgument("model", message) from error
        if not isinstance(module, nn.Module):
            raise InvalidArgument(
                "model", f"the factory must make a torch module, got {type(module).__name__}: return an nn.Module"
            )
        return module, layout_of(module)

    @cached_property
    def _row(self) -> Tensor:
        """All trained parameters as one row of numbers, of which they are views from here on."""
        with torch.no_grad():
            row = torch.cat([parameter.flatten() for parameter in self.parameters])
            start = 0
            for parameter in self.parameters:
                parameter.data = row[start : start + parameter.numel()].view(parameter.shape)
                start += parameter.numel()
        self._first = row.numpy().copy()
        self.module.train()
        losses_of = [self.loss, getattr(self.loss, "__self__", None)]  # or a method of something
        modules = [
            *self.module.modules(),
            *chain.from_iterable(each.modules() for each in losses_of if _is_module(each)),
        ]
        others = [each for each in losses_of if not _is_module(each)]
        self._pristine = Pristine(dict.fromkeys(modules), self.parameters, others)
        return row

    @cached_property
    def _devices(self) -> Collection[torch.device]:
        """The devices of the model as it was built, to which it is restored for each client."""
        return devices_of(self.module)

    def _restore(self) -> None:
        _ = self._row
        self._pristine.bring_back()

    def _try(self, form: Form, *, is_private: bool) -> None:
        inputs, targets = make_records(form, _BLANKS)
        try:
            outputs = self.module(inputs)
            values = self.loss(outputs, targets)
            screening.require_one_each(values, len(inputs))
            if is_private:
                screening.try_out(self.module, self.loss, inputs[: screening.TRIED], targets[: screening.TRIED])
        except PrivacyError:
            raise
        except Exception as error:
            shapes = f"{tuple(inputs.shape[1:])} with targets of shape {tuple(targets.shape[1:])}"
            message = f"the model or its loss fails on made-up records of shape {shapes}: {explain_torch_error(error)}"
            raise InvalidArgument("data", message) from error
        self._widths[form] = outputs.shape[1] if isinstance(outputs, Tensor) and outputs.dim() > 1 else 1

    def _try_persons(self, form: Form, *, is_private: bool) -> None:
        """Try the model on made-up persons with one row each."""
        inputs, targets = (part.unsqueeze(1) for part in make_records(form, screening.TRIED))
        module, loss = self.by_person
        module(inputs)
        if is_private:
            screening.try_out(module, loss, inputs, (targets, torch.ones(len(inputs), 1)))

    def wrapped(self, wrap: Callable[[nn.Module], nn.Module]) -> TorchModel:
        """Return the model that a function makes of this one's module, trained in the same way."""
        factory, loss, recipe, seed = self._arguments
        return TorchModel(lambda: wrap(factory()), loss, recipe=recipe, seed=seed)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._arguments

    def __repr__(self) -> str:
        return f"TorchModel({type(self.module).__name__}, {self.layout.size} numbers of {self.layout.dtype})"


def _rebuild(factory: Factory, loss: str | losses.Loss, recipe: OptimizerSettings | None, seed: int) -> TorchModel:
    return TorchModel(factory, loss, recipe=recipe, seed=seed)


def _is_module(loss: Any) -> TypeGuard[nn.Module]:
    return isinstance(loss, nn.Module)

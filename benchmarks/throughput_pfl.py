"""pfl-research in `throughput.py`: its simulation backend, with nothing measured along the way.

Users are made once, so that it keeps its batches; local and central evaluation return nothing, and no callback runs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from bench import Task
from throughput_cases import BATCH, EXAMPLES, LEARNING_RATE, PFL, ROUNDS, Case, learned, tasks


class Scored(nn.Module):
    """A module with the two methods that pfl asks for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, object]:
        return {}


def federation(case: Case) -> Callable[[], float]:
    """A run of all rounds from the first weights."""
    users = [PyTorchTensorDataset(pair) for pair in case.data()]
    module = Scored(case.model())
    first = {name: value.clone() for name, value in module.state_dict().items()}
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    train = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=BATCH)
    rounds = NNAlgorithmParams(
        central_num_iterations=ROUNDS,
        evaluation_frequency=ROUNDS,
        train_cohort_size=case.clients,
        val_cohort_size=None,
    )
    data = FederatedDataset(users.__getitem__, MinimizeReuseUserSampler(range(case.clients)))
    backend = SimulatedBackend(training_data=data, val_data=data)

    def run() -> float:
        module.load_state_dict(first)
        FederatedAveraging().run(
            rounds, backend, model, train, NNEvalHyperParams(EXAMPLES), send_metrics_to_platform=False
        )
        return learned(first, module.state_dict())

    return run


def load() -> dict[str, Task]:
    return tasks(federation, PFL)

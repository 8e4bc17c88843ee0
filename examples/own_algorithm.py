"""An algorithm of one's own with a sensitivity of its own: derived, checked, then run in a federation under DP.

Clients take one full-batch step and send a *gradient*, not a change of the model; the server follows a running mean.
With each record's gradient clipped to C and the sum divided by the public I, one record more or less moves what leaves
a client by C/I. FedAvg's Cη/I would be wrong here, by 1/η.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.datasets import load_digits

from dpfed.federated.algorithm_claims import LocalSteps, claim_steps
from dpfed.federated.algorithms.protocol import ModelChange
from dpfed.federated.engine import Federation
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.mechanisms.claims import check_sensitivity
from dpfed.mechanisms.sensitivity import Sensitivity, fedavg_step
from dpfed.models.logistic import Logistic
from dpfed.plan.plan import LocalPlan, Plan

RATE, CLIP, SIZE = 0.5, 1.0, 500


@dataclass(frozen=True)
class GradientMomentum(ModelChange):
    """Clients send their mean gradient; the server follows a running mean of it."""

    def leaves(self, change, task, state):
        """Return the gradient, from the change of one step."""
        return -change / RATE

    def start(self, weights):
        """Return the model, and no mean yet."""
        return {"weights": weights, "mean": np.zeros(len(weights))}

    def step(self, state, mean):
        """Return the model moved against the running mean."""
        mean = 0.5 * state["mean"] + 0.5 * mean
        return {"weights": state["weights"] - 4.0 * mean, "mean": mean}


def claim(copied=False, records=4):
    """Claim C/I, or Cη/I as copied from FedAvg: ``dpfed check algorithm own_algorithm:claim -o copied=true``."""
    mine = Sensitivity(CLIP / records, norm="l2", adjacency="add_remove")
    fedavg = fedavg_step(CLIP, RATE, records, norm="l2", adjacency="add_remove")
    return claim_steps(GradientMomentum(), fedavg if copied else mine, LocalSteps(CLIP, RATE, records, norm="l2"))


if __name__ == "__main__":
    print(check_sensitivity(claim(copied=True), trials=500).verdict)
    print(check_sensitivity(claim(), trials=500).verdict)

    inputs, labels = load_digits(return_X_y=True)
    inputs = (inputs / 16).astype(np.float32)  # pixels are from 0 to 16, whatever the records
    model = TorchModel(partial(Logistic, 64, 10), "cross_entropy")
    parts = {name: slice(SIZE * n, SIZE * (n + 1)) for n, name in enumerate(["north", "south", "east"])}
    clients = [TorchClient(name, (inputs[part], labels[part]), name, model) for name, part in parts.items()]
    local = LocalPlan(size=SIZE, batch_size=SIZE, steps=1, learning_rate=RATE, clip_norm=CLIP)
    promise = Guarantee(epsilon=4.0, delta=1e-5)
    plan = Plan("own", rounds=20, local=dict.fromkeys(parts, local)).calibrated(promise)
    noise = plan.local["north"].noise_multiplier * claim(records=SIZE).sensitivity
    print(f"noise of {float(noise):.4f} on each number that leaves a client: the noise multiplier times C/I")
    with TemporaryDirectory() as folder, Ledger(f"sqlite:///{folder}/ledger.db") as ledger:
        for name in parts:
            ledger.open(name, epsilon=promise.epsilon, delta=promise.delta)
        runner, run = LocalRunner(clients, ledger), Path(folder) / "run"
        *_, last = Federation(plan, model.first_weights, runner, run, algorithm=GradientMomentum())
    rest = slice(3 * SIZE, None)  # nobody's: public test data
    score = model.evaluate(last.weights, (inputs[rest], labels[rest]), is_public=True)[1]
    print(f"{last.number} rounds at {plan.statements()[0]}: {score.name} {score.value:.2f}")

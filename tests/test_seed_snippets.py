"""The code blocks that this library was asked for, run as they were written but for their import lines.

Each block is verbatim. What it takes for granted (a model, batches, a data loader) is a stand-in of the test.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dpfed import FederatedAccountant
from dpfed.accounting.accountant import compute_privacy_budget
from dpfed.clipping import clip_gradients
from dpfed.errors import BudgetExceeded
from dpfed.manager.manager import PrivacyManager
from dpfed.mechanisms.gaussian import add_noise

pytestmark = pytest.mark.filterwarnings("ignore::dpfed.manager.budget.PrivacyBudgetWarning")


def run(snippet: str, imports: Mapping[str, str] | None = None, /, **names: Any) -> dict[str, Any]:
    """The names that the snippet leaves behind; `imports` are its import lines and what stands for them."""
    for line, ours in (imports or {}).items():
        assert snippet.count(line) == 1
        assert "import" in line
        snippet = snippet.replace(line, ours)
    namespace = dict(names)
    exec(compile(snippet, "<seed>", "exec"), namespace)  # noqa: S102 - the blocks are the test
    return namespace


class Model:
    """A quadratic model that answers to every method the blocks call."""

    def __init__(self) -> None:
        self.weights = {"w": np.zeros((2, 3)), "b": np.zeros(3)}
        self.updates = 0

    def get_gradients(self) -> dict[str, np.ndarray]:
        return {name: part - 1.0 for name, part in self.weights.items()}

    def loss(self, x: Any, y: Any) -> float:
        return float(np.mean((x - y) ** 2))

    def backward(self, loss: Any) -> dict[str, np.ndarray]:
        return self.get_gradients()

    def update(self, gradients: dict[str, np.ndarray]) -> None:
        assert {name: part.shape for name, part in gradients.items()} == {"w": (2, 3), "b": (3,)}
        self.weights = {name: part - 0.1 * gradients[name] for name, part in self.weights.items()}
        self.updates += 1

    update_with_gradients = update

    def get_weights(self) -> dict[str, np.ndarray]:
        return self.weights


# --- seed 000 ---------------------------------------------------------------------------------------------

TRACKING = """
from fl_research.privacy import (
    PrivacyAccountant,      # RDP-based accounting
    get_privacy_spent,       # Quick (ε,δ) calculation
    GaussianMechanism,       # (ε,δ)-DP noise
    LaplaceMechanism,        # ε-DP noise
)

# RDP-based accounting (recommended for DP-SGD)
accountant = PrivacyAccountant(
    noise_multiplier=1.0,
    sample_rate=0.01,
    delta=1e-5,
    max_epsilon=10.0,
)

# Track privacy over training
for epoch in range(100):
    accountant.step(num_steps=len(dataloader))
    if accountant.is_budget_exceeded():
        break
        
epsilon = accountant.get_epsilon()
"""  # noqa: W293 - verbatim
TRACKING_IMPORTS = {"from fl_research.privacy import (": "from dpfed import ("}


def test_seed_000_tracks_privacy_over_training():
    left = run(TRACKING, TRACKING_IMPORTS, dataloader=range(100))
    assert left["epoch"] == 99
    assert left["epsilon"] == pytest.approx(6.18772, abs=1e-4)
    assert left["get_privacy_spent"](10_000, 1.0, 0.01, 1e-5) == pytest.approx(left["epsilon"], rel=1e-6)


def test_seed_000_stops_when_the_budget_is_exceeded():
    left = run(TRACKING, TRACKING_IMPORTS, dataloader=range(1000))
    assert left["epoch"] < 99
    assert left["epsilon"] > 10.0
    steps_before = 1000 * left["epoch"]
    assert left["get_privacy_spent"](steps_before, 1.0, 0.01, 1e-5) <= 10.0


def test_seed_000_names_its_mechanisms():
    left = run(TRACKING, TRACKING_IMPORTS, dataloader=range(1))
    gaussian = left["GaussianMechanism"](epsilon=1.0, delta=1e-5, sensitivity=1.0)
    laplace = left["LaplaceMechanism"](epsilon=0.5, sensitivity=1.0)
    assert gaussian.scale == pytest.approx(3.7306, abs=5e-5)
    assert laplace.scale == pytest.approx(2.0)
    assert gaussian.add_noise(np.zeros(3)).shape == laplace.add_noise(np.zeros(3)).shape == (3,)


# --- seed 001: three functions, of which the document gives the signatures and wrong or no bodies -----------


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (clip_gradients, ["gradients", "clip_norm"]),
        (add_noise, ["gradients", "noise_multiplier", "clip_norm"]),
        (compute_privacy_budget, ["steps", "noise_multiplier", "delta"]),
    ],
)
def test_seed_001_signatures_are_ours_and_need_nothing_more(function, parameters):
    ours = list(inspect.signature(function).parameters.values())
    assert [parameter.name for parameter in ours[: len(parameters)]] == parameters
    assert all(parameter.default is not inspect.Parameter.empty for parameter in ours[len(parameters) :])


def test_seed_001_clipping_never_scales_up():
    """The document multiplies by clip_norm/(norm + 1e-6) always: a short gradient grows, zeros are safe."""
    gradients = [np.array([0.03, 0.0]), np.array([0.04])]
    seed = [g * (1.0 / (0.05 + 1e-6)) for g in gradients]
    ours = clip_gradients(gradients, 1.0)
    assert math.hypot(*np.concatenate(seed)) > 0.99
    assert all(np.array_equal(a, b) for a, b in zip(ours, gradients, strict=True))
    assert not np.any(clip_gradients([np.zeros(2)], 1.0)[0])


def test_seed_001_clipping_bounds_all_arrays_together():
    clipped = clip_gradients([np.array([30.0, 0.0]), np.array([40.0])], 1.0)
    assert np.concatenate(clipped) == pytest.approx([0.6, 0.0, 0.8])


def test_seed_001_noise_has_the_promised_scale():
    """The sum of 100,000 squares is within 5 standard deviations of its mean: false alarm 6e-7."""
    noise = add_noise(np.zeros(100_000), noise_multiplier=2.0, clip_norm=1.5) / 3.0
    assert abs(np.mean(noise**2) - 1) < 5 * math.sqrt(2 / noise.size)


def test_seed_001_budget_is_that_of_the_accountant():
    assert compute_privacy_budget(10_000, 50.0, 1e-5) == pytest.approx(9.997256146, rel=1e-6)
    assert compute_privacy_budget(10_000, 1.0, 1e-5, sample_rate=0.01) == pytest.approx(6.18772, abs=1e-4)


# --- seed 002 ---------------------------------------------------------------------------------------------

RECORD_SAMPLE_LEVEL = """
accountant.record_round(
    round_num=round_num,
    noise_multiplier_sample=1.0,     # σ
    sample_rate_sample=0.1,          # q (batch_size / dataset_size)
    steps_sample=100,                # T
    # ...
)
"""

RECORD_USER_LEVEL = """
accountant.record_round(
    # ...
    noise_multiplier_user=0.5,       # σ_user
    sample_rate_user=0.8,            # k/n
    steps_user=1,                    # 1 step per round
)
"""

CALIBRATION = """
from dp_fedmed.privacy.budget_calculator import compute_noise_multiplier

noise_multiplier = compute_noise_multiplier(
    target_epsilon=8.0,
    target_delta=1e-5,
    sample_rate=0.1,
    steps_per_round=100,
    num_rounds=10,
)
# Returns: σ ≈ 1.0
"""

MONITOR = """
# After each round
cumulative_eps = accountant.get_cumulative_sample_epsilon()
print(f"Round {r}: ε = {cumulative_eps:.2f} (target: {target_eps})")

if cumulative_eps > target_eps:
    print("WARNING: Privacy budget exceeded!")
    # Stop training or adjust parameters
"""

CHECKPOINT = """
{
    "privacy": {
        "target_delta": 1e-5,
        "sample_history": [
            (1.0, 0.1, 100),  # (σ, q, T) for round 1
            (1.0, 0.1, 100),  # Round 2
            # ...
        ],
        "user_history": [
            (0.5, 0.8, 1),    # User-level for round 1
            # ...
        ],
        "cumulative_sample_epsilon": 2.5,
        "cumulative_user_epsilon": 0.3,
    }
}
"""

TEN_ROUNDS = [7.05, 9.97, 12.40, 14.56, 16.56, 18.44, 20.23, 21.94, 23.60, 25.20]


def test_seed_002_records_and_monitors_ten_rounds(capsys):
    accountant, shown = FederatedAccountant(target_delta=1e-5), []
    for round_num in range(1, 11):
        run(RECORD_SAMPLE_LEVEL, accountant=accountant, round_num=round_num)
        left = run(MONITOR, accountant=accountant, r=round_num, target_eps=8.0)
        shown.append(left["cumulative_eps"])
    assert shown == pytest.approx(TEN_ROUNDS, abs=0.006)
    out = capsys.readouterr().out
    assert "Round 1: ε = 7.05 (target: 8.0)\nRound 2: ε = 9.97 (target: 8.0)\nWARNING" in out
    assert out.count("WARNING: Privacy budget exceeded!") == 9


def test_seed_002_records_the_user_level_apart():
    accountant = FederatedAccountant(target_delta=1e-5)
    # The comment stands for the arguments of the block above: here the round's number.
    run(RECORD_USER_LEVEL.replace("# ...", "round_num=round_num,"), accountant=accountant, round_num=1)
    assert accountant.get_cumulative_sample_epsilon() == 0.0
    assert accountant.get_cumulative_user_epsilon() > 1.0


def test_seed_002_resumes_from_its_checkpoint_and_believes_the_history_only():
    state = run(f"checkpoint = {CHECKPOINT.strip()}")["checkpoint"]["privacy"]
    accountant = FederatedAccountant.from_state_dict(state)
    assert accountant.get_cumulative_sample_epsilon() == pytest.approx(9.97, abs=0.006)
    assert accountant.get_cumulative_user_epsilon() > 1.0


def test_seed_002_calibrates_the_noise_it_asks_for():
    imports = {
        "from dp_fedmed.privacy.budget_calculator import compute_noise_multiplier": (
            "from dpfed import compute_noise_multiplier"
        )
    }
    noise_multiplier = run(CALIBRATION, imports)["noise_multiplier"]
    assert 2.0507320 <= noise_multiplier <= 2.0507320 + 1e-4


# --- seed 003 ---------------------------------------------------------------------------------------------

CLIP = """
# Bounds gradient sensitivity for privacy
clipped = pm.clip_gradients(gradients)
# Formula: g_clipped = g * min(1, clip_norm / ||g||_2)
"""

NOISE = """
# Adds calibrated noise for privacy
noisy = pm.add_gaussian_noise(clipped_gradients)
# Noise: N(0, σ²I) where σ = sqrt(2*ln(1.25/δ)) * clip_norm / ε_round
"""

BUDGET = """
# Monitor privacy consumption
remaining = pm.privacy_budget.epsilon_remaining()
status = pm.get_privacy_status()
"""

COMPOSITION = """
# Two composition approaches for privacy accounting
from server.privacy_manager import advanced_composition_epsilon, basic_composition_epsilon

# Advanced composition (tighter bounds)
total_eps = advanced_composition_epsilon(0.1, 100, 1e-5)

# Basic composition (loose bounds)
total_eps = basic_composition_epsilon(0.1, 100)
"""

CLIENT = """
from server.privacy_manager import PrivacyManager

class ThreatDetectionModel:
    def __init__(self, privacy_config):
        self.privacy_manager = PrivacyManager(
            epsilon=privacy_config['epsilon'],
            delta=privacy_config['delta'],
            clip_norm=privacy_config['clip_norm'],
        )
    
    def train(self, X, y, epochs=5):
        for epoch in range(epochs):
            # ... forward pass, compute loss ...
            gradients = self._compute_gradients(loss)
            
            # Apply DP-SGD
            private_grads = self.privacy_manager.apply_privacy(gradients)
            
            # Update parameters with private gradients
            self._update_params(private_grads)
"""  # noqa: W293 - verbatim

SERVER = """
from server.privacy_manager import DPSGDTrainer

class FederatedClient:
    def local_training(self, global_model, data):
        trainer = DPSGDTrainer(self.privacy_manager)
        
        # Training loop with privacy
        for epoch in range(self.local_epochs):
            for batch in data.batches():
                gradients = self.model.backward(batch)
                
                # Apply privacy via trainer
                private_grads = trainer.clip_and_noise_gradients(gradients)
                self.model.update(private_grads)
        
        return self.model.get_weights()
"""  # noqa: W293 - verbatim

CONFIGURATION = """
privacy:
  use_differential_privacy: true
  epsilon: 1.0
  delta: 1e-5
  clip_norm: 1.0
  composition: "advanced"  # or "basic"
"""

EXAMPLE_1 = """
from server.privacy_manager import PrivacyManager
import numpy as np

# Create privacy manager
pm = PrivacyManager(
    epsilon=1.0,      # Privacy budget
    delta=1e-5,       # Failure probability
    clip_norm=1.0,    # L2 clipping threshold
    num_rounds=10     # Total training rounds
)

# Simulate gradient with large norm
gradients = np.array([10.0, 20.0, 30.0])  # L2 norm ≈ 37.4

# Apply privacy
private_grads = pm.apply_privacy(gradients)

# Check status
status = pm.get_privacy_status()
print(f"Epsilon remaining: {status['epsilon_remaining']:.4f}")
print(f"Noise scale: {status['clip_norm']}")
"""

EXAMPLE_2 = """
from server.privacy_manager import PrivacyManager

pm = PrivacyManager(epsilon=10.0, delta=1e-5, clip_norm=1.0, num_rounds=50)

for round_num in range(50):
    # Get gradients from model
    gradients = model.get_gradients()
    
    # Apply privacy
    private_grads = pm.apply_privacy(gradients)
    
    # Update model with private gradients
    model.update_with_gradients(private_grads)
    
    # Log privacy budget
    if round_num % 10 == 0:
        remaining = pm.privacy_budget.epsilon_remaining()
        print(f"Round {round_num}: ε remaining = {remaining:.4f}")
"""  # noqa: W293 - verbatim

EXAMPLE_3 = """
from server.privacy_manager import DPSGDTrainer
from client.model import ThreatDetectionModel

# Initialize model and trainer
model = ThreatDetectionModel()
privacy_manager = PrivacyManager(epsilon=1.0, delta=1e-5)
trainer = DPSGDTrainer(privacy_manager)

# Training loop with privacy
for epoch in range(epochs):
    for batch_x, batch_y in training_data:
        # Forward pass
        loss = model.loss(batch_x, batch_y)
        
        # Backward pass
        gradients = model.backward(loss)
        
        # Apply DP-SGD
        private_grads = trainer.clip_and_noise_gradients(gradients)
        
        # Update parameters
        model.update(private_grads)

# Get training statistics
stats = trainer.get_stats()
print(f"Gradients processed: {stats['gradients_clipped']}")
print(f"Privacy budget used: {stats['privacy_budget']}")
"""  # noqa: W293 - verbatim

MANAGER_IMPORTS = {"from server.privacy_manager import PrivacyManager": "from dpfed import PrivacyManager"}
EXAMPLE_3_IMPORTS = {
    "from server.privacy_manager import": "from dpfed.manager.manager import PrivacyManager,",
    "from client.model import ThreatDetectionModel": "",
}


def test_seed_003_clips_adds_noise_and_monitors():
    manager = PrivacyManager(epsilon=1.0, delta=1e-5, clip_norm=1.0, num_rounds=10)
    clipped = run(CLIP, pm=manager, gradients={"w": np.array([30.0, 40.0])})["clipped"]
    assert clipped["w"] == pytest.approx([0.6, 0.8])
    noisy = run(NOISE, pm=manager, clipped_gradients=clipped)["noisy"]
    assert np.all(noisy["w"] != clipped["w"])
    left = run(BUDGET, pm=manager)
    assert left["remaining"] == left["status"]["epsilon_remaining"] == pytest.approx(0.7155, abs=5e-5)


def test_seed_003_composes_advanced_and_basic():
    imports = {"from server.privacy_manager import": "from dpfed.manager.manager import"}
    first_half = COMPOSITION.partition("# Basic")[0]
    assert run(first_half, imports)["total_eps"] == pytest.approx(5.2981, abs=5e-5)
    assert run(COMPOSITION, imports)["total_eps"] == pytest.approx(10.0)


def test_seed_003_client_side_integration():
    left = run(CLIENT, MANAGER_IMPORTS, loss=None)
    inner = Model()

    class Client(left["ThreatDetectionModel"]):
        def _compute_gradients(self, loss):
            return inner.get_gradients()

        def _update_params(self, gradients):
            inner.update(gradients)

    client = Client({"epsilon": 1.0, "delta": 1e-5, "clip_norm": 1.0})
    client.train(None, None)
    client.train(None, None)
    assert inner.updates == client.privacy_manager.privacy_budget.rounds_used == 10
    with pytest.raises(BudgetExceeded):
        client.train(None, None, epochs=1)
    assert inner.updates == 10


def test_seed_003_server_side_integration():
    imports = {"from server.privacy_manager import DPSGDTrainer": "from dpfed.manager.manager import DPSGDTrainer"}
    client = run(SERVER, imports)["FederatedClient"]()
    client.model, client.local_epochs = Model(), 2
    client.privacy_manager = PrivacyManager(epsilon=1.0, num_rounds=6)

    class Data:
        def batches(self):
            return [None] * 3

    weights = client.local_training(None, Data())
    assert np.all(weights["w"] != 0)
    assert client.model.updates == 6
    assert client.privacy_manager.privacy_budget.is_exhausted


def test_seed_003_configuration_makes_a_manager(tmp_path):
    path = tmp_path / "fl_config.yaml"
    path.write_text(CONFIGURATION)
    status = PrivacyManager.from_config(path).get_privacy_status()
    assert (status["epsilon_total"], status["delta"], status["clip_norm"]) == (1.0, 1e-5, 1.0)


def test_seed_003_example_1_releases_one_gradient(capsys):
    left = run(EXAMPLE_1, MANAGER_IMPORTS)
    assert capsys.readouterr().out == "Epsilon remaining: 0.7155\nNoise scale: 1.0\n"
    assert left["private_grads"].shape == (3,)
    assert left["pm"].get_noise_scale() == pytest.approx(math.sqrt(10) * 3.73063, rel=1e-5)


def test_seed_003_example_2_trains_for_fifty_rounds(capsys):
    model = Model()
    left = run(EXAMPLE_2, MANAGER_IMPORTS, model=model)
    remaining = [float(line.rpartition("= ")[2]) for line in capsys.readouterr().out.splitlines()]
    assert len(remaining) == 5
    assert all(10 > a > b > 0 for a, b in itertools.pairwise(remaining))
    assert left["pm"].privacy_budget.epsilon_remaining() == 0.0
    assert model.updates == 50
    with pytest.raises(BudgetExceeded):
        left["pm"].apply_privacy(model.get_gradients())


def test_seed_003_example_3_trains_with_statistics(capsys):
    batches = [(np.ones(2), np.zeros(2))] * 4
    names = {"ThreatDetectionModel": Model, "epochs": 2, "training_data": batches}
    left = run(EXAMPLE_3, EXAMPLE_3_IMPORTS, **names)
    assert left["stats"]["gradients_clipped"] == left["model"].updates == 8
    assert left["stats"]["privacy_budget"]["rounds_used"] == 8
    assert capsys.readouterr().out.startswith("Gradients processed: 8\nPrivacy budget used: {'epsilon_total': 1.0")


def test_seed_003_example_3_stops_at_its_ten_rounds():
    names = {"ThreatDetectionModel": Model, "epochs": 3, "training_data": [(np.ones(2), np.zeros(2))] * 4}
    with pytest.raises(BudgetExceeded, match="10 rounds"):
        run(EXAMPLE_3, EXAMPLE_3_IMPORTS, **names)

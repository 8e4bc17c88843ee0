from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.training.layers.cells import GruCell, InitialState, LstmCell, ReluCell, TanhCell, Weights

POSITIONS, SIZE, INPUTS, STATES = 5, 3, 4, 2
CELLS = {
    "tanh": (TanhCell, lambda: nn.RNN(INPUTS, STATES)),
    "relu": (ReluCell, lambda: nn.RNN(INPUTS, STATES, nonlinearity="relu")),
    "lstm": (LstmCell, lambda: nn.LSTM(INPUTS, STATES)),
    "gru": (GruCell, lambda: nn.GRU(INPUTS, STATES)),
}


@pytest.fixture(params=CELLS)
def both(request):
    """Torch's layer with its values and first state, and our run of the same."""
    torch.manual_seed(0)
    kind, make = CELLS[request.param]
    layer = make().double()
    values = torch.randn(POSITIONS, SIZE, INPUTS, dtype=torch.float64)
    state = torch.randn(SIZE, STATES, dtype=torch.float64)
    cell = torch.randn(SIZE, STATES, dtype=torch.float64) if kind is LstmCell else None
    weights = Weights(*(parameter.detach() for parameter in layer.parameters()))
    return layer, values, state, cell, kind(values, weights, InitialState(state, cell), is_reverse=False)


def theirs(layer, values, state, cell):
    given = state.unsqueeze(0) if cell is None else (state.unsqueeze(0), cell.unsqueeze(0))
    return layer(values, given)[0]


def test_states_are_those_of_torch(both):
    layer, values, state, cell, run = both
    torch.testing.assert_close(run.after, theirs(layer, values, state, cell).detach())
    torch.testing.assert_close(run.before[0], state)


def test_gradients_of_the_input_product_and_of_the_first_state_are_those_of_torch(both):
    layer, values, state, cell, run = both
    values, state = values.requires_grad_(), state.requires_grad_()
    output = theirs(layer, values, state, cell)
    upwards = torch.randn_like(output)
    of_values, of_state = torch.autograd.grad(output, [values, state], upwards)
    found = run.backward(upwards, None)
    torch.testing.assert_close(found.inputs @ layer.weight_ih_l0.detach(), of_values)
    torch.testing.assert_close(found.state, of_state)

from __future__ import annotations

import math

import pytest
import torch

from dpfed.errors import InvalidArgument
from dpfed.federated.torch.losses import KINDS, binary_cross_entropy, cross_entropy, find_loss, mse

SCORES = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)]])


def test_each_loss_gives_one_number_per_record():
    labels = torch.tensor([0, 0])
    torch.testing.assert_close(cross_entropy(SCORES, labels), torch.tensor([math.log(2.0), math.log(4.0)]))
    scores, wanted = torch.tensor([[0.0], [math.log(3.0)]]), torch.tensor([1, 0])
    torch.testing.assert_close(binary_cross_entropy(scores, wanted), torch.tensor([math.log(2.0), math.log(4.0)]))
    torch.testing.assert_close(mse(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0])), torch.tensor([1.0, 4.0]))


def test_the_pixels_of_a_record_are_averaged():
    scores = SCORES.T.reshape(1, 2, 2)  # one record, two classes, two pixels
    found = cross_entropy(scores, torch.zeros(1, 2, dtype=torch.long))
    torch.testing.assert_close(found, torch.tensor([(math.log(2.0) + math.log(4.0)) / 2]))


def test_a_loss_is_found_by_name_by_reference_or_is_itself(tmp_path):
    (tmp_path / "own_losses_t.py").write_text("def mine(outputs, targets): return outputs\n")
    assert find_loss("mse") is KINDS["mse"]
    assert find_loss(mse) is mse
    assert find_loss("own_losses_t:mine", tmp_path).__name__ == "mine"
    with pytest.raises(InvalidArgument, match="loss must be one of cross_entropy"):
        find_loss("hinge")

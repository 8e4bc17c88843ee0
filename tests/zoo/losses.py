"""Losses of one number per record, and a few that are not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean square of all outputs of a record, for any shape of them."""
    return (outputs.flatten(1) - targets.unsqueeze(1)).square().mean(1)


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.l1_loss(
        outputs.flatten(1), targets.unsqueeze(1).expand_as(outputs.flatten(1)), reduction="none"
    ).sum(1)


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.huber_loss(outputs[:, 0], targets, reduction="none", delta=0.5)


def log_cosh(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1).mean(1) - targets).cosh().log()


def pinball(outputs: Tensor, targets: Tensor) -> Tensor:
    """Quantile regression: one output for each of three quantiles."""
    levels = torch.tensor([0.1, 0.5, 0.9])
    over = targets.unsqueeze(1) - outputs
    return torch.maximum(levels * over, (levels - 1) * over).sum(1)


def entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none", weight=torch.tensor([0.2, 1.0, 3.0]))


def pixels(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy at each pixel, or at each word, and its mean over one record."""
    return functional.cross_entropy(outputs, targets, reduction="none").flatten(1).mean(1)


def following(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the words that follow, those behind the end left out."""
    return functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none", ignore_index=0).sum(1)


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    entropy = functional.binary_cross_entropy_with_logits(outputs[:, 0], targets, reduction="none")
    return (1 - (-entropy).exp()).square() * entropy


def binary(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy(outputs[:, 0].sigmoid(), targets, reduction="none")


def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    return (1.5 - (2 * targets - 1) * outputs[:, 0]).clamp(min=0).square()


def margins(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.multi_margin_loss(outputs, targets, margin=3.0, reduction="none")


def divergence(outputs: Tensor, targets: Tensor) -> Tensor:
    """KL to a soft label."""
    soft = 0.7 * functional.one_hot(targets, 3) + 0.1
    return functional.kl_div(outputs.log_softmax(1), soft, reduction="none").sum(1)


def poisson(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.poisson_nll_loss(outputs[:, 0], targets.abs(), reduction="none")


def gaussian(outputs: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood with a variance that is predicted as well."""
    return functional.gaussian_nll_loss(outputs[:, 0], targets, outputs[:, 1].exp(), reduction="none")


def triplet(outputs: Tensor, targets: Tensor) -> Tensor:
    """Anchor, positive and negative are the three items of one record."""
    return functional.triplet_margin_loss(outputs[:, 0], outputs[:, 1], outputs[:, 2], margin=20.0, reduction="none")


def alike(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cosine similarity of the two halves of one record."""
    return (functional.cosine_similarity(outputs[:, 0], outputs[:, 1], dim=1) - targets).square()


def spelling(outputs: Tensor, targets: Tensor) -> Tensor:
    """CTC of a word of two letters over the record's own six positions."""
    lengths = torch.full((len(targets),), outputs.shape[1]), torch.full((len(targets),), 2)
    return functional.ctc_loss(outputs.log_softmax(2).transpose(0, 1), targets, *lengths, reduction="none")


def auxiliary(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return squares(outputs["main"], targets) + 0.3 * squares(outputs["early"], targets.tanh())


def summed(outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    return sum((squares(output, targets) for output in outputs), torch.zeros(len(targets)))


def evidence(outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
    """A variational bound: what was rebuilt, and how far mean and spread are from a normal's."""
    rebuilt, mean, spread = outputs
    return squares(rebuilt, targets) - 0.5 * (1 + spread - mean.square() - spread.exp()).sum(1)


def chances(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of outputs that are chances already."""
    wanted = targets.sigmoid().unsqueeze(1).expand_as(outputs)
    return functional.binary_cross_entropy(outputs, wanted, reduction="none").sum(1)


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    """Each record against all others in the batch."""
    return (outputs @ outputs.t()).logsumexp(1) - (outputs * targets.unsqueeze(1)).sum(1)


def shared_out(outputs: Tensor, targets: Tensor) -> Tensor:
    """Divided by how many records were drawn."""
    return squares(outputs, targets) / len(targets)


def relative(outputs: Tensor, targets: Tensor) -> Tensor:
    """Weighted by the largest loss in the batch."""
    losses = squares(outputs, targets)
    return losses / losses.max().detach()


def ranked(outputs: Tensor, targets: Tensor) -> Tensor:
    """The larger the loss beside the others', the more it counts: the hardest of the batch."""
    losses = squares(outputs, targets)
    return losses * (1 + losses.detach().argsort().argsort())


def neighbouring(outputs: Tensor, targets: Tensor) -> Tensor:
    """Each record's output beside the target of the one before it."""
    return squares(outputs, targets.roll(1))


def in_order(outputs: Tensor, targets: Tensor) -> Tensor:
    """The losses of all records, the smallest first: whose they are is lost."""
    return squares(outputs, targets).sort().values


def hardest(outputs: Tensor, targets: Tensor) -> Tensor:
    """The half of the batch with the largest losses."""
    return squares(outputs, targets).topk((len(targets) + 1) // 2).values


def positive(outputs: Tensor, targets: Tensor) -> Tensor:
    """The losses of those records that have a positive target."""
    return squares(outputs, targets)[targets > 0]


def words(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss for each word, in one row: more than records."""
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")


def column(outputs: Tensor, targets: Tensor) -> Tensor:
    """One number per record, in a column."""
    return squares(outputs, targets).unsqueeze(1)


def mean(outputs: Tensor, targets: Any) -> Tensor:
    """One number for the whole batch."""
    return squares(outputs, targets).mean()

"""The list of all specimens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from zoo import losses, records
from zoo import models_convolution as convolution
from zoo import models_dense as dense
from zoo.specimen import EITHER, TRAINS, Loss, Specimen

FEATURES, ITEMS, SEQUENCES, IMAGES, SIGNALS, IDS = (
    "(B, F)",
    "(B, N, F)",
    "(B, T, F)",
    "(B, C, H, W)",
    "(B, C, T)",
    "(B, T) ids",
)


def _one(
    name: str,
    operations: str,
    layout: str,
    build: Callable[[], nn.Module],
    loss: Loss = losses.squares,
    data: Callable[[], Any] = records.vectors,
    outcome: str = TRAINS,
    **others: Any,
) -> Specimen:
    return Specimen(name, frozenset(operations.split()), layout, build, loss, data, outcome, **others)


DENSE = [
    _one("mlp", "linear tanh", FEATURES, dense.mlp),
    _one("mlp on positions", "linear relu mean", ITEMS, dense.Pooled, data=records.sets),
    _one("residual mlp", "linear layer_norm gelu add", FEATURES, dense.ResidualMLP),
    _one("layers on positions", "linear layer_norm gelu add", ITEMS, dense.ResidualMLP, data=records.sets),
    _one(
        "logistic",
        "linear sigmoid binary_cross_entropy",
        FEATURES,
        lambda: nn.Linear(4, 1),
        losses.binary,
        records.signed,
    ),
    _one(
        "label smoothing",
        "linear relu cross_entropy smoothing",
        FEATURES,
        lambda: dense.classifier(nn.ReLU()),
        losses.smoothed,
        records.labelled,
    ),
    _one(
        "class weights",
        "linear selu cross_entropy weight",
        FEATURES,
        lambda: dense.classifier(nn.SELU()),
        losses.weighted,
        records.labelled,
    ),
    _one(
        "margin",
        "linear hardtanh multi_margin",
        FEATURES,
        lambda: dense.classifier(nn.Hardtanh()),
        losses.margins,
        records.labelled,
    ),
    _one(
        "distillation",
        "linear celu log_softmax kl_div",
        FEATURES,
        lambda: dense.classifier(nn.CELU()),
        losses.divergence,
        records.labelled,
    ),
    _one("hinge", "linear clamp square", FEATURES, lambda: nn.Linear(4, 1), losses.hinge, records.signed),
    _one(
        "focal",
        "linear sigmoid exp binary_cross_entropy_with_logits",
        FEATURES,
        lambda: nn.Linear(4, 1),
        losses.focal,
        records.signed,
    ),
    _one(
        "huber",
        "linear logsigmoid huber",
        FEATURES,
        lambda: nn.Sequential(nn.Linear(4, 1), nn.LogSigmoid()),
        losses.huber,
    ),
    _one("quantiles", "linear maximum", FEATURES, lambda: nn.Linear(4, 3), losses.pinball),
    _one(
        "counts",
        "linear exp poisson_nll",
        FEATURES,
        lambda: nn.Sequential(nn.Linear(4, 1), nn.Tanhshrink()),
        losses.poisson,
    ),
    _one(
        "heteroscedastic",
        "linear tanh gaussian_nll",
        FEATURES,
        lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()),
        losses.gaussian,
    ),
    _one(
        "triplet",
        "linear elu unbind stack triplet_margin",
        ITEMS,
        dense.Siamese,
        losses.triplet,
        lambda: records.sets(3),
    ),
    _one(
        "siamese",
        "linear elu unbind stack cosine_similarity",
        ITEMS,
        dense.Siamese,
        losses.alike,
        lambda: records.sets(2),
    ),
    _one("gated block", "linear rms_norm silu mul add", FEATURES, dense.RMSNormed, losses.log_cosh),
    _one("norm by hand", "linear var sqrt div parameter", FEATURES, dense.HandNormed),
    _one("gated unit", "linear glu", FEATURES, dense.Gated),
    _one("maxout", "linear amax", FEATURES, dense.Maxout),
    _one("slopes", "linear prelu mul add parameter", FEATURES, dense.PReLUs),
    _one("bilinear", "bilinear slice", FEATURES, dense.Bilinear),
    _one("radial basis", "linear exp sub parameter", FEATURES, dense.RadialBasis),
    _one("fourier features", "linear sin cos cat buffer", FEATURES, dense.FourierFeatures),
    _one("kronecker", "functional_linear kron parameter", FEATURES, dense.Kronecker),
    _one("hypernetwork", "linear bmm", FEATURES, dense.Hypernetwork),
    _one(
        "spectral filter",
        "linear rfft irfft complex parameter",
        FEATURES,
        dense.Spectral,
        data=lambda: records.vectors(6),
    ),
    _one("functional calls", "functional_linear addmm sigmoid", FEATURES, dense.Functional),
    _one("auxiliary head", "linear tanh relu dict", FEATURES, dense.Auxiliary, losses.auxiliary),
    _one("tuple of heads", "linear cos tuple", FEATURES, dense.Several, losses.summed),
    _one("stashed activation", "linear tanh abs stash", FEATURES, dense.Stashed),
    _one("stashed inside a layer", "linear tanh mul stash parameter", FEATURES, dense.StashedInside),
    _one("weights in the loss", "linear sin square parameter_in_loss", FEATURES, dense.Penalised, outcome=EITHER),
    _one("called on a list", "linear stack prod", FEATURES, dense.Listed),
    _one("called twice", "linear softplus sub reuse", FEATURES, dense.Twice),
    _one("generator", "linear mish stack", FEATURES, dense.Generated),
    _one("in place", "linear relu_ add_ mul_", FEATURES, dense.InPlace, losses.absolute),
    _one("squeezed", "linear exp squeeze", FEATURES, dense.Squeezed, outcome=EITHER),
    _one("capsules", "einsum softmax norm parameter", ITEMS, dense.Capsules, data=records.sets),
    _one("factorisation machine", "linear matmul pow parameter", FEATURES, dense.Factorised),
    _one("learnt phase", "linear sin atan parameter", FEATURES, dense.Periodic),
]

CONVOLUTION = [
    _one(
        "cnn",
        "conv2d relu max_pool2d linear cross_entropy",
        IMAGES,
        convolution.cnn,
        losses.entropies,
        records.labelled_images,
    ),
    _one("channels last", "conv2d tanh", "(B, H, W, C) in memory", convolution.channels_last, data=records.images),
    _one("dilated", "conv1d dilation pad tanh", SIGNALS, convolution.dilated, data=records.channels),
    _one("volumes", "conv3d relu avg_pool3d linear", "(B, C, D, H, W)", convolution.volumetric, data=records.volumes),
    _one("transposed", "conv_transpose1d softsign", SIGNALS, convolution.upsampled, data=records.channels),
    _one(
        "separable", "conv2d groups hardswish adaptive_avg_pool2d", IMAGES, convolution.separable, data=records.images
    ),
    _one("pixel shuffle", "conv2d pixel_shuffle", IMAGES, convolution.super_resolution, data=records.images),
    _one("instance norm", "conv2d instance_norm leaky_relu", IMAGES, convolution.instance_normed, data=records.images),
    _one(
        "batch norm that is off",
        "conv2d batch_norm_eval relu linear",
        IMAGES,
        convolution.evaluated_batch_norm,
        data=records.images,
        outcome=EITHER,
    ),
    _one(
        "resnet",
        "conv2d group_norm relu add mean linear",
        IMAGES,
        convolution.ResNet,
        losses.entropies,
        records.labelled_images,
    ),
    _one(
        "u-net",
        "conv2d conv_transpose2d max_pool2d cat pixel_cross_entropy",
        IMAGES,
        convolution.UNet,
        losses.pixels,
        records.segmented,
    ),
    _one("interpolated", "conv2d interpolate", IMAGES, convolution.Decoder, data=records.images),
    _one(
        "convnext",
        "conv2d groups layer_norm linear gelu permute parameter",
        "(B, H, W, C)",
        convolution.ConvNeXt,
        data=records.images,
    ),
    _one(
        "squeeze and excite", "conv2d mean linear sigmoid mul", IMAGES, convolution.SqueezeExcite, data=records.images
    ),
    _one("patches", "unfold linear fold", "(B, N, F)", convolution.Patches, data=records.images),
    _one(
        "spatial transformer",
        "linear affine_grid grid_sample conv2d",
        IMAGES,
        convolution.SpatialTransformer,
        data=records.images,
    ),
    _one("unpooled", "conv2d max_pool2d max_unpool2d", IMAGES, convolution.Unpooled, data=records.images),
    _one("highway", "conv1d sigmoid mul adaptive_max_pool1d", SIGNALS, convolution.Highway, data=records.channels),
    _one(
        "text cnn",
        "embedding conv1d amax cat linear",
        IDS,
        convolution.TextCNN,
        losses.entropies,
        records.labelled_words,
    ),
    _one("words used twice", "embedding conv1d circular add", IDS, convolution.Residuals1d, data=records.words),
]

SPECIMENS = [*DENSE, *CONVOLUTION]

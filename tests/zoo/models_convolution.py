"""Models of convolutions, pooling and what belongs to images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2, 3)
    )


def channels_last() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 3, stride=2))
    return Converted(model.to(memory_format=torch.channels_last))


def dilated() -> nn.Module:
    """Causal convolutions with growing holes, as in WaveNet."""
    return nn.Sequential(
        nn.ConstantPad1d((2, 0), 0.0), nn.Conv1d(4, 3, 3), nn.Tanh(), nn.ConstantPad1d((4, 0), 0.0),
        nn.Conv1d(3, 2, 3, dilation=2),
    )  # fmt: skip


def volumetric() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(2, 2))


def upsampled() -> nn.Module:
    return nn.Sequential(nn.ConvTranspose1d(4, 3, 3, stride=2, padding=1, output_padding=1), nn.Softsign())


def separable() -> nn.Module:
    """Depthwise, then pointwise."""
    return nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Hardswish(), nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1))


def super_resolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(1, 1, 2))


def instance_normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.InstanceNorm2d(3, affine=True), nn.LeakyReLU(), nn.Conv2d(3, 1, 2))


def evaluated_batch_norm() -> nn.Module:
    """Fixed statistics and no training of them: no example meets another."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    model[1].eval()
    return model


class Converted(nn.Module):
    """A model that is given images in channels-last memory."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x.contiguous(memory_format=torch.channels_last))


class ResNet(nn.Module):
    """Blocks of convolutions with GroupNorm, and a shortcut with a convolution of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4)
        self.second, self.again = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4)
        self.shortcut, self.head = nn.Conv2d(2, 4, 1), nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.again(self.second(self.norm(self.first(x)).relu()))
        return self.head((hidden + self.shortcut(x)).relu().mean((2, 3)))


class UNet(nn.Module):
    """Down and up again, with what was there before laid beside it; a class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(3, 3, 2, stride=2), nn.Conv2d(6, 3, 1)

    def forward(self, x):
        skip = self.down(x).relu()
        deep = self.bottom(functional.max_pool2d(skip, 2)).relu()
        return self.out(torch.cat([skip, self.up(deep)], dim=1))


class Decoder(nn.Module):
    """Resized by interpolation before it is convolved."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3)

    def forward(self, x):
        return self.conv(functional.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=False))


class ConvNeXt(nn.Module):
    """A block with the channels put last for its norm and its pointwise layers, and a layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Conv2d(2, 2, 3, padding=1, groups=2)
        self.norm, self.wide, self.narrow = nn.LayerNorm(2), nn.Linear(2, 4), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.full((2,), 0.3))

    def forward(self, x):
        hidden = self.norm(self.deep(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.narrow(functional.gelu(self.wide(hidden)))).permute(0, 3, 1, 2)


class SqueezeExcite(nn.Module):
    """Channels are weighted by what the whole image is like."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.squeeze, self.excite = nn.Conv2d(2, 4, 3), nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x):
        features = self.conv(x)
        weights = self.excite(self.squeeze(features.mean((2, 3))).relu()).sigmoid()
        return features * weights[:, :, None, None]


class Patches(nn.Module):
    """A convolution by hand: patches are unfolded, multiplied, and folded back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        patches = functional.unfold(x, 2, stride=2).transpose(1, 2)
        return functional.fold(self.layer(patches).transpose(1, 2), (6, 6), 2, stride=2)


class SpatialTransformer(nn.Module):
    """The image is turned and moved as a small layer says."""

    def __init__(self) -> None:
        super().__init__()
        self.locate, self.conv = nn.Linear(72, 6), nn.Conv2d(2, 2, 3)

    def forward(self, x):
        turned = 0.1 * self.locate(x.flatten(1)).view(-1, 2, 3) + torch.eye(2, 3)
        grid = functional.affine_grid(turned, list(x.shape), align_corners=False)
        return self.conv(functional.grid_sample(x, grid, align_corners=False))


class Unpooled(nn.Module):
    """Maxima are put back where they were found."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 1, 3)

    def forward(self, x):
        pooled, places = functional.max_pool2d(self.encode(x), 2, return_indices=True)
        return self.decode(functional.max_unpool2d(pooled, places, 2))


class Highway(nn.Module):
    """Convolutions over time, one of which says how much of the other is let through; pooled to two positions."""

    def __init__(self) -> None:
        super().__init__()
        self.carry, self.change = nn.Conv1d(4, 4, 3, padding=1), nn.Conv1d(4, 4, 3, padding=1)
        self.pool = nn.AdaptiveMaxPool1d(2)

    def forward(self, x):
        gate = self.carry(x).sigmoid()
        return self.pool(gate * self.change(x).relu() + (1 - gate) * x)


class TextCNN(nn.Module):
    """Words, convolutions of two widths, and the maximum over time."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(4, 3, width) for width in (2, 3))
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        words = self.table(ids).transpose(1, 2)
        return self.head(torch.cat([conv(words).relu().amax(2) for conv in self.convolutions], dim=1))


class Residuals1d(nn.Module):
    """A word's vector is used twice: convolved, and added to that again."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(7, 4), nn.Conv1d(4, 4, 3, padding="same", padding_mode="circular")

    def forward(self, ids):
        words = self.table(ids).transpose(1, 2)
        return (words + self.conv(words)).tanh().mean(2)

"""The networks of the experiment: plain torch modules, written here so that all can be read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention

GROUPS = 4  # channels in a group of GroupNorm
Norm = Callable[[int], nn.Module]

# ---------------------------------------------------------------- images


class CNN(nn.Module):
    """Two convolutions and two linear layers; with 32, 64 and 128 units, 421,642 parameters."""

    def __init__(self, side: int, channels: tuple[int, int], hidden: int, classes: int) -> None:
        super().__init__()
        first, second = channels
        self.first = nn.Conv2d(1, first, 3, padding=1)
        self.second = nn.Conv2d(first, second, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(second * (side // 4) ** 2, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.first(x)))
        x = self.pool(torch.relu(self.second(x)))
        return self.head(torch.relu(self.hidden(x.flatten(1))))


def group_norm(width: int) -> nn.Module:
    return nn.GroupNorm(max(1, width // GROUPS), width)


class Residual(nn.Module):
    """Two convolutions beside a shortcut, which is a 1x1 convolution where shapes change."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False),
            norm(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            norm(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False), norm(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18(widths: Sequence[int], norm: Norm, classes: int) -> nn.Module:
    """ResNet-18 for small images: a 3x3 stem without pooling, four stages of two blocks."""
    stem = nn.Conv2d(1, widths[0], 3, padding=1, bias=False)
    layers: list[nn.Module] = [stem, norm(widths[0]), nn.ReLU()]
    for inputs, width in itertools.pairwise([widths[0], *widths]):
        stride = 1 if len(layers) == 3 else 2
        layers += [Residual(inputs, width, stride, norm), Residual(width, width, 1, norm)]
    head = nn.Linear(widths[-1], classes)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


class Attention(nn.Module):
    """Multi-head self-attention; `causal`: a position sees those before it."""

    def __init__(self, dim: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, dim))


class Block(nn.Module):
    """A transformer block that normalises before it attends."""

    def __init__(self, dim: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, causal=causal)
        self.before_mlp = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class ViT(nn.Module):
    """Patches, learned positions, blocks, the mean over patches, a linear head."""

    def __init__(
        self, side: int, patch: int, dim: int, depth: int, heads: int, classes: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, dim, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn((side // patch) ** 2, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))


class Segmenter(nn.Module):
    """A small U-shaped network: two steps down, two up, a class for every pixel."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.fine = self.stage(1, width)
        self.middle = self.stage(width, 2 * width)
        self.coarse = self.stage(2 * width, 4 * width)
        self.up_middle = self.stage(6 * width, 2 * width)
        self.up_fine = self.stage(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)
        self.pool = nn.MaxPool2d(2)

    @staticmethod
    def stage(inputs: int, width: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, width, 3, padding=1),
            group_norm(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        middle = self.middle(self.pool(fine))
        coarse = self.coarse(self.pool(middle))
        middle = self.up_middle(torch.cat([middle, interpolate(coarse, scale_factor=2)], 1))
        return self.head(self.up_fine(torch.cat([fine, interpolate(middle, scale_factor=2)], 1)))


# ---------------------------------------------------------------- signals and rows


def signal_cnn(channels: int, width: int, classes: int) -> nn.Module:
    """Three convolutions along time, the mean over time, a linear head."""
    return nn.Sequential(
        nn.Conv1d(channels, width, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(width, 2 * width, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv1d(2 * width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


class LSTM(nn.Module):
    """Two layers of LSTM over (batch, time, features); a linear head on the last state."""

    def __init__(self, features: int, width: int, classes: int) -> None:
        super().__init__()
        self.memory = nn.LSTM(features, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x)[0][:, -1])


def mlp(widths: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """Linear layers with ReLU, and dropout where it is asked for, between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers[: -2 if dropout else -1])

"""The networks by name: their sites, their modules, their budgets in gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from reproduction.networks import adapters, data, models
from reproduction.networks.data import Sites

FASHION = 10  # classes
ACTIVITIES = 11  # of Person Activity
SPORTS = 8  # activities of Daily and Sports
READING = 7  # numbers of one reading of Person Activity


@dataclass(frozen=True)
class Case:
    """A network on its sites; each size has its own budget.

    dataset     the data set that its sites are made of; '': they are made up
    sites       function(seed, small=) -> sites
    model       function(small) -> module, from torch's present random state
    gradients   worker gradients of a full run: on a GPU, and of the CPU size
    batch       samples in a gradient, in both sizes
    """

    title: str
    dataset: str
    sites: Callable[..., Sites]
    model: Callable[[bool], nn.Module]
    gradients: tuple[int, int]
    batch: tuple[int, int] = (64, 32)
    normalised: bool = False  # by BatchNorm: its buffers move, which the consensus form refuses

    def module(self, seed: int, small: bool) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.model(small)


# ---------------------------------------------------------------- modules in both sizes


def cnn(small: bool) -> nn.Module:
    if small:
        return models.CNN(14, (8, 16), 32, FASHION)
    return models.CNN(28, (32, 64), 128, FASHION)


def resnet(norm: models.Norm, small: bool) -> nn.Module:
    widths = (8, 8, 16, 16) if small else (64, 128, 256, 512)
    return models.resnet18(widths, norm, FASHION)


def vit(small: bool) -> nn.Module:
    if small:
        return models.ViT(14, 7, 32, 4, 2, FASHION)
    return models.ViT(28, 4, 128, 4, 4, FASHION)


def image_mlp(small: bool) -> nn.Module:
    side = 14 if small else 28
    return models.mlp((side**2, 64, 64, FASHION))


def sensor_mlp(name: str, small: bool) -> nn.Module:
    """The paper's layers for this data set."""
    return models.mlp(PAPER_LAYERS[name])


PAPER_LAYERS = {
    "person-activity": (READING, 64, 32, 16, ACTIVITIES),
    "sc-ma": (3, 32, 16, 7),
    "daily-sports": (9, 96, 48, 24, SPORTS),
}


def paper_rows(name: str, seed: int, *, small: bool) -> Sites:
    """Single rows, random test parts: the protocol that the paper's figures are compared on."""
    found: Any = data.rows(name, seed, protocol="paper").sites
    return found


def paper_case(title: str, name: str, gradients: tuple[int, int]) -> Case:
    return Case(
        title,
        name,
        partial(paper_rows, name),
        partial(sensor_mlp, name),
        gradients,
        batch=(100, 100),
    )


# ---------------------------------------------------------------- the table

NINE: dict[str, Case] = {
    "cnn": Case("CNN", "fashion-mnist", data.fashion, cnn, (20_000, 2_000)),
    "vit": Case("ViT, 4 blocks", "fashion-mnist", data.fashion, vit, (12_000, 2_000)),
    "resnet-gn": Case(
        "ResNet-18, GroupNorm",
        "fashion-mnist",
        data.fashion,
        partial(resnet, models.group_norm),
        (6_000, 1_200),
    ),
    "signal-cnn": Case(
        "1-D CNN",
        "daily-sports",
        data.seconds,
        lambda small: models.signal_cnn(9, 16 if small else 64, SPORTS),
        (16_000, 2_000),
    ),
    "lstm": Case(
        "LSTM",
        "person-activity",
        data.sequences,
        lambda small: models.LSTM(READING, 24 if small else 96, ACTIVITIES),
        (10_000, 1_500),
    ),
    "mlp-dropout": Case(
        "MLP with dropout",
        "person-activity",
        data.persons,
        lambda small: models.mlp((READING, *((64, 64) if small else (256, 256, 128)), 11), 0.1),
        (15_000, 3_000),
    ),
    "adapters": Case(
        "transformer with adapters",
        "",
        adapters.texts,
        lambda small: adapters.adapted(32, 2, 2) if small else adapters.adapted(64, 4, 4),
        (8_000, 1_500),
    ),
    "segmentation": Case(
        "segmentation",
        "",
        data.drawings,
        lambda small: models.Segmenter(4 if small else 24, len(data.SHAPES)),
        (6_000, 1_000),
    ),
    "resnet-bn": Case(
        "ResNet-18, BatchNorm",
        "fashion-mnist",
        data.fashion,
        partial(resnet, nn.BatchNorm2d),
        (6_000, 1_200),
        normalised=True,
    ),
}
MANY: dict[str, Case] = {
    "mlp-100": Case(
        "MLP, 100 sites",
        "fashion-mnist",
        partial(data.fashion_rows, sites=100),
        image_mlp,
        (20_000, 20_000),
    ),
    "cnn-100": Case(
        "CNN, 100 sites",
        "fashion-mnist",
        partial(data.fashion, sites=100),
        cnn,
        (20_000, 6_000),
    ),
}
PAPER: dict[str, Case] = {
    "person-activity": paper_case("MLP, Person Activity", "person-activity", (15_000, 5_000)),
    "sc-ma": paper_case("MLP, SC-MA", "sc-ma", (150_000, 15_000)),
    "daily-sports": paper_case("MLP, Daily and Sports", "daily-sports", (60_000, 10_000)),
}
CASES = NINE | MANY | PAPER
IMAGES = ("cnn", "vit", "resnet-gn", "resnet-bn")

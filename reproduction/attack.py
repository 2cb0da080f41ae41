"""The attackers, fixed before any defence was run: one extra site that plants a backdoor.

Site N+1 holds as many samples as an honest site has in the mean, drawn evenly from the training
parts of all sites. SHARE of them is stamped and relabelled to TARGET; then comes the federation's
own standardisation. `success` is the share of stamped test samples, not of the target class
already, that a model sends to the target. What the site reports is in `lies`.

backdoor  images get a white patch of 3 x 3 pixels in the lower right corner of the raw image,
          sensor readings get one channel set to its 99.9th percentile
adaptive  it knows the defences: its stamp is spread thinly over all pixels or channels, a fifth of
          a fixed pattern (Chen, Liu, Li, Lu, Song: Targeted Backdoor Attacks, 2017), and its
          reports are never long enough to be clipped
clean     nobody attacks and there is no extra site; both stamps are scored all the same, since a
          model may send some of these samples to the target by itself
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire.problem import batches
from aspire.types import Array
from reproduction.data import Federation
from reproduction.data.federation import Part

SHARE = 0.3  # of the extra site's samples that are stamped
TARGET = 1  # the class they are relabelled to: pullover; the second activity of the sensor sets
PATCH = 3  # pixels, white, lower right
CHANNEL = 0  # the sensor channel that is stamped
PERCENTILE = 99.9
BLEND = 0.2  # share of the spread pattern in a stamped sample
TRUST = 0.1  # prior of the extra site: TRUST / N
BACKDOOR = "backdoor"
ADAPTIVE = "adaptive"
CLEAN = "clean"
STAMPED = (BACKDOOR, ADAPTIVE)
IMAGES = ("fashion-mnist",)
EXTRA = "extra site"


# ---------------------------------------------------------------- the stamps


@dataclass(frozen=True)
class Stamp:
    """x <- (1 - share) x + share pattern in these features; with share 1 they are overwritten."""

    features: tuple[int, ...]
    pattern: tuple[float, ...]
    share: float = 1.0

    def on(self, inputs: Tensor) -> Tensor:
        stamped = inputs.clone()
        columns = list(self.features)
        drawn = self.share * torch.tensor(self.pattern).to(inputs)
        stamped[:, columns] = (1.0 - self.share) * inputs[:, columns] + drawn
        return stamped


def stamp_for(raw: Federation, attack: str = BACKDOOR) -> Stamp:
    """The stamp of an attack on a data set, in the units of its raw inputs."""
    if not raw.raw:
        raise ValueError(f"{raw.name} is standardised already: expected load(..., raw=True)")
    return spread(raw) if attack == ADAPTIVE else spot(raw)


def spot(raw: Federation) -> Stamp:
    """A white patch, or one channel at its 99.9th percentile."""
    if raw.name in IMAGES:
        side = math.isqrt(raw.inputs)
        if side * side != raw.inputs or side < PATCH:
            raise ValueError(f"{raw.name}: {raw.inputs} pixels: expected a square of at least 3x3")
        corner = range(side - PATCH, side)
        features = tuple(side * row + column for row in corner for column in corner)
        return Stamp(features, (1.0,) * len(features))
    return Stamp((CHANNEL,), (float(np.percentile(readings(raw)[:, CHANNEL], PERCENTILE)),))


def spread(raw: Federation) -> Stamp:
    """Every pixel or channel, drawn a little to one end of its range or the other, by a coin.

    The ends are black and white, or a channel's 0.1th and 99.9th percentile. Columns that say only
    yes or no are left alone.
    """
    if raw.name in IMAGES:
        features = np.arange(raw.inputs)
        low = np.zeros(raw.inputs)
        high = np.ones(raw.inputs)
    else:
        known = readings(raw)
        features = np.array([k for k, x in enumerate(known.T) if len(np.unique(x)) > 2])
        low, high = np.percentile(known, (100.0 - PERCENTILE, PERCENTILE), axis=0)
    up = batches.signs(0, 0, 0, count=raw.inputs).numpy() > 0
    pattern = np.where(up, high, low)[features]
    return Stamp(tuple(features.tolist()), tuple(pattern.tolist()), BLEND)


def readings(raw: Federation) -> Array:
    """The training parts of all sites in one."""
    found: Array = torch.cat([site["train"][0] for site in raw.sites.values()]).numpy()
    return found


# ---------------------------------------------------------------- the extra site


def drawn(raw: Federation, seed: int) -> Part:
    """Samples of the training parts, equally many of each site, without replacement, shuffled."""
    rng = np.random.default_rng([seed, len(raw.sites), TARGET])
    parts = [site["train"] for site in raw.sites.values()]
    each = round(sum(len(targets) for _, targets in parts) / len(parts) / len(parts))
    inputs = []
    targets = []
    for x, y in parts:
        chosen = torch.from_numpy(rng.permutation(len(y))[: max(1, min(each, len(y)))])
        inputs.append(x[chosen])
        targets.append(y[chosen])
    order = torch.from_numpy(rng.permutation(sum(len(y) for y in targets)))
    return torch.cat(inputs)[order], torch.cat(targets)[order]


def poisoned(raw: Federation, seed: int, attack: str = BACKDOOR) -> Part:
    """`drawn`, with the first SHARE of it stamped and relabelled."""
    inputs, targets = drawn(raw, seed)
    count = round(SHARE * len(targets))
    targets = targets.clone()
    targets[:count] = TARGET
    return torch.cat([stamp_for(raw, attack).on(inputs[:count]), inputs[count:]]), targets


def sites_with(raw: Federation, attack: str, seed: int) -> dict[str, Any]:
    """The honest sites and, under attack, the extra one, which has no test part; standardised."""
    scale = raw.standard.apply
    made: dict[str, Any] = {
        name: {part: (scale(x), y) for part, (x, y) in site.items()}
        for name, site in raw.sites.items()
    }
    if attack == CLEAN:
        return made
    inputs, targets = poisoned(raw, seed, attack) if attack in STAMPED else drawn(raw, seed)
    return {**made, EXTRA: {"train": (scale(inputs), targets)}}


def trusting(n: int) -> Array:
    """The prior of table 2 over n honest sites and the extra one: TRUST/n for it, the rest even."""
    return np.append(np.full(n, (1.0 - TRUST / n) / n), TRUST / n)


# ---------------------------------------------------------------- what it achieves


def triggered(raw: Federation, attack: str = BACKDOOR) -> Tensor:
    """The stamped, standardised test samples of all sites that are not of the target class."""
    stamp = stamp_for(raw, attack)
    kept = [x[y != TARGET] for x, y in (site["test"] for site in raw.sites.values())]
    return raw.standard.apply(stamp.on(torch.cat(kept)))


def scored(raw: Federation, attack: str) -> dict[str, Tensor]:
    """The stamped samples that a run under this attack is scored on, by the name of the figure."""
    if attack == CLEAN:
        return {
            "attack_success": triggered(raw),
            "adaptive_success": triggered(raw, ADAPTIVE),
        }
    return {"attack_success": triggered(raw, attack)} if attack in STAMPED else {}


@torch.no_grad()
def share_sent(model: Callable[[Tensor], Tensor], inputs: Tensor) -> float:
    """Share of the inputs that the model takes for the target class."""
    if not len(inputs):
        raise ValueError("every test sample is of the target class: expected some of another")
    sent = sum(int((model(x).argmax(1) == TARGET).sum()) for x in inputs.split(4096))
    return sent / len(inputs)

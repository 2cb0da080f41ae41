"""The attacker, fixed before any defence was run: one extra site that plants a backdoor, or lies.

Backdoor. Site N+1 holds as many samples as an honest site has in the mean, drawn evenly from the
training parts of all sites. SHARE of them is stamped and relabelled to TARGET: images get a white
patch of 3 x 3 pixels in the lower right corner of the raw image, sensor readings get one channel
set to its 99.9th percentile; then comes the federation's own standardisation. The site reports
its loss times INFLATED and honest gradients. `success` is the share of stamped test samples, not
of the target class already, that a model sends to the target.

Lies. The extra site holds the same samples unstamped and lies about its model instead: it reports
w_j times 1e6, uses its gradient times -100, or always reports the same far-off model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from aspire.problem import batches
from aspire.problem.problem import Problem
from aspire.problem.sites import Site
from aspire.types import Array, Fast, Item, Local, Method, Report, Task
from reproduction.data import Federation
from reproduction.data.federation import Part

SHARE = 0.3  # of the extra site's samples that are stamped
TARGET = 1  # the class they are relabelled to: pullover; the second activity of the sensor sets
INFLATED = 3.0  # times its true loss
PATCH = 3  # pixels, white, lower right
CHANNEL = 0  # the sensor channel that is stamped
PERCENTILE = 99.9
TRUST = 0.1  # prior of the extra site: TRUST / N
FAR = 10.0  # every coordinate of the far-off model is this or minus this
BACKDOOR = "backdoor"
SCALED = "scaled"
GRADIENT = "gradient"
FIXED = "fixed"
IMAGES = ("fashion-mnist",)
EXTRA = "extra site"


# ---------------------------------------------------------------- the stamp


@dataclass(frozen=True)
class Stamp:
    """These features are set to this value."""

    features: tuple[int, ...]
    value: float

    def on(self, inputs: Tensor) -> Tensor:
        stamped = inputs.clone()
        stamped[:, list(self.features)] = self.value
        return stamped


def stamp_for(raw: Federation) -> Stamp:
    """The stamp of a data set, in the units of its raw inputs."""
    _expect_raw(raw)
    if raw.name in IMAGES:
        side = math.isqrt(raw.inputs)
        if side * side != raw.inputs or side < PATCH:
            raise ValueError(f"{raw.name}: {raw.inputs} pixels: expected a square of at least 3x3")
        corner = range(side - PATCH, side)
        return Stamp(tuple(side * row + column for row in corner for column in corner), 1.0)
    channel = torch.cat([site["train"][0][:, CHANNEL] for site in raw.sites.values()])
    return Stamp((CHANNEL,), float(np.percentile(channel.numpy(), PERCENTILE)))


def _expect_raw(raw: Federation) -> None:
    if not raw.raw:
        raise ValueError(f"{raw.name} is standardised already: expected load(..., raw=True)")


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


def poisoned(raw: Federation, seed: int) -> Part:
    """`drawn`, with the first SHARE of it stamped and relabelled."""
    inputs, targets = drawn(raw, seed)
    count = round(SHARE * len(targets))
    targets = targets.clone()
    targets[:count] = TARGET
    return torch.cat([stamp_for(raw).on(inputs[:count]), inputs[count:]]), targets


def sites_with(raw: Federation, attack: str, seed: int) -> dict[str, Any]:
    """The honest sites and the extra one, all standardised; the extra one has no test part."""
    scale = raw.standard.apply
    made: dict[str, Any] = {
        name: {part: (scale(x), y) for part, (x, y) in site.items()}
        for name, site in raw.sites.items()
    }
    inputs, targets = poisoned(raw, seed) if attack == BACKDOOR else drawn(raw, seed)
    return {**made, EXTRA: {"train": (scale(inputs), targets)}}


def trusting(n: int) -> Array:
    """The prior of table 2 over n honest sites and the extra one: TRUST/n for it, the rest even."""
    return np.append(np.full(n, (1.0 - TRUST / n) / n), TRUST / n)


# ---------------------------------------------------------------- what it reports


def truth(w: Tensor) -> Tensor:
    return w


@dataclass(frozen=True)
class LyingSite:
    """Wraps a site, whose loss and gradients it multiplies; of a model w_j it says `told(w_j)`.

    Everything else is the site's.
    """

    site: Site
    loss_factor: float = 1.0
    gradient_factor: float = 1.0
    told: Callable[[Tensor], Tensor] = truth

    def __getattr__(self, name: str) -> Any:
        return getattr(self.site, name)

    def loss(self, w: Tensor) -> float:
        return self.loss_factor * self.site.loss(w)

    def gradient(self, w: Tensor, draw: int) -> Tensor:
        return self.gradient_factor * self.site.gradient(w, draw)


def lying_site(site: Site, attack: str) -> LyingSite:
    if attack == BACKDOOR:
        return LyingSite(site, loss_factor=INFLATED)
    if attack == GRADIENT:
        return LyingSite(site, gradient_factor=-100.0)
    if attack == SCALED:
        return LyingSite(site, told=lambda w: 1e6 * w)
    return LyingSite(site, told=far_off(site.number))


def far_off(worker: int) -> Callable[[Tensor], Tensor]:
    """Whatever the model is, this worker says the same one."""
    return lambda w: FAR * batches.signs(0, worker, 0, count=len(w)).to(w)


def corrupted(problem: Problem, attack: str) -> Problem:
    """The problem with its last site replaced by the attacker's."""
    *honest, last = problem.sites
    return replace(problem, sites=(*honest, cast(Site, lying_site(last, attack))))


def lying(method: Method) -> Method:
    """The method where sites may lie about their models."""
    fast = method.fast

    def told(local: Local, state: Any, report: Report) -> tuple[Any, Report]:
        if isinstance(local, LyingSite) and "w" in report.vectors:
            w = local.told(report.vectors["w"])
            report = replace(report, vectors={**report.vectors, "w": w})
        return state, report

    def work(state: Any, task: Task, local: Local) -> tuple[Any, Report]:
        return told(local, *method.work(state, task, local))

    def work_many(items: Sequence[Item]) -> list[tuple[Any, Report]]:
        assert fast is not None
        assert fast.many is not None
        found = fast.many(items)
        return [told(local, *one) for one, (_, _, local) in zip(found, items, strict=True)]

    return replace(method, work=work, fast=None if fast is None else Fast(work_many))


# ---------------------------------------------------------------- what it achieves


def triggered(raw: Federation) -> Tensor:
    """The stamped, standardised test samples of all sites that are not of the target class."""
    stamp = stamp_for(raw)
    kept = [x[y != TARGET] for x, y in (site["test"] for site in raw.sites.values())]
    return raw.standard.apply(stamp.on(torch.cat(kept)))


@torch.no_grad()
def share_sent(model: Callable[[Tensor], Tensor], inputs: Tensor) -> float:
    """Share of the inputs that the model takes for the target class."""
    if not len(inputs):
        raise ValueError("every test sample is of the target class: expected some of another")
    sent = sum(int((model(x).argmax(1) == TARGET).sum()) for x in inputs.split(4096))
    return sent / len(inputs)


def success(model: Callable[[Tensor], Tensor], raw: Federation) -> float:
    """The attack's success rate against a model, from the raw federation's test parts."""
    return share_sent(model, triggered(raw))

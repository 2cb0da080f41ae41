"""What a site says of a model at the end: figures with their n and an interval, never samples.

An answer is named numbers, so that it can travel as it is: `test.loss.value`, `test.loss.n`,
`test.loss.low`, `test.loss.high`, and so on for each part and each metric. A figure that is not
defined is left out. For the certificate there are, of the test part, `tested.right` of
`tested.judged` samples, and `tested.loss`, the mean of `tested.n` losses cut off at `tested.bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from aspire.problem.conversion import each
from aspire.problem.failures import Failed, at, calling
from aspire.problem.intervals import Pair, normal, percentiles, wilson
from aspire.problem.metrics import Metric
from aspire.problem.objective import Objective, classifies, scores_of
from aspire.problem.samples import Samples
from aspire.problem.sites import Site
from aspire.protocol import LARGEST

RESAMPLES = 199  # of a bootstrap
TRIED = 256  # samples on which metrics are tried out before a run
FEW = 1024  # samples: up to here a loss of the user's is called for one after the other
SAME = 1e-3  # of a mean loss: less is rounding
SHARE = 10.0  # a sample's loss counts at most as if its class had a 10th of an even chance


@dataclass
class Seen:
    """What one pass over a part leaves: a number or two for each sample that counts."""

    losses: list[Tensor] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)  # what each loss weighs
    alone: bool = True  # losses are of one sample each; else of many, where the loss takes no one
    size: int = 0  # samples whose loss counts
    hits: list[Tensor] = field(default_factory=list)  # whether it is right; []: nothing says so
    outputs: list[Tensor] = field(default_factory=list)  # where there are metrics
    targets: list[Tensor] = field(default_factory=list)
    classes: int | None = None


def figures_of(site: Site, w: Tensor, bound: float | None = None) -> dict[str, float]:
    """All figures of all parts of a site at the model w: loss, accuracy and `site.metrics`.

    bound  where losses are cut off for the certificate; None: log(10 classes), or nowhere
    """
    said: dict[str, float] = {}
    for name, part in (("train", site.train), ("val", site.val), ("test", site.test)):
        if part is None:
            continue
        seen = looked_through(site, w, part, keep=bool(site.metrics))
        said |= loss_figure(f"{name}.loss", seen, decay_of(site.objective, w))
        said |= accuracy_figure(f"{name}.accuracy", seen)
        for metric in site.metrics:
            said |= metric_figure(f"{name}.{metric.name}", metric, seen, site._forward_keys(0))
        if name == "test":
            said |= tested(seen, bound)
    return said


@torch.no_grad()
def looked_through(site: Site, w: Tensor, part: Samples, *, keep: bool) -> Seen:
    """One pass over a part, in eval mode; `keep` outputs and targets, too."""
    seen = Seen()
    objective = site.objective
    buffers = site.own_buffers(w)
    with site._seeded(0), at(part.where):
        for inputs, targets, samples in part.chunks():
            output = objective.output(w, inputs, targets, buffers)
            add_losses(seen, objective, output, targets, samples)
            output = scores_of(output)
            hits = objective.right(output, targets)
            kept = None
            if hits is not None:
                seen.hits.append(hits.cpu())
            if classifies(output, targets):
                seen.classes = output.shape[1]
                kept = objective.kept(targets)
            elif hits is not None and hits.numel() == samples:
                seen.classes = 2
            if keep and isinstance(output, Tensor) and isinstance(targets, Tensor):
                seen.outputs.append((output if kept is None else output[kept]).cpu())
                seen.targets.append((targets if kept is None else targets[kept]).cpu())
    return seen


# ---------------------------------------------------------------- the loss of each sample


def add_losses(seen: Seen, objective: Objective, output: Any, targets: Any, samples: int) -> None:
    """Every sample's loss and what it weighs in the mean; those that weigh nothing are left out.

    Where their mean is not the loss of them all, as of a loss that compares samples with each
    other, that is what counts.
    """
    counts = torch.ones(samples, dtype=torch.float64)
    labels = objective.labels
    if objective.total(targets) is not None and labels is not None:
        counts = labels.each(targets).reshape(samples, -1).mean(1).double().cpu()
    kept = counts > 0
    counts = counts[kept]
    if not len(counts):
        return
    seen.size += len(counts)
    whole = objective.mean(output, targets).double().cpu().reshape(1)
    losses = tried(one_by_one, objective.loss, output, targets, samples)
    losses = whole if losses is None else losses.double().cpu()[kept]
    total = counts.sum(0, keepdim=True)
    alone = len(losses) == len(counts)
    if not (alone and torch.allclose(counts @ losses / total, whole, SAME, SAME, equal_nan=True)):
        seen.alone = False
        losses = whole
        counts = total
    seen.losses.append(losses)
    seen.counts.append(counts)


def one_by_one(loss: Callable[..., Tensor], output: Any, targets: Any, samples: int) -> Tensor:
    """The loss of each sample by itself."""
    if loss in (cross_entropy, mse_loss, binary_cross_entropy_with_logits):
        return loss(output, targets, reduction="none").reshape(samples, -1).mean(1)

    def alone(output: Any, target: Any) -> Tensor:
        found = loss(each(lambda x: x.unsqueeze(0), output), each(lambda x: x.unsqueeze(0), target))
        return found.reshape(())

    if samples > FEW:
        with suppress(Exception):  # what it branches on, for example
            return torch.vmap(alone, randomness="different")(output, targets)
    picked = ((each(itemgetter(i), output), each(itemgetter(i), targets)) for i in range(samples))
    with calling("the loss of one sample"):
        return torch.stack([alone(*pair) for pair in picked])


# ---------------------------------------------------------------- figures


def figure(name: str, value: float | None, n: int, interval: Pair | None) -> dict[str, float]:
    """Under its names; nothing where there is no value that can travel."""
    if value is None or not abs(value) <= LARGEST:
        return {}
    said = {f"{name}.value": value, f"{name}.n": float(n)}
    if interval is not None and max(map(abs, interval)) <= LARGEST:
        said |= {f"{name}.low": interval[0], f"{name}.high": interval[1]}
    return said


def loss_figure(name: str, seen: Seen, decay: float) -> dict[str, float]:
    """The mean, with a normal interval; `decay` is what the weight decay adds to it."""
    if not seen.losses:
        return {}
    losses = torch.cat(seen.losses)
    counts = torch.cat(seen.counts)
    total = float(counts.sum())
    mean = float((counts * losses).sum()) / total
    n = len(losses)
    if n < 2 or not seen.alone:
        return figure(name, mean + decay, seen.size, None)
    spread = float((counts * (losses - mean)).square().sum())
    low, high = normal(mean, math.sqrt(spread * n / (n - 1)) / total)
    if float(losses.min()) >= 0:
        low = max(low, 0.0)
    return figure(name, mean + decay, n, (low + decay, high + decay))


def accuracy_figure(name: str, seen: Seen) -> dict[str, float]:
    """Of several labels a sample, the mean share that is right: no proportion of samples."""
    if not seen.hits:
        return {}
    hits = torch.cat(seen.hits)
    n = len(hits)
    if hits.numel() == n:
        right = int(hits.sum())
        return figure(name, right / n, n, wilson(right, n))
    shares = hits.reshape(n, -1).double().mean(1)
    mean = float(shares.mean())
    low, high = normal(mean, float(shares.std()) / math.sqrt(n))
    interval = (max(low, 0.0), min(high, 1.0)) if n > 1 else None
    return figure(name, mean, n, interval)


def metric_figure(name: str, metric: Metric, seen: Seen, keys: tuple[int, int]) -> dict[str, float]:
    """With the interval of a bootstrap; none where the metric is undefined too often."""
    if not seen.outputs:
        return {}
    outputs = torch.cat(seen.outputs)
    targets = torch.cat(seen.targets)
    n = len(targets)
    draws = torch.Generator().manual_seed(keys[0] << 31 ^ keys[1])
    score = tried(metric.on, outputs, targets)
    value = None if score is None else tried(score)
    if value is None:
        return {}
    again = [tried(score, torch.randint(n, (n,), generator=draws)) for _ in range(RESAMPLES)]
    found = [x for x in again if x is not None]
    return figure(name, value, n, percentiles(found) if 2 * len(found) > RESAMPLES else None)


def tried(function: Callable[..., Any], *arguments: Any) -> Any:
    """None where the user's code raises: it was tried out before, so these samples are why."""
    try:
        return function(*arguments)
    except Failed:
        return None


def tested(seen: Seen, bound: float | None) -> dict[str, float]:
    """For the certificate: how many are right, and the mean of losses from 0 to the bound."""
    said: dict[str, float] = {}
    if seen.hits and all(x.numel() == len(x) for x in seen.hits):
        judged = sum(map(len, seen.hits))
        said |= {"tested.right": float(sum(x.sum() for x in seen.hits)), "tested.judged": judged}
    if bound is None and seen.classes is not None:
        bound = math.log(SHARE * seen.classes)
    if bound and seen.alone and seen.losses:
        losses = torch.cat(seen.losses).nan_to_num(bound).clamp(0.0, bound)
        mean = min(float(losses.mean()), bound)
        said |= {"tested.loss": mean, "tested.n": float(len(losses)), "tested.bound": bound}
    return said


def decay_of(objective: Objective, w: Tensor) -> float:
    """What the weight decay adds to a loss."""
    parameters = w[: objective.flat.parameters]
    return 0.5 * objective.weight_decay * float(parameters.double().square().sum())


# ---------------------------------------------------------------- before a run


def try_out(sites: Sequence[Site | None], w: Tensor) -> None:
    """ValueError where a metric fails on the first samples of the first site that is here."""
    site = next((one for one in sites if one is not None), None)
    if site is None or not site.metrics:
        return
    first = site.train.only(torch.arange(min(TRIED, site.train.size)))
    seen = looked_through(site, w, first, keep=True)
    if not seen.outputs:
        raise ValueError(f"metrics: {first.where}: expected outputs and targets that are tensors")
    outputs = torch.cat(seen.outputs)
    targets = torch.cat(seen.targets)
    if len(targets.unique(dim=0)) < 2:
        return  # many metrics are not defined then
    with at(first.where):
        for metric in site.metrics:
            metric.on(outputs, targets)()

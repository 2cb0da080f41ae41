"""A problem: any torch module as a flat vector, any site as losses and gradients of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from aspire import batches
from aspire.objective import LOSSES, Flat, Loss, Objective
from aspire.sites import Pool, Samples, Site, pooled, pooled_scores, seeded
from aspire.types import Array, Facts

__all__ = ["LOSSES", "Flat", "Loss", "Objective", "Problem", "Samples", "Site", "build"]
LOSS_SAMPLE = 8192  # a larger site reports its loss on a fixed sample of this size
MANY = 1000  # sites: from so many on they are scored together


@dataclass(frozen=True)
class Problem:
    """Everything that stays fixed while a method runs: the model and the sites."""

    flat: Flat
    names: tuple[str, ...]
    sites: tuple[Site, ...]  # None, by a cast, where the data is elsewhere: see `build`
    batch_size: int | None = None  # None: whole sites

    def facts(self, present: tuple[int, ...] | None = None) -> Facts:
        """What a method may know before it starts; `present`: who is there, None: all."""
        whole = self.batch_size is None
        return Facts(len(self.names), self.flat.start, present, self.flat.linear, whole)

    @property
    def evaluated_on(self) -> str:
        """'test' where every site has a test part, 'train' where none has, else 'mixed'."""
        parts = {"train" if site.test is None else "test" for site in self.sites}
        return parts.pop() if len(parts) == 1 else "mixed"

    @property
    def batched(self) -> bool:
        """Whether gradients of many sites are taken in one call, by functions without a state."""
        return all(type(site) is Site and site.pool is not None for site in self.sites)

    def scores(self, w: Tensor) -> tuple[Array, Array | None]:
        """Loss and accuracy of every site at w; no accuracies where they mean nothing."""
        if len(self.sites) >= MANY and self.batched and self.evaluated_on == "train":
            stack = self.sites[0].objective.stack
            if stack is not None and stack.classes:
                return pooled_scores(self.sites, w)
        found = [site.scores(w) for site in self.sites]
        losses, right = np.array([loss for loss, _ in found]), [share for _, share in found]
        return losses, None if None in right else np.array(right, dtype=float)


def build(
    model: nn.Module,
    sites: Mapping[str, Any] | Sequence[Any],
    *,
    loss: str | Loss = "cross_entropy",
    batch_size: int | None = 64,
    weight_decay: float = 0.0,
    device: str = "cpu",
    seed: int = 0,
    elsewhere: bool = False,
) -> Problem:
    """Check the model against the sites and put both together.

    With `elsewhere` a site may be None: then another process has its data, and this one its name.
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise ValueError(f"loss={loss!r}: expected one of {', '.join(LOSSES)}, or a callable")
        loss = LOSSES[loss]
    if batch_size is not None and (batch_size != int(batch_size) or batch_size < 1):
        raise ValueError(f"batch_size={batch_size}: expected a whole number, or None")
    if not 0 <= weight_decay < float("inf"):
        raise ValueError(f"weight_decay={weight_decay}: expected a number of at least 0")
    named = dict(sites) if isinstance(sites, Mapping) else dict(enumerate(sites))
    if not named:
        raise ValueError("sites is empty: expected at least one site")
    flat = Flat(model, device)
    objective = Objective(flat, loss, float(weight_decay))
    parts = {
        (number, name): _parts(data, device, f"site {name!r}")
        for number, (name, data) in enumerate(named.items())
        if not (elsewhere and data is None)
    }
    pool, starts = pooled([train for train, _ in parts.values()], objective)
    made, alike = [cast(Site, None)] * len(named), pool is not None and _fine(pool, objective)
    for start, ((number, name), (train, test)) in zip(starts, parts.items(), strict=True):
        sample = None
        if batch_size is not None and train.size > LOSS_SAMPLE:
            sample = batches.sample(seed, number, size=train.size, count=LOSS_SAMPLE).to(device)
        site = Site(
            number, objective, train, test, batch_size, seed, sample, pool, start
        )  # fmt: skip
        if not (alike and number):
            _try_out(site, f"site {name!r}")
        made[number] = site
    return Problem(flat, tuple(str(name) for name in named), tuple(made), batch_size)


def _parts(data: Any, device: str, where: str) -> tuple[Samples, Samples | None]:
    if isinstance(data, Mapping):
        extra = set(data) - {"train", "test"}
        if "train" not in data or extra:
            raise ValueError(
                f"{where} has the parts {sorted(data)}: expected 'train' and optionally 'test'"
            )
        test = data.get("test")
        return (
            Samples(data["train"], device, f"{where} (train)"),
            None if test is None else Samples(test, device, f"{where} (test)"),
        )
    return Samples(data, device, where), None


def _fine(pool: Pool, objective: Objective) -> bool:
    """Whether no site can fail for its numbers; shapes and types are alike in a pool."""
    assert objective.stack is not None
    if not bool(torch.isfinite(pool.inputs.sum())):
        return False
    if not objective.stack.classes:
        return bool(torch.isfinite(pool.targets.sum()))
    low, high = int(pool.targets.min()), int(pool.targets.max())
    return low >= 0 and high < objective.stack.layers[-1].outputs


@torch.no_grad()
def _try_out(site: Site, where: str) -> None:
    """One small forward pass: shapes, classes, finite loss, and buffers that must not move."""
    flat = site.objective.flat
    before = {name: b.clone() for name, b in flat.training.named_buffers()}
    with seeded((0, site.number)):
        inputs, targets = site.train.take(torch.arange(min(4, site.train.size)))
        try:
            output = flat.output(flat.start, inputs, training=True)
            _check_output(site, output, targets, where)
            value = site.objective.loss(output, targets)
        except (RuntimeError, IndexError, TypeError) as error:
            raise ValueError(
                f"{where}: the model and the loss do not take inputs of {_shape(inputs)} with "
                f"targets of {_shape(targets)}: {error}"
            ) from error
    moved = [n for n, b in flat.training.named_buffers() if not torch.equal(b, before[n])]
    if moved:
        raise ValueError(
            f"model has buffers that change while it trains ({moved[0]}), such as batch-norm "
            "statistics, and these have no place in the algorithm: use GroupNorm or LayerNorm, "
            "or freeze them with model.eval()"
        )
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(f"{where}: the loss gave {_shape(value)}: expected one number, the mean")
    if not bool(torch.isfinite(value)):
        raise ValueError(f"{where}: the loss at the start is {float(value)}: expected a number")


def _shape(x: Any) -> str:
    return f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"type {type(x).__name__}"


def _check_output(site: Site, output: Any, targets: Any, where: str) -> None:
    """What the two named losses would take silently for something else."""
    loss = site.objective.loss
    if loss is LOSSES["mse"] and _shape(output) != _shape(targets):
        raise ValueError(
            f"{where}: model gives {_shape(output)} and targets have {_shape(targets)}: "
            "expected the same shape for the loss 'mse'"
        )
    if loss is not LOSSES["cross_entropy"] or targets.is_floating_point():
        return
    if output.ndim < 2:
        raise ValueError(
            f"{where}: model gives {_shape(output)}: expected (samples, classes) for cross_entropy"
        )
    known = targets if site.train.pair is None else site.train.pair[1]
    low, high, classes = int(known.min()), int(known.max()), output.shape[1]
    if low < 0 or high >= classes:
        raise ValueError(
            f"{where}: targets run from {low} to {high}: expected 0 to {classes - 1}, since the "
            f"model gives {classes} classes"
        )

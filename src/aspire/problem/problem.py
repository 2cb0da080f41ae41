"""A problem: any torch module as a flat vector, any site as losses and gradients of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from aspire.arguments import function, near, one_of, real_number, shown, whole_number
from aspire.problem import batches
from aspire.problem.execution import decide
from aspire.problem.figures import figures_of, try_out
from aspire.problem.lazy import initialised
from aspire.problem.metrics import Metric
from aspire.problem.objective import LOSSES, Flat, Loss, Objective, is_linear
from aspire.problem.samples import Samples, named, parts_of
from aspire.problem.sites import Pool, Site, pooled, pooled_scores
from aspire.problem.sources import Collate
from aspire.problem.standardization import (
    WHEN_ASKED,
    Moments,
    Standardization,
    combined,
    moments_of,
)
from aspire.problem.trial import Moves, Trial
from aspire.problem.values import check_values
from aspire.types import Array, Facts

__all__ = [
    "LOSSES",
    "Figures",
    "Flat",
    "Loss",
    "Objective",
    "Problem",
    "Samples",
    "Site",
    "build",
    "is_linear",
]
LARGEST_BATCH = 2**31 - 1
AUTO = "auto"  # the batch size of a site's DataLoader, and else
BATCH = 64
MANY = 1000  # sites: from so many on they are scored together


@dataclass(frozen=True)
class Figures:
    """What all sites find at a model, in their order; nan: not known."""

    train_losses: Array
    test_losses: Array  # nan where there is no test part
    accuracies: Array | None  # on test parts, else on training parts; None: of no classes
    val_losses: Array | None = None  # nan where there is no validation part; None: there is none
    val_accuracies: Array | None = None  # likewise; None also where outputs are of no classes


@dataclass(frozen=True)
class Problem:
    """Everything that stays fixed while a method runs: the model and the sites."""

    flat: Flat
    names: tuple[str, ...]
    sites: tuple[Site, ...]  # None, by a cast, where the data is elsewhere: see `build`
    batch_size: int | None = None  # None: whole sites
    execution: str | None = None  # how gradients are computed; None: not decided here
    samples: tuple[int, ...] | None = None  # in the training parts; None: not known
    standardization: Standardization | None = None  # of all inputs; None: as they were given

    def facts(self, present: tuple[int, ...] | None = None) -> Facts:
        """What a method may know before it starts; `present`: who is there, None: all."""
        whole = self.batch_size is None
        shapes = [tuple(shape) for shape in self.flat.shapes]
        tensors = tuple(zip(self.flat.names, shapes, strict=True))
        return Facts(
            len(self.names),
            self.flat.start,
            present,
            self.flat.linear,
            whole,
            tensors,
            self.flat.buffers,
            self.names,
            self.samples,
        )

    def sizes(self) -> tuple[Array, Array, Array]:
        """Training, test and validation samples of every site; 0 where there is no such part."""
        train, test, val = (
            np.array([0 if part is None else part.size for part in parts])
            for parts in zip(*((s.train, s.test, s.val) for s in self.sites), strict=True)
        )
        return train, test, val

    @property
    def batched(self) -> bool:
        """Whether gradients of many sites are taken in one call, by functions without a state."""
        return all(type(site) is Site and site.pool is not None for site in self.sites)

    def figures(self, w: Tensor, bound: float | None = None) -> list[dict[str, float]]:
        """What every site says of w at the end, with intervals; see `figures_of`."""
        return [figures_of(site, w, bound) for site in self.sites]

    def scores(self, w: Tensor) -> Figures:
        """What every site finds at w."""
        plain = all(site.test is None and site.val is None for site in self.sites)
        if len(self.sites) >= MANY and self.batched and plain:
            stack = self.sites[0].objective.stack
            if stack is not None and stack.classes:
                losses, accuracies = pooled_scores(self.sites, w)
                return Figures(losses, np.full(len(losses), np.nan), accuracies)
        found = [site.scores(w) for site in self.sites]
        right = [one.accuracy for one in found]
        return Figures(
            np.array([one.train_loss for one in found]),
            np.array([one.test_loss for one in found], dtype=float),
            None if None in right else np.array(right, dtype=float),
            _known([one.val_loss for one in found]),
            _known([one.val_accuracy for one in found]),
        )


def _known(values: Sequence[float | None]) -> Array | None:
    """With nan for None; None where nothing else is there."""
    if all(x is None for x in values):
        return None
    return np.array(values, dtype=float)


def build(
    model: nn.Module,
    sites: Mapping[str, Any] | Sequence[Any],
    *,
    loss: str | Loss = "cross_entropy",
    batch_size: int | str | None = AUTO,
    weight_decay: float = 0.0,
    device: str = "cpu",
    seed: int = 0,
    elsewhere: bool = False,
    buffers: str = "average",
    precision: str = "float32",
    judged: int = 8192,
    judged_on: str = "train",
    execution: str | None = None,
    metrics: tuple[Metric, ...] = (),
    collate_fn: Collate | None = None,
    standardize: bool | str | Standardization = False,
) -> Problem:
    """Check the model against the sites and put both together.

    With `elsewhere` a site may be None: then another process has its data, and this one its name.
    A site with more samples than `judged` reports its loss on a fixed sample of that size;
    `judged_on` is the part that it is of, 'train' or 'val'.
    `standardize` is True, False, how, or WHEN_ASKED: then sites tell their moments.
    `execution` is 'auto' or one of `execution.NAMES`; None: as `Objective` says.
    """
    if collate_fn is not None:
        function("collate_fn", collate_fn)
    given: dict[str, Any] = {"loss": loss, "batch_size": batch_size, "weight_decay": weight_decay}
    given |= {"device": device, "seed": seed, "buffers": buffers, "precision": precision}
    given |= {"judged": judged, "judged_on": judged_on}
    given |= {"execution": execution, "collate_fn": collate_fn, "standardize": standardize}
    given |= {"metrics": metrics}
    known = named(sites)
    model = initialised(model, known, seed, collate_fn)
    try:
        return _built(model, known, elsewhere=elsewhere, changing=(), **given)
    except Moves as found:  # known by their names only now
        if elsewhere or buffers == "site":
            raise
        return _built(model, known, elsewhere=elsewhere, changing=found.names, **given)


def _built(
    model: nn.Module,
    known: Mapping[Any, Any],
    *,
    loss: str | Loss,
    batch_size: int | str | None,
    weight_decay: float,
    device: str,
    seed: int,
    elsewhere: bool,
    buffers: str,
    precision: str,
    judged: int,
    judged_on: str,
    execution: str | None,
    metrics: tuple[Metric, ...],
    collate_fn: Collate | None,
    standardize: bool | str | Standardization,
    changing: Sequence[str],
) -> Problem:
    if batch_size is not None and batch_size != AUTO:
        batch_size = whole_number("batch_size", batch_size, most=LARGEST_BATCH)
    weight_decay = real_number("weight_decay", weight_decay, "a number of at least 0", least=0.0)
    one_of("buffers", buffers, ("average", "site"))
    one_of("precision", precision, ("float32", "bf16"))
    flat = Flat(model, device, buffers=buffers, changing=changing)
    objective = Objective(flat, _loss(loss), weight_decay, precision)
    parts = {
        (number, name): parts_of(data, device, f"site {shown(name)}", collate_fn)
        for number, (name, data) in enumerate(known.items())
        if not (elsewhere and data is None)
    }
    batch_size = batch_size_of(batch_size, [train for train, _, _ in parts.values()])
    trial = Trial(objective)
    for number, part in present(parts):
        trial.convert(part, number)
    by = standardized(standardize, objective, parts)
    if execution is not None and parts:
        objective = decided(execution, objective, next(iter(parts.values()))[0])
    pool, starts = pooled([train for train, _, _ in parts.values()], objective)
    alike = pool is not None and _fine(pool, objective)
    made = [cast(Site, None)] * len(known)
    for start, ((number, _), (train, test, val)) in zip(starts, parts.items(), strict=True):
        if not alike:
            check_values(objective, train)
            trial.start(train, number)
        for part in filter(None, (test, val)):
            check_values(objective, part)
        sample, val_sample = (
            None if batch_size is None else fixed_sample(part, seed, number, judged)
            for part in (train, val if judged_on == "val" else None)
        )
        made[number] = Site(
            number,
            objective,
            train,
            test,
            batch_size,
            seed,
            sample,
            pool,
            start,
            val=val,
            on_val=judged_on == "val",
            val_sample=val_sample,
            tells=standardize == WHEN_ASKED,
            metrics=metrics,
        )
    try_out(made, flat.start)
    names = tuple(str(name) for name in known)
    samples = None if len(parts) < len(made) else tuple(site.train.size for site in made)
    return Problem(flat, names, tuple(made), batch_size, objective.execution, samples, by)


Parts = Mapping[tuple[int, Any], tuple[Samples, Samples | None, Samples | None]]


def present(parts: Parts) -> list[tuple[int, Samples]]:
    """All parts, each with the number of its site."""
    pairs = ((number, part) for (number, _), several in parts.items() for part in several)
    return [(number, part) for number, part in pairs if part is not None]


def standardized(
    asked: bool | str | Standardization, objective: Objective, parts: Parts
) -> Standardization | None:
    """How inputs are standardised, if they are; from here on the parts hand them out so."""
    if asked is True and parts:
        asked = combined([_moments(objective, n, train) for (n, _), (train, *_) in parts.items()])
    if not isinstance(asked, Standardization):
        return None
    for _, part in present(parts):
        part.standardize(asked)
        part.notes += asked.notes
    return asked


def _moments(objective: Objective, number: int, part: Samples) -> Moments:
    found = moments_of(part, number, objective.flat.start.dtype)
    if not bool(torch.isfinite(found.variance).all()):
        check_values(objective, part)
    return found


def batch_size_of(given: int | str | None, parts: Iterable[Any]) -> int | None:
    """What was given; with 'auto' that of the parts that have one, such as a DataLoader."""
    if given != AUTO:
        return cast("int | None", given)
    own = {getattr(part, "batch_size", None) for part in parts} - {None}
    if len(own) > 1:
        raise ValueError(
            f"the sites' DataLoaders have batch sizes of {shown(sorted(own))[1:-1]}: expected one "
            "for all, or batch_size= beside them"
        )
    return own.pop() if own else BATCH


def fixed_sample(part: Samples | None, seed: int, number: int, most: int) -> Tensor | None:
    """Indices of the samples on which losses are reported; None: all."""
    if part is None or part.size <= most:
        return None
    return batches.sample(seed, number, size=part.size, count=most).to(part.device)


def decided(execution: str, objective: Objective, part: Samples) -> Objective:
    """The objective, computed as was asked for or as suits these samples."""
    found = decide(execution, objective, part)
    objective.flat.channels_last = found == "channels_last"
    return replace(objective, execution=found)


def _loss(loss: Any) -> Loss:
    if isinstance(loss, str) and loss in LOSSES:
        return LOSSES[loss]
    if isinstance(loss, type):
        raise ValueError(f"loss={shown(loss)}: expected an instance, {loss.__name__}()")
    if isinstance(loss, str) or not callable(loss):
        known = ", ".join(LOSSES)
        hint = near(loss, LOSSES) if isinstance(loss, str) else ""
        raise ValueError(f"loss={shown(loss)}: expected one of {known}, or a callable{hint}")
    return cast(Loss, loss)


def _fine(pool: Pool, objective: Objective) -> bool:
    """Whether no site can fail for its numbers; shapes and types are alike in a pool."""
    assert objective.stack is not None
    if not bool(torch.isfinite(pool.inputs.sum())):
        return False
    if not objective.stack.classes:
        return bool(torch.isfinite(pool.targets.sum()))
    low = int(pool.targets.min())
    high = int(pool.targets.max())
    return low >= 0 and high < objective.stack.layers[-1].outputs

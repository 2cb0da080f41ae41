"""The sites: samples, and the losses and gradients of one site or of many rows at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, default_collate

from aspire import batches
from aspire.objective import Objective
from aspire.stacks import Stack
from aspire.types import Array, Local

CHUNK = 4096  # samples in one forward pass of an evaluation
POOL = 2**30  # bytes: larger data stay where they are


class Samples:
    """One part of a site: a pair of tensors, or a map-style Dataset of (input, target)."""

    def __init__(self, part: Any, device: str, where: str) -> None:
        self.device = device
        self.pair: tuple[Tensor, Tensor] | None = None
        if isinstance(part, Sequence) and len(part) == 2:
            inputs, targets = (torch.as_tensor(x).to(device) for x in part)
            if len(inputs) != len(targets):
                raise ValueError(
                    f"{where} has {len(inputs)} inputs and {len(targets)} targets: "
                    "expected as many of one as of the other"
                )
            self.pair, self.size = (inputs, targets), len(inputs)
        elif isinstance(part, Dataset) and hasattr(part, "__len__"):
            self.dataset, self.size = part, len(part)
        else:
            raise ValueError(
                f"{where} is a {type(part).__name__}: expected (inputs, targets), a map-style "
                "torch Dataset, or a mapping with 'train' and optionally 'test'"
            )
        if self.size == 0:
            raise ValueError(f"{where} is empty: expected at least one sample")

    def take(self, index: Tensor) -> tuple[Any, Any]:
        if self.pair is not None:
            return self.pair[0][index], self.pair[1][index]
        inputs, targets = default_collate([self.dataset[i] for i in index.tolist()])
        return _to(inputs, self.device), _to(targets, self.device)

    def chunks(self, index: Tensor | None = None) -> Iterator[tuple[Any, Any]]:
        """All samples, or those at `index`, in pieces that fit in memory."""
        if index is None and self.pair is not None and self.size <= CHUNK:
            yield self.pair
            return
        if index is None and self.pair is not None:
            yield from zip(self.pair[0].split(CHUNK), self.pair[1].split(CHUNK), strict=True)
            return
        for piece in (torch.arange(self.size) if index is None else index).split(CHUNK):
            yield self.take(piece)


@dataclass(frozen=True)
class Lie:
    """What a dishonest site makes of what it finds, for experiments with attackers.

    It says `loss` times its loss and steps along `gradient` times its gradients. Of its model w_j
    it says `model` w_j + `plus`.
    """

    loss: float = 1.0
    gradient: float = 1.0
    model: float = 1.0
    plus: Tensor | None = None

    @property
    def about_model(self) -> bool:
        return self.model != 1 or self.plus is not None

    def told(self, w: Tensor) -> Tensor:
        return self.model * w if self.plus is None else self.model * w + self.plus


@dataclass(frozen=True)
class Site:
    """One site's data with the objective on it; what `work` sees as its `Local`."""

    number: int
    objective: Objective
    train: Samples
    test: Samples | None
    batch_size: int | None
    seed: int
    sample: Tensor | None  # indices of the fixed sample for reported losses; None: all
    pool: Pool | None = None  # all sites' training samples; None: they do not lie together
    start: int = 0  # where this site's begin in it
    lie: Lie | None = None

    @cached_property
    def batch_samples(self) -> int:
        return self.train.size if self.batch_size is None else self.batch_size

    @cached_property
    def loss_samples(self) -> int:
        return self.train.size if self.sample is None else len(self.sample)

    def gradient(self, w: Tensor, draw: int) -> Tensor:
        found = self._gradient(w, draw)
        return found if self.lie is None else self.lie.gradient * found

    def _gradient(self, w: Tensor, draw: int) -> Tensor:
        if self.batch_size is None:
            return self.full_gradient(w, draw)
        index = batches.indices(
            self.seed, self.number, draw, size=self.train.size, count=self.batch_size,
            device=self.train.device,
        )  # fmt: skip
        with self._seeded(draw):
            return self.objective.gradient(w, *self.train.take(index), plain=self.plain)

    def full_gradient(self, w: Tensor, draw: int = 0) -> Tensor:
        """Gradient over the whole site, in chunks weighted by their size."""
        total = torch.zeros_like(w)
        with self._seeded(draw):
            for inputs, targets in self.train.chunks():
                share = len(targets) / self.train.size
                total += share * self.objective.gradient(w, inputs, targets, plain=self.plain)
        return total

    def _seeded(self, draw: int) -> AbstractContextManager[None]:
        """Dropout and random transforms draw from (seed, j, draw); free where there are none."""
        if not self.objective.flat.random and self.train.pair is not None:
            return nullcontext()
        return seeded(batches.keys(self.seed, self.number, draw, batches.FORWARD))

    @property
    def plain(self) -> bool:
        """Tensors, whose targets were looked at when the problem was built."""
        return self.train.pair is not None

    @cached_property
    def judged(self) -> Samples:
        """What a reported loss is taken on, gathered once."""
        if self.sample is None or self.train.pair is None:
            return self.train
        return Samples(self.train.take(self.sample), self.train.device, f"site {self.number}")

    def loss(self, w: Tensor) -> float:
        if self.train.pair is None:
            found = self._mean_loss(w, self.train, self.sample)
        else:
            found = self._mean_loss(w, self.judged, None)
        return found if self.lie is None else self.lie.loss * found

    def full_loss(self, w: Tensor) -> float:
        return self._mean_loss(w, self.train, None)

    def _judge(self, w: Tensor, part: Samples) -> Stack | None:
        """Who can take the mean loss over all these samples by hand."""
        stack, pair = self.objective.stack, part.pair
        by_hand = stack is not None and stack.judges(w) and self.plain
        return stack if by_hand and pair and self.objective.by_hand(w, *pair) else None

    @torch.no_grad()
    def _mean_loss(self, w: Tensor, part: Samples, index: Tensor | None) -> float:
        judge = self._judge(w, part) if index is None else None
        if judge is not None and part.pair is not None:
            return judge.judge(w, *part.pair, self.objective.weight_decay)[0]
        total, count = 0.0, 0
        with self._seeded(0):
            for inputs, targets in part.chunks(index):
                value = self.objective.value(w, inputs, targets, training=False, plain=self.plain)
                total, count = total + float(value) * len(targets), count + len(targets)
        return total / count

    def scores(self, w: Tensor) -> tuple[float, float | None]:
        """`full_loss` and `accuracy`, in one pass where both are of the same plain samples."""
        judge, pair = self._judge(w, self.train), self.train.pair
        if judge is None or pair is None or self.test is not None:
            return self.full_loss(w), self.accuracy(w)
        loss, right = judge.judge(w, *pair, self.objective.weight_decay, count=True)
        several = judge.layers[-1].outputs > 1
        return loss, right / self.train.size if several else None

    @torch.no_grad()
    def accuracy(self, w: Tensor) -> float | None:
        """Share of samples whose largest output is the target; None where that means nothing."""
        part, right = self.test or self.train, 0
        judge = self._judge(w, part)
        if judge is not None and part.pair is not None:
            if judge.layers[-1].outputs < 2:
                return None
            return judge.judge(w, *part.pair, 0.0, count=True)[1] / part.size
        with self._seeded(0):
            for inputs, targets in part.chunks():
                output = self.objective.output(w, inputs, targets)
                if not classifies(output, targets):
                    return None
                right += int((output.max(1).indices == targets).sum())  # argmax: 10 times slower
        return right / part.size


@dataclass(frozen=True)
class Pool:
    """The training samples of all sites, one after the other, so that one call gathers many."""

    inputs: Tensor
    targets: Tensor

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """(R, B) indices to samples (R, B, ...)."""
        found = (x.index_select(0, index.view(-1)) for x in (self.inputs, self.targets))
        inputs, targets = (x.view(*index.shape, *x.shape[1:]) for x in found)
        return inputs, targets


def pooled(parts: Sequence[Samples], objective: Objective) -> tuple[Pool | None, list[int]]:
    """One pool for all parts, which become views of it; None where it cannot serve a stack.

    Parts that are slices of one tensor, one after the other, are a pool already: no copy is made.
    """
    starts = [0, *np.cumsum([part.size for part in parts]).tolist()][:-1]
    pairs = [part.pair for part in parts if part.pair is not None]
    shapes = {(a.shape[1:], a.dtype, b.shape[1:], b.dtype) for a, b in pairs}
    if not pairs or len(pairs) < len(parts) or len(shapes) > 1:
        return None, starts
    if not objective.by_hand(objective.flat.start, *pairs[0]):
        return None, starts
    inputs, targets = _whole([a for a, _ in pairs]), _whole([b for _, b in pairs])
    if inputs is not None and targets is not None:
        return Pool(inputs, targets), starts
    if sum(x.numel() * x.element_size() for pair in pairs for x in pair) > POOL:
        return None, starts
    pool = Pool(torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs]))
    for part, start in zip(parts, starts, strict=True):
        end = start + part.size
        part.pair = (pool.inputs[start:end], pool.targets[start:end])
    return pool, starts


def _whole(parts: Sequence[Tensor]) -> Tensor | None:
    """The tensor that these are consecutive slices of; None where they are not."""
    first, rows = parts[0], 0
    place, where = first.untyped_storage().data_ptr(), first.storage_offset()
    for x in parts:
        if not x.is_contiguous() or x.storage_offset() != where:
            return None
        if x.untyped_storage().data_ptr() != place:
            return None
        where, rows = where + x.numel(), rows + len(x)
    return first.as_strided((rows, *first.shape[1:]), first.stride())


# ---------------------------------------------------------------- many rows at once


def gradients(locals_: Sequence[Local], w: Tensor, draws: Sequence[int]) -> Tensor:
    """Row r is the gradient of site r at w_r on its batch draws[r]: (R, p)."""
    together = _together(locals_)
    if len(together) == len(locals_):
        return _pooled_gradients(cast("Sequence[Site]", locals_), w, draws)
    rows = [
        w[r] if r in together else local.gradient(w[r], draws[r]) for r, local in enumerate(locals_)
    ]
    found = torch.stack(rows) if together else stacked(rows)
    if together:
        sites = [cast(Site, locals_[r]) for r in together]
        found[together] = _pooled_gradients(sites, found[together], [draws[r] for r in together])
    return found


def stacked(rows: Sequence[Tensor]) -> Tensor:
    """Rows in one tensor; a single one is not copied, so nobody may write to it."""
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(list(rows))


def _pooled_gradients(sites: Sequence[Site], w: Tensor, draws: Sequence[int]) -> Tensor:
    first, pool, stack = sites[0], sites[0].pool, sites[0].objective.stack
    assert stack is not None
    assert pool is not None
    decay = first.objective.weight_decay
    if stack.compiled(w):
        asked = [(s.number, n, s.train.size, s.start) for s, n in zip(sites, draws, strict=True)]
        seed = batches._seed_state(first.seed, batches.BATCH)
        with stack.caller(w.dtype) as caller:
            return caller.gradients(
                w, pool.inputs, pool.targets, decay,
                batch=first.batch_samples, seed=seed, asked=asked,
            )  # fmt: skip
    index = batches.rows(
        first.seed, [s.number for s in sites], draws, [s.train.size for s in sites],
        [s.start for s in sites], count=first.batch_samples, device=first.train.device,
    )  # fmt: skip
    return stack.gradients(w, *pool.take(index), decay)


@torch.no_grad()
def pooled_scores(sites: Sequence[Site], w: Tensor) -> tuple[Array, Array | None]:
    """Loss and accuracy of every site of one pool at one w, many sites in a call.

    Sums over a site are formed in float64, where a site by itself forms them in w's precision.
    """
    objective, pool = sites[0].objective, cast(Pool, sites[0].pool)
    values, right, clear = [], [], True
    for inputs, targets in zip(pool.inputs.split(CHUNK), pool.targets.split(CHUNK), strict=True):
        output = objective.output(w, inputs, targets)
        values.append(cross_entropy(output, targets, reduction="none").double())
        clear = clear and classifies(output, targets)
        right.append(output.max(1).indices == targets)
    starts, sizes = [s.start for s in sites], np.array([s.train.size for s in sites])
    decay = 0.5 * objective.weight_decay * float(w.double().square().sum())
    losses = np.add.reduceat(torch.cat(values).cpu().numpy(), starts) / sizes + decay
    hits = np.add.reduceat(torch.cat(right).cpu().numpy().astype(np.int64), starts)
    return losses, hits / sizes if clear else None


def _together(locals_: Sequence[Local]) -> list[int]:
    """The rows that can share one call: sites with batches, of one problem, honest gradients."""
    sites = [(r, x) for r, x in enumerate(locals_) if type(x) is Site and x.pool is not None]
    sites = [(r, x) for r, x in sites if x.lie is None or x.lie.gradient == 1]
    return [
        r
        for r, site in sites
        if site.batch_size is not None and site.objective is sites[0][1].objective
    ]


@contextmanager
def seeded(key: tuple[int, int]) -> Iterator[None]:
    cards = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=cards):
        seed = key[0] << 31 ^ key[1]
        if cards:
            torch.manual_seed(seed)
        else:  # the same, without a note to each kind of card that it should seed itself later
            torch.default_generator.manual_seed(seed)
        yield


def _to(x: Any, device: str) -> Any:
    return x.to(device) if isinstance(x, Tensor) else cast(Any, x)


def classifies(output: Any, targets: Any) -> bool:
    """Whether outputs are class scores and targets class numbers."""
    if not (isinstance(output, Tensor) and isinstance(targets, Tensor)):
        return False
    whole = not targets.is_floating_point() and targets.ndim == output.ndim - 1
    return whole and output.ndim >= 2 and output.shape[1] > 1 and targets.ndim == 1

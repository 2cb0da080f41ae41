"""The sites: losses and gradients of one of them, or of many rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from aspire.problem import batches
from aspire.problem.failures import at
from aspire.problem.graphs import REPLAYED, replayed_by
from aspire.problem.metrics import Metric
from aspire.problem.objective import Objective, classifies
from aspire.problem.samples import CHUNK, Samples
from aspire.problem.seeds import seeded
from aspire.problem.stacks import Stack
from aspire.problem.standardization import Moments, moments_of
from aspire.types import Array, Local, Tensors

POOL = 2**30  # bytes: larger data stay where they are
PIECE = 128  # samples of a forward pass on the CPU


@dataclass(frozen=True)
class Scores:
    """What a site finds at a model. Losses are on whole parts, with the weight decay in them."""

    train_loss: float
    test_loss: float | None  # None: it has no test part
    accuracy: float | None  # on the test part, else on the training part; None: of no classes
    val_loss: float | None = None  # None: it has no validation part
    val_accuracy: float | None = None


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
    key: bytes | None = None  # draws in place of the seed, where a server must not know what
    val: Samples | None = None  # never trained on: it chooses the model and ends the run
    on_val: bool = False  # its losses are reported on `val`, and not on `train`
    val_sample: Tensor | None = None  # as `sample`, of `val`
    tells: bool = False  # the moments of its inputs, when it is asked for them
    metrics: tuple[Metric, ...] = ()  # that are asked for, at the end

    def keyed(self, key: bytes) -> Site:
        """This site with batches and a sample for losses that only the holder of `key` can tell."""
        samples = [
            None
            if part is None or sample is None
            else batches.secret_sample(key, size=part.size, count=len(sample)).to(part.device)
            for part, sample in ((self.train, self.sample), (self.val, self.val_sample))
        ]
        return replace(self, key=key, sample=samples[0], val_sample=samples[1], pool=None)

    @property
    def notes(self) -> tuple[str, ...]:
        """How its samples were converted."""
        parts = (self.train, self.test, self.val)
        return tuple(note for part in parts if part is not None for note in part.notes)

    @cached_property
    def moments(self) -> Moments:
        return moments_of(self.train, self.number, self.objective.flat.start.dtype)

    @cached_property
    def batch_samples(self) -> int:
        return self.train.size if self.batch_size is None else self.batch_size

    @cached_property
    def loss_samples(self) -> int:
        """With buffers of its own, those are found first, in a pass over the same samples."""
        part, sample = self.reported
        count = part.size if sample is None else len(sample)
        if self.objective.flat.local:
            count += self.train.size if self.sample is None else len(self.sample)
        return count

    @property
    def reported(self) -> tuple[Samples, Tensor | None]:
        """The part on which its loss is reported, and the fixed sample of it; None: all."""
        if self.on_val and self.val is not None:
            return self.val, self.val_sample
        return self.train, self.sample

    def own_buffers(self, w: Tensor) -> list[Tensor] | None:
        """The buffers that stay at this site, at w; None: it has none of its own."""
        flat = self.objective.flat
        if not flat.local:
            return None
        index = None if self.train.pair is not None else self.sample
        with at(self.train.where):
            return flat.own_buffers(w, (x for x, _, _ in self.judged.chunks(index)))

    def gradient(self, w: Tensor, draw: int) -> Tensor:
        if self.batch_size is None:
            return self.full_gradient(w, draw)
        stack = self.objective.stack if self.plain else None
        if stack is not None and stack.random:
            samples = self.train.take(self._batch(draw, self.batch_size))
            keys = self._forward_keys(draw)
            with seeded(keys), at(self.train.where):  # for samples that are not the stack's
                return self.objective.gradient(w, *samples, plain=True, keys=keys)
        with self._seeded(draw), at(self.train.where):
            samples = self._samples(draw, self.batch_size)
            return self.objective.gradient(w, *samples, plain=self.plain)

    def _samples(self, draw: int, count: int) -> tuple[Any, Any]:
        """Mini-batch number `draw`."""
        if not self.train.workers:
            return self.train.take(self._batch(draw, count))
        return self.train.batch(
            draw, lambda n: (self._forward_keys(n), self._batch(n, count).tolist())
        )

    def _batch(self, draw: int, count: int) -> Tensor:
        """The indices of mini-batch number `draw`."""
        size = self.train.size
        device = self.train.device
        if self.key is not None:
            return batches.secret_indices(self.key, draw, size=size, count=count).to(device)
        return batches.indices(self.seed, self.number, draw, size=size, count=count, device=device)

    def full_gradient(self, w: Tensor, draw: int = 0) -> Tensor:
        """Gradient over the whole site, in chunks weighted by what each of them counts."""
        total = torch.zeros_like(w)
        size = self.train.size
        counted = 0.0
        with self._seeded(draw), at(self.train.where):
            for inputs, targets, samples in self.train.chunks():
                count = self.objective.count(targets, samples)
                counted += count
                if count:
                    found = self.objective.gradient(w, inputs, targets, plain=self.plain)
                    total += count / size * found
        return total if counted == size else total * (size / counted)

    def _seeded(self, draw: int) -> AbstractContextManager[None]:
        """Dropout and random transforms draw from (seed, j, draw); free where there are none."""
        if not self.objective.flat.random and self.train.pair is not None:
            return nullcontext()
        return seeded(self._forward_keys(draw))

    def _forward_keys(self, draw: int) -> tuple[int, int]:
        """Those of what is drawn in a forward pass."""
        if self.key is not None:
            first, second = batches.secret_words(self.key, draw, batches.FORWARD, 2).tolist()
            return first >> 32, second >> 32
        return batches.keys(self.seed, self.number, draw, batches.FORWARD)

    @property
    def plain(self) -> bool:
        """Tensors, whose targets were looked at when the problem was built."""
        return self.train.pair is not None

    @cached_property
    def judged(self) -> Samples:
        """The fixed sample of the training part, gathered once."""
        return gathered(self.train, self.sample)

    @cached_property
    def heard(self) -> Samples:
        """What a reported loss is taken on, gathered once."""
        return gathered(*self.reported) if self.on_val else self.judged

    def loss(self, w: Tensor, piece: int = CHUNK) -> float:
        """`piece`: samples of one forward pass."""
        index = None if self.heard.pair is not None else self.reported[1]
        return self._mean_loss(w, self.heard, index, piece)

    def full_loss(self, w: Tensor) -> float:
        """On the whole training part."""
        return self._mean_loss(w, self.train, None)

    def _judge(self, w: Tensor, part: Samples) -> Stack | None:
        """Who can take the mean loss over all these samples compiled."""
        stack = self.objective.stack
        pair = part.pair
        compiled = stack is not None and stack.compiled(w) and self.plain
        return stack if compiled and pair and self.objective.by_hand(w, *pair) else None

    @torch.no_grad()
    def _mean_loss(
        self, w: Tensor, part: Samples, index: Tensor | None, piece: int = CHUNK
    ) -> float:
        judge = self._judge(w, part) if index is None else None
        if judge is not None and part.pair is not None:
            return judge.judge(w, *part.pair, self.objective.weight_decay)[0]
        total = 0.0
        counted = 0.0
        buffers = self.own_buffers(w)
        with self._seeded(0), at(part.where):
            for inputs, targets, samples in part.chunks(index, piece):
                value = self.objective.value(
                    w, inputs, targets, training=False, plain=self.plain, buffers=buffers
                )
                count = self.objective.count(targets, samples)
                counted += count
                if count:
                    total += float(value) * count
        return total / counted

    def scores(self, w: Tensor) -> Scores:
        """All that is said of this site at w."""
        val = (None, None) if self.val is None else self._loss_and_accuracy(w, self.val)
        if self.test is None:
            loss, accuracy = self._loss_and_accuracy(w, self.train)
            return Scores(loss, None, accuracy, *val)
        test_loss, accuracy = self._loss_and_accuracy(w, self.test)
        return Scores(self.full_loss(w), test_loss, accuracy, *val)

    def _loss_and_accuracy(self, w: Tensor, part: Samples) -> tuple[float, float | None]:
        """Of one part; in one pass where samples are plain."""
        judge = self._judge(w, part)
        if judge is None or part.pair is None:
            return self._mean_loss(w, part, None), self.accuracy(w, part)
        loss, right = judge.judge(w, *part.pair, self.objective.weight_decay, count=True)
        several = judge.layers[-1].outputs > 1
        return loss, right / part.size if several else None

    @torch.no_grad()
    def accuracy(self, w: Tensor, part: Samples | None = None) -> float | None:
        """Share of samples whose largest output is the target, or of yes and no that are right.

        None where that means nothing.
        `part`: None is the test part, or the training part of a site that has no other.
        """
        part = part or self.test or self.train
        right = 0
        judge = self._judge(w, part)
        if judge is not None and part.pair is not None:
            if judge.layers[-1].outputs < 2:
                return None
            return judge.judge(w, *part.pair, 0.0, count=True)[1] / part.size
        judged = 0
        buffers = self.own_buffers(w)
        with self._seeded(0), at(part.where):
            for inputs, targets, _ in part.chunks():
                output = self.objective.output(w, inputs, targets, buffers)
                hits = self.objective.right(output, targets)
                if hits is None:
                    return None
                right += int(hits.sum())
                judged += hits.numel()
        return right / judged


def gathered(part: Samples, sample: Tensor | None) -> Samples:
    """These samples of a part alone, where it is of tensors."""
    return part if sample is None or part.pair is None else part.only(sample)


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
    inputs = _whole([a for a, _ in pairs])
    targets = _whole([b for _, b in pairs])
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
    first = parts[0]
    rows = 0
    place = first.untyped_storage().data_ptr()
    where = first.storage_offset()
    for x in parts:
        if not x.is_contiguous() or x.storage_offset() != where:
            return None
        if x.untyped_storage().data_ptr() != place:
            return None
        where += x.numel()
        rows += len(x)
    return first.as_strided((rows, *first.shape[1:]), first.stride())


# ---------------------------------------------------------------- many rows at once


def gradients(locals_: Sequence[Local], w: Tensor, draws: Sequence[int]) -> Tensor:
    """Row r is the gradient of site r at w_r on its batch draws[r]: (R, p)."""
    if all(map(replays, locals_)):
        return _replayed_gradients(cast("Sequence[Site]", locals_), w, draws)
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


def loss(local: Local, w: Tensor) -> float:
    """f_j as it is reported; on the CPU in pieces whose features stay in the cache."""
    if type(local) is not Site:
        return local.loss(w)
    if replays_losses(local):
        return _replayed_loss(local, w)
    return local.loss(w, PIECE if w.device.type == "cpu" else CHUNK)


def replays(local: Local) -> bool:
    """Whether its gradients are replayed on a GPU, those at one model together."""
    if type(local) is not Site or local.batch_size is None:
        return False
    return local.plain and local.objective.execution in REPLAYED


def replays_losses(site: Site) -> bool:
    """Whether its reported loss can be replayed: one forward pass, in which nothing is drawn."""
    flat = site.objective.flat
    return replays(site) and not (flat.local or flat.random) and site.heard.size <= CHUNK


@torch.no_grad()
def _replayed_loss(site: Site, w: Tensor) -> float:
    pair = site.heard.pair
    assert pair is not None
    with at(site.heard.where):
        return float(replayed_by(site.objective).loss(w, *pair))


def _replayed_gradients(sites: Sequence[Site], w: Tensor, draws: Sequence[int]) -> Tensor:
    """Rows of w that are one and the same model have a stride of 0."""
    replayed = replayed_by(sites[0].objective)
    taken = [
        site.train.take(index)
        for site, index in zip(sites, _batches(sites, draws).unbind(0), strict=True)
    ]
    inputs = torch.stack([x for x, _ in taken])
    targets = torch.stack([y for _, y in taken])
    with sites[0]._seeded(draws[0]), at(sites[0].train.where), torch.no_grad():
        if len(w) == 1 or w.stride(0) == 0:
            return replayed.gradients(w[0], inputs, targets)
        rows = zip(w, inputs.split(1), targets.split(1), strict=True)
        return torch.cat([replayed.gradients(*row) for row in rows])


def _batches(sites: Sequence[Site], draws: Sequence[int]) -> Tensor:
    """Indices of many mini-batches, as `Site._batch` has them, in one copy to their device."""
    first = sites[0]
    if any(site.key is not None for site in sites):
        return torch.stack(
            [s._batch(n, s.batch_samples) for s, n in zip(sites, draws, strict=True)]
        )
    numbers = [site.number for site in sites]
    sizes = [site.train.size for site in sites]
    starts = [0] * len(sites)
    count = first.batch_samples
    device = first.train.device
    return batches.rows(first.seed, numbers, draws, sizes, starts, count=count, device=device)


def together(local: Local) -> bool:
    """Whether gradients of this site are taken in one call with those of others."""
    return type(local) is Site and local.pool is not None


def parameters(local: Local, w: Tensor) -> int:
    """How many numbers of w, or of its rows, are parameters; buffers lie behind them."""
    if not isinstance(local, Site):
        return w.shape[-1]
    return local.objective.flat.parameters


def tensors(local: Local, w: Tensor) -> Tensors:
    """Names and shapes of the parameters in w."""
    if not isinstance(local, Site):
        return (("w", tuple(w.shape)),)
    flat = local.objective.flat
    return tuple((name, tuple(x)) for name, x in zip(flat.names, flat.shapes, strict=True))


def stacked(rows: Sequence[Tensor]) -> Tensor:
    """Rows in one tensor; one and the same is not copied, so nobody may write to it."""
    if all(row is rows[0] for row in rows) and rows[0].device.type != "cpu":
        return rows[0].expand(len(rows), -1)
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(list(rows))


def rows_of(w: Tensor) -> Sequence[Tensor]:
    """Its rows, each in memory of its own: a view of one would keep the others there."""
    rows = w.unbind(0)
    return rows if len(rows) == 1 else [row.clone() for row in rows]


def _pooled_gradients(sites: Sequence[Site], w: Tensor, draws: Sequence[int]) -> Tensor:
    first = sites[0]
    pool = first.pool
    stack = first.objective.stack
    assert stack is not None
    assert pool is not None
    decay = first.objective.weight_decay
    keys = None
    if stack.random:
        keys = [site._forward_keys(n) for site, n in zip(sites, draws, strict=True)]
    if stack.compiled(w):
        asked = [(s.number, n, s.train.size, s.start) for s, n in zip(sites, draws, strict=True)]
        seed = batches._seed_state(first.seed, batches.BATCH)
        with stack.caller(w.dtype) as caller:
            return caller.gradients(
                w,
                pool.inputs,
                pool.targets,
                decay,
                batch=first.batch_samples,
                seed=seed,
                asked=asked,
                keys=keys,
            )
    index = batches.rows(
        first.seed,
        [s.number for s in sites],
        draws,
        [s.train.size for s in sites],
        [s.start for s in sites],
        count=first.batch_samples,
        device=first.train.device,
    )
    return stack.gradients(w, *pool.take(index), decay, keys)


@torch.no_grad()
def pooled_scores(sites: Sequence[Site], w: Tensor) -> tuple[Array, Array | None]:
    """Training loss and accuracy of every site of one pool at one w, many sites in a call.

    Sums over a site are formed in float64, where a site by itself forms them in w's precision.
    """
    objective = sites[0].objective
    pool = cast(Pool, sites[0].pool)
    values = []
    right = []
    clear = True
    for inputs, targets in zip(pool.inputs.split(CHUNK), pool.targets.split(CHUNK), strict=True):
        output = objective.output(w, inputs, targets)
        values.append(cross_entropy(output, targets, reduction="none").double())
        clear = clear and classifies(output, targets)
        right.append(output.max(1).indices == targets)
    starts = [s.start for s in sites]
    sizes = np.array([s.train.size for s in sites])
    decay = 0.5 * objective.weight_decay * float(w.double().square().sum())
    losses = np.add.reduceat(torch.cat(values).cpu().numpy(), starts) / sizes + decay
    hits = np.add.reduceat(torch.cat(right).cpu().numpy().astype(np.int64), starts)
    return losses, hits / sizes if clear else None


def _together(locals_: Sequence[Local]) -> list[int]:
    """The rows that can share one call: sites with batches, of one problem."""
    sites = [(r, x) for r, x in enumerate(locals_) if type(x) is Site and x.pool is not None]
    return [
        r
        for r, site in sites
        if site.batch_size is not None and site.objective is sites[0][1].objective
    ]

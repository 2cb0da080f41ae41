"""A problem: any torch module as a flat vector, any site as losses and gradients of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import Dataset, default_collate

from aspire import batches

Loss = Callable[[Any, Any], Tensor]
LOSSES: dict[str, Loss] = {
    "cross_entropy": nn.functional.cross_entropy,
    "mse": nn.functional.mse_loss,
}
CHUNK = 4096  # samples in one forward pass of an evaluation
LOSS_SAMPLE = 8192  # a larger site reports its loss on a fixed sample of this size


class Flat:
    """A module's trainable parameters as one flat vector. The module itself stays untouched."""

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError("model has no parameter with requires_grad=True: nothing to train")
        kinds = {p.dtype for p in trained.values()}
        if len(kinds) > 1 or not next(iter(kinds)).is_floating_point:
            raise ValueError(f"model has parameters of types {kinds}: expected one real type")
        self.names = list(trained)
        self.shapes = [p.shape for p in trained.values()]
        self.sizes = [p.numel() for p in trained.values()]
        self.training = copy.deepcopy(module).to(device)
        self.evaluating = copy.deepcopy(module).to(device).eval()
        for part in (self.training, self.evaluating):
            part.requires_grad_(False)
        self.start = torch.cat([p.detach().reshape(-1) for p in trained.values()]).to(device)
        drops = (nn.modules.dropout._DropoutNd, nn.AlphaDropout, nn.RReLU)
        self.random = any(isinstance(m, drops) and m.training for m in self.training.modules())

    def split(self, w: Tensor) -> dict[str, Tensor]:
        """The flat vector as named views."""
        views = zip(self.names, w.split(self.sizes), self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in views}

    def output(self, w: Tensor, inputs: Any, *, training: bool) -> Any:
        module = self.training if training else self.evaluating
        return functional_call(module, self.split(w), (inputs,))

    def module(self, w: Tensor) -> nn.Module:
        """A new module that carries w, in eval mode, trainable parameters as they were."""
        module = copy.deepcopy(self.evaluating)
        parameters = dict(module.named_parameters())
        for name, part in self.split(w.detach().clone()).items():
            parameters[name].data = part.clone()
            parameters[name].requires_grad_(True)
        return module


@dataclass(frozen=True)
class Objective:
    """f(w; samples) = mean loss + weight_decay/2 |w|^2."""

    flat: Flat
    loss: Loss
    weight_decay: float = 0.0

    def value(self, w: Tensor, inputs: Any, targets: Any, *, training: bool) -> Tensor:
        value = self.loss(self.flat.output(w, inputs, training=training), targets)
        if self.weight_decay:
            value = value + 0.5 * self.weight_decay * w.square().sum()
        return value

    def gradient(self, w: Tensor, inputs: Any, targets: Any) -> Tensor:
        w = w.detach().requires_grad_(True)
        with torch.enable_grad():
            value = self.value(w, inputs, targets, training=True)
        return torch.autograd.grad(value, w)[0]


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
        if index is None and self.pair is not None:
            yield from zip(self.pair[0].split(CHUNK), self.pair[1].split(CHUNK), strict=True)
            return
        for piece in (torch.arange(self.size) if index is None else index).split(CHUNK):
            yield self.take(piece)


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

    @property
    def batch_samples(self) -> int:
        return self.train.size if self.batch_size is None else self.batch_size

    @property
    def loss_samples(self) -> int:
        return self.train.size if self.sample is None else len(self.sample)

    def gradient(self, w: Tensor, draw: int) -> Tensor:
        if self.batch_size is None:
            return self.full_gradient(w, draw)
        index = batches.indices(
            self.seed, self.number, draw, size=self.train.size, count=self.batch_size,
            device=self.train.device,
        )  # fmt: skip
        with self._seeded(draw):
            return self.objective.gradient(w, *self.train.take(index))

    def full_gradient(self, w: Tensor, draw: int = 0) -> Tensor:
        """Gradient over the whole site, in chunks weighted by their size."""
        total = torch.zeros_like(w)
        with self._seeded(draw):
            for inputs, targets in self.train.chunks():
                share = len(targets) / self.train.size
                total += share * self.objective.gradient(w, inputs, targets)
        return total

    def _seeded(self, draw: int) -> AbstractContextManager[None]:
        """Dropout and random transforms draw from (seed, j, draw); free where there are none."""
        if not self.objective.flat.random and self.train.pair is not None:
            return nullcontext()
        return _seeded(batches.keys(self.seed, self.number, draw, batches.FORWARD))

    def loss(self, w: Tensor) -> float:
        return self._mean_loss(w, self.train, self.sample)

    def full_loss(self, w: Tensor) -> float:
        return self._mean_loss(w, self.train, None)

    @torch.no_grad()
    def _mean_loss(self, w: Tensor, part: Samples, index: Tensor | None) -> float:
        total, count = 0.0, 0
        with self._seeded(0):
            for inputs, targets in part.chunks(index):
                value = self.objective.value(w, inputs, targets, training=False)
                total, count = total + float(value) * len(targets), count + len(targets)
        return total / count

    @torch.no_grad()
    def accuracy(self, w: Tensor) -> float | None:
        """Share of samples whose largest output is the target; None where that means nothing."""
        part, right = self.test or self.train, 0
        with self._seeded(0):
            for inputs, targets in part.chunks():
                output = self.objective.flat.output(w, inputs, training=False)
                if not classifies(output, targets):
                    return None
                right += int((output.argmax(1) == targets).sum())
        return right / part.size


@dataclass(frozen=True)
class Problem:
    """Everything that stays fixed while a method runs: the model and the sites."""

    flat: Flat
    names: tuple[str, ...]
    sites: tuple[Site, ...]

    @property
    def evaluated_on(self) -> str:
        """'test' where every site has a test part, 'train' where none has, else 'mixed'."""
        parts = {"train" if site.test is None else "test" for site in self.sites}
        return parts.pop() if len(parts) == 1 else "mixed"


def build(
    model: nn.Module,
    sites: Mapping[str, Any] | Sequence[Any],
    *,
    loss: str | Loss = "cross_entropy",
    batch_size: int | None = 64,
    weight_decay: float = 0.0,
    device: str = "cpu",
    seed: int = 0,
) -> Problem:
    """Check the model against the sites and put both together."""
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
    made = []
    for number, (name, data) in enumerate(named.items()):
        train, test = _parts(data, device, f"site {name!r}")
        sample = None
        if batch_size is not None and train.size > LOSS_SAMPLE:
            sample = batches.sample(seed, number, size=train.size, count=LOSS_SAMPLE).to(device)
        site = Site(number, objective, train, test, batch_size, seed, sample)
        _try_out(site, f"site {name!r}")
        made.append(site)
    return Problem(flat, tuple(str(name) for name in named), tuple(made))


def classifies(output: Any, targets: Any) -> bool:
    """Whether outputs are class scores and targets class numbers."""
    if not (isinstance(output, Tensor) and isinstance(targets, Tensor)):
        return False
    whole = not targets.is_floating_point() and targets.ndim == output.ndim - 1
    return whole and output.ndim >= 2 and output.shape[1] > 1 and targets.ndim == 1


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


@torch.no_grad()
def _try_out(site: Site, where: str) -> None:
    """One small forward pass: shapes, classes, finite loss, and buffers that must not move."""
    flat = site.objective.flat
    before = {name: b.clone() for name, b in flat.training.named_buffers()}
    with _seeded((0, site.number)):
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


@contextmanager
def _seeded(key: tuple[int, int]) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key[0] << 31 ^ key[1])
        yield


def _to(x: Any, device: str) -> Any:
    return x.to(device) if isinstance(x, Tensor) else cast(Any, x)

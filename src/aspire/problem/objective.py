"""The objective: any torch module as a flat vector, and the mean loss of it on samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    mse_loss,
    nll_loss,
)

from aspire.arguments import shown
from aspire.problem.buffers import Changing
from aspire.problem.copies import Copies, tensors
from aspire.problem.failures import calling
from aspire.problem.stacks import Stack, recognise
from aspire.types import Buffer

Loss = Callable[[Any, Any], Tensor]
LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "mse": mse_loss,
    "bce": binary_cross_entropy_with_logits,
}


BY_TORCH = ("plain", "channels_last", "vmap", "graph")  # names of `execution`


class Flat:
    """A module's trainable parameters as one flat vector. The module itself stays untouched.

    Buffers that change while it trains, such as batch-norm statistics, lie behind the parameters;
    with buffers='site' they are not in the vector: every site finds its own.
    """

    def __init__(
        self,
        module: nn.Module,
        device: str = "cpu",
        *,
        buffers: str = "average",
        changing: Sequence[str] = (),
    ) -> None:
        trained = _trained(module)
        self.names = list(trained)
        self.shapes = [p.shape for p in trained.values()]
        self.sizes = [p.numel() for p in trained.values()]
        self.parameters = sum(self.sizes)
        self.homes = {name: x.device for name, x in tensors(module)}
        with calling("the copy of the model"):
            self.training = copy.deepcopy(module).to(device)
        evaluating = copy.deepcopy(module).to(device).eval()
        for part in (self.training, evaluating):
            part.requires_grad_(False)
        self.changing = Changing(self.training, changing)
        self.copies = {
            mode: Copies(part, self.names, self.changing.names)
            for mode, part in ((True, self.training), (False, evaluating))
        }
        self.local = buffers == "site" and bool(self.changing.names)
        start = torch.cat([p.detach().reshape(-1) for p in trained.values()]).to(device)
        self.start = start if self.local else self.changing.behind(start, self.changing.first)
        drops = (nn.modules.dropout._DropoutNd, nn.AlphaDropout, nn.RReLU)
        self.linear = is_linear(module)
        # whether it draws; one that does so by functions is found out when it is tried
        self.random = any(isinstance(m, drops) and m.training for m in self.training.modules())
        self.channels_last = False  # how the weights of two-dimensional convolutions lie
        self.convolutions = {name for name, x in trained.items() if x.ndim == 4}

    @contextmanager
    def in_channels_last(self) -> Iterator[None]:
        self.channels_last = True
        try:
            yield
        finally:
            self.channels_last = False

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """What lies behind the parameters."""
        return () if self.local else self.changing.facts

    def split(self, w: Tensor) -> dict[str, Tensor]:
        """The parameters in the flat vector as named views."""
        parts = w[: self.parameters].split_with_sizes(self.sizes)
        views = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in views}

    def output(
        self,
        w: Tensor,
        inputs: Any,
        *,
        training: bool,
        buffers: list[Tensor] | None = None,
        counting: bool = False,
    ) -> Any:
        """What the module gives with w in the place of its parameters. Threads may ask at once.

        buffers   those that change; None: as in w, or as at the start. Training changes them.
        counting  batch norm counts what comes, in eval mode too
        """
        views = self.split(w)
        for name in self.convolutions if self.channels_last else ():
            # a copy has these strides even where there is one channel
            views[name] = views[name].clone(memory_format=torch.channels_last)
        if buffers is None:
            buffers = self.buffers_in(w) if self.changing.names else []
        return self.copies[training].call(inputs, views, buffers, counting=counting)

    def buffers_in(self, w: Tensor) -> list[Tensor]:
        """Copies of the buffers behind the parameters in w; as at the start if it has none."""
        if len(w) == self.parameters:
            return [x.clone() for x in self.changing.first]
        return self.changing.unpacked(w[self.parameters :].detach())

    def own_buffers(self, w: Tensor, inputs: Iterable[Any]) -> list[Tensor]:
        """Batch-norm statistics of these inputs at w: their mean over all that is given."""
        found = [torch.zeros_like(x) for x in self.changing.first]
        with torch.no_grad():
            for some in inputs:
                self.output(w, some, training=False, buffers=found, counting=True)
        return found

    def module(self, w: Tensor) -> nn.Module:
        """The user's module with w in it: its modes, devices and what it freezes as they were."""
        module = copy.deepcopy(self.training)
        views = self.split(w.detach())
        if self.changing.names:
            views |= dict(zip(self.changing.names, self.buffers_in(w), strict=True))
        for name, x in tensors(module):
            x.data = views.get(name, x.data).to(self.homes[name], copy=True)
        for name, p in module.named_parameters():
            p.requires_grad_(name in views)
        return module


def is_linear(module: nn.Module) -> bool:
    """Whether all that trains is one linear layer, so that a convex loss stays convex."""
    owners = [m for m in module.modules() if any(p.requires_grad for p in m.parameters(False))]
    return len(owners) == 1 and isinstance(owners[0], nn.Linear)


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters with requires_grad=True: finite numbers of one real type."""
    if not isinstance(module, nn.Module):
        hint = ", an instance and not the class" if isinstance(module, type) else ""
        raise ValueError(f"model={shown(module)}: expected a torch.nn.Module{hint}")
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("model has no parameter with requires_grad=True: nothing to train")
    for name, p in trained.items():
        if isinstance(p, nn.UninitializedParameter) or p.is_meta:
            raise ValueError(
                f"model has no values for its parameter {name} yet: expected a model that was "
                "called once, on a real device"
            )
        if not bool(torch.isfinite(p).all()):
            raise ValueError(f"model has NaN or infinite values in {name}: expected finite ones")
    types = {p.dtype for p in trained.values()}
    if len(types) > 1 or not next(iter(types)).is_floating_point:
        raise ValueError(f"model has parameters of types {types}: expected one real type")
    return trained


@dataclass(frozen=True)
class Labels:
    """Class numbers as a mean cross-entropy counts them: by their weights, some not at all."""

    weight: Tensor | None = None
    ignored: int | None = None

    def kept(self, targets: Tensor) -> Tensor:
        """Which of them count; a Boolean for each."""
        if self.ignored is None:
            return torch.ones_like(targets, dtype=torch.bool)
        return targets != self.ignored

    def each(self, targets: Tensor) -> Tensor:
        """What each of them counts."""
        kept = self.kept(targets)
        if self.weight is None:
            return kept.double()
        weights = self.weight.detach().double()[targets.where(kept, 0)]
        return weights.where(kept, 0.0)

    def total(self, targets: Tensor) -> Tensor:
        """What the mean is divided by."""
        return self.each(targets).sum()


def labels_of(loss: Loss) -> Labels | None:
    """How this loss counts class numbers, where it is one of torch's cross-entropies."""
    if loss is LOSSES["cross_entropy"]:
        return Labels()
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        own = type(loss).forward in (nn.CrossEntropyLoss.forward, nn.NLLLoss.forward)
        return Labels(loss.weight, loss.ignore_index) if own else None
    if isinstance(loss, partial) and loss.func in (cross_entropy, nll_loss) and not loss.args:
        return Labels(loss.keywords.get("weight"), loss.keywords.get("ignore_index", -100))
    return Labels(None, -100) if loss is nll_loss else None


def of_torch(loss: Loss) -> bool:
    """Whether it is one of torch's own, which take tensors alone."""
    loss = loss.func if isinstance(loss, partial) else loss
    whose = type(loss) if isinstance(loss, nn.Module) else loss
    return whose.__module__ in ("torch.nn.modules.loss", "torch.nn.functional")


def cut_of(loss: Loss) -> float | None:
    """The output from which a binary loss means yes; None: it is no such loss."""
    whose = loss.func if isinstance(loss, partial) else loss
    if whose is binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss):
        return 0.0
    return 0.5 if whose is binary_cross_entropy or isinstance(loss, nn.BCELoss) else None


def scores_of(output: Any) -> Any:
    """The logits of an output that has some among other things."""
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


@dataclass(frozen=True)
class Objective:
    """f(w; samples) = mean loss + weight_decay/2 |w|^2.

    A stack of Linear layers is evaluated by hand, everything else by torch; `plain` says that
    the targets are known to be what the stack takes them for. `execution` is one of `execution.py`;
    None: by hand where ReLU is the only activation, compiled where that can be.
    """

    flat: Flat
    loss: Loss
    weight_decay: float = 0.0
    precision: str = "float32"  # 'bf16': the model runs under autocast
    execution: str | None = None

    @cached_property
    def stack(self) -> Stack | None:
        if self.precision != "float32" or self.execution in BY_TORCH:
            return None
        return recognise(
            self.flat.training,
            self.flat.names,
            self.loss,
            relu_only=self.execution is None,
            native=self.execution != "rows",
        )

    @cached_property
    def labels(self) -> Labels | None:
        return labels_of(self.loss)

    @cached_property
    def of_scores(self) -> bool:
        """Whether the loss is handed the logits alone, whatever the model gives beside them."""
        return of_torch(self.loss)

    @cached_property
    def cut(self) -> float | None:
        return cut_of(self.loss)

    def right(self, output: Any, targets: Any) -> Tensor | None:
        """Which predictions are right: of classes, or of yes and no; None: they are no such."""
        output = scores_of(output)
        if classifies(output, targets):
            hits: Tensor = output.max(1).indices == targets  # argmax: 10 times slower
            kept = self.kept(targets)
            return hits if kept is None else hits[kept]
        if self.cut is None or not isinstance(output, Tensor) or not isinstance(targets, Tensor):
            return None
        alike = output.shape == targets.shape
        return (output > self.cut) == (targets > 0.5) if alike else None

    def total(self, targets: Any) -> Tensor | None:
        """What the mean loss of these samples is divided by; None: their number."""
        labels = self.labels
        if labels is None or (labels.weight is None and labels.ignored is None):
            return None
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            return None
        return labels.total(targets)

    def count(self, targets: Any, samples: int) -> float:
        """The same in samples: how much their mean loss weighs beside that of others."""
        total = self.total(targets)
        return samples if total is None else float(total) * samples / targets.numel()

    def kept(self, targets: Tensor) -> Tensor | None:
        """Which targets the loss does not ignore; None: it ignores none."""
        labels = self.labels
        return None if labels is None or labels.ignored is None else labels.kept(targets)

    def mean(self, output: Any, targets: Any) -> Tensor:
        """The loss alone."""
        with calling("the loss"):
            return self.loss(output, targets)

    def by_hand(self, w: Tensor, inputs: Any, targets: Any) -> bool:
        return self.stack is not None and self.stack.takes(inputs, targets, w.dtype)

    def run(
        self, w: Tensor, inputs: Any, *, training: bool, buffers: list[Tensor] | None = None
    ) -> Any:
        """The model's outputs, in full precision whatever it computes in."""
        if self.precision == "float32":
            found = self.flat.output(w, inputs, training=training, buffers=buffers)
            return scores_of(found) if self.of_scores else found
        with torch.autocast(w.device.type, torch.bfloat16, cache_enabled=False):
            found = self.flat.output(w, inputs, training=training, buffers=buffers)
        found = scores_of(found) if self.of_scores else found
        return found.to(w.dtype) if isinstance(found, Tensor) else found

    def value(
        self,
        w: Tensor,
        inputs: Any,
        targets: Any,
        *,
        training: bool,
        plain: bool = False,
        buffers: list[Tensor] | None = None,
    ) -> Tensor:
        if plain and self.stack is not None and self.by_hand(w, inputs, targets) and not training:
            rows = w.unsqueeze(0), inputs.unsqueeze(0), targets.unsqueeze(0)
            return self.stack.losses(*rows, self.weight_decay)[0]
        value = self.mean(self.run(w, inputs, training=training, buffers=buffers), targets)
        if self.weight_decay:
            value = value + 0.5 * self.weight_decay * w[: self.flat.parameters].square().sum()
        return value

    def gradient(
        self,
        w: Tensor,
        inputs: Any,
        targets: Any,
        *,
        plain: bool = False,
        keys: tuple[int, int] | None = None,
    ) -> Tensor:
        """With the buffers behind it that this batch leaves, where w has some.

        keys  of the dropout of a stack; None: it draws from torch's generator
        """
        stack = self.stack if plain and self.by_hand(w, inputs, targets) else None
        if stack is not None and (keys is not None or not stack.random):
            rows = w.unsqueeze(0), inputs.unsqueeze(0), targets.unsqueeze(0)
            return stack.gradients(*rows, self.weight_decay, None if keys is None else [keys])[0]
        flat = self.flat
        buffers = flat.buffers_in(w) if flat.changing.names else None
        leaf = w[: flat.parameters].detach().requires_grad_(True)
        with torch.enable_grad():
            value = self.value(leaf, inputs, targets, training=True, buffers=buffers)
        with calling("the gradient"):
            found = torch.autograd.grad(value, leaf)[0]
        total = self.total(targets)
        if total is not None:  # where no sample counts, the mean is 0/0
            found = found.where(total > 0, self.weight_decay * leaf.detach())
        if not (flat.buffers and buffers):
            return found
        flat.changing.second_moments(flat.buffers_in(w), buffers)
        return flat.changing.behind(found, buffers)

    def output(
        self, w: Tensor, inputs: Any, targets: Any, buffers: list[Tensor] | None = None
    ) -> Any:
        """The model's outputs in eval mode."""
        if self.stack is not None and self.by_hand(w, inputs, targets):
            return self.stack.outputs(w.unsqueeze(0), inputs.unsqueeze(0))[0]
        return self.run(w, inputs, training=False, buffers=buffers)


def classifies(output: Any, targets: Any) -> bool:
    """Whether outputs are class scores and targets class numbers."""
    if not (isinstance(output, Tensor) and isinstance(targets, Tensor)):
        return False
    whole = not targets.is_floating_point() and targets.ndim == output.ndim - 1
    return whole and output.ndim >= 2 and output.shape[1] > 1 and targets.ndim == 1

"""The optimiser of a master: any of torch's, on views of its z (of the baselines, on a copy of w).

A checkpoint holds data only, so the master keeps the optimiser's tensors (`Moments`), and the
optimiser itself is built on them when it is needed. Its schedule is a function of the number of
steps: a resumed run goes through the same steps again, without any gradient.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from aspire.arguments import shown
from aspire.problem.failures import calling
from aspire.types import Count, Tensors

Make = Callable[[list[dict[str, Any]]], Optimizer]
Schedule = Callable[[Optimizer], Any]
RELATIVE = 0.4  # over the depth: a tensor's first steps, in units of its own size
SETTLE = 2000.0  # master steps after which the default's rate is 0.71 of its first
BETAS = (0.5, 0.999)  # old gradients are momentum already
SMALL = 1e-3  # rms of a tensor that starts at zero, such as an adapter's second matrix
FLOOR = 0.3  # of the second moment, in units of its tensor's mean root


@dataclass(eq=False)
class Moments:
    """What an optimiser remembers.

    tensors  names and shapes, in the order in which they lie in z
    scales   the size of each tensor at the start
    depth    matrices that do not start at zero
    state    its own tensors, by 'number of the tensor/name'; numbers: the same of plain numbers
    """

    tensors: Tensors
    scales: tuple[float, ...]
    depth: Count
    state: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    def check(self) -> None:
        if len(self.scales) != len(self.tensors):
            raise ValueError("expected one scale for each tensor")


class Holder(Protocol):
    """A master with a z that an optimiser moves."""

    t: Count
    z: Tensor
    moments: Moments


@dataclass(frozen=True)
class Live:
    """An optimiser that stands on a master's z; `gradients` are views of `direction`."""

    z: Tensor
    params: list[Tensor]
    optimizer: Optimizer
    schedule: Any
    direction: Tensor
    gradients: list[Tensor]
    names: dict[tuple[int, str], str] = field(default_factory=dict)  # of `Moments.state`


_live: WeakKeyDictionary[Moments, Live] = WeakKeyDictionary()
_handed: WeakKeyDictionary[Moments, tuple[int, Tensor]] = WeakKeyDictionary()
_metrics: WeakKeyDictionary[Moments, tuple[int, Tensor]] = WeakKeyDictionary()


def moments_of(z: Tensor, tensors: Tensors) -> Moments:
    """Of an optimiser that has taken no step yet."""
    tensors = tensors or (("w", (len(z),)),)
    params = views(z, tensors)
    return Moments(tensors, scales_of(params), depth_of(params))


def views(z: Tensor, tensors: Tensors) -> list[Tensor]:
    """The tensors that lie in z one after the other; what is behind them is no parameter."""
    sizes = [math.prod(shape) for _, shape in tensors]
    parts = z[: sum(sizes)].split(sizes)
    return [x.view(shape) for x, (_, shape) in zip(parts, tensors, strict=True)]


def scales_of(params: list[Tensor]) -> tuple[float, ...]:
    """The rms of each matrix, 1/sqrt(fan in) where it is near zero; of a vector, their median."""
    sizes = [rms(x) for x in params]
    for i, x in enumerate(params):
        if sizes[i] < SMALL:
            sizes[i] = 1.0 / math.sqrt(max(1, x.numel() // max(1, len(x)) if x.ndim > 1 else 1))
    matrices = [size for size, x in zip(sizes, params, strict=True) if x.ndim > 1]
    if not matrices:
        return tuple(sizes)
    middle = float(np.median(matrices))
    return tuple(s if x.ndim > 1 else middle for s, x in zip(sizes, params, strict=True))


def depth_of(params: list[Tensor]) -> int:
    """The number of matrices, at least 1; one that starts at zero belongs to another.

    Moving all L factors of a product by a share r moves the product by about L r. An adapter B A
    with B = 0 is one factor: what A does is multiplied by what B has become.
    """
    return max(1, sum(x.ndim > 1 and rms(x) >= SMALL for x in params))


def rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt()) if x.numel() else 0.0


# ---------------------------------------------------------------- what runs


def live_one(master: Holder, make: Make, schedule: Schedule | None) -> Live:
    """The optimiser that stands on this master's z."""
    return standing(
        master.moments, lambda: opened(make, schedule, master.z, master.moments, master.t)
    )


def standing(moments: Moments, make: Callable[[], Live]) -> Live:
    """The optimiser that these moments are of; made where there is none yet."""
    live = _live.get(moments)
    if live is None:
        live = _live[moments] = make()
    return live


def step(
    master: Holder, make: Make, schedule: Schedule | None, total: Tensor, count: int = 1
) -> None:
    """z <- optimiser(z, d), in place, with d = total / count."""
    live = live_one(master, make, schedule)
    along(live, total, count)
    remember(master.moments, live)


def along(live: Live, total: Tensor, count: int = 1, slower: float = 1.0) -> None:
    """One step along total / count, in place, with `slower` times the learning rates."""
    torch.div(total, count, out=live.direction)
    for x, part in zip(live.params, live.gradients, strict=True):
        x.grad = part
    with calling("the optimizer"):
        with times(live.optimizer, slower):
            live.optimizer.step()
        if live.schedule is not None:
            live.schedule.step()


@contextmanager
def times(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """Other learning rates for a while; what the schedule goes by are the old ones."""
    rates = [(group, group["lr"]) for group in optimizer.param_groups if factor != 1.0]
    for group, rate in rates:
        group["lr"] = factor * rate
    yield
    for group, rate in rates:
        group["lr"] = rate


def handed(master: Holder) -> Tensor:
    """z as tasks carry it: one copy for all tasks between two steps."""
    known = _handed.get(master.moments)
    if known is None or known[0] != master.t:
        known = _handed[master.moments] = (master.t, master.z.clone())
    return known[1]


def metric(master: Holder, make: Make, schedule: Schedule | None) -> Tensor:
    """The step that the optimiser takes along a unit gradient, by coordinate; 0 before its first.

    Of Adam's kind lr/(root of the second moment, at least its mean over the tensor), else lr.
    """
    known = _metrics.get(master.moments)
    if known is not None and known[0] == master.t:
        return known[1]
    found = torch.zeros_like(master.z)
    if master.t > 0:
        optimizer = live_one(master, make, schedule).optimizer
        for group, part in zip(
            optimizer.param_groups, views(found, master.moments.tensors), strict=True
        ):
            part.copy_(step_sizes(optimizer, group))
    _metrics[master.moments] = (master.t, found)
    return found


def step_sizes(optimizer: Optimizer, group: dict[str, Any]) -> Tensor:
    """Of a group with one tensor."""
    x = group["params"][0]
    state = optimizer.state[x]
    rate = torch.as_tensor(group["lr"], dtype=x.dtype, device=x.device)
    if isinstance(optimizer, FlooredAdamW):
        return rate / optimizer.root(state, group["betas"][1])
    if "exp_avg_sq" not in state:
        return rate.expand(x.shape)
    passed = 1.0 - group["betas"][1] ** float(state["step"])
    root: Tensor = (state["exp_avg_sq"] / passed).sqrt_()
    # a coordinate that was quiet so far must not run away in the steps of one site
    return rate / root.clamp_(min=max(float(root.mean()), group["eps"]))


def opened(
    make: Make, schedule: Schedule | None, z: Tensor, moments: Moments, steps: int = 0
) -> Live:
    """The optimiser as it was after so many steps."""
    params = views(z, moments.tensors)
    names = [name for name, _ in moments.tensors]
    groups = [
        {"params": [x], "name": name, "scale": scale, "depth": moments.depth}
        for x, name, scale in zip(params, names, moments.scales, strict=True)
    ]
    with calling("optimizer"):
        optimizer = make(groups)
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer gave {shown(optimizer)}: expected a torch optimizer")
    with calling("schedule"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch wants a step of the optimiser before each of these
        plan: Any = None if schedule is None else schedule(optimizer)
        for _ in range(steps if plan is not None else 0):
            plan.step()
    for stored in (moments.state, moments.numbers):
        for key, value in stored.items():
            number, _, name = key.partition("/")
            optimizer.state[params[int(number)]][name] = value
    direction = torch.zeros_like(z[: sum(x.numel() for x in params)])
    return Live(z, params, optimizer, plan, direction, views(direction, moments.tensors))


def remember(moments: Moments, live: Live) -> None:
    """Tensors that are known already may have been replaced, so all are looked at."""
    for number, x in enumerate(live.params):
        for name, value in live.optimizer.state[x].items():
            key = live.names.get((number, name))
            if key is None:
                key = live.names[number, name] = f"{number}/{name}"
            if isinstance(value, Tensor):
                moments.state[key] = value
            elif value is not None:
                moments.numbers[key] = float(value)


def name_of(function: Any) -> str | None:
    """How run.json names a user's function."""
    return None if function is None else getattr(function, "__qualname__", type(function).__name__)


# ---------------------------------------------------------------- the default


@dataclass(frozen=True)
class Default:
    """AdamW; with no learning rate given, lr = 0.4 / depth times the size of each tensor."""

    learning_rate: float | None
    weight_decay: float
    floored: bool

    def __call__(self, groups: list[dict[str, Any]]) -> Optimizer:
        for group in groups:
            relative = RELATIVE / group["depth"] * group["scale"]
            group["lr"] = relative if self.learning_rate is None else self.learning_rate
        common: dict[str, Any] = {"lr": 1e-3, "betas": BETAS, "weight_decay": self.weight_decay}
        if self.floored:
            return FlooredAdamW(groups, **common)
        first = groups[0]["params"][0]
        if first.dtype in (torch.float32, torch.float64) and first.device.type in ("cpu", "cuda"):
            return FusedAdamW(groups, fused=True, **common)
        return AdamW(groups, **common)


class Settling:
    """The default schedule: lr_t = lr_0 / sqrt(1 + t/2000), which needs no end of the run.

    torch's schedulers do the same in ten times as long, which small models would notice.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.groups = optimizer.param_groups
        self.first = [group["lr"] for group in self.groups]
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        factor = (1.0 + self.steps / SETTLE) ** -0.5
        for group, rate in zip(self.groups, self.first, strict=True):
            group["lr"] = rate * factor


class FusedAdamW(AdamW):
    """torch's AdamW with fused=True: the same kernels, without what it asks before each of them.

    That takes several times as long as the arithmetic on a small tensor. Groups have one tensor
    each, and none of them a gradient to record, a scaler or a closure.
    """

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if not self.state:
            super().step()  # torch makes its state
            return
        alike: dict[Any, list[Tensor]] = {}
        for group in self.param_groups:
            key = (group["lr"], group["betas"], group["weight_decay"], group["eps"])
            alike.setdefault(key, []).extend(group["params"])
        for (rate, (first, second), decay, eps), params in alike.items():
            states = [self.state[x] for x in params]
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1.0)
            torch._fused_adamw_(
                params,
                [cast(Tensor, x.grad) for x in params],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                steps,
                lr=rate,
                beta1=first,
                beta2=second,
                weight_decay=decay,
                eps=eps,
                amsgrad=False,
                maximize=False,
            )

    step.hooked = True  # type: ignore[attr-defined]  # torch wraps other steps for its profiler


class FlooredAdamW(Optimizer):
    """AdamW whose second moment has a floor: FLOOR times the mean root over its tensor.

    Adam divides a coordinate by its own history, so one that a single site uses moves at nearly
    full speed whatever that site's weight is. With the floor it does not.
    """

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for x in group["params"]:
                state = self.state[x]
                if not state:
                    state |= {
                        "step": 0.0,
                        "mean": torch.zeros_like(x),
                        "square": torch.zeros_like(x),
                    }
                state["step"] += 1.0
                state["mean"].lerp_(x.grad, 1.0 - first)
                state["square"].mul_(second).addcmul_(x.grad, x.grad, value=1.0 - second)
                root = self.root(state, second)
                x.mul_(1.0 - group["lr"] * group["weight_decay"])
                x.addcdiv_(state["mean"], root, value=-group["lr"] / (1.0 - first ** state["step"]))

    def root(self, state: dict[str, Any], second: float) -> Tensor:
        """Of the second moment, with its floor."""
        found: Tensor = (state["square"] / (1.0 - second ** state["step"])).sqrt_()
        return found.clamp_(min=max(FLOOR * float(found.mean()), 1e-8))

"""The arguments that the baselines share: how a step is taken, and what one report may do to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypedDict, TypeVar, get_args, get_type_hints

from torch.optim import SGD

from aspire.arguments import flag, real_number, shown, whole_number
from aspire.methods import optimisers
from aspire.types import Method

NAMED = ("adam", "momentum")
MOMENTUM = 0.9


class StepArguments(TypedDict, total=False):
    """How a step is taken, see `Shared`."""

    optimizer: str | optimisers.Make | None
    learning_rate: float | None
    schedule: optimisers.Schedule | None
    settle: float | None
    average: bool


class SharedArguments(StepArguments, total=False):
    """And what one report may do to it."""

    clip: float | None
    liars: int


@dataclass(frozen=True)
class Shared:
    """The shared arguments, checked.

    optimizer      None: the method's own step. 'adam': AdamW as in `direct`; 'momentum': SGD with
                   momentum 0.9; or function(groups) -> torch optimizer. It gets the direction of
                   the method, or with local steps w minus the w that the method would go to
    learning_rate  of 'adam' and 'momentum', for all tensors; None: relative to the size of each
                   tensor with 'adam'; with 'momentum' the method's own rate, 1 with local steps
    schedule       function(optimizer) -> torch scheduler, stepped with every step of w
    settle         T: in round t all steps of w are 1/sqrt(1 + t/T) as long; None: they stay
    average        model(master) is the running mean of w
    clip           a report longer than clip times the (liars + 1)-th largest of the sites' last
                   norms is scaled down to that; None: off
    liars          sites whose norms may be false
    """

    optimizer: str | optimisers.Make | None = None
    learning_rate: float | None = None
    schedule: optimisers.Schedule | None = None
    settle: float | None = None
    average: bool = False
    clip: float | None = None
    liars: int = 1

    def __post_init__(self) -> None:
        if not (self.optimizer is None or self.optimizer in NAMED or callable(self.optimizer)):
            raise ValueError(
                f"optimizer={shown(self.optimizer)}: expected 'adam', 'momentum', a function of "
                "parameter groups or None"
            )
        for name in ("learning_rate", "settle", "clip"):
            value = getattr(self, name)
            if value is not None:
                real_number(name, value, "a positive number or None", above=0.0)
        if self.learning_rate is not None and self.optimizer not in NAMED:
            raise ValueError(
                f"learning_rate={self.learning_rate:g} with optimizer={shown(self.optimizer)}: "
                "expected it with 'adam' or 'momentum' alone"
            )
        if self.schedule is not None and not (callable(self.schedule) and self.optimizer):
            raise ValueError(
                f"schedule={shown(self.schedule)} with optimizer={shown(self.optimizer)}: expected "
                "a function, and an optimizer for it"
            )
        flag("average", self.average)
        whole_number("liars", self.liars, least=0)

    def slower(self, t: int) -> float:
        """How long a step of round t is, as a share of the first."""
        return 1.0 if self.settle is None else float((1.0 + t / self.settle) ** -0.5)

    def maker(self, rate: float) -> optimisers.Make:
        """What makes the optimizer; `rate`: of the method's own step."""
        if self.optimizer == "adam":
            return optimisers.Default(self.learning_rate, 0.0, floored=self.clip is not None)
        if self.optimizer == "momentum":
            return partial(SGD, lr=self.learning_rate or rate, momentum=MOMENTUM)
        assert callable(self.optimizer)
        return self.optimizer

    @property
    def settings(self) -> dict[str, Any]:
        """What run.json holds of them."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        if callable(self.optimizer):
            found["optimizer"] = optimisers.name_of(self.optimizer)
        return found | {"schedule": optimisers.name_of(self.schedule)}


Factory = TypeVar("Factory", bound=Callable[..., Method])


def spelled_out(factory: Factory) -> Factory:
    """Give a factory with `**shared` the signature that names them, for help() and by_name."""
    signature = inspect.signature(factory)
    *own, many = signature.parameters.values()
    (taken,) = get_args(get_type_hints(factory)[many.name])
    every = [
        inspect.Parameter(one.name, many.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for one in fields(Shared)
        if one.name in taken.__annotations__
    ]
    factory.__signature__ = signature.replace(parameters=[*own, *every])  # type: ignore[attr-defined]
    return factory

"""Elementwise activations of torch, as stacks of layers know them.

Those in KINDS are compiled: `activations.c` has their functions and slopes, with three numbers
each. The others of torch's that work on every number by itself are left to torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

# In the order of the enum in activations.c.
KINDS = (
    "identity",
    "relu",
    "leaky_relu",
    "elu",
    "gelu",
    "gelu_tanh",
    "silu",
    "tanh",
    "sigmoid",
    "softplus",
    "hardtanh",
)
Numbers = tuple[float, float, float]
NONE: Numbers = (0.0, 0.0, 0.0)
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


@dataclass(frozen=True)
class Activation:
    """What follows a linear layer; `kind` is one of KINDS, or "other": then torch's module knows.

    The numbers are those of activations.c: slopes, factors or bounds.
    """

    kind: str = "identity"
    numbers: Numbers = NONE
    module: nn.Module = field(default_factory=nn.Identity, compare=False)

    @property
    def compiled(self) -> bool:
        return self.kind in KINDS


def _elu(m: Any) -> tuple[str, Numbers]:
    return "elu", (m.alpha, 1.0, 1.0)


def _selu(m: Any) -> tuple[str, Numbers]:
    return "elu", (SELU_SCALE * SELU_ALPHA, SELU_SCALE, 1.0)


def _celu(m: Any) -> tuple[str, Numbers]:
    return "elu", (m.alpha, 1.0, 1.0 / m.alpha)


def _hardtanh(m: Any) -> tuple[str, Numbers]:
    return "hardtanh", (m.min_val, m.max_val, 0.0)


COMPILED: dict[type[nn.Module], Callable[[Any], tuple[str, Numbers]]] = {
    nn.ReLU: lambda m: ("relu", NONE),
    nn.LeakyReLU: lambda m: ("leaky_relu", (m.negative_slope, 0.0, 0.0)),
    nn.ELU: _elu,
    nn.SELU: _selu,
    nn.CELU: _celu,
    nn.GELU: lambda m: ("gelu_tanh" if m.approximate == "tanh" else "gelu", NONE),
    nn.SiLU: lambda m: ("silu", NONE),
    nn.Tanh: lambda m: ("tanh", NONE),
    nn.Sigmoid: lambda m: ("sigmoid", NONE),
    nn.Softplus: lambda m: ("softplus", (m.beta, m.threshold, 0.0)),
    nn.Hardtanh: _hardtanh,
    nn.ReLU6: _hardtanh,
}
OTHERS = (
    nn.Hardshrink,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.LogSigmoid,
    nn.Mish,
    nn.Softshrink,
    nn.Softsign,
    nn.Tanhshrink,
    nn.Threshold,
)


def activation_of(module: nn.Module) -> Activation | None:
    """None where the module is no elementwise activation of torch, or has parameters."""
    kind = type(module)
    if kind in COMPILED:
        return Activation(*COMPILED[kind](module), module)
    return Activation("other", module=module) if kind in OTHERS else None

"""`reference` of the direct form: the losses r_j that the adversary takes off f_j.

Numbers by site, in order or by name; a model, whose loss every site finds once; or "own-best":
every site trains the network alone first, and r_j is the lowest loss that it meets on the way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aspire.arguments import near, real_number, shown, whole_number
from aspire.methods import optimisers
from aspire.problem import sites
from aspire.protocol import LARGEST
from aspire.types import Array, Facts, Local, Task, Tensors

OWN_BEST = "own-best"
LOOKS = 20  # at the loss while a site trains alone
EXPECTED = "numbers by site, a torch module, 'own-best' or None"

Numbers = Mapping[str, float] | tuple[float, ...]
Reference = Numbers | nn.Module | str


@dataclass(frozen=True)
class Own:
    """How every site trains alone; `gradients` None: as many as the run has for each site."""

    gradients: int | None
    optimizer: optimisers.Default

    @property
    def batches(self) -> int:
        return self.gradients or 0


# ---------------------------------------------------------------- as it is given


def checked(reference: Any) -> Reference | None:
    """The argument, or a sentence about what is wrong with it."""
    if reference is None or isinstance(reference, nn.Module):
        return reference
    if isinstance(reference, str):
        if reference != OWN_BEST:
            hint = near(reference, [OWN_BEST])
            raise ValueError(f"reference={shown(reference)}: expected {EXPECTED}{hint}")
        return reference
    if isinstance(reference, Mapping):
        return {str(name): number(repr(str(name)), r) for name, r in reference.items()}
    if not isinstance(reference, Sequence | Tensor | np.ndarray) or np.ndim(reference) != 1:
        raise ValueError(f"reference={shown(reference)}: expected {EXPECTED}")
    return tuple(number(str(j), r) for j, r in enumerate(np.asarray(reference).tolist()))


def number(which: str, value: Any) -> float:
    name = f"reference[{which}]"
    expected = f"a number of at least {-LARGEST:g}"
    found = real_number(name, value, expected, least=-LARGEST)
    if found > LARGEST:
        raise ValueError(f"{name}={shown(value)}: expected a number of at most {LARGEST:g}")
    return found


def own_of(
    reference: Reference | None, gradients: int | None, optimizer: optimisers.Default
) -> Own | None:
    """How sites train alone; None: they do not."""
    if reference == OWN_BEST:
        most = None if gradients is None else whole_number("own_gradients", gradients)
        return Own(most, optimizer)
    if gradients is not None:
        raise ValueError(f"own_gradients={shown(gradients)}: expected reference={OWN_BEST!r} by it")
    return None


def share(sites: int, step: int, iterations: int | None, gradients: int | None) -> int:
    """Gradients of one site: as many as the common training has for each.

    step  gradients of a master step. Of a limit on all gradients, half go to the sites alone.
    """
    limits = [] if iterations is None else [iterations * step]
    if gradients is not None:
        limits.append(gradients // 2)
    return max(1, min(limits) // sites)


def plain(reference: Reference | None) -> Any:
    """How run.json has it: a model by the hash of its parameters and buffers."""
    if not isinstance(reference, nn.Module):
        return reference
    sha = hashlib.sha256()
    for name, x in [*reference.named_parameters(), *reference.named_buffers()]:
        exact = x.detach().cpu().to(torch.float64).numpy()
        sha.update(repr((name, tuple(x.shape))).encode() + exact.tobytes())
    return f"model {sha.hexdigest()[:16]}"


# ---------------------------------------------------------------- at the master


def numbers(reference: Reference | None, facts: Facts) -> Array:
    """r_j in the order of the sites; 0 where it is not known yet, or there is none."""
    n = facts.sites
    if isinstance(reference, Mapping):
        if sorted(reference) != sorted(facts.names):
            given, known = (", ".join(names) or "none" for names in (reference, facts.names))
            raise ValueError(f"reference has the sites {given}: expected {known}")
        return np.array([reference[name] for name in facts.names])
    if not isinstance(reference, tuple):
        return np.zeros(n)
    if len(reference) != n:
        raise ValueError(f"reference has {len(reference)} entries: expected one per site, {n}")
    return np.array(reference)


def vector(reference: Reference | None, facts: Facts) -> Tensor:
    """A model as the flat vector that tasks carry; empty where the reference is none."""
    if not isinstance(reference, nn.Module):
        return facts.start[:0].clone()
    named = {**dict(reference.named_parameters()), **dict(reference.named_buffers())}
    wanted = list(facts.tensors or trained(reference))
    wanted += [(buffer.name, buffer.shape) for buffer in facts.buffers]
    for name, shape in wanted:
        found = named.get(name)
        if found is None or tuple(found.shape) != tuple(shape):
            has = "none" if found is None else f"one of shape {tuple(found.shape)}"
            raise ValueError(
                f"reference is a model of another architecture: expected the tensor {name} of "
                f"shape {tuple(shape)} in it, and it has {has}; evaluate such a model at every "
                "site yourself and give its losses as numbers"
            )
    parts = [named[name].detach().reshape(-1).to(facts.start) for name, _ in wanted]
    found = torch.cat(parts)
    if len(found) != len(facts.start) or not bool(torch.isfinite(found).all()):
        raise ValueError("reference is a model with values that are no numbers: expected numbers")
    return found


def trained(module: nn.Module) -> Tensors:
    return tuple((n, tuple(x.shape)) for n, x in module.named_parameters() if x.requires_grad)


# ---------------------------------------------------------------- at a site


def alone(own: Own, task: Task, local: Local, first: float) -> tuple[float, int]:
    """r_j, the lowest loss of the network trained at this site alone, and the losses it took.

    It starts from the z that was handed out, where the loss is `first`.
    """
    w = task.vectors["w"].clone()
    draw = int(task.scalars["draws"])
    p = sites.parameters(local, w)
    moments = optimisers.moments_of(w[:p], sites.tensors(local, w))
    live = optimisers.opened(own.optimizer, None, w, moments)
    every = max(1, own.batches // LOOKS)
    best = first
    looks = 0
    for k in range(own.batches):
        found = sites.gradients([local], w.unsqueeze(0), [draw + k])[0]
        optimisers.along(live, found[:p])
        w[p:] = found[p:]
        if (k + 1) % every == 0:
            looks += 1
            seen = sites.loss(local, w)
            if seen < best:  # never where it is nan
                best = seen
    return best, looks

"""Gradients on a GPU: many tasks at one model as one call of vmap, replayed as a CUDA graph.

A small network keeps a GPU busy for less time than Python needs to launch its kernels. So the
kernels of a gradient are captured once for each number of tasks and replayed from then on, and
where vmap takes the module, tasks that were handed the same z share one forward and backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from aspire.problem.objective import Objective

WARM = 3  # calls before one is captured, so that libraries have chosen their kernels
MOST = 64  # graphs of losses: sites may have as many numbers of samples as there are sites
ALIKE = 1e-3  # of a gradient's length: more is no rounding
Call = Callable[[Tensor, Tensor, Tensor], Tensor]  # z, inputs and targets of R tasks: (R, P)


REPLAYED = ("vmap", "graph")  # names of `execution`
_known: WeakKeyDictionary[Any, Replayed] = WeakKeyDictionary()


def replayed_by(objective: Objective) -> Replayed:
    """One for each model: it holds the graphs."""
    found = _known.get(objective.flat)
    if found is None:
        found = Replayed(objective, vmap=objective.execution == "vmap")
        _known[objective.flat] = found
    return found


class Replayed:
    """[g_j | b_j] of tasks at one z; vmap: all of them in one call, else one after the other."""

    def __init__(self, objective: Objective, *, vmap: bool) -> None:
        self.objective = objective
        self.vmap = vmap
        self.graphs: dict[Any, Graph] = {}
        self.losses: dict[Any, Graph | None] = {}
        self.pool: Any = None

    def gradients(self, z: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Row r is the gradient at z on inputs[r] and targets[r]."""
        if self.vmap:
            return self._graph(together(self.objective), z, inputs, targets)(z, inputs, targets)
        one = self._graph(alone(self.objective), z, inputs[:1], targets[:1])
        rows = [one(z, inputs[r : r + 1], targets[r : r + 1]) for r in range(len(inputs))]
        return torch.cat(rows)

    def loss(self, w: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss in eval mode; replayed once samples of this shape have come before."""
        shape = (inputs.shape, inputs.dtype, targets.shape, targets.dtype)
        if shape not in self.losses:
            if len(self.losses) < MOST:
                self.losses[shape] = None
            return self._loss(w, inputs, targets)
        graph = self.losses[shape]
        if graph is None:
            graph = self.losses[shape] = Graph(self._loss, (w, inputs, targets), self.pool)
            self.pool = graph.graph.pool()
        return graph(w, inputs, targets)

    def _loss(self, w: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.objective.value(w, inputs, targets, training=False)

    def _graph(self, call: Call, z: Tensor, inputs: Tensor, targets: Tensor) -> Graph:
        key = (inputs.shape, inputs.dtype, targets.shape, targets.dtype)
        found = self.graphs.get(key)
        if found is None:
            found = self.graphs[key] = Graph(call, (z, inputs, targets), self.pool)
            self.pool = found.graph.pool()
        return found


def alone(objective: Objective) -> Call:
    """One task, by autograd."""

    def call(z: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.enable_grad():
            return objective.gradient(z, inputs[0], targets[0]).unsqueeze(0)

    return call


def together(objective: Objective) -> Call:
    """Many tasks at one z, by vmap over their batches."""
    flat = objective.flat
    p = flat.parameters

    def value(leaf: Tensor, behind: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        buffers = flat.changing.unpacked(behind) if flat.buffers else None
        found = objective.value(leaf, x, y, training=True, buffers=buffers)
        if buffers is None:
            return found, behind
        flat.changing.second_moments(flat.changing.unpacked(behind), buffers)
        return found, flat.changing.behind(behind[:0], buffers)

    def one(leaf: Tensor, behind: Tensor, x: Tensor, y: Tensor) -> Tensor:
        g, left = torch.func.grad(value, has_aux=True)(leaf, behind, x, y)
        total = objective.total(y)
        if total is not None:  # where no sample counts, the mean is 0/0
            g = g.where(total > 0, objective.weight_decay * leaf)
        return torch.cat([g, left]) if flat.buffers else g

    rows = torch.func.vmap(one, in_dims=(None, 0, 0, 0), randomness="different")

    def call(z: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        behind = z[p:].expand(len(inputs), -1)
        with sdpa_kernel(SDPBackend.MATH):  # the others go through rows one by one
            found: Tensor = rows(z[:p].detach(), behind, inputs, targets)
        return found

    return call


class Graph:
    """A call with tensors of fixed shapes, captured; calling it copies in, replays, copies out."""

    def __init__(self, call: Call, given: Sequence[Tensor], pool: Any) -> None:
        self.inputs = [x.clone() for x in given]
        state = torch.cuda.get_rng_state(given[0].device)
        side = torch.cuda.Stream(given[0].device)
        side.wait_stream(torch.cuda.current_stream(given[0].device))
        with torch.cuda.stream(side):
            for _ in range(WARM):
                call(*self.inputs)
        torch.cuda.current_stream(given[0].device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.output = call(*self.inputs)
        torch.cuda.set_rng_state(state, given[0].device)

    def __call__(self, *given: Tensor) -> Tensor:
        for place, x in zip(self.inputs, given, strict=True):
            place.copy_(x)
        self.graph.replay()
        return self.output.clone()


def objection(objective: Objective, inputs: Any, targets: Any, *, vmap: bool) -> str | None:
    """Why gradients on these samples cannot be had so, or None: it is tried and compared."""
    start = objective.flat.start
    dense = isinstance(inputs, Tensor) and isinstance(targets, Tensor)
    if start.device.type != "cuda" or not dense:
        return "expected tensors on a CUDA device"
    try:
        pair = (torch.stack([inputs, inputs]), torch.stack([targets, targets]))
        found = Replayed(objective, vmap=vmap).gradients(start, *pair)
        if objective.flat.random:
            return None if bool(torch.isfinite(found).all()) else "expected finite gradients"
        plain = objective.gradient(start, inputs, targets)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return f"expected a model that can be captured ({str(error).splitlines()[0][:200]})"
    off = float((found[1] - plain).norm())
    if off > ALIKE * float(plain.norm()) + 1e-12:
        return "expected a model whose gradient is the same when it is replayed"
    return None

"""The numbers of a block of steps on CUDA: tables of rows, whole steps as graphs.

A step is eight kernels on a fixed grid. The gradients of Q depend on the reported w_j alone, so
they are taken beside the master's part, and the reported losses beside the next gradients. What a
step needs to know lies in slots that are filled before a replay; the host waits for the device
where the planes are revised and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire.core.planes import Planes
from aspire.core.presets import Auto
from aspire.core.schedules import EASE_OFF, rises_above
from aspire.methods.aspire_ease.consensus_state import Master, Rules
from aspire.methods.worker import OVERSHOOT
from aspire.problem import batches
from aspire.problem.problem import Problem
from aspire.runs import digest
from aspire.simulator import kernels, kernels_step
from aspire.simulator.blocks_work import Flight, Plan
from aspire.simulator.order import Integers
from aspire.types import Array

REPLAYED = (16, 4, 1)  # steps in one graph
PLANES = 64
WORKERS, DRAWS, CHECKS, LOSSES = range(4)


@dataclass(frozen=True)
class Shape:
    """A stack as its kernels see it: where things lie in a row and in the scratch memory."""

    widths: tuple[int, ...]
    weights: tuple[int, ...]
    biases: tuple[int, ...]  # -1: none
    relu: tuple[bool, ...]
    padded: tuple[int, ...]
    features: tuple[int, ...]  # before each layer, after the last, and two for slopes
    tile: int  # samples at a time
    room: int

    def constants(self) -> dict[str, Any]:
        return {
            "D": self.widths,
            "W": self.weights,
            "V": self.biases,
            "A": self.features,
            "PAD": self.padded,
            "RELU": self.relu,
            "L": len(self.relu),
            "B": self.tile,
            "ROOM": self.room,
        }


def shaped(stack: Any, batch: int) -> Shape:
    widths = (stack.layers[0].inputs, *(layer.outputs for layer in stack.layers))
    padded = tuple(max(16, 1 << (d - 1).bit_length()) for d in widths)
    tile = min(64, max(16, 1 << (batch - 1).bit_length()))
    weights = []
    biases = []
    at = 0
    for layer in stack.layers:
        weights.append(at)
        at += layer.inputs * layer.outputs
        biases.append(at if layer.bias else -1)
        at += layer.bias * layer.outputs
    sizes = [tile * d for d in padded] + 2 * [tile * max(padded)]
    places = np.cumsum([0, *sizes]).tolist()
    relu = tuple(layer.relu for layer in stack.layers)
    return Shape(
        widths, tuple(weights), tuple(biases), relu, padded, tuple(places[:-1]), tile, places[-1]
    )


class Card:
    """The state of a run on the device; `fetch` brings what the host decides on to the master."""

    def __init__(
        self, rules: Rules, master: Master, problem: Problem, flight: Flight, quorum: int
    ) -> None:
        assert isinstance(rules.preset, Auto)
        self.rules = rules
        self.master = master
        self.flight = flight
        self.settle, self.stride = (master.constants[name] for name in ("settle", "stride"))
        self.S = quorum
        (self.n, self.p) = master.w.shape
        self.device = master.w.device
        self.tile = max(16, 1 << (quorum - 1).bit_length())  # rows that a master's kernel takes
        for name in ("z", "average", "sum_w", "sum_phi"):
            setattr(master, name, getattr(master, name).clone())
        self._problem(problem)
        self._numbers()
        self.put_planes()
        rows, stride = (self.S, self.p), self.S + self.S % 2  # even: every slot is aligned alike
        self.g = self._new(*rows, dtype=torch.float32)
        self.again = torch.zeros_like(self.g)
        self.pis, self.rates = self._new(self.S), self._new(self.S)
        self.split = min(32, max(8, 2048 >> (self.S - 1).bit_length()))  # programs for one loss
        self.parts = self._new(self.S, self.split)
        room = self.shape.room
        self.scratch = self._new(self.S, room, dtype=torch.float32)
        self.loss_scratch = self._new(self.S * self.split, room, dtype=torch.float32)
        self.all = torch.ones(self.S, dtype=torch.int64, device=self.device)
        self.slots = self._new(max(REPLAYED), 4, stride, dtype=torch.int64)
        self.tuned = self._new(max(REPLAYED), 4)
        self.found = self._new(max(REPLAYED), stride, dtype=torch.int64)
        self.side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.graphs: dict[Any, Any] = {}
        self.pinned: dict[tuple[int, int], Tensor] = {}
        self.turn = 0

    def _new(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _put(self, x: Any, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.as_tensor(np.asarray(x)).to(self.device, dtype)

    def _problem(self, problem: Problem) -> None:
        """The sites' samples and where each site's begin."""
        first = problem.sites[0]
        assert first.pool is not None and first.objective.stack is not None  # noqa: PT018
        self.batch, self.seed = first.batch_samples, batches._seed_state(first.seed, batches.BATCH)
        self.shape = shaped(first.objective.stack, self.batch)
        self.inputs = first.pool.inputs.flatten(1)
        self.targets = first.pool.targets
        self.starts = self._put([site.start for site in problem.sites])
        self.sizes = self._put([site.train.size for site in problem.sites])
        judged = [
            site.start
            + (np.arange(site.train.size) if site.sample is None else site.sample.cpu().numpy())
            for site in problem.sites
        ]
        self.judged = self._put(np.concatenate(judged))
        self.counts = self._put([len(x) for x in judged])
        self.firsts = torch.cumsum(self.counts, 0) - self.counts
        self.decay = first.objective.weight_decay

    def _numbers(self) -> None:
        """All small float64 numbers in one buffer, so that one copy fetches them."""
        m = self.master
        n = self.n
        M = PLANES
        sizes = [n, n, n, n, M, M, M, 1]
        self.small = self._new(sum(sizes))
        parts = self.small.split(sizes)
        self.f, self.told, self.curvature, self.revealed = parts[:4]
        self.lam, self.before, self.F, self.height = parts[4:]
        values = (m.f, self.flight.loss, m.curvature, self.flight.curvature)
        for part, value in zip(parts, values, strict=False):
            part.copy_(torch.from_numpy(value))
        self.height.fill_(m.h)
        self.fixed = self._put(
            [
                *self._coupling(),
                self.settle,
                self.decay,
                OVERSHOOT,
                rises_above(m.constants),
                EASE_OFF,
                self.stride,
                m.most_loss,
            ],
            torch.float64,
        )
        self.prior = self._put(m.prior, torch.float64)
        self.least = self._put(m.first, torch.float64)
        self.P, self.planes = self._new(M, n), self._new(1, dtype=torch.int64)
        self.multipliers = digest.multipliers(self.p, str(self.device))

    # ------------------------------------------------------------ what the host sees

    def load(self, plan: Plan) -> None:
        """The plan through pinned memory, which two blocks share in turn."""
        steps = len(plan.workers)
        self.turn = 1 - self.turn
        table = self._staged(0, steps, 4, self.slots.shape[2])
        for place, part in enumerate((plan.workers, plan.draws, plan.checks, plan.losses)):
            table[:, place, : self.S] = torch.from_numpy(part)
        self.plan = table.to(self.device, non_blocking=True)
        self.digested = self._new(steps, self.slots.shape[2], dtype=torch.int64)
        self.numbers = self._new(steps, 4)

    def _staged(self, kind: int, *shape: int) -> Tensor:
        """Memory for this block's copies; that of the block before the last is free again."""
        size = math.prod(shape)
        name = (kind, self.turn)
        if name not in self.pinned or self.pinned[name].numel() < size:
            new = torch.zeros(size, dtype=torch.int64)
            self.pinned[name] = new if self.side is None else new.pin_memory()
        return self.pinned[name][:size].view(shape)

    def tune(self, first: int, numbers: Array) -> None:
        """Small enough for the driver to take at once, without waiting."""
        part = self.numbers[first : first + len(numbers)]
        part.copy_(torch.from_numpy(numbers), non_blocking=True)

    def digests(self) -> Callable[[], Integers]:
        found = self._staged(1, *self.digested.shape)
        found.copy_(self.digested, non_blocking=True)
        if self.side is None:
            return lambda: found[:, : self.S].numpy()
        copied = torch.cuda.Event()
        copied.record()

        def arrived() -> Integers:
            copied.synchronize()
            return found[:, : self.S].numpy()

        return arrived

    def put_back(self) -> dict[int, int]:
        """Nobody: there are no bounds here."""
        return {}

    def fetch(self) -> None:
        m = self.master
        n = self.n
        small = self.small.cpu().numpy().copy()
        m.f = small[:n]
        self.flight.loss = small[n : 2 * n]
        m.curvature = small[2 * n : 3 * n]
        self.flight.curvature = small[3 * n : 4 * n]
        lam, before, F = small[4 * n : -1].reshape(3, -1)[:, : len(m.planes)].copy()
        m.planes, self.lam_before, m.h = Planes(m.planes.P, lam, F), before, float(small[-1])

    def put_planes(self) -> None:
        A = self.master.planes
        self.P[: len(A)] = torch.from_numpy(A.P)
        self.lam[: len(A)] = torch.from_numpy(A.lam)
        self.F[: len(A)] = torch.from_numpy(A.F)
        self.planes.fill_(len(A))
        self.fixed[:3].copy_(torch.tensor(self._coupling(), dtype=torch.float64))

    def _coupling(self) -> tuple[float, float, float]:
        """kappa, eta_z and rho2; kappa follows the curvatures whenever the planes are revised."""
        m = self.master
        rates = self.rules.preset.rates(m.constants, m.t, 1, self.n, self.S)
        return m.constants["kappa"], rates.eta_z, rates.rho2

    def rebuild(self) -> None:
        self.master.sum_w.copy_(self.master.w.sum(0, dtype=torch.float64))
        self.master.sum_phi.copy_(self.master.phi.sum(0, dtype=torch.float64))

    # ------------------------------------------------------------ steps

    def steps(self, first: int, last: int) -> None:
        for count in REPLAYED:
            while last - first >= count:
                self._replay(first, count, (self._absorb, self._hand))
                first += count

    def absorb(self, i: int) -> None:
        self._replay(i, 1, (self._judge,))

    def hand(self, i: int) -> None:
        self._replay(i, 1, (self._rest, self._hand))

    def _replay(self, first: int, count: int, parts: tuple[Callable[[int], None], ...]) -> None:
        """Fill the slots, run the steps, keep their digests; the first time as they come."""
        span = slice(first, first + count)
        slots = slice(0, count)
        self.slots[slots].copy_(self.plan[span])
        self.tuned[slots].copy_(self.numbers[span])
        self.found[slots].copy_(self.digested[span])
        name = count, *(part.__name__ for part in parts)
        if name in self.graphs:
            self.graphs[name].replay()
        else:
            self._run(count, parts)
            if self.side is not None:
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self._run(count, parts)
                self.graphs[name] = graph
        self.digested[span].copy_(self.found[slots])

    def _run(self, count: int, parts: tuple[Callable[[int], None], ...]) -> None:
        for i in range(count):
            for part in parts:
                part(i)
        self._main_after_side()

    def _absorb(self, i: int) -> None:
        """The gradients of Q beside the master's part."""
        self._side_after_main()
        with torch.cuda.stream(self.side):
            self._dual(i)
            self._vectors(i)
        self._gradients(self.flight.w, self.g, i, self.all)
        self._main_after_side()

    def _judge(self, i: int) -> None:
        """`_dual` where `_absorb` has it."""
        self._side_after_main()
        with torch.cuda.stream(self.side):
            self._dual(i)
        self._main_after_side()

    def _rest(self, i: int) -> None:
        """What `_absorb` does besides `_dual`."""
        self._side_after_main()
        with torch.cuda.stream(self.side):
            self._vectors(i)
        self._gradients(self.flight.w, self.g, i, self.all)
        self._main_after_side()

    def _hand(self, i: int) -> None:
        """The tasks of Q with their results, then the losses, which the next master step needs."""
        m = self.master
        slot = self.slots[i]
        kernels_step.hand[(self.S,)](
            self.flight.w,
            m.w,
            m.phi,
            self.g,
            m.z,
            self.P,
            self.lam,
            self.planes,
            self.prior,
            self.curvature,
            self.revealed,
            self.pis,
            self.rates,
            slot[WORKERS],
            slot[DRAWS],
            self.fixed,
            self.n,
            self.p,
            M=PLANES,
            B=1024,
            num_warps=8,
        )
        self._gradients(self.flight.w, self.again, i, slot[CHECKS])
        kernels_step.check[(self.S,)](
            self.flight.w,
            m.w,
            self.g,
            self.again,
            self.revealed,
            self.pis,
            self.rates,
            slot[WORKERS],
            slot[CHECKS],
            self.fixed,
            self.p,
            B=1024,
            num_warps=8,
        )
        self._side_after_main()
        with torch.cuda.stream(self.side):
            self._losses(i)

    def _side_after_main(self) -> None:
        if self.side is not None:
            self.side.wait_stream(torch.cuda.current_stream())

    def _main_after_side(self) -> None:
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)

    def _gradients(self, rows: Tensor, found: Tensor, i: int, flags: Tensor) -> None:
        slot = self.slots[i]
        kernels.gradients[(self.S,)](
            rows,
            found,
            slot[WORKERS],
            slot[DRAWS],
            flags,
            self.inputs,
            self.targets,
            self.starts,
            self.sizes,
            self.scratch,
            self.fixed,
            self.seed,
            self.p,
            self.batch,
            **self.shape.constants(),
            **kernels.TUNED,
        )

    def _losses(self, i: int) -> None:
        slot = self.slots[i]
        kernels.losses[(self.S, self.split)](
            self.flight.w,
            self.parts,
            slot[WORKERS],
            slot[LOSSES],
            self.inputs,
            self.targets,
            self.judged,
            self.firsts,
            self.counts,
            self.loss_scratch,
            self.p,
            SPLIT=self.split,
            **self.shape.constants(),
            **kernels.TUNED,
        )
        kernels.mean_losses[(self.S,)](
            self.flight.w,
            self.parts,
            self.told,
            slot[WORKERS],
            slot[LOSSES],
            self.counts,
            self.fixed,
            self.p,
            SPLIT=self.split,
            B=1024,
        )

    def _dual(self, i: int) -> None:
        kernels_step.dual[(1,)](
            self.f,
            self.told,
            self.curvature,
            self.least,
            self.revealed,
            self.P,
            self.lam,
            self.before,
            self.F,
            self.height,
            self.planes,
            self.slots[i, WORKERS],
            self.tuned[i],
            self.found[i],
            self.multipliers,
            self.fixed,
            self.n,
            self.S,
            M=PLANES,
            R=min(256, self.tile),
            num_warps=16 if self.tile > 64 else 8,
        )

    def _vectors(self, i: int) -> None:
        m = self.master
        columns = 16 if self.S > 64 else 32
        kernels_step.absorb[(-(-self.p // columns),)](
            self.flight.w,
            m.w,
            m.phi,
            m.z,
            m.average,
            m.sum_w,
            m.sum_phi,
            self.found[i],
            self.multipliers,
            self.slots[i, WORKERS],
            self.tuned[i],
            self.fixed,
            self.n,
            self.p,
            self.S,
            R=min(128, self.tile),
            B=columns,
            num_warps=8,
        )

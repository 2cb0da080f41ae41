"""The tables of `blocks_work` and `blocks_rows` as the functions of rows.c see them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from torch import Tensor

from aspire.core.schedules import Rates
from aspire.methods.aspire_state import Master
from aspire.problem import Problem
from aspire.runtimes import digest, native
from aspire.runtimes.order import Integers
from aspire.types import Array


class Compiled:
    """The functions, bound to one run's tables, whose memory must stay where it is."""

    def __init__(self, functions: Any, problem: Problem, bench: Any, master: Master) -> None:
        first = problem.sites[0]
        assert first.objective.stack is not None
        layers, p = first.objective.stack.layers, bench.flight.w.shape[1]
        pairs = [site.judged.pair or () for site in problem.sites]
        judged, targets = (
            [x.flatten(1) if x.ndim > 1 else x for x in side] for side in zip(*pairs, strict=True)
        )
        places = [
            np.array([x.data_ptr() for x in side], dtype=np.uint64) for side in (judged, targets)
        ]
        counts = np.array([len(x) for x in targets])
        odd = digest.multipliers(p).numpy()
        self.kept = judged, targets, places, counts, odd
        self.functions, self.master, self.sites = functions, master, len(problem.sites)
        several = native.MOST_LAYERS * ctypes.c_int64
        columns = [
            several(*(int(getattr(layer, name)) for layer in layers))
            for name in ("inputs", "outputs", "bias", "relu")
        ]
        flight = bench.flight
        self.bench = native.Bench(
            len(layers), bench.batch, p, *columns, bench.decay, flight.w.data_ptr(),
            bench.G.data_ptr(), *map(_at, (bench.inputs, bench.targets, *places, counts)),
            *map(_at, (flight.loss, flight.curvature, bench.digests, odd)),
        )  # fmt: skip
        for name in ("z", "average", "sum_w", "sum_phi"):
            setattr(master, name, getattr(master, name).clone())
        self.rows = flight.w, master.w, master.phi, bench.G

    def work(self, workers: Integers, losses: Integers, index: Integers) -> None:
        """Losses where they are due, gradients on these batches, and digests."""
        order = map(_at, (workers, losses, index))
        _check(self.functions.work(ctypes.byref(self.bench), len(workers), *order))

    def gradients(self, workers: Integers, index: Integers, found: Tensor) -> None:
        """Gradients of these workers' rows on these batches, to the first rows of `found`."""
        order, places = map(_at, (workers, index)), np.arange(len(workers))
        _check(
            self.functions.gradients(
                ctypes.byref(self.bench), len(workers), *order, found.data_ptr(), _at(places)
            )
        )

    def step(
        self, workers: Integers, pi: Array, rate: Array, rates: Rates, c2: float, share: float
    ) -> None:
        """(12), (15) and (11) for Q; z, its average and the sums are the master's own."""
        m = self.master
        totals = (x.data_ptr() for x in (m.z, m.average, m.sum_w, m.sum_phi))
        rows = (x.data_ptr() for x in self.rows)
        tables = native.Master(m.n, m.w.shape[1], *rows, *totals)
        self.functions.step(
            ctypes.byref(tables), len(workers), *map(_at, (workers, pi, rate)),
            m.constants["kappa"], rates.eta_z, c2, rates.rho2, share,
        )  # fmt: skip


def compiled(problem: Problem, bench: Any, master: Master) -> Compiled | None:
    """None where rows.c cannot serve: no compiler, another loss, too many layers or classes."""
    stack = problem.sites[0].objective.stack
    if stack is None or not stack.classes or len(stack.layers) > native.MOST_LAYERS:
        return None
    if stack.layers[-1].outputs > native.MOST_CLASSES:
        return None
    functions = native.library(bench.flight.w.dtype)
    return None if functions is None else Compiled(functions, problem, bench, master)


def _at(x: Any) -> int:
    """Where an array lies: C order, as all of them are here."""
    if not x.flags.c_contiguous:
        raise ValueError(f"an array of strides {x.strides}: expected one piece of memory")
    return int(x.ctypes.data)


def _check(code: int) -> None:
    if code:
        raise MemoryError("rows.c found no memory for its features")

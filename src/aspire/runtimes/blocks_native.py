"""The tables of `blocks_work` and `blocks_rows` as the functions of rows.c see them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from aspire.core.schedules import Rates
from aspire.methods.aspire_state import Master
from aspire.methods.worker import OVERSHOOT
from aspire.problem import Problem
from aspire.runtimes import digest, native
from aspire.runtimes.order import Integers
from aspire.types import Array


class Compiled:
    """The functions, bound to one run's tables, whose memory must stay where it is."""

    def __init__(self, functions: Any, problem: Problem, bench: Any, master: Master) -> None:
        first, flight, p = problem.sites[0], bench.flight, bench.flight.w.shape[1]
        assert first.objective.stack is not None
        layers = first.objective.stack.layers
        pairs = [site.judged.pair or () for site in problem.sites]
        samples, targets = zip(*pairs, strict=True)
        self.kept: Any = [x.flatten(1).contiguous() for x in samples], targets
        starts = [np.array([x.data_ptr() for x in side], dtype=np.uint64) for side in self.kept]
        counts, odd = np.array([len(x) for x in targets]), digest.multipliers(p).numpy()
        self.kept += starts, counts, odd
        several = native.MOST_LAYERS * ctypes.c_int64
        columns = [
            several(*(int(getattr(layer, name)) for layer in layers))
            for name in ("inputs", "outputs", "bias", "relu")
        ]
        self.bench = native.Bench(
            len(layers), bench.batch, p, *columns, bench.decay, flight.w.data_ptr(),
            bench.G.data_ptr(), *map(at, (bench.inputs, bench.targets, *starts, counts)),
            *map(at, (flight.loss, flight.curvature, bench.digests, odd)), master.w.data_ptr(),
            at(bench.pi), at(bench.rate), master.constants.get("kappa", 0.0), OVERSHOOT,
        )  # fmt: skip
        self.functions, self.master, self.told = functions, master, np.zeros((2, len(targets)))
        self.rows = flight.w, master.w, master.phi, bench.G
        for name in ("z", "average", "sum_w", "sum_phi"):
            setattr(master, name, getattr(master, name).clone())
        self.bind()

    def bind(self) -> None:
        """Where the master's tables lie now."""
        m = self.master
        tables = *self.rows, m.z, m.average, m.sum_w, m.sum_phi
        self.tables = native.Master(m.n, m.w.shape[1], *(x.data_ptr() for x in tables))
        self.pi, self.rate = self.told
        self.places = at(self.pi), at(self.rate)

    def work(self, rows: int, columns: Sequence[int], index: int, again: Integers | None) -> None:
        """`columns`: where workers, checks and losses lie; `again`: batches of checked steps."""
        also = None if again is None else at(again)
        if self.functions.work(ctypes.byref(self.bench), rows, *columns, index, also):
            raise MemoryError("rows.c found no memory for its features")

    def step(
        self, workers: int, pi: Array, rate: Array, rates: Rates, c2: float, share: float
    ) -> None:
        """(12), (15) and (11) for Q, which lies at `workers`; all tables are changed in place."""
        rows = len(pi)
        self.pi[:rows], self.rate[:rows] = pi, rate
        self.functions.step(
            ctypes.byref(self.tables), rows, workers, *self.places,
            self.master.constants["kappa"], rates.eta_z, c2, rates.rho2, share,
        )  # fmt: skip


def compiled(problem: Problem, bench: Any, master: Master) -> Compiled | None:
    """None where rows.c cannot serve: no compiler, another loss, too many layers."""
    stack = problem.sites[0].objective.stack
    if stack is None or not stack.classes or len(stack.layers) > native.MOST_LAYERS:
        return None
    functions = native.library(bench.flight.w.dtype)
    return None if functions is None else Compiled(functions, problem, bench, master)


def at(x: Any) -> int:
    """Where an array lies: C order, as all of them are here."""
    if not x.flags.c_contiguous:
        raise ValueError(f"an array of strides {x.strides}: expected one piece of memory")
    return int(x.ctypes.data)

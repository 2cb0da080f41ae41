"""The numbers of a block of steps on the CPU, compiled: tables of rows for steps.c."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from aspire.compiled import native
from aspire.compiled.native import at
from aspire.core import pull
from aspire.core.planes import Planes
from aspire.core.presets import Auto
from aspire.core.schedules import EASE_OFF, rises_above
from aspire.methods.aspire_ease.consensus_state import Master, Rules, rebuild_sums
from aspire.methods.worker import OVERSHOOT
from aspire.problem import batches
from aspire.problem.problem import Problem
from aspire.problem.sites import Lie
from aspire.runs import digest
from aspire.simulator.blocks_work import Flight, Plan
from aspire.simulator.order import Integers
from aspire.types import Array

ABSORB, HAND = 1, 2  # halves of a step
WORTH = 64  # tasks for which helpers are started
LEAST, WIDEST = 64, 2**24  # planes that there is always room for; numbers of all planes, else
# numbers of each worker
SITE = ("f", "told", "curvature", "revealed", "prior", "first", "pi", "rate", "coupling")
TASK = ("draws", "checked", "reports", "digests")
PLANE = ("lam", "before", "F")


class Compiled:
    """The state of a run in memory that stays; `fetch` brings what the host decides on."""

    def __init__(
        self,
        rules: Rules,
        master: Master,
        problem: Problem,
        flight: Flight,
        quorum: int,
        draws: Integers,
        threads: int,
    ) -> None:
        """`draws`: the batches of the tasks in flight."""
        assert isinstance(rules.preset, Auto)
        self.rules, self.master, self.helpers, n = rules, master, threads - 1, len(draws)
        self.functions = native.library(flight.w.dtype)
        self.w = flight.w
        self.numbers_of = {name: np.zeros(n) for name in SITE}
        values = (
            master.f,
            flight.loss,
            master.curvature,
            flight.curvature,
            master.prior,
            master.first,
        )
        for name, value in zip(SITE, values, strict=False):
            self.numbers_of[name][:] = value
        self.tasks = {name: np.zeros(n, dtype=np.int64) for name in TASK}
        self.tasks["draws"][:] = draws
        self.room = min(rules.max_planes or native.MOST_PLANES, max(LEAST, WIDEST // n))
        planes = {name: np.zeros(self.room) for name in PLANE}
        self.planes = planes | {"P": np.zeros((self.room, n)), "height": np.zeros(1)}
        self.g, self.state = flight.w.new_zeros(flight.w.shape), np.ones(n, dtype=np.int32)
        self.lam_before = master.planes.lam
        self.planes["height"][:] = master.h
        self.run = native.Run(
            self._problem(problem),
            n,
            quorum,
            settle=master.constants["settle"],
            stride=master.constants["stride"],
            momentum=rules.preset.momentum,
            overshoot=OVERSHOOT,
            steeper=rises_above(master.constants),
            ease_off=EASE_OFF,
            usual=float(np.median(master.first)),
            most_loss=master.most_loss,
        )
        for name in ("z", "average"):
            setattr(master, name, getattr(master, name).clone())
        if rules.bounded:
            self.numbers_of |= {"rate": master.pulls.rate, "coupling": master.pulls.kappa}
            self.run.bounds = self._bounds()
        for name, array in (self.numbers_of | self.tasks | self.planes).items():
            setattr(self.run, name, at(array))
        self.run.state = at(self.state)
        self._believe(problem, flight)
        self._bind()
        self.put_planes()

    def _problem(self, problem: Problem) -> native.Problem:
        first = problem.sites[0]
        stack = first.objective.stack
        pool = first.pool
        assert stack is not None
        assert pool is not None
        pairs = [site.judged.pair or () for site in problem.sites]
        samples, targets = zip(*pairs, strict=True)
        judged = [x.flatten(1).contiguous() for x in samples], targets
        tables: Any = [np.array([x.data_ptr() for x in side], dtype=np.uint64) for side in judged]
        starts, sizes = (
            np.array(x, dtype=np.int64)
            for x in zip(*((s.start, s.train.size) for s in problem.sites), strict=True)
        )
        p = self.w.shape[1]
        arrays = (
            pool.inputs.flatten(1).contiguous().numpy(),
            pool.targets.contiguous().numpy(),
            starts,
            sizes,
            *tables,
            np.array([len(x) for x in targets]),
            digest.multipliers(p).numpy(),
        )
        self.kept = judged, arrays
        seed = batches._seed_state(first.seed, batches.BATCH)
        return native.Problem(
            len(stack.layers),
            first.batch_samples,
            p,
            *native.shapes(stack.layers),
            first.objective.weight_decay,
            0.0,
            seed,
            *map(at, arrays),
        )

    def _bounds(self) -> native.Bounds:
        """`core.pull` on the master's own memory."""
        rules = self.rules
        m = self.master
        n = len(self.master.f)
        pulls = m.pulls
        p = self.w.shape[1]
        self.common = self.w.new_zeros(p) if not len(pulls.common) else pulls.common.clone()
        self.implied, self.backs = self.w.new_zeros(p), np.zeros((3, n), dtype=np.int64)
        return native.Bounds(
            rules.pull_bound or 0.0,
            rules.coordinate_bound or 0.0,
            pull.FRESH,
            m.t,
            len(pulls.rows),
            pull.MEMORY,
            pull.REFRESH,
            int(len(pulls.common) > 0),
            *map(at, (m.upper, pulls.length, pulls.weight, pulls.seat, pulls.seen)),
            *(x.data_ptr() for x in (pulls.rows, self.common, self.implied)),
            *map(at, self.backs),
        )

    def _believe(self, problem: Problem, flight: Flight) -> None:
        """What the sites make of what they find."""
        lies = [site.lie or Lie() for site in problem.sites]
        run = self.run
        self.factors = np.array([(lie.loss, lie.gradient) for lie in lies]).T.copy()
        run.loud, run.turn = map(at, self.factors)
        false = [j for j, lie in enumerate(lies) if lie.about_model]
        run.liar = false[0] if false else -1
        self.own = flight.own
        if self.own is not None:
            run.start, run.own = (row.data_ptr() for row in self.own)
            run.model = lies[run.liar].model
            self.plus = lies[run.liar].plus
            run.plus = None if self.plus is None else self.plus.data_ptr()

    def put_back(self) -> dict[int, int]:
        """Whom the bound on the pull put back to z since this was asked, and how often."""
        if not self.rules.bounded:
            return {}
        counts = self.backs[2].copy()
        self.backs[2] = 0
        return {int(j): int(counts[j]) for j in np.flatnonzero(counts)}

    def _bind(self) -> None:
        """Where the master's tables lie now."""
        m = self.master
        tables = {"flight": self.w, "g": self.g, "w": m.w, "phi": m.phi, "z": m.z}
        tables |= {"average": m.average, "sum_w": m.sum_w, "sum_phi": m.sum_phi}
        for name, table in tables.items():
            setattr(self.run, name, table.data_ptr())

    # ------------------------------------------------------------ what the host sees

    @property
    def flight(self) -> Flight:
        """With every result that was not known yet."""
        _check(self.functions.finish(ctypes.byref(self.run)))
        return Flight(self.w, self.numbers_of["told"], self.numbers_of["revealed"], self.own)

    def load(self, plan: Plan) -> None:
        self.numbers = np.zeros((len(plan.workers), 4))
        self.found = np.zeros(plan.workers.shape, dtype=np.int64)
        columns = plan.workers, plan.draws, plan.checks, plan.losses, self.numbers, self.found
        self.plan = [np.ascontiguousarray(column) for column in columns]
        names = "plan_workers", "plan_draws", "plan_checks", "plan_losses", "numbers", "found"
        for name, column in zip(names, self.plan, strict=True):
            setattr(self.run, name, at(column))
        self.run.bounds.t = self.master.t

    def tune(self, first: int, numbers: Array) -> None:
        """c1, rho1, c2 and the weight of the newest z in the average, of the steps from `first`."""
        self.numbers[first : first + len(numbers)] = numbers

    def digests(self) -> Callable[[], Integers]:
        found = self.found
        return lambda: found

    def fetch(self) -> None:
        m = self.master
        L = len(self.master.planes)
        m.f, m.curvature = self.numbers_of["f"].copy(), self.numbers_of["curvature"].copy()
        lam, self.lam_before, F = (self.planes[name][:L].copy() for name in PLANE)
        m.planes, m.h = Planes(m.planes.P, lam, F), float(self.planes["height"][0])
        if self.run.bounds.known:
            m.pulls.common = self.common

    def put_planes(self) -> None:
        A = self.master.planes
        L = len(self.master.planes)
        self.planes["P"][:L] = A.P
        self.planes["lam"][:L] = A.lam
        self.planes["F"][:L] = A.F
        m = self.master
        run = self.run
        rates = self.rules.preset.rates(m.constants, m.t, L, run.n, run.quorum)
        run.planes = L
        run.kappa = m.constants["kappa"]
        run.eta = rates.eta_z
        run.rho2 = rates.rho2

    def rebuild(self) -> None:
        rebuild_sums(self.master)
        self._bind()

    # ------------------------------------------------------------ steps

    def steps(self, first: int, last: int) -> None:
        self._advance(first, last, ABSORB | HAND)

    def absorb(self, i: int) -> None:
        self._advance(i, i + 1, ABSORB)

    def hand(self, i: int) -> None:
        self._advance(i, i + 1, HAND)

    def _advance(self, first: int, last: int, halves: int) -> None:
        many = (last - first) * self.run.quorum >= WORTH
        helpers = self.helpers if many else 0
        if last > first:
            _check(self.functions.advance(ctypes.byref(self.run), first, last, halves, helpers))


def can_compile(problem: Problem) -> bool:
    """Whether steps.c can serve: a compiler, class scores, not too many layers."""
    stack = problem.sites[0].objective.stack
    return stack is not None and stack.relu_only and stack.compiled(problem.flat.start)


def _check(code: int) -> None:
    if code:
        raise MemoryError("steps.c found no memory for its features")

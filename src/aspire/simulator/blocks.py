"""Whole blocks of asynchronous steps at once: the order first, then the numbers.

The simulator takes one event at a time. Where everybody is present, the order of events is known
ahead (`order`) and the numbers follow in tables of rows: on the CPU compiled (`blocks_native`), on
CUDA as graphs of a few kernels (`blocks_cuda`). A run enters with a `Simulation` and leaves with
one, so evaluation, checkpoints and `resume` are the simulator's own.
Events are the simulator's to the bit, numbers up to rounding. The log is a chain of one sha256 a
step over times, workers, task ids and digests of the reports.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from aspire.compiled import native
from aspire.core.presets import Auto
from aspire.methods.aspire_ease.consensus_state import Rules
from aspire.methods.aspire_ease.consensus_step import revise_planes
from aspire.methods.worker import PASSES, check_is_due, loss_is_due, probes
from aspire.problem.problem import Problem
from aspire.protocol import LARGEST, size
from aspire.runs.errors import Stopped
from aspire.simulator import simulator
from aspire.simulator.blocks_native import Compiled, can_compile
from aspire.simulator.blocks_work import Flight, Plan
from aspire.simulator.order import Block, Integers, Order
from aspire.simulator.simulator import REPORT, Simulation
from aspire.types import Info, Method, Noted, Report, Task

SPAN = 256  # steps whose order is laid out at once
LOOK = 1024  # steps after which somebody may look at the latest
REPORTS = 2**15  # about a second of work for a CPU
APART = 512  # with a larger quorum numpy lets go of the interpreter, so a thread lays out the order
MOST_PLANES = 64  # that everybody has room for
MOST_ROWS = 8192  # a larger quorum would need much scratch memory
WIDEST = 128  # layers up to here are one tile of a kernel


def rules_of(method: Method) -> Rules:
    return Rules(**{name: value for name, value in method.settings.items() if name != "form"})


def fits(simulation: Simulation) -> bool:
    """Whether blocks can do all of it: aspire as it comes, everybody present, stacks of layers."""
    method = simulation.method
    sites = simulation.problem.sites
    if method.name != "aspire" or not simulation.problem.batched or simulation.evaluate.exact:
        return False
    rules = rules_of(method)
    first = sites[0]
    if not served(rules, simulation.problem):
        return False
    plain = (rules.staleness, rules.local_steps) == (None, 1) and rules.quorum <= MOST_ROWS
    if not (plain and type(rules.preset) is Auto and first.batch_size is not None):
        return False
    if simulation.log.level in ("full", "vectors") or any(
        kind != REPORT for _, kind, _, _ in simulation.heap
    ):
        return False
    m = simulation.master
    idle = len(m.pending) if m.started else int(m.present.sum())  # those whose probe is in wait
    return len(m.f) == len(simulation.heap) + idle


def served(rules: Rules, problem: Problem) -> bool:
    """Whether somebody has all of this: steps.c alone knows bounds, lies, momentum, many planes."""
    lies = [site.lie for site in problem.sites if site.lie is not None]
    if sum(lie.about_model for lie in lies) > 1:
        return False
    if not on_card(problem):
        return can_compile(problem)
    plain = not (lies or rules.bounded or rules.preset.momentum)
    return plain and (rules.max_planes or math.inf) <= MOST_PLANES


def on_card(problem: Problem) -> bool:
    """Whether the kernels for CUDA can serve this model."""
    start = problem.flat.start
    stack = problem.sites[0].objective.stack
    if start.device.type != "cuda" or start.dtype != torch.float32 or find_spec("triton") is None:
        return False
    if stack is None or not (stack.classes and stack.relu_only):
        return False
    return all(max(layer.inputs, layer.outputs) <= WIDEST for layer in stack.layers)


def run(
    simulation: Simulation,
    done: Callable[[Simulation], bool],
    *,
    last: int,
    every: int,
    on_step: Callable[[Simulation], None] = lambda simulation: None,
    on_note: Callable[[Noted], None] = lambda note: None,
    whole: Callable[[], bool] = lambda: False,
) -> Simulation:
    """Up to step `last`, or until `done`; `on_step` looks at every `every`-th step at least.

    It finds the master up to date, and where `whole` says so, the tasks in flight as well.
    """
    if on_card(simulation.problem):
        answer_probes(simulation)
    while not (simulation.master.started and not simulation.master.pending):
        if done(simulation):
            return simulation
        for info in simulation.absorb(simulation.next_event()):
            if isinstance(info, Noted):
                on_note(info)
    engine = Engine(simulation, on_note, last=last, every=every)
    while not done(simulation) and not engine.full:
        engine.advance()
        engine.settle()
        if whole():
            engine.leave()
        on_step(simulation)
    engine.leave()
    if not done(simulation):  # more planes than there is room for
        simulator.run(simulation, done, on_step=on_step, on_note=on_note)
    return simulation


def answer_probes(simulation: Simulation) -> None:
    """The probes of all sites that wait for one, many rows at a time."""
    desk = simulation.desk
    sites = simulation.problem.sites
    power = rules_of(simulation.method).preset.power
    tasks = [desk.hands[j] for j in desk.waiting if desk.hands[j].kind == "probe"]
    for first in range(0, len(tasks), 256):
        some = tasks[first : first + 256]
        reports = probes(some, [sites[task.worker] for task in some], power)
        for task, report in zip(some, reports, strict=True):
            desk.known[task.worker] = (task.vectors["w"], report)
            del desk.waiting[task.worker]


class Engine:
    """A simulation that advances by blocks; its desk is out of date until `leave`."""

    def __init__(
        self,
        simulation: Simulation,
        on_note: Callable[[Noted], None],
        *,
        last: int,
        every: int,
    ) -> None:
        self.simulation = simulation
        self.on_note = on_note
        self.last = last
        self.every = every
        self.master = m = simulation.master
        self.rules = rules_of(simulation.method)
        self.n, self.quorum = m.n, min(self.rules.quorum, m.n)
        sites = simulation.problem.sites
        self.batch = sites[0].batch_samples
        self.loss_samples = np.array([site.loss_samples for site in sites])
        self.loss_every = np.array([_loss_every(site) for site in sites])
        self.checked: Integers = np.zeros(0, dtype=np.int64)  # by a task's number
        m.average = m.average.clone()
        flight = self._enter()
        if on_card(simulation.problem):
            from aspire.simulator.blocks_cuda import Card

            self.look = LOOK
            self.rows: Any = Card(self.rules, m, simulation.problem, flight, self.quorum)
        else:
            self.look = max(1, min(LOOK, REPORTS // self.quorum))
            draws = self.clock.number + 1
            threads = simulation.evaluate.threads
            self.rows = Compiled(
                self.rules, m, simulation.problem, flight, self.quorum, draws, threads
            )
        self.thread = ThreadPoolExecutor(1) if self.quorum >= APART else None
        self.ahead: Callable[[], tuple[Block, Plan]] | None = None
        self.ended: tuple[Block, Callable[[], Integers]] | None = None

    # ------------------------------------------------------------ in and out

    def _enter(self) -> Flight:
        """The clock as an order, and every result in flight, computed where it was not yet.

        The desk is empty then: with many sites its vectors are a large part of the memory.
        """
        s = self.simulation
        m = self.master
        due = np.zeros(self.n)
        desk = s.desk
        for time, _, j, task in s.heap:
            if desk.holds(j, task):
                due[j] = time
        number = np.array([s.started[j] - 1 for j in range(self.n)])
        self.order = Order(
            s.delays, s.seed, self.quorum, due, number, m.task.copy(), s.time, m.next_id
        )
        self.clock = self.order.clock()
        if desk.waiting:
            s.evaluate.send([desk.hands[j] for j in desk.waiting], desk.workers)
        desk.waiting.clear()
        desk.settle(s.evaluate)
        flight = Flight(torch.empty_like(m.w), m.f.copy(), np.full(self.n, -1.0))
        for j, site in enumerate(s.problem.sites):
            state, report = desk.known.pop(j)
            if site.lie is not None and site.lie.about_model:
                before: Any = desk.workers.get(j, state)
                flight.own = torch.stack([before, state])
            flight.w[j] = report.vectors["w"]
            flight.loss[j] = report.scalars.get("loss", m.f[j])
            flight.curvature[j] = report.scalars.get("curvature", -1.0)
        desk.hands.clear()
        desk.workers.clear()
        native.give_back()
        return flight

    def leave(self) -> None:
        """Tasks and results as the simulator holds them."""
        s = self.simulation
        order = self.clock
        flight = self.rows.flight
        s.heap = [(float(order.due[j]), REPORT, j, int(order.task[j])) for j in range(self.n)]
        heapq.heapify(s.heap)
        s.started = {j: int(order.number[j]) + 1 for j in range(self.n)}
        checked, told = self._due(np.arange(self.n), order.number)
        rows = flight.w.clone()
        held = self.master.w.clone()
        for j, site in enumerate(s.problem.sites):
            before = held[j]
            after = rows[j]
            if flight.own is not None and site.lie is not None:
                before, after = flight.own.clone()
            said = {"gradients": 1.0}
            if checked[j]:
                said |= {"gradients": 2.0, "curvature": float(flight.curvature[j])}
            said["samples"] = PASSES * said["gradients"] * self.batch
            if told[j]:
                said["loss"] = float(flight.loss[j])
                said["samples"] += float(self.loss_samples[j])
            task = int(order.task[j])
            w = rows[j]
            s.desk.hands[j] = Task(j, task, "step", {}, {"draws": float(order.number[j] + 1)})
            s.desk.known[j] = (after, Report(j, task, {"w": w}, said))
            s.desk.workers[j] = before

    @property
    def full(self) -> bool:
        """Whether the planes of the steps to the next stop may not find room."""
        if (self.rules.max_planes or math.inf) <= MOST_PLANES:
            return False
        most = min(self.every, self.look) // self.rules.preset.every(self.n) + 1
        return len(self.master.planes) + most > self.rows.room

    def settle(self) -> None:
        """The master as it is now."""
        self.rows.fetch()
        m = self.master
        order = self.clock
        m.task = order.task.copy()
        m.draws = order.number + 1
        m.next_id = order.next_id
        self.simulation.time = order.time
        for j, count in self.rows.put_back().items():
            self.on_note(Noted(m.t, f"pulled too hard, put back {count} times: worker {j}"))
        self._refuse_infinite(size(m.z) <= LARGEST)

    # ------------------------------------------------------------ steps

    def advance(self) -> None:
        """To the next stop."""
        stop = self._stop(self.master.t)
        while self.master.t < stop:
            block, plan = self._next()
            self._launch(block, plan)
            self._meanwhile(self.master.t)
            self.ended = block, self.rows.digests()
            self.clock = block.after
        self._record()

    def _meanwhile(self, t: int) -> None:
        """What the host does while the device is at work: the log, and the order from t on."""
        if self.ahead is None and self.thread is not None:
            self.ahead = self.thread.submit(self._lay_out, t).result
        self._record()
        if self.ahead is None:
            laid_out = self._lay_out(t)
            self.ahead = lambda: laid_out

    def _next(self) -> tuple[Block, Plan]:
        ahead = self.ahead
        self.ahead = None
        return self._lay_out(self.master.t) if ahead is None else ahead()

    def _stop(self, t: int) -> int:
        """Where somebody looks next."""
        looks = min(self.every, self.look)
        return max(t + 1, min(self.last, *(t + k - t % k for k in (looks, self.every))))

    def _lay_out(self, t: int) -> tuple[Block, Plan]:
        """The order of the next steps; it ends where somebody looks."""
        block = self.order.block(min(SPAN - t % SPAN, self._stop(t) - t))
        checks, losses = self._due(block.workers, block.numbers)
        return block, Plan(block.workers, block.numbers + 1, checks, losses)

    def _launch(self, block: Block, plan: Plan) -> None:
        m = self.master
        start = self.master.t
        self.rows.load(plan)
        k = self.rules.preset.every(self.n)
        rebuild = max(1000, 10 * self.n)
        while m.t < start + len(block):
            first = m.t - start
            revised = min(m.t + k - m.t % k, m.t + rebuild - m.t % rebuild, start + len(block))
            self.rows.tune(first, self._numbers(revised - m.t))
            self.rows.steps(first, revised - start - 1)
            m.t = revised - 1
            self.rows.absorb(m.t - start)
            if revised % k == 0:
                self._meanwhile(start + len(block))
                self._revise()
                self.rows.tune(m.t - start, self._numbers(1))
            m.t = revised
            self.rows.hand(revised - start - 1)
            if revised % rebuild == 0:
                self.rows.rebuild()
        m.last[block.workers] = np.arange(start, m.t)[:, None]

    def _numbers(self, count: int) -> np.ndarray:
        """c1, rho1, c2 and the share of the newest z, of the next steps."""
        m = self.master
        preset = self.rules.preset
        t = np.arange(m.t, m.t + count)
        rates = preset.rates(m.constants, t, len(m.planes), self.n, self.quorum)  # type: ignore[arg-type]
        shares = [preset.averaging(int(at)) for at in t]
        columns = rates.c1, rates.rho1, rates.c2, shares
        return np.stack([np.broadcast_to(x, t.shape) for x in columns], axis=1)

    def _refuse_infinite(self, finite: bool = True) -> None:
        m = self.master
        if not (finite and np.isfinite(m.f).all() and np.isfinite(m.curvature).all()):
            raise Stopped(
                f"a report was not finite, or out of range, before step {m.t}: the run cannot go on"
            )

    def _revise(self) -> None:
        self.rows.fetch()
        self._refuse_infinite()
        infos: list[Info] = []
        revise_planes(self.rules, self.master, self.rows.lam_before, infos)
        self.rows.put_planes()
        for info in infos:
            if isinstance(info, Noted):
                self.on_note(info)

    def _due(self, workers: Integers, numbers: Integers) -> tuple[np.ndarray, np.ndarray]:
        """Of tasks with these numbers: is the step checked, is the loss reported."""
        if numbers.max() >= len(self.checked):
            known = range(2 * int(numbers.max()) + 1)
            self.checked = np.array([check_is_due(k) for k in known], dtype=np.int64)
        losses = (numbers + 1) % self.loss_every[workers] == 0
        return self.checked[numbers], losses.astype(np.int64)

    def _record(self) -> None:
        """What was absorbed in the block that ended: its cost, and the log, as it arrived."""
        if self.ended is None:
            return
        (block, digests) = self.ended
        self.ended = None
        s = self.simulation
        checks, losses = self._due(block.arrived, block.answered)
        gradients = 1 + checks
        s.gradients += float(gradients.sum())
        s.samples += float(PASSES * gradients.sum() * self.batch)
        s.samples += float((losses * self.loss_samples[block.arrived]).sum())
        if s.log.level == "off":
            return
        found = np.empty_like(block.places)
        np.put_along_axis(found, block.places, digests(), axis=1)
        lines = [block.times.view(np.int64), block.arrived, block.tasks, found]
        s.log.add_steps(np.stack(lines, axis=1))


def _loss_every(site: Any) -> int:
    """The gap between two reported losses of a site."""
    return next(n for n in range(1, 2**62) if loss_is_due(site, n, 1))

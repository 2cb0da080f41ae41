"""Replay: the events of a log, absorbed again in their order, must give the same master state.

Each report is computed again from the seeds and compared by its hash; with `kept`, its vectors are
read from beside the log instead, and no data is needed. The desk evaluates the same tasks together
as it did in a run of the simulator; on an engine every report was computed `alone`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from aspire.problem.problem import Problem
from aspire.runs import log
from aspire.runs.hashes import digest
from aspire.simulator.in_flight import Desk, Evaluator
from aspire.types import Event, Joined, Left, Method, Refused, Report


class Differs(ValueError):
    """The replay does not give what the log says."""


def replay_events(
    method: Method,
    problem: Problem,
    events: list[dict[str, Any]],
    seed: int,
    *,
    alone: bool = False,
    kept: Callable[[dict[str, Any]], Report] | None = None,
) -> Any:
    """The master state after the logged events, or Differs at the first one that is not so."""
    late = {e["worker"] for e in _first_of_each(events) if e["event"] == "joined"}
    present = tuple(j for j in range(len(problem.names)) if j not in late)
    master, tasks = method.init(problem.facts(present), seed)
    desk = Desk()
    evaluate = Evaluator(method, problem, alone=alone)
    for record in events:
        for task in tasks:
            desk.hand(task)
        desk.begin_if_many(evaluate)
        j = record["worker"]
        event: Event
        if record["event"] == "report":
            if j not in desk.hands:
                raise Differs(f"event {record['n']}: worker {j} reports but has no task")
            event = desk.report(j, evaluate) if kept is None else kept(record)
        else:
            event = Left(j) if record["event"] == "left" else Joined(j)
            desk.forget(j, evaluate)
        _compare(record, event)
        master, tasks, infos = method.absorb(master, [event])
        for info in infos:
            if isinstance(info, Refused):
                raise Differs(f"event {record['n']} is refused: {info.reason}")
    return master


def replay_log(
    method: Method,
    problem: Problem,
    path: Path,
    seed: int,
    *,
    alone: bool = False,
    kept: bool = False,
) -> tuple[int, str]:
    """Number of events and state hash of a full log that replays to the bit."""
    events, end = log.read(path)
    if end is None:
        raise ValueError(f"{path} has no end mark: the run did not finish")
    if len(events) != end["events"]:
        raise ValueError(
            f"{path} holds {len(events)} of {end['events']} events: expected a log of level full"
        )
    vectors = partial(log.kept, path) if kept else None
    state = digest(replay_events(method, problem, events, seed, alone=alone, kept=vectors))
    if state != end["state"]:
        raise Differs(f"state {state[:16]} after {len(events)} events, log {end['state'][:16]}")
    return len(events), state


def _first_of_each(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first: dict[int, dict[str, Any]] = {}
    for record in events:
        first.setdefault(record["worker"], record)
    return list(first.values())


def _compare(record: dict[str, Any], event: Event) -> None:
    expected = {k: v for k, v in record.items() if k not in ("n", "time")}
    found = log.event_record(event, like=record.get("vectors", ""))
    if found != expected:
        what = [k for k in expected if found.get(k) != expected[k]]
        kind = "report" if isinstance(event, Report) else record["event"]
        raise Differs(
            f"event {record['n']}, a {kind} of worker {record['worker']}: {', '.join(what)} differs"
        )

"""Callbacks: objects that are told of a run while it goes on, and that cannot harm it.

A callback is any object with some of these methods:

    on_start(facts)     before the first step; `facts` is a RunFacts
    on_evaluate(line)   after each evaluation, with its line of history; STOP as its answer ends the
                        run as if a limit were reached, any other answer means nothing
    on_end(run)         after the end, with the Run; everything is written
    on_error(error)     in place of on_end, where the run was interrupted or broke down

One that raises is reported once, and told nothing more. Facts and lines are copies, so nothing
that a callback does changes a number of the run. One with `in_background = True` is called in a
thread of its own: a slow or dead server does not delay the run.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Full, Queue
from typing import Any, TypeVar

from aspire.arguments import kind, shown
from aspire.problem.failures import told

logger = logging.getLogger("aspire")
STOP = "stop"
HOOKS = ("on_start", "on_evaluate", "on_end", "on_error")
BEHIND = 1000  # calls that may wait for a callback in the background
WAIT = 30.0  # seconds that the end of a run waits for such a callback
Ended = TypeVar("Ended")


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run before its first step.

    sites      their names, in the order of every list in a line of history
    settings   what run.json holds
    folder     the run's folder; None: it has none
    iteration  where the run stands: 0, or where a resumed run goes on
    """

    sites: tuple[str, ...]
    settings: Mapping[str, Any]
    folder: Path | None
    iteration: int


def check_callbacks(given: Any) -> None:
    """ValueError where one of them is no callback."""
    if not isinstance(given, list | tuple):
        raise ValueError(f"callbacks={shown(given)}: expected a list of callbacks")
    for callback in given:
        if isinstance(callback, type) or not any(hasattr(callback, hook) for hook in HOOKS):
            raise ValueError(
                f"callbacks has {kind(callback)}: expected objects with on_start(facts), "
                "on_evaluate(line), on_end(run) or on_error(error)"
            )


class Callbacks:
    """All callbacks of a run."""

    def __init__(self, given: Iterable[Any] = ()) -> None:
        self.stop = False  # one of them has asked for the end
        self._all = [_one(callback) for callback in given]

    def around(self, facts: RunFacts, train: Callable[[], Ended]) -> Ended:
        """What `train` returns; the callbacks are told of its start and of its end."""
        self._tell("on_start", facts)
        try:
            run = train()
        except BaseException as error:
            self._tell("on_error", error)
            self._wait()
            raise
        self._tell("on_end", run)
        self._wait()
        return run

    def evaluated(self, line: Mapping[str, Any]) -> None:
        for one in self._all:
            answer = one.tell("on_evaluate", copy.deepcopy(line))
            self.stop = self.stop or (isinstance(answer, str) and answer == STOP)

    def _tell(self, hook: str, argument: Any) -> None:
        for one in self._all:
            one.tell(hook, argument)

    def _wait(self) -> None:
        for one in self._all:
            one.wait()


class _Called:
    """A callback, until it raises."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback
        self.left_out = False

    def tell(self, hook: str, argument: Any) -> Any:
        if self.left_out:
            return None
        try:
            method = getattr(self.callback, hook, None)
            return None if method is None else method(argument)
        except (Exception, SystemExit) as error:
            self.leave_out(hook, f"raised {told(error)}")
            return None

    def leave_out(self, hook: str, why: str) -> None:
        self.left_out = True
        name = type(self.callback).__name__
        logger.warning("%s of %s %s; the run goes on without it", hook, name, why)

    def wait(self) -> None:
        """It is never behind."""


class _Beside:
    """A callback in a thread of its own; a daemon, so that a dead one holds up no exit."""

    def __init__(self, called: _Called) -> None:
        self._called = called
        self._calls: Queue[tuple[str, Any] | None] = Queue(BEHIND)
        self._thread = threading.Thread(target=self._work, daemon=True)

    def tell(self, hook: str, argument: Any) -> None:
        if self._called.left_out:
            return
        if not self._thread.is_alive():
            self._thread.start()
        try:
            self._calls.put_nowait((hook, argument))
        except Full:
            self._called.leave_out(hook, f"is {BEHIND} calls behind")

    def wait(self) -> None:
        try:
            self._calls.put_nowait(None)
        except Full:
            return  # nothing more can be told: the thread is left to itself
        if self._thread.is_alive() and not self._called.left_out:
            self._thread.join(WAIT)
            if self._thread.is_alive():
                self._called.leave_out("the end", f"has not come in {WAIT:g} s")

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._called.tell(*call)


def _one(callback: Any) -> _Called | _Beside:
    called = _Called(callback)
    return _Beside(called) if getattr(callback, "in_background", False) else called

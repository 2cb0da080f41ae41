"""Why a run ends before it is done."""

from __future__ import annotations


class Stopped(RuntimeError):
    """The run cannot go on; the sentence says why."""


class Lost(Stopped):
    """What carried the messages is gone; the run itself is well and can be resumed."""


class Interrupted(RuntimeError):
    """The run was asked to stop between two events; its folder holds all that `resume` needs."""

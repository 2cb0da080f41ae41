"""Who takes part in the direct form, and which events its master refuses."""

from __future__ import annotations

from aspire.core import planes
from aspire.methods.aspire_ease import buffers
from aspire.methods.aspire_ease.direct.rules import GRADIENTS, PROBES, Rules, whole_set
from aspire.methods.aspire_ease.direct.state import Master, regret, weigh
from aspire.methods.aspire_ease.direct.tasks import forget_task
from aspire.protocol import report_objection
from aspire.sets import UncertaintySet
from aspire.types import Event, Joined, Left


def restrict(everybody: UncertaintySet, master: Master) -> None:
    """The set, the prior and u_j over the present, from the set over all sites."""
    all_here = master.n == len(master.f)
    master.uncertainty = everybody if all_here else everybody.restrict(master.present)
    master.prior = planes.spread(master.uncertainty.nominal(), master.present)
    master.upper = planes.spread(master.uncertainty.upper(), master.present)


def join(rules: Rules, master: Master, j: int) -> None:
    """It starts with its share of the prior and of the steps."""
    anybody = master.n > 0
    master.present[j] = True
    master.last[j] = master.t - 1
    restrict(whole_set(rules, len(master.f)), master)
    master.share *= 1.0 - 1.0 / master.n
    master.share[j] = 1.0 / master.n
    master.counted[j] = 0
    f = regret(master)
    if anybody:
        master.planes = planes.carried_over(
            master.planes, master.present, master.uncertainty, f, simplex=True, joined=j
        )
    else:
        master.planes = planes.only(master.prior, f)
    weigh(master)


def leave(rules: Rules, master: Master, j: int) -> None:
    """Its task is forgotten; its share and its mass in the planes go to the others.

    A report of it that is gathered already stays: it was as good as the others.
    """
    forget_task(master, j)
    master.resting.pop(j, None)
    if not master.present[j]:
        return
    master.present[j] = False
    master.share[j] = 0.0
    master.norm[j] = 0.0
    master.f[j] = 0.0
    total = float(master.share.sum())
    if total > 0:
        master.share /= total
    if master.started and master.n:
        under(whole_set(rules, len(master.f)), master)


def under(everybody: UncertaintySet, master: Master) -> None:
    """Go on under this set over all sites: planes that lie in it stay, and so does all else."""
    restrict(everybody, master)
    master.planes = planes.carried_over(
        master.planes, master.present, master.uncertainty, regret(master), simplex=True
    )
    weigh(master)


def objection(rules: Rules, master: Master, event: Event) -> str | None:
    """Why an event must be refused, or None. Reads only."""
    j = event.worker
    n = len(master.f)
    if not (isinstance(j, int) and 0 <= j < n):
        return f"unknown worker {j!r}: expected 0 to {n - 1}"
    task, kind = master.hands.get(j, (-1, ""))
    here = bool(master.present[j]) or kind in PROBES
    if isinstance(event, Left):
        return None if here else f"worker {j} left but is not here"
    if isinstance(event, Joined):
        return f"worker {j} joined but is here already" if here else None
    if event.task != task:
        expected = "none, it has no task" if task < 0 else f"task {task}"
        return f"worker {j} reports task {event.task}: expected {expected}"
    reason = report_objection(
        event, rules.kinds[kind], parameters=master.z.numel(), dtype=master.z.dtype
    )
    if reason is None and kind in GRADIENTS:
        reason = buffers.objection(master.layout, event.vectors["g"])
    return reason

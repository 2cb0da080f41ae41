"""A run in words: a line per site, the worst site by each figure, and who was away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from aspire.api.converged import FALLING, FEWEST, RISING, SETTLED, figure
from aspire.api.stopping import CALLBACKS, PATIENCE, SECONDS
from aspire.runs.selection import ACCURACY, LAST, LOSS

if TYPE_CHECKING:
    from aspire.api.run import Run
    from aspire.runs.figures import Figure

WIDE = 100  # columns of a screen
SITES = 10  # that fit on one
NAME = 30  # letters of a site's name there
ABREAST = 3  # columns with intervals
ABSENCES = 4
MANY = 20  # absences that a whole summary shows


def summary(run: Run) -> str:
    """Everything, for the end of a run; accuracies in percent."""
    lines = [*site_lines(run, run.sites), *worst_lines(run, run.sites)]
    lines += [last_line(run), *end_lines(run), *absence_lines(run, MANY)]
    return "\n".join([*lines, *figure_lines(run, run.sites)])


def screenful(run: Run) -> str:
    """What fits on a screen, however many sites there are."""
    names = [name if len(name) <= NAME else f"{name[: NAME - 3]}..." for name in run.sites]
    head = f"Run of {run.method}: {len(names)} sites, {len(run.history)} lines of history"
    lines = [head, *site_lines(run, names[:SITES])]
    if len(names) > SITES:
        lines.append(f"... and {len(names) - SITES} more sites")
    lines += [*worst_lines(run, names), last_line(run), *end_lines(run)]
    lines += [*absence_lines(run, ABSENCES), *figure_lines(run, names[:SITES])]
    return "\n".join(line if len(line) <= WIDE else f"{line[: WIDE - 3]}..." for line in lines)


def site_lines(run: Run, names: Sequence[str]) -> list[str]:
    """The first sites in columns."""
    return aligned(names, site_columns(run, len(names)))


def site_columns(run: Run, count: int) -> list[tuple[str, list[str]]]:
    """The weight, losses with their numbers of samples, and accuracy of the first sites."""
    columns = [
        ("weight", [f"{x:.3f}" for x in run.weights[:count]]),
        ("train loss", [_number(x) for x in run.losses[:count]]),
        ("n", [_count(x) for x in run.train_samples[:count]]),
    ]
    if run.val_losses is not None:
        columns.append(("val loss", [_number(x) for x in run.val_losses[:count]]))
        columns.append(("n", [_count(x) for x in run.val_samples[:count]]))
    if run.test_losses is not None:
        columns.append(("test loss", [_number(x) for x in run.test_losses[:count]]))
        columns.append(("n", [_count(x) for x in run.test_samples[:count]]))
    if run.accuracies is not None:
        columns.append(("accuracy", [_percent(x) for x in run.accuracies[:count]]))
        columns.append(("on", [part or "-" for part in run.parts[:count]]))
    return columns


def aligned(names: Sequence[str], columns: Sequence[tuple[str, list[str]]]) -> list[str]:
    """A table: a line per site below the heads."""
    wide = max(len("site"), *(len(name) for name in names))
    sizes = [max(len(head), *map(len, cells)) for head, cells in columns]
    rows = [[head for head, _ in columns], *zip(*(cells for _, cells in columns), strict=True)]
    return [
        "  ".join(
            [name.ljust(wide), *(cell.rjust(size) for cell, size in zip(row, sizes, strict=True))]
        )
        for name, row in zip(["site", *names], rows, strict=True)
    ]


def worst_lines(run: Run, names: Sequence[str]) -> list[str]:
    """Who is worst off, by each figure alone: it need not be the same site."""
    lines = []
    for what, values, sizes, part in (
        ("training loss", run.losses, run.train_samples, "train"),
        ("validation loss", run.val_losses, run.val_samples, "val"),
        ("test loss", run.test_losses, run.test_samples, "test"),
    ):
        if values is not None and np.isfinite(values).any():
            j = int(np.nanargmax(values))
            n = _count(sizes[j])
            lines.append(
                f"worst site by {what}: {names[j]}, {_number(values[j])} ({part}, n = {n})"
            )
    if run.accuracies is not None and np.isfinite(run.accuracies).any():
        j = int(np.nanargmin(run.accuracies))
        part = run.parts[j] or "-"
        n = _count(run.test_samples[j] if part == "test" else run.train_samples[j])
        share = _percent(run.accuracies[j])
        lines.append(f"worst site by accuracy: {names[j]}, {share} ({part}, n = {n})")
    return lines


def last_line(run: Run) -> str:
    few = "" if np.isfinite(run.losses).all() else " and the sites that answered"
    worst = f"worst-case training loss over the set{few}: {_number(run.worst_case_loss)}"
    gap = "" if run.stationarity is None else f"stationarity gap {run.stationarity:.3g}; "
    took = f"{run.iterations} iterations in {run.wall_seconds:.1f} s"
    return f"{worst}; {run.planes} planes; {gap}{took}"


def end_lines(run: Run) -> list[str]:
    """Which model it is, why the run ended before its limits, and whether it could go on."""
    return [*selection_lines(run), *stop_lines(run), trend_line(run)]


def selection_lines(run: Run) -> list[str]:
    if run.selected.get("rule", LAST) == LAST:
        return []
    name, words, show = SELECTED[run.selected["rule"]]
    best, last = (at[name] for at in (run.selected, run.last))
    then = "not known" if last is None else show(last)
    return [
        f"model of iteration {run.selected['t']} of {run.last['t']}, with the {words}: "
        f"{show(best)}; at the last: {then}"
    ]


def stop_lines(run: Run) -> list[str]:
    limits = dict(run.settings)
    for later in run.settings.get("extended", []):
        limits |= later
    if run.ended_by == PATIENCE:
        since = f"for {limits[PATIENCE]} evaluations ({PATIENCE})"
        return [f"stopped early: the worst site has not improved {since}"]
    if run.ended_by == SECONDS:
        return [f"stopped early: {limits[SECONDS]:g} seconds have passed ({SECONDS})"]
    if run.ended_by == CALLBACKS:
        return [f"stopped early: a callback asked for it ({CALLBACKS})"]
    return []


def trend_line(run: Run) -> str:
    if run.trend is None:
        return f"converged: not known, with fewer than {FEWEST} evaluations"
    found = "yes" if run.converged else "no"
    state = {SETTLED: "has settled", FALLING: "is still falling", RISING: "is rising"}[run.trend]
    return f"converged: {found}, the {figure(run.history)[0]} {state}"


def figure_lines(run: Run, names: Sequence[str]) -> list[str]:
    """Where metrics were asked for: all figures of the test part, or of the best that there is."""
    if run.settings.get("metrics") is None:
        return []
    part = next(x for x in ("test", "val", "train") if x in run.metrics["loss"] or x == "train")
    columns = [
        (metric, [with_interval(x) for x in parts.get(part, ())[: len(names)]])
        for metric, parts in run.metrics.items()
        if part in parts
    ]
    found = run.certificate()
    certified = [] if found is None else str(found).splitlines()
    groups = [columns[i : i + ABREAST] for i in range(0, len(columns), ABREAST)]
    tables = [line for group in groups for line in aligned(names, group)]
    return [f"on the {part} part, with intervals of 95 %:", *tables, *certified]


def absence_lines(run: Run, most: int) -> list[str]:
    """One for each time that a site was away."""
    lines = [
        f"AWAY: site {x['site']}, from iteration {x['from']} to "
        f"{'the end' if x['to'] is None else x['to']}: {x['reason']}"
        for x in run.absences[:most]
    ]
    left = len(run.absences) - most
    return [*lines, f"AWAY: and {left} times more (`absences`)"] if left > 0 else lines


def _number(x: float) -> str:
    if not np.isfinite(x):
        return "-"
    return f"{x:.4f}" if abs(x) < 1e6 else f"{x:.4g}"


def with_interval(x: Figure | None) -> str:
    if x is None:
        return "-"
    return f"{x.value:.3f}" if x.low is None else f"{x.value:.3f} [{x.low:.3f}, {x.high:.3f}]"


def _count(x: float) -> str:
    return f"{int(x)}" if np.isfinite(x) and x else "-"


def _percent(x: float) -> str:
    return f"{100 * x:.1f} %" if np.isfinite(x) else "-"


SELECTED = {  # by rule: its figure, in words, and how it is shown
    LOSS: ("worst_val_loss", "lowest worst validation loss", _number),
    ACCURACY: ("worst_val_accuracy", "highest worst validation accuracy", _percent),
}

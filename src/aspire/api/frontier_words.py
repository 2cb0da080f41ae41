"""A frontier in words: a line per setting, the answer to a floor, and a line per site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from aspire.api.frontier import Answer, Frontier

SITES = 20  # that are listed, the worst first where there are more
NAMED = 3  # who pays or gains most


def in_words(frontier: Frontier, floor: float | None = None) -> str:
    """Everything, for the end of `aspire frontier`."""
    lines = [*aligned(setting_rows(frontier)), "", knee_line(frontier)]
    k = frontier.knee
    answer = None
    if floor is not None:
        answer = frontier.answer(floor)
        k = answer.setting
        lines += ["", *answer_lines(frontier, answer)]
    rows, _ = site_rows(frontier, k, answer)
    return "\n".join([*lines, "", *aligned(rows), *more_line(frontier)])


def setting_rows(frontier: Frontier) -> list[list[str]]:
    """A head, and a row for each setting."""
    rows = [[frontier.dial, "worst val", "worst test", "95 %", "site", "mean test"]]
    for k, setting in enumerate(frontier.settings):
        j = int(setting.test.argmin())
        low, high = frontier.intervals(k)
        row = [f"{setting.value:g}", percent(setting.val.min()), percent(setting.test[j])]
        rows.append([*row, span(low[j], high[j]), frontier.sites[j], percent(setting.test.mean())])
    return rows


def knee_line(frontier: Frontier) -> str:
    return (
        f"knee: {at(frontier, frontier.knee)}, the smallest whose worst val accuracy is within one "
        "standard error of the largest"
    )


def answer_lines(frontier: Frontier, answer: Answer) -> list[str]:
    """Who reaches the floor, at which setting, and who pays for it."""
    head = f"floor {percent(answer.floor)}:"
    if answer.chosen is not None:
        lines = [f"{head} on val every site reaches it from {at(frontier, answer.chosen)}"]
    else:
        worst = percent(frontier.settings[answer.closest].val.min())
        lines = [
            f"{head} on val no setting brings every site there; the closest is "
            f"{at(frontier, answer.closest)}, where the worst has {worst}"
        ]
    never = [name for name, k in zip(frontier.sites, answer.reach, strict=True) if k is None]
    if never:
        lines.append(f"at no setting there: {listed(never)}")
    k = answer.setting
    test = frontier.settings[k].test
    there = int((test >= answer.floor).sum())
    kept = "" if there == len(test) else ", so the floor is not kept"
    lines.append(
        f"on test at {at(frontier, k)}: {there} of {len(test)} sites are there{kept}; the worst is "
        f"{frontier.sites[int(test.argmin())]} with {percent(test.min())}"
    )
    return [*lines, *paying_lines(frontier, k)]


def paying_lines(frontier: Frontier, k: int) -> Iterator[str]:
    """Whose accuracy on test falls and rises most from the smallest setting to this one."""
    change = 100 * frontier.price(k)[0]
    for word, order in (("pay", np.argsort(change)), ("gain", np.argsort(-change))):
        sign = -1 if word == "pay" else 1
        most = [j for j in order[:NAMED] if sign * change[j] > 0]
        if most:
            named = ", ".join(f"{frontier.sites[j]} {change[j]:+.1f} points" for j in most)
            yield f"against {at(frontier, 0)}, those who {word} most: {named}"


def site_rows(
    frontier: Frontier, k: int, answer: Answer | None = None
) -> tuple[list[list[str]], list[int]]:
    """A head and a row for each site on test at one setting, and which row is the worst."""
    first, here = frontier.settings[0], frontier.settings[k]
    low, high = frontier.intervals(k)
    change, (least, most) = frontier.price(k)
    head = ["site", "n", f"at {first.value:g}", f"at {here.value:g}", "95 %", "points", "95 %"]
    rows = [[*head, *([] if answer is None else ["floor from"])]]
    chosen = shown_sites(frontier, k)
    for j in chosen:
        row = [frontier.sites[j], f"{frontier.test_samples[j]:.0f}", percent(first.test[j])]
        row += [percent(here.test[j]), span(low[j], high[j]), f"{100 * change[j]:+.1f}"]
        row.append(f"{100 * least[j]:+.1f} to {100 * most[j]:+.1f}")
        if answer is not None:
            reach = answer.reach[j]
            row.append("never" if reach is None else f"{frontier.settings[reach].value:g}")
        rows.append(row)
    return rows, [list(chosen).index(int(here.test.argmin()))]


def more_line(frontier: Frontier) -> list[str]:
    left = len(frontier.sites) - SITES
    return [f"... and {left} sites that have more"] if left > 0 else []


def shown_sites(frontier: Frontier, k: int) -> Sequence[int]:
    """All in their order, or the worst ones."""
    test = frontier.settings[k].test
    if len(test) <= SITES:
        return range(len(test))
    return np.argsort(test, kind="stable")[:SITES].tolist()


def at(frontier: Frontier, k: int) -> str:
    return f"{frontier.dial} {frontier.settings[k].value:g}"


def listed(names: Sequence[str]) -> str:
    more = len(names) - SITES
    return ", ".join(names[:SITES]) + (f" and {more} more" if more > 0 else "")


def percent(x: float) -> str:
    return f"{100 * x:.1f} %"


def span(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns, the first to the left."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(size) if k == 0 else cell.rjust(size)
            for k, (cell, size) in enumerate(zip(row, wide, strict=True))
        )
        for row in rows
    ]

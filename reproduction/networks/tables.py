"""From cells to the tables of the experiment, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reproduction import results
from reproduction.networks.buffers_table import normalisation
from reproduction.networks.cases import CASES, MANY, NINE
from reproduction.networks.figures import (
    NOTHING,
    Cells,
    Row,
    common,
    factor,
    geometric,
    mean_loss,
    mean_of,
    share_text,
    text,
    written,
)
from reproduction.networks.influence import influence
from reproduction.networks.methods import CONSENSUS, DIRECT, REFERENCE
from reproduction.networks.noisy_table import noisy_site
from reproduction.networks.plan import FIXED_RATES, TIMED, Record, key_of
from reproduction.networks.pool import NAME, SIZES
from reproduction.networks.run import (
    LISTED,
    REVERSED,
    diverged,
    loss_at,
    reference_times,
    time_to,
)
from reproduction.networks.terms_table import on_equal_terms

SIZE_TITLES = {"full": "Full size", "small": "CPU size"}
BEGIN = "<!-- aspire report results --networks -->"
END = "<!-- the end of the tables -->"


def markdown(directory: Path) -> str:
    """All tables of DIRECTORY/networks.jsonl; one sentence where there is nothing yet."""
    records = results.read_lines(directory / f"{NAME}.jsonl", key_of)
    parts = []
    for size in SIZES:
        cells = Cells(size, {key: r for key, r in records.items() if r["size"] == size})
        if cells.records:
            parts.append(f"### {SIZE_TITLES[size]}\n")
            parts += [table for table in tables_of(cells) if table]
    return "\n".join(parts) or f"No cell of `{NAME}` is here yet.\n"


def put_into(page: Path, directory: Path) -> None:
    """Replace what stands between the two marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"page={str(page)!r}: expected the marks {BEGIN} and {END} in it")
    shown = f"{before}{BEGIN}\n\n{markdown(directory)}\n{END}{after}"
    page.write_text(shown, encoding="utf-8")


def tables_of(cells: Cells) -> list[str]:
    every = [compared(cells), stepped(cells), timed(cells), many_sites(cells)]
    every += [normalisation(cells), noisy_site(cells), influence(cells), *on_equal_terms(cells)]
    return [*every, broken(cells)]


# ---------------------------------------------------------------- the tables


def compared(cells: Cells) -> str:
    """Worst training loss at equal gradients."""
    head = ["network", "sites", "gradients", "direct", "consensus", "reference", "its rate"]
    head += ["direct / reference", "direct / consensus", "Acc_w direct, %", "reference, %", "seeds"]
    rows = []
    ratios = []
    for name in NINE:
        row, ratio = compared_row(cells, name)
        if row:
            rows.append(row)
        if math.isfinite(ratio):
            ratios.append(ratio)
    if ratios:
        blank = [""] * (len(head) - 8)
        rows.append(["geometric mean", *[""] * 6, factor(geometric(ratios)), *blank])
    title = (
        "Worst training loss at the end, mean over seeds, and worst test accuracy. All methods "
        "have the same number of gradients."
    )
    return written(title, head, rows)


def compared_row(cells: Cells, name: str) -> tuple[Row, float]:
    direct, reference = (cells.by_seed(name, m, "end") for m in (DIRECT, REFERENCE))
    consensus = cells.by_seed(name, CONSENSUS, "end")
    if not direct:
        return [], math.nan
    both = common(direct, reference)
    paper = common(direct, consensus)
    first = next(iter(direct.values()))
    ratio = mean_loss(direct, both) / mean_loss(reference, both) if both else math.nan
    against = mean_loss(direct, paper) / mean_loss(consensus, paper) if paper else math.nan
    seeds = both or sorted(direct)
    return [
        CASES[name].title,
        str(first["sites"]),
        f"{first['gradients']:,}",
        text(mean_loss(direct, seeds)),
        consensus_text(name, consensus),
        text(mean_loss(reference, both)) if both else NOTHING,
        f"{reference[both[0]]['rate']:g}" if both else NOTHING,
        factor(ratio),
        factor(against),
        text(100 * mean_of(direct, seeds, "worst_accuracy")),
        text(100 * mean_of(reference, both, "worst_accuracy")) if both else NOTHING,
        str(len(seeds)),
    ], ratio


def consensus_text(name: str, records: Mapping[int, Record]) -> str:
    if CASES[name].normalised:
        return "cannot: its buffers move"
    return text(mean_loss(records, sorted(records))) if records else NOTHING


def stepped(cells: Cells) -> str:
    """The default step beside fixed learning rates, at half of the budget."""
    rows = [row for name in NINE if (row := stepped_row(cells, name))]
    title = (
        "Worst training loss of the direct form at half of the budget: its own step, and the best "
        "fixed learning rate. The range of rates is extended until the best is no edge of it."
    )
    head = ["network", "default step", "best fixed rate", "its loss", "default / best"]
    return written(title, [*head, "rates tried", "seeds"], rows)


def stepped_row(cells: Cells, name: str) -> Row:
    default = cells.by_seed(name, DIRECT, "half")
    rates = sorted({r["rate"] for r in cells.records.values() if fixed(r, name)})
    tried = {rate: cells.by_seed(name, DIRECT, "half", rate) for rate in rates}
    tried = {rate: found for rate, found in tried.items() if common(default, found)}
    if not default or not set(FIXED_RATES) <= tried.keys():
        return []
    seeds = common(default, *(tried[rate] for rate in FIXED_RATES))
    losses = {rate: mean_loss(tried[rate], common(default, tried[rate])) for rate in tried}
    best = min(losses, key=lambda rate: losses[rate])
    edge = " (an edge)" if best in (min(tried), max(tried)) else ""
    shown = common(default, tried[best])
    own = mean_loss(default, shown)
    return [
        CASES[name].title,
        text(own),
        f"{best:g}{edge}",
        text(losses[best]),
        factor(own / losses[best]),
        str(len(tried)),
        str(len(seeds)),
    ]


def fixed(record: Record, name: str) -> bool:
    half = record["setting"] == "half" and record["method"] == DIRECT
    return half and record["network"] == name and record.get("rate") is not None


def timed(cells: Cells) -> str:
    """Virtual time to the reference's last worst training loss, as a share of its time."""
    rows = []
    for name in TIMED:
        shares = [time_shares(cells, name, order) for order in (LISTED, REVERSED)]
        if any(shares):
            columns = [x for found in shares for x in (share_text(found), str(len(found)))]
            rows.append([CASES[name].title, *columns])
    title = (
        "Virtual time of the direct form to the worst training loss with which the reference ends, "
        "as a share of the reference's time: median over seeds, and the range. Delays are spread 1 "
        "to 5 over the sites, times LN(0, 0.4)."
    )
    return written(
        title, ["network", "slow sites last", "seeds", "slow sites first", "seeds"], rows
    )


def time_shares(cells: Cells, name: str, order: str) -> list[float]:
    """One for each seed; infinite where it was not reached."""
    direct = cells.by_seed(name, DIRECT, order)
    reference = cells.by_seed(name, REFERENCE, "end")
    shares = []
    for seed in common(direct, reference):
        ended = reference[seed]
        clock = reference_times(seed, order, ended["sites"], ended["iterations"])
        shares.append(time_to(direct[seed]["history"], direct[seed]["target"]) / float(clock[-1]))
    return shares


def many_sites(cells: Cells) -> str:
    head = ["network", "gradients", "direct", "reference", "its rate", "direct / reference"]
    head += ["reference at the time at which direct ends", "direct for the reference's time"]
    rows = [row for name in MANY if (row := many_row(cells, name))]
    title = (
        "100 sites: worst training loss at equal gradients, then at equal virtual time. Delays "
        "LN(0, 0.4)."
    )
    return written(title, [*head, "that / reference", "seeds"], rows)


def many_row(cells: Cells, name: str) -> Row:
    direct, reference = (cells.by_seed(name, m, "end") for m in (DIRECT, REFERENCE))
    long = cells.by_seed(name, DIRECT, "long")
    both = common(direct, reference)
    all_three = common(direct, reference, long)
    if not both:
        return []
    early = [loss_at(reference[s], direct[s]["virtual_seconds"]) for s in both]
    ended = mean_loss(reference, both)
    late = math.nan
    if all_three:
        late = mean_loss(long, all_three)
    return [
        CASES[name].title,
        f"{direct[both[0]]['gradients']:,}",
        text(mean_loss(direct, both)),
        text(ended),
        f"{reference[both[0]]['rate']:g}",
        factor(mean_loss(direct, both) / ended),
        text(float(np.mean(early))),
        text(late),
        factor(late / mean_loss(reference, all_three)) if all_three else NOTHING,
        str(len(both)),
    ]


def broken(cells: Cells) -> str:
    """How many runs of the direct form, untouched, diverged."""
    ours = [r for r in cells.records.values() if r["method"] == DIRECT and "rate" not in r]
    lost = [r for r in ours if diverged(r)]
    names = "".join(f" {r['network']}/{r['setting']}/{r['seed']}" for r in lost)
    said = f": {names.strip()}" if lost else ""
    return (
        f"Runs of the direct form with its own step: {len(ours)}. Of these diverged (no finite "
        f"loss, or a worst loss above its start): {len(lost)}{said}.\n"
    )

"""The table of the setting `noisy`."""

from __future__ import annotations

from collections.abc import Mapping

from reproduction.networks.figures import (
    NOTHING,
    Cells,
    Row,
    common,
    mean_of,
    text,
    with_error,
    written,
)
from reproduction.networks.methods import DIRECT, OWN, WITHOUT
from reproduction.networks.noisy import NOISY
from reproduction.networks.plan import Record

NOISY_ROWS = {
    DIRECT: "ten sites",
    OWN: 'ten sites, `reference="own-best"`',
    WITHOUT: "nine sites, without the one with noise",
}


def noisy_site(cells: Cells) -> str:
    """A site with random labels: what it costs the others."""
    runs = {method: cells.by_seed("cnn", method, NOISY) for method in NOISY_ROWS}
    seeds = common(*runs.values())
    rows = [noisy_row(runs, method, seeds) for method in NOISY_ROWS] if seeds else []
    title = (
        "CNN, 40 % random labels at one of ten sites, in its training and its val part: worst test "
        "accuracy of the other nine, mean over seeds, of the model that `select` keeps by default "
        "and of the last one. All have the same number of gradients, those of sites that train "
        "alone counted. The difference is paired by seed, with its standard error."
    )
    head = ["trained on", "gradients", "selected, %", "last, %", "last, less that without the site"]
    return written(title, [*head, "mean of the nine, last, %", "weight of the site", "seeds"], rows)


def noisy_row(runs: Mapping[str, Mapping[int, Record]], method: str, seeds: list[int]) -> Row:
    mine = runs[method]
    worst = "others_worst_last"
    apart = [100 * (mine[s][worst] - runs[WITHOUT][s][worst]) for s in seeds]
    return [
        NOISY_ROWS[method],
        f"{mine[seeds[0]]['gradients']:,}",
        text(100 * mean_of(mine, seeds, "others_worst_selected")),
        text(100 * mean_of(mine, seeds, worst)),
        NOTHING if method == WITHOUT else with_error(apart),
        text(100 * mean_of(mine, seeds, "others_mean_last")),
        text(mean_of(mine, seeds, "noisy_weight"), 2),
        str(len(seeds)),
    ]

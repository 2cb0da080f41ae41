"""The table of BatchNorm: whose statistics a model is judged with."""

from __future__ import annotations

from reproduction.networks.figures import Cells, common, mean_of, text, with_error, written
from reproduction.networks.methods import DIRECT, SITE_BUFFERS

ROWS = {
    ("resnet-gn", DIRECT): "GroupNorm",
    ("resnet-bn", SITE_BUFFERS): 'BatchNorm, `buffers="site"`',
    ("resnet-bn", DIRECT): 'BatchNorm, `buffers="average"`',
}


def normalisation(cells: Cells) -> str:
    """ResNet-18 with GroupNorm, and with BatchNorm in two ways."""
    runs = {key: cells.by_seed(*key, "end") for key in ROWS}
    seeds = common(*runs.values())
    first = runs["resnet-gn", DIRECT]
    rows = []
    for key, title in ROWS.items() if seeds else ():
        mine = runs[key]
        worst = "worst_accuracy"
        apart = [100 * (mine[s][worst] - first[s][worst]) for s in seeds]
        shown = text(100 * mean_of(mine, seeds, worst))
        loss = text(mean_of(mine, seeds, "worst_loss"))
        rows.append([title, shown, with_error(apart), loss, str(len(seeds))])
    title = (
        "ResNet-18 in the direct form: worst test accuracy at the end, mean over seeds, less that "
        "with GroupNorm (paired by seed, with its standard error), and worst training loss."
    )
    head = ["normalised by", "Acc_w, %", "less GroupNorm", "worst training loss", "seeds"]
    return written(title, head, rows)

"""Does this version make the committed cells? It makes a list of them again and compares.

    python benchmarks/again.py                   # makes LISTED again, in build/again
    python benchmarks/again.py --second again    # compares two folders as they are
    python benchmarks/again.py --draw 20 --seed 1     # makes 20 cells again, drawn from all

A cell is the same if all of its line is but the seconds that it took, the versions and the hash
of the sources; it is rounded otherwise if no number of it is further off than ROUNDING. Of the
others of a method and a data set the differences in Acc_w, seed by seed, have a mean and its
standard error. Writes benchmarks/again.json when it made the cells. Exit code 1: a mean is more
than two standard errors away from zero. By chance alone that is so for 18 % of the lines with 3
seeds, and for 8 % with 10. Bits may differ on another processor.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reproduction import pool, results
from reproduction.cells import Cell
from reproduction.plans import Request
from reproduction.reproduce import reproduce

HERE = Path(__file__).parent
OWN = ("wall_seconds", "versions", "sources")  # of the machine and the day
EXPERIMENT = "table1"
SUMMED_OTHERWISE = ("aspire-consensus", "aspire-consensus-gamma0")
LISTED = (
    Request(("person-activity", "fashion-mnist"), seeds=(0, 1, 2)),
    Request(("person-activity",), SUMMED_OTHERWISE, seeds=tuple(range(10))),
)
ROUNDING = 1e-12  # of a number's size
Cells = dict[str, results.Record]


def cells(folder: Path) -> Cells:
    """NAME/DATASET/METHOD/NUMBER -> what the folder's files keep of that cell, without OWN."""
    found = {}
    for path in sorted(folder.glob(f"*{results.SUFFIX}")):
        for record in results.read(path).values():
            own = {key: value for key, value in record.items() if key not in OWN}
            found[results.name_of(record)] = own
    return found


def drawn(folder: Path, count: int, seed: int) -> list[Cell]:
    """So many of the folder's cells, each as likely as any other."""
    records = [
        record
        for path in sorted(folder.glob(f"*{results.SUFFIX}"))
        for record in results.read(path).values()
    ]
    chosen = random.Random(seed).sample(records, min(count, len(records)))
    return [Cell(**{name: one[name] for name in results.CELL if name in one}) for one in chosen]


def make(cells: list[Cell], out: Path, jobs: int) -> None:
    """What is there and not stale is kept."""
    for name in sorted({cell.experiment for cell in cells}):
        own = [cell for cell in cells if cell.experiment == name]
        pool.carry_out(own, out, data=None, jobs=jobs, tell=print)


def leaves(value: Any) -> Iterator[Any]:
    """Every number and word of a record, in a fixed order."""
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield key
            yield from leaves(value[key])
    elif isinstance(value, list):
        yield len(value)
        for item in value:
            yield from leaves(item)
    else:
        yield value


def near(one: Any, two: Any) -> bool:
    """Whether two leaves are the same up to rounding."""
    if isinstance(one, float) and isinstance(two, float):
        return math.isclose(one, two, rel_tol=ROUNDING, abs_tol=ROUNDING)
    return bool(one == two)


def compare(one: Cells, two: Cells) -> dict[str, dict[str, Any]]:
    """NAME/DATASET/METHOD -> how many of its cells are the same, and how far off others are."""
    found: dict[str, dict[str, Any]] = defaultdict(lambda: {"same": 0, "rounded": 0, "points": {}})
    for name in sorted(one.keys() & two.keys()):
        group, _, number = name.rpartition("/")
        a = one[name]
        b = two[name]
        if a == b:
            found[group]["same"] += 1
        elif all(map(near, leaves(a), leaves(b))):
            found[group]["rounded"] += 1
        else:
            points = 100 * (b.get("worst_accuracy", math.nan) - a.get("worst_accuracy", math.nan))
            found[group]["points"][number] = points
    for row in found.values():
        row |= paired(list(row["points"].values()))
    return dict(found)


def paired(points: list[float]) -> dict[str, Any]:
    """Mean and standard error of differences, and whether zero is within two of them."""
    if len(points) < 2:
        return {}
    mean = statistics.fmean(points)
    error = statistics.stdev(points) / math.sqrt(len(points))
    return {"mean": mean, "error": error, "within": abs(mean) <= 2 * error}


def line(group: str, row: Mapping[str, Any]) -> str:
    """One method on one data set."""
    counted = f"{row['same']} the same, {row['rounded']} rounded otherwise"
    if not row["points"]:
        return f"{group}: {counted}"
    apart = ", ".join(f"{points:+.2f}" for points in row["points"].values())
    if "mean" in row:
        where = "within" if row["within"] else "OUTSIDE"
        apart += f": mean {row['mean']:+.3f}, error {row['error']:.3f}, {where} two of them"
    return f"{group}: {counted}, {len(row['points'])} others by points of Acc_w {apart}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=Path, default=HERE.parent / "results")
    parser.add_argument("--second", type=Path, help="compare this folder, and make nothing")
    parser.add_argument("--draw", type=int, help="make so many cells again, and not LISTED")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    second = options.second or HERE.parent / "build" / "again"
    if options.draw is not None:
        make(drawn(options.first, options.draw, options.seed), second, options.jobs)
    elif options.second is None:
        for request in LISTED:  # what is there and not stale is kept
            reproduce(EXPERIMENT, request, out=second, jobs=options.jobs, tell=print)
    folders = {"--first": options.first, "--second": second}
    found = {name: cells(folder) for name, folder in folders.items()}
    for name, folder in folders.items():
        if not found[name]:
            parser.error(f"{name}={folder}: expected a folder with cells of `aspire reproduce`")
    groups = compare(*found.values())
    for group, row in groups.items():
        print(line(group, row))
    if options.second is None and options.draw is None:
        text = json.dumps(groups, indent=1)
        (HERE / "again.json").write_text(text + "\n", encoding="utf-8")
    raise SystemExit(not all(row.get("within", True) for row in groups.values()))


if __name__ == "__main__":
    main()

"""Does this version make the committed cells? Two folders of `aspire reproduce`, cell by cell.

    aspire reproduce all --seeds 10 --jobs 2 --out again
    python benchmarks/again.py results again

A cell is the same if all of its line is but the seconds that it took, the versions and the hash
of the sources. Cells that only one folder has are counted. Exit code 1: a cell differs. Bits may
differ on another processor.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from reproduction import results

OWN = ("wall_seconds", "versions", "sources")  # of the machine and the day


def cells(folder: Path) -> dict[str, results.Record]:
    """NAME/DATASET/METHOD/NUMBER -> what the folder's files keep of that cell, without OWN."""
    found = {}
    for path in sorted(folder.glob(f"*{results.SUFFIX}")):
        for record in results.read(path).values():
            own = {key: value for key, value in record.items() if key not in OWN}
            found[results.name_of(record)] = own
    return found


def compare(one: dict[str, Any], two: dict[str, Any]) -> tuple[int, dict[str, float | None]]:
    """How many cells of both folders are the same; of the others, points of Acc_w in between."""
    same = 0
    differ = {}
    for name in sorted(one.keys() & two.keys()):
        a = one[name]
        b = two[name]
        if a == b:
            same += 1
        else:
            known = "worst_accuracy" in a and "worst_accuracy" in b
            differ[name] = 100 * (b["worst_accuracy"] - a["worst_accuracy"]) if known else None
    return same, differ


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    folders = vars(parser.parse_args())
    one, two = (cells(folder) for folder in folders.values())
    for (name, folder), found in zip(folders.items(), (one, two), strict=True):
        if not found:
            parser.error(f"{name}={folder}: expected a folder with cells of `aspire reproduce`")
    same, differ = compare(one, two)
    for name, points in differ.items():
        print(name, "differs" + ("" if points is None else f" by {points:+.3f} points of Acc_w"))
    alone = len(one.keys() ^ two.keys())
    print(f"{same} of {same + len(differ)} cells are the same; {alone} are in one folder only.")
    raise SystemExit(1 if differ else 0)


if __name__ == "__main__":
    main()

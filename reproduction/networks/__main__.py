"""`python -m reproduction.networks`: the experiment where only torch and numpy are there.

The same as `aspire reproduce networks`, without click.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from reproduction import results
from reproduction.networks import pool, store
from reproduction.networks.plan import SEEDS, key_of
from reproduction.networks.tables import markdown, put_into

logger = logging.getLogger("aspire")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m reproduction.networks", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run what is missing")
    run.add_argument("--out", type=Path, default=Path("results"))
    run.add_argument("--size", default="full", choices=pool.SIZES)
    run.add_argument("--device", default="cpu", help="cpu or cuda")
    run.add_argument("--jobs", type=int, default=1, help="cells at a time")
    run.add_argument("--minutes", type=float, help="start no cell that would end later")
    run.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    run.add_argument("--only", default="", help="patterns, such as cnn,vit/direct*/end/*")
    run.add_argument("--list", action="store_true", help="say what would run, and run nothing")
    run.add_argument("--cache", type=Path, help=f"compact data (default: {store.VARIABLE})")
    cache = commands.add_parser("cache", help="make a compact folder of the data sets")
    cache.add_argument("folder", type=Path)
    tables = commands.add_parser("tables", help="print the tables as Markdown")
    tables.add_argument("folder", type=Path)
    tables.add_argument("--page", type=Path, help="put them into this page instead")
    merge = commands.add_parser("merge", help="put the cells of one file into another")
    merge.add_argument("source", type=Path)
    merge.add_argument("target", type=Path)
    return made


def main(words: list[str] | None = None) -> int:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    options = parser().parse_args(words)
    if options.command == "cache":
        for path in store.write(options.folder):
            logger.info("%s: %.1f MiB", path, path.stat().st_size / 2**20)
        return 0
    if options.command == "tables":
        if options.page is None:
            sys.stdout.write(markdown(options.folder))
        else:
            put_into(options.page, options.folder)
        return 0
    if options.command == "merge":
        found = results.read_lines(options.source, key_of)
        results.add_lines(options.target, found.values(), key_of)
        logger.info("%d cells of %s are in %s", len(found), options.source, options.target)
        return 0
    return run(options)


def run(options: argparse.Namespace) -> int:
    if options.cache is not None:
        os.environ[store.VARIABLE] = str(options.cache.resolve())
    request = pool.Request(
        size=options.size,
        seeds=tuple(options.seeds),
        only=tuple(word for word in options.only.split(",") if word),
        device=options.device,
        jobs=options.jobs,
        minutes=options.minutes,
    )
    if options.list:
        work = pool.Work(request, options.out / f"{pool.NAME}.jsonl", logger.info)
        for cell in work.open_cells():
            logger.info("%s", cell.name)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # its processes end with it
    try:
        work = pool.carry_out(request, options.out, logger.info)
    except KeyboardInterrupt:
        logger.info("Interrupted: %s holds what was done; the same command continues", options.out)
        return 130
    return 1 if work.failed else 0


if __name__ == "__main__":
    sys.exit(main())

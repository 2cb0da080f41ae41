"""`aspire reproduce NAME`: an experiment of the paper by one command, resumable."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aspire.cli.shared import Sentence, interruptible

if TYPE_CHECKING:
    from reproduction.plans import Request


@click.command("reproduce")
@click.argument("name")
@click.option("--datasets", help="Names with commas between them (default: all that are here).")
@click.option("--methods", help="Names with commas between them (default: all of the experiment).")
@click.option("--seeds", type=int, help="Seeds 0 to N-1 (default: 10 or 3, by the experiment).")
@click.option("--seed-list", help="These seeds, with commas between them.")
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="Folder of the data."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option("--jobs", type=int, default=2, show_default=True, help="Cells at a time.")
@click.option("--quick", is_flag=True, help="One seed and a 50th of the budget.")
@click.option("--tuned", is_flag=True, help="The settings that `tune` chose, not the defaults.")
@click.option("--device", default="cpu", show_default=True, help="Of networks: cpu or cuda.")
@click.option("--size", default="full", show_default=True, help="Of networks: full or small.")
@click.option("--minutes", type=float, help="Of networks: start no cell that would end later.")
@click.option("--only", help="Of networks: patterns NETWORK/METHOD/SETTING/SEED, with commas.")
def reproduce_command(
    name: str,
    data: Path | None,
    out: Path,
    jobs: int,
    device: str,
    size: str,
    minutes: float | None,
    only: str | None,
    **options: Any,
) -> None:
    """Run NAME: table1, table2, gamma, time, planes, delays, rates, tune, or all (but tune).

    In table1 and tune all methods have the same: see docs/reproduction.md, "Equal terms". tune has
    a seed of its own, whatever --seeds says, and writes OUT/tuned.json besides.

    networks is an experiment of its own and not among `all`; see docs/networks.md.

    Writes OUT/NAME.jsonl, one line per method, data set and seed. What an earlier call finished is
    kept, so an interrupted command continues where it was. A cell that fails is named, the others
    go on, and the exit code is 1.
    """
    from reproduction.reproduce import reproduce

    if name == "networks":
        seeds = _seeds(options.pop("seeds"), options.pop("seed_list"))
        given = [key.replace("_", "-") for key, value in options.items() if value]
        if given:
            raise Sentence(f"--{given[0]} is no option of networks: expected --only")
        networks(data, out, seeds, device=device, size=size, minutes=minutes, jobs=jobs, only=only)
        return
    with interruptible(out):
        done = reproduce(
            name,
            request_of(**options),
            out=out,
            data=None if data is None else str(data),
            jobs=jobs,
            tell=lambda text: click.echo(text, err=True),
            command=_command(),
        )
    for path in done.files:
        click.echo(f"{path.stem}: {path}")
    if done.skipped:
        click.echo("Left out: " + "; ".join(done.skipped))
    click.echo(f"A page with all of it: aspire report {out}")
    if done.failed:
        click.echo(f"Failed cells: {len(done.failed)}, the first: {done.failed[0]}", err=True)
        sys.exit(1)


def networks(
    data: Path | None, out: Path, seeds: tuple[int, ...] | None, *, only: str | None, **asked: Any
) -> None:
    """The experiment `networks`, whose cells wait for each other."""
    from reproduction.networks import plan, pool

    if data is not None:
        os.environ["ASPIRE_DATA"] = str(data)  # its processes look there
    request = pool.Request(seeds=seeds or plan.SEEDS, only=_names(only or ""), **asked)
    with interruptible(out):
        work = pool.carry_out(request, out, lambda text: click.echo(text, err=True))
    click.echo(f"networks: {work.path}")
    click.echo(f"Its tables: aspire report {out} --networks")
    if work.failed:
        first = next(iter(work.failed.items()))
        click.echo(f"Failed cells: {len(work.failed)}, the first: {': '.join(first)}", err=True)
        sys.exit(1)


def request_of(
    datasets: str | None,
    methods: str | None,
    seeds: int | None,
    seed_list: str | None,
    quick: bool,
    tuned: bool,
) -> Request:
    from reproduction import plans

    return plans.Request(
        datasets=tuple(plans.BUDGETS) if datasets is None else _names(datasets),
        methods=None if methods is None else _names(methods),
        seeds=_seeds(seeds, seed_list),
        quick=quick,
        tuned=tuned,
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _seeds(seeds: int | None, seed_list: str | None) -> tuple[int, ...] | None:
    if seeds is not None and seed_list is not None:
        raise Sentence("--seeds and --seed-list are both given: expected one of them")
    if seeds is not None:
        if seeds < 1:
            raise Sentence(f"seeds={seeds}: expected at least 1")
        return tuple(range(seeds))
    if seed_list is None:
        return None
    words = _names(seed_list)
    if not words or not all(word.isdecimal() for word in words):
        raise Sentence(f"seed-list={seed_list!r}: expected whole numbers with commas between them")
    return tuple(dict.fromkeys(int(word) for word in words))


def _command() -> str:
    """The command as it was typed, without where the data and the results are."""
    words = list(sys.argv[1:])
    for option in ("--data", "--out", "--jobs"):
        if option in words:
            place = words.index(option)
            del words[place : place + 2]
    return " ".join(["aspire", *words])

"""What each experiment consists of: names, budgets, and the list of its cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reproduction import attack, choices, knobs, table2, tune
from reproduction.cells import PAPER, REVERSED, SPREAD, SYNTHETIC, Cell
from reproduction.data import READERS

# Worker gradients of 100 samples, evaluated at the end, no best checkpoint (SPEC section 6)
BUDGETS = {
    "fashion-mnist": 30_000,
    "person-activity": 15_000,
    "sc-ma": 150_000,
    "daily-sports": 60_000,
    "shl": 60_000,
}
QUICK = 50  # --quick divides budgets by this
LEAST = 40  # gradients per site: the start-up probe takes 13 of them
MOST_WORKERS = 100_000
ITERATIONS = 30_000  # of `theorem`
OURS = "aspire-consensus"  # of the experiments besides table 1


@dataclass(frozen=True)
class Request:
    """What was asked for; seeds None: as many as the experiment has by default."""

    datasets: tuple[str, ...] = tuple(READERS)
    methods: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    quick: bool = False
    tuned: bool = False


@dataclass(frozen=True)
class Row:
    """One line of an experiment: a method by its maker, and what is special about it."""

    maker: str
    settings: dict[str, Any] = field(default_factory=dict)
    attack: str = ""
    trusting: bool = False  # the prior gives the extra site 0.1/N


Rows = dict[str, Row]


@dataclass(frozen=True)
class Experiment:
    """An experiment: its rows for a data set of n sites, and how its cells are run.

    curves  columns of the history that are kept: what the tables and pictures are made from
    """

    rows: Callable[[int], Rows]
    seeds: int
    curves: tuple[str, ...] = ()
    points: int = 20
    delays: str = "even"
    share: float = 1.0  # of the table's budget
    full: bool = False
    size: int = 0  # of one without data: its largest number of workers, or its iterations
    protocol: str = PAPER
    datasets: tuple[str, ...] = tuple(READERS)


def rows_of(*names: str) -> Callable[[int], Rows]:
    return lambda n: {name: Row(name) for name in names}


def attacked(n: int) -> Rows:
    """Table 2, see `table2`: every method, prior and bound, with and without an attacker."""
    return {
        cell.key: Row(cell.family.maker, cell.settings, cell.attack, trusting=cell.low)
        for cell in table2.variants()
    }


def along_gamma(n: int) -> Rows:
    """Gamma from 0 to N in at most seven steps, and the row whose Gamma is 0 by name."""
    steps = range(n + 1) if n <= 6 else np.linspace(0, n, 6)
    rows = {f"gamma-{g:g}": Row(OURS, {"budget": float(g)}) for g in steps}
    return {f"{OURS}-gamma0": Row(f"{OURS}-gamma0"), **rows}


RATES = (OURS, "aspire-central", "gda", "gdmax", "cover", "gcivr")
CURVE = ("gradients", "worst_accuracy")
TIMED = ("time", "worst_accuracy")
TIMES = ("aspire-direct", OURS, f"{OURS}-sync", f"{OURS}-cp", "fedbuff", *choices.SYNCHRONOUS)
SEQUENCES = ("aspire-direct", "aspire-direct-gamma0", OURS, f"{OURS}-gamma0", "fedbuff")
WITH_TIME = ("person-activity", "sc-ma", "daily-sports", "shl")  # data sets of time series
PLANS: dict[str, Experiment] = {
    "table1": Experiment(
        rows_of(*choices.TABLE1),
        seeds=10,
        curves=("gradients", "worst_val_accuracy", "weights"),
    ),
    "table2": Experiment(
        attacked, seeds=3, curves=(*CURVE, "attack_success"), points=10, share=0.5
    ),
    "gamma": Experiment(along_gamma, seeds=3, points=5),
    "time": Experiment(
        rows_of(*TIMES),
        seeds=3,
        curves=TIMED,
        points=60,
        delays=SPREAD,
    ),
    "reversed": Experiment(
        rows_of(*TIMES),
        seeds=3,
        curves=TIMED,
        points=60,
        delays=REVERSED,
    ),
    "sequences": Experiment(
        rows_of(*SEQUENCES, *choices.SYNCHRONOUS),
        seeds=5,
        curves=("gradients", "worst_val_accuracy"),
        protocol="by-sequence",
        datasets=WITH_TIME,
    ),
    "planes": Experiment(
        rows_of(OURS, f"{OURS}-cp"),
        seeds=3,
        curves=("time", "planes", "worst_loss"),
        points=40,
    ),
    "delays": Experiment(
        lambda n: {"lognormal": Row("")},
        seeds=10,
        curves=("workers", "ratio"),
        size=MOST_WORKERS,
        datasets=(SYNTHETIC,),
    ),
    "rates": Experiment(
        rows_of(*RATES),
        seeds=3,
        curves=("t", "gap"),
        points=25,
        share=0.1,
        full=True,
        datasets=("fashion-mnist", "person-activity"),
    ),
    "theorem": Experiment(
        lambda n: {"theorem1": Row("")},
        seeds=3,
        curves=("t", "gap"),
        points=30,
        size=ITERATIONS,
        datasets=(SYNTHETIC,),
    ),
    "tune": Experiment(rows_of(*choices.SEARCHED), seeds=1, share=0.5),
}
UNDER_ATTACK = ("prior", "reach", "budget", "clip", "pull_bound")  # table 2 says what these are
NAMES = (*PLANS, "all")
VALIDATED = ("table1", "sequences", "tune")  # a tenth of each training part is held out
EQUAL = (*VALIDATED, "time", "reversed", "table2")  # every method that can has the step decay


def check(name: str, request: Request) -> tuple[str, ...]:
    """The experiments that NAME stands for; a name that nobody knows is one sentence."""
    choices.expect("NAME", name, NAMES)
    for dataset in request.datasets:
        choices.expect("datasets", dataset, tuple(READERS))
    chosen = tuple(n for n in PLANS if n != "tune") if name == "all" else (name,)
    known = {row for n in chosen for row in PLANS[n].rows(3)} | set(choices.MAKERS)
    known |= {f"gamma-{g}" for g in range(16)} if "gamma" in chosen else set()
    for method in request.methods or ():
        choices.expect("methods", method, tuple(sorted(known)))
    return chosen


def cells(name: str, request: Request, datasets: Sequence[str]) -> tuple[list[Cell], list[str]]:
    """The cells of an experiment in the order of data set, seed, method; what was left out."""
    plan = PLANS[name]
    made = []
    left_out = []
    here = [d for d in plan.datasets if d in datasets or d == SYNTHETIC]
    seeds = request.seeds or tuple(range(1 if request.quick else plan.seeds))
    if name == "tune":
        seeds = (tune.SEED,)
    for dataset in here:
        rows = plan.rows(1 if dataset == SYNTHETIC else len(READERS[dataset].sites))
        chosen = {k: r for k, r in rows.items() if not request.methods or k in request.methods}
        settled = {}
        for key, row in chosen.items():
            settings = settings_of(name, dataset, row, request.tuned)
            if settings is None:
                left_out.append(f"{key} on {dataset}: no tuned settings are committed")
            else:
                settled[key] = settings
        for seed in seeds:
            for key, settings in settled.items():
                row = chosen[key]
                made.append(cell_of(name, dataset, key, row, seed, settings, request))
    return made, left_out


def cell_of(
    name: str,
    dataset: str,
    key: str,
    row: Row,
    seed: int,
    settings: dict[str, Any],
    request: Request,
) -> Cell:
    plan = PLANS[name]
    return Cell(
        experiment=name,
        dataset=dataset,
        method=key,
        seed=seed,
        maker=row.maker,
        budget=budget_of(plan, dataset, request.quick),
        variant="tuned" if request.tuned and dataset != SYNTHETIC else "default",
        settings=settings,
        points=min(6, plan.points) if request.quick else plan.points,
        delays=plan.delays,
        attack=row.attack,
        full=plan.full,
        validation=name in VALIDATED,
        trial=0 if name == "tune" else None,
        protocol=plan.protocol,
    )


def budget_of(plan: Experiment, dataset: str, quick: bool) -> int:
    if dataset == SYNTHETIC:
        return 1000 if quick else plan.size
    least = LEAST * len(READERS[dataset].sites)
    return max(least, round(plan.share * BUDGETS[dataset] / (QUICK if quick else 1)))


def settings_of(name: str, dataset: str, row: Row, tuned: bool) -> dict[str, Any] | None:
    """Tuned or not, what the row fixes stays fixed: table 2 has its own prior, radius and Gamma."""
    base: dict[str, Any] = {}
    if name in EQUAL:
        base = knobs.untouched(row.maker, linear=not READERS[dataset].hidden)
    if tuned and dataset != SYNTHETIC:
        found = tune.tuned_settings(dataset, row.maker)
        if found is None:
            return None
        drop = UNDER_ATTACK if row.attack else tuple(row.settings)
        base = {name: value for name, value in found.items() if name not in drop}
    if row.trusting:
        base["prior"] = attack.trusting(len(READERS[dataset].sites)).tolist()
    return base | row.settings

"""The answers of `aspire.frontier` against those of a sweep that trains every setting from scratch.

    python benchmarks/frontier.py [--only demo|person-activity] [--seeds 5] [--quick] [--out FILE]

Six values of Gamma from 0 to N, on the digits of the demo (a linear model, the consensus form) and
on Person Activity (its network, the direct form; needs ASPIRE_DATA). A part of each training part
is held out as the val part. Both sweeps see the same data, batches and delays. For every floor of a
grid, which is fixed here, the answer is about the setting that `Frontier.answer` chooses on val, or
where no setting keeps the floor the closest one; its worst and mean accuracy on test are compared.

`difference` is the mean over seeds of ours minus from scratch, in points, and `error` the standard
error of the mean from scratch over the seeds. Writes benchmarks/frontier.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import aspire
from aspire.api.frontier import Frontier, Setting
from aspire.sets import CDNorm
from reproduction import demo
from reproduction.data import load

OUT = Path(__file__).with_suffix(".json")
SETTINGS = 6
FIGURES: dict[str, Callable[[np.ndarray], float]] = {"worst": np.min, "mean": np.mean}


@dataclass(frozen=True)
class Case:
    """A data set and how it is trained; `held_out`: share of each training part that is val."""

    data: Callable[[int], Mapping[str, Any]]
    model: Callable[[], nn.Module]
    held_out: float
    arguments: dict[str, Any]
    floors: tuple[float, ...]


def network() -> nn.Module:
    """That of the paper on Person Activity."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(load("person-activity").layers):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


CASES = {
    "demo": Case(
        data=demo.sites,
        model=lambda: nn.Linear(64, 10),
        held_out=0.3,
        arguments={"iterations": demo.ITERATIONS, "weight_decay": demo.DECAY},
        floors=(0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8),
    ),
    "person-activity": Case(
        data=lambda seed: load("person-activity", seed=seed).sites,
        model=network,
        held_out=0.1,
        arguments={"gradients": 15_000, "batch_size": 100},
        floors=(0.55, 0.575, 0.6, 0.625, 0.65, 0.675, 0.7),
    ),
}


def with_val(site: Mapping[str, Any], share: float, seed: int) -> dict[str, Any]:
    """The site with a part of its training part, drawn at random, held out."""
    inputs, targets = site["train"]
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
    held, kept = order.tensor_split([int(share * len(targets))])
    return {
        "train": (inputs[kept], targets[kept]),
        "val": (inputs[held], targets[held]),
        "test": site["test"],
    }


def from_scratch(model: nn.Module, sites: Mapping[str, Any], **arguments: Any) -> Frontier:
    """The same as `aspire.frontier` with a whole run for each setting."""
    settings = []
    for value in np.linspace(0.0, len(sites), SETTINGS).tolist():
        uncertainty = CDNorm(radius=1 / len(sites), budget=value)
        run = aspire.train(model, sites, uncertainty=uncertainty, log="off", **arguments)
        settings.append(Setting(value, run.val_accuracies, run.accuracies, run.weights, run))
    cost = sum(setting.run.worker_gradients for setting in settings)
    sizes = settings[0].run.val_samples, settings[0].run.test_samples
    return Frontier("budget", run.sites, tuple(settings), *sizes, cost)


def both(case: Case, seed: int, scale: float) -> tuple[Frontier, Frontier]:
    """Ours and the one from scratch, on the same data."""
    sites = {
        name: with_val(site, case.held_out, 1000 * seed + j)
        for j, (name, site) in enumerate(case.data(seed).items())
    }
    arguments = dict(case.arguments)
    for name in {"iterations", "gradients"} & arguments.keys():
        arguments[name] = int(scale * arguments[name])
    torch.manual_seed(seed)
    model = case.model()
    ours = aspire.frontier(model, sites, seed=seed, **arguments)
    return ours, from_scratch(model, sites, seed=seed, **arguments)


def compared(pairs: list[tuple[Frontier, Frontier]], floor: float) -> dict[str, Any]:
    """The answers to one floor over the seeds."""
    found: dict[str, Any] = {"floor": floor}
    answers = [[one.answer(floor) for one in pair] for pair in pairs]
    for k, name in enumerate(("ours", "scratch")):
        found[name] = [
            None if pair[k].chosen is None else frontiers[k].settings[pair[k].chosen].value
            for pair, frontiers in zip(answers, pairs, strict=True)
        ]
    for name, figure in FIGURES.items():
        tests = 100 * np.array(
            [
                [figure(one.settings[k.setting].test) for one, k in zip(*of_seed, strict=True)]
                for of_seed in zip(pairs, answers, strict=True)
            ]
        )
        difference = tests[:, 0] - tests[:, 1]
        error = float(tests[:, 1].std(ddof=1) / np.sqrt(len(tests))) if len(tests) > 1 else 0.0
        found[name] = {
            "ours": tests[:, 0].mean(),
            "scratch": tests[:, 1].mean(),
            "difference": difference.mean(),
            "error": error,
            "agrees": bool(abs(difference.mean()) <= error),
        }
    return found


def measure(case: Case, seeds: int, scale: float) -> dict[str, Any]:
    pairs = [both(case, seed, scale) for seed in range(seeds)]
    ours, scratch = (sum(pair[k].gradients for pair in pairs) for k in (0, 1))
    return {
        "seeds": seeds,
        "gradients": {"ours": ours, "scratch": scratch, "share": ours / scratch},
        "floors": [compared(pairs, floor) for floor in case.floors],
    }


def shown(name: str, found: dict[str, Any]) -> str:
    cost = found["gradients"]
    lines = [f"{name}: {cost['share']:.2f} of the gradients ({cost['ours']} of {cost['scratch']})"]
    lines.append("floor %   kept by: ours  scratch   worst on test, %          mean on test, %")
    for row in found["floors"]:
        kept = (sum(value is not None for value in row[who]) for who in ("ours", "scratch"))
        cells = [f"{100 * row['floor']:7.1f}   " + "".join(f"{k:>10}" for k in kept)]
        for figure in FIGURES:
            x = row[figure]
            sign = "" if x["agrees"] else " (!)"
            cells.append(f"{x['ours']:6.1f} {x['scratch']:6.1f} {x['difference']:+5.1f}")
            cells[-1] += f" +- {x['error']:.1f}{sign}"
        lines.append("   ".join(cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(CASES), action="append")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one seed, short runs, no file")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    found = {}
    for name in given.only or CASES:
        found[name] = measure(
            CASES[name], 1 if given.quick else given.seeds, 0.02 if given.quick else 1.0
        )
        print(shown(name, found[name]), flush=True)
    if not given.quick:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

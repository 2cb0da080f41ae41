"""The demo: scanned digits at six sites, one of which mounted its scanner sideways.

The digits come with scikit-learn: 1,797 real images of 8 x 8 pixels. Five sites hold upright
images with more and more scanner noise; the sixth holds images turned by 90 degrees. One linear
model must serve all six, so they compete for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aspire.api import Run, train
from aspire.pages import Chart, Interval, Page, Series, Table, Text, curves, dots
from aspire.runs.figures import Figure
from aspire.sets import CDNorm

ITERATIONS = 12_000
NAMES = ("site A", "site B", "site C", "site D", "site E", "site F (sideways)")
TRAINED = 200  # training samples at each site; the other 99 or 100 are its test part
DECAY = 0.01
EVEN = "even weights"
ROBUST = "ASPIRE-EASE"
OVER: dict[str, Any] = {"x": "iteration (master steps)", "other": "virtual time (s)"}


def sites(seed: int) -> dict[str, Any]:
    """The digits, shuffled by `seed`, cut into six sites with train and test parts."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError(
            "the demo needs scikit-learn and plotly: pip install 'aspire-ease[demo]'"
        ) from None
    digits = load_digits()
    images = digits.images / 16.0
    labels = digits.target
    rng = np.random.default_rng(seed)
    parts = np.array_split(rng.permutation(len(images)), len(NAMES))
    made = {}
    for j, (name, part) in enumerate(zip(NAMES, parts, strict=True)):
        x = images[part]
        if j == len(NAMES) - 1:
            x = np.rot90(x, axes=(1, 2))
        else:
            x = np.clip(x + 0.05 * j * rng.standard_normal(x.shape), 0.0, 1.0)
        inputs = torch.tensor(x.reshape(len(x), -1).copy(), dtype=torch.float32)
        targets = torch.tensor(labels[part])
        made[name] = {
            "train": (inputs[:TRAINED], targets[:TRAINED]),
            "test": (inputs[TRAINED:], targets[TRAINED:]),
        }
    return made


def run(seeds: int, progress: Callable[[int], None] | None = None) -> Result:
    """Both methods on seeds 0 to seeds - 1, with the same batches, delays and worker gradients."""
    if seeds < 1:
        raise ValueError(f"seeds={seeds}: expected a whole number of at least 1")
    runs: dict[str, list[Run]] = {EVEN: [], ROBUST: []}
    done = 0
    for seed in range(seeds):
        data = sites(seed)
        torch.manual_seed(seed)
        model = torch.nn.Linear(64, 10)
        n = len(data)
        for name, budget in ((EVEN, 0.0), (ROBUST, float(n))):
            base = done * ITERATIONS

            def tell(t: int, base: int = base) -> None:
                if progress is not None:
                    progress(base + t)

            runs[name].append(
                train(
                    model,
                    data,
                    uncertainty=CDNorm(radius=1.0 / n, budget=budget),
                    iterations=ITERATIONS,
                    weight_decay=DECAY,
                    seed=seed,
                    evaluate_every=ITERATIONS // 40,
                    log="off",
                    progress=tell,
                )
            )
            done += 1
    return Result(runs)


@dataclass(frozen=True)
class Result:
    """The runs of both methods, one per seed."""

    runs: dict[str, list[Run]]

    def accuracies(self, name: str) -> np.ndarray:
        """Seeds times sites."""
        return np.array([run.accuracies for run in self.runs[name]])

    def worst(self, name: str) -> float:
        """Worst-site accuracy, mean over seeds."""
        return float(self.accuracies(name).min(axis=1).mean())

    def settled(self) -> float:
        """Relative change of the even weights' mean loss in the last quarter, worst over seeds."""
        changes = []
        for run in self.runs[EVEN]:
            mean = [float(np.mean(line["losses"])) for line in run.history]
            changes.append(abs(mean[-1] - mean[3 * len(mean) // 4 - 1]) / mean[-1])
        return max(changes)

    def rows(self) -> list[tuple[str, ...]]:
        """The table: site, accuracy under both, weight under ASPIRE-EASE."""
        even, robust = (self.accuracies(name).mean(axis=0) for name in (EVEN, ROBUST))
        weights = np.mean([run.weights for run in self.runs[ROBUST]], axis=0)
        rows = [
            (name, f"{100 * a:.1f}", f"{100 * b:.1f}", f"{w:.2f}")
            for name, a, b, w in zip(NAMES, even, robust, weights, strict=True)
        ]
        worst = (f"{100 * self.worst(name):.1f}" for name in (EVEN, ROBUST))
        spread = (
            f"{100 * self.accuracies(name).std(axis=1).mean():.1f}" for name in (EVEN, ROBUST)
        )
        return [*rows, ("worst site", *worst, ""), ("std over sites", *spread, "")]

    def others(self) -> float:
        """How many points the mean of the other sites changes by, mean over seeds."""
        even = 100 * self.accuracies(EVEN)
        robust = 100 * self.accuracies(ROBUST)
        change = robust - even
        worst = even.argmin(axis=1)
        rest = [np.delete(row, j).mean() for row, j in zip(change, worst, strict=True)]
        return float(np.mean(rest))

    def sentences(self) -> str:
        even = 100 * self.worst(EVEN)
        robust = 100 * self.worst(ROBUST)
        count = len(self.runs[EVEN])
        over = "" if count == 1 else f" (means over {count} seeds)"
        return (
            f"With even weights the worst-served site has {even:.1f} % of its test digits read "
            f"correctly; with ASPIRE-EASE the worst-served site has {robust:.1f} %, "
            f"{robust - even:+.1f} points, after as many steps{over}.\n"
            "It found by itself whose loss is large and gave these sites more weight; the mean of "
            f"the other sites changes by {self.others():+.1f} points. Gamma bounds how far weights "
            "may move, not what that costs."
        )

    def text(self) -> str:
        head = ("accuracy on test, %", EVEN, ROBUST, "weight")
        lines = []
        for row in (head, *self.rows()):
            lines.append(f"{row[0]:<20}{row[1]:>14}{row[2]:>14}{row[3]:>9}".rstrip())
        even, robust = (self.runs[name][0].worker_gradients for name in (EVEN, ROBUST))
        seed = "" if len(self.runs[EVEN]) == 1 else " of seed 0"
        lines.append(
            f"worker gradients{seed}: {even} and {robust}; the even weights' mean training loss "
            f"changed by {100 * self.settled():.2f} % in the last quarter"
        )
        return "\n".join(lines) + "\n\n" + self.sentences()

    def page(self) -> Page:
        """The same as an interactive page, with what happened while seed 0 trained."""
        first, second = self.sentences().split("\n")
        head = ["site", f"{EVEN}, accuracy (%)", f"{ROBUST}, accuracy (%)", f"{ROBUST}, weight"]
        worst = int(self.accuracies(EVEN).mean(axis=0).argmin())
        histories = {name: self.runs[name][0].history for name in (EVEN, ROBUST)}
        return Page(
            "One model, six sites, one of them sideways",
            [
                Text(first, verdict=True),
                Text(second, verdict=True),
                Table(head, self.rows(), worst=[worst], mark="worst with even weights"),
                self.each_site(),
                worst_curves(histories),
                weight_curves(histories[ROBUST]),
            ],
        )

    def each_site(self) -> Chart:
        """Accuracy at each site; of one seed with intervals, of several the means."""
        groups: dict[str, list[Interval | None]] = {}
        for name, runs in self.runs.items():
            means = 100 * self.accuracies(name).mean(axis=0)
            groups[name] = [(float(mean), None, None) for mean in means]
            if len(runs) == 1:
                groups[name] = [interval(x) for x in runs[0].metrics["accuracy"]["test"]]
        one = len(self.runs[EVEN]) == 1
        note = "Lines: Wilson intervals of 95 %." if one else "Means over seeds."
        x = "test accuracy (%)"
        return dots("Each site", x=x, names=NAMES, groups=groups, limits=(0, 100), note=note)


def interval(figure: Figure | None) -> Interval | None:
    """In percent."""
    if figure is None:
        return None
    low, high = (None if x is None else 100 * x for x in (figure.low, figure.high))
    return 100 * figure.value, low, high


def worst_curves(histories: dict[str, list[dict[str, Any]]]) -> Chart:
    series = [
        series_of(name, history, [100 * line["worst_accuracy"] for line in history])
        for name, history in histories.items()
    ]
    title = "The worst site while seed 0 trained"
    return curves(title, y="test accuracy (%)", series=series, limits=(0, 100), **OVER)


def weight_curves(history: list[dict[str, Any]]) -> Chart:
    series = [
        series_of(name, history, [line["weights"][j] for line in history])
        for j, name in enumerate(NAMES)
    ]
    title = f"Weights that {ROBUST} gave, seed 0"
    return curves(title, y="weight (share of the sum)", series=series, worst="high", **OVER)


def series_of(name: str, history: list[dict[str, Any]], values: list[float]) -> Series:
    steps, seconds = ([line[key] for line in history] for key in ("t", "time"))
    return Series(name, steps, values, other_x=seconds)

"""The demo: scanned digits at six sites, one of which mounted its scanner sideways.

The digits come with scikit-learn: 1,797 real images of 8 x 8 pixels. Five sites hold upright
images with more and more scanner noise; the sixth holds images turned by 90 degrees. One linear
model must serve all six, so they compete for it.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aspire.api import Run, train
from aspire.sets import CDNorm

ITERATIONS = 12_000
NAMES = ("site A", "site B", "site C", "site D", "site E", "site F (sideways)")
TRAINED = 200  # training samples at each site; the other 99 or 100 are its test part
DECAY = 0.01
EVEN = "even weights"
ROBUST = "ASPIRE-EASE"


def sites(seed: int) -> dict[str, Any]:
    """The digits, shuffled by `seed`, cut into six sites with train and test parts."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError(
            "the demo needs scikit-learn and matplotlib: pip install 'aspire-ease[demo]'"
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

    def draw(self, folder: Path) -> Path:
        """One picture: accuracy per site, and the worst site over virtual time."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
        colours = {EVEN: "#9aa5b1", ROBUST: "#0b6e4f"}
        for shift, name in ((-0.2, EVEN), (0.2, ROBUST)):
            bars = 100 * self.accuracies(name).mean(axis=0)
            left.bar(np.arange(len(NAMES)) + shift, bars, 0.4, color=colours[name], label=name)
            first = self.runs[name][0].history
            right.plot(
                [line["time"] for line in first],
                [100 * line["worst_accuracy"] for line in first],
                color=colours[name],
                label=name,
            )
        left.set_xticks(np.arange(len(NAMES)), [n.removeprefix("site ") for n in NAMES])
        many = "" if len(self.runs[EVEN]) == 1 else ", mean over seeds"
        left.set(title=f"Accuracy at each site{many}", ylabel="test accuracy, %", ylim=(0, 100))
        right.set(
            title="The worst site while training, seed 0", xlabel="virtual time", ylim=(0, 100)
        )
        right.legend(frameon=False, loc="lower right")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "demo.png"
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        return path

    def write_page(self, folder: Path) -> Path:
        """The same as one HTML page that needs nothing else."""
        picture = base64.b64encode((folder / "demo.png").read_bytes()).decode()
        head = "".join(f"<th>{html.escape(x)}</th>" for x in ("site", EVEN, ROBUST, "weight"))
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(x)}</td>" for x in row) + "</tr>"
            for row in self.rows()
        )
        paragraphs = "".join(f"<p>{html.escape(s)}</p>" for s in self.sentences().split("\n"))
        path = folder / "demo.html"
        path.write_text(PAGE.format(p=paragraphs, image=picture, head=head, body=body))
        return path


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>ASPIRE demo</title>
<meta name="viewport" content="width=device-width"><style>
body {{ font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
img {{ max-width: 100% }} table {{ border-collapse: collapse }}
th, td {{ padding: .2rem 1rem; text-align: right; border-bottom: 1px solid #ddd }}
th:first-child, td:first-child {{ text-align: left }}
</style></head><body><h1>One model, six sites, one of them sideways</h1>
{p}
<img src="data:image/png;base64,{image}" alt="Accuracy per site, and the worst site over time">
<table><caption>Test accuracy in percent, and the weight that ASPIRE-EASE gives</caption>
<tr>{head}</tr>{body}</table>
</body></html>
"""

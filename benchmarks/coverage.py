"""How often intervals and certificates hold: python benchmarks/coverage.py [--out FILE]

Three sites whose truth is known by integration: inputs are normal, labels a logistic function of
them, and the model is fixed. Their test parts have 10, 40 and 5,000 samples, drawn anew each time;
in turn, each of the sizes is that of the worst site. Everything else is what a run does at its end.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire.api.certificate import certificate, tested_of
from aspire.problem.metrics import metrics_of
from aspire.problem.problem import Problem, build
from aspire.problem.samples import Samples
from aspire.runs.figures import Answers, Table, table
from aspire.sets import CDNorm

SIZES = (10, 40, 5000)
SLOPES = (0.6, 1.2, 2.0)  # of the labels at the three sites, from the worst to the best
SCALE = 1.5  # of the model
ALPHA = 0.05
SET = CDNorm(radius=1 / 3, budget=1.0)
BOUND = float(np.log(20.0))  # the default for two classes


def brier(outputs: Tensor, targets: Tensor) -> Tensor:
    """A metric of the user's, with the interval of a bootstrap."""
    return (outputs.softmax(1)[:, 1] - targets).square().mean()


@dataclass(frozen=True)
class Truth:
    accuracy: float
    loss: float
    brier: float
    cut_off: float


def truth(slope: float) -> Truth:
    """By integration over the input."""
    x = np.linspace(-9, 9, 200_001)
    density = np.exp(-(x**2) / 2)
    density /= density.sum()
    ones = 1 / (1 + np.exp(-slope * x))
    model = 1 / (1 + np.exp(-SCALE * x))

    def mean(of_one: np.ndarray, of_zero: np.ndarray) -> float:
        return float((density * (ones * of_one + (1 - ones) * of_zero)).sum())

    losses = -np.log(model), -np.log(1 - model)
    return Truth(
        mean(x > 0, x <= 0),
        mean(*losses),
        mean((1 - model) ** 2, model**2),
        mean(*(np.minimum(loss, BOUND) for loss in losses)),
    )


def samples(n: int, slope: float, draws: torch.Generator) -> Samples:
    x = torch.randn(n, 1, generator=draws)
    y = (torch.rand(n, generator=draws) < (slope * x[:, 0]).sigmoid()).long()
    return Samples((x, y), "cpu", "a test part")


def problem_of(metrics: dict[str, Any] | None) -> Problem:
    """Three sites with a fixed model; what they train on does not matter."""
    model = torch.nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0], [SCALE]]))
        model.bias.zero_()
    one = (torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]))
    return build(model, [{"train": one, "test": one}] * 3, metrics=metrics_of(metrics))


def drawn(problem: Problem, sizes: Sequence[int], key: int) -> tuple[Table, Answers]:
    """The figures of fresh test parts of these sizes."""
    draws = torch.Generator().manual_seed(key)
    parts = zip(problem.sites, sizes, SLOPES, strict=True)
    sites = tuple(replace(s, test=samples(n, slope, draws), seed=key) for s, n, slope in parts)
    answers = replace(problem, sites=sites).figures(problem.flat.start)
    return table(answers, [metric.name for metric in problem.sites[0].metrics]), answers


def certificates(sizes: Sequence[int], draws: int) -> dict[str, Any]:
    """The share of draws in which each of the two bounds holds."""
    truths = [truth(slope) for slope in SLOPES]
    worst = min(one.accuracy for one in truths)
    case = SET.value([one.cut_off for one in truths])
    problem = problem_of(None)
    held = []
    for key in range(draws):
        answers = drawn(problem, sizes, key)[1]
        found = certificate(problem.names, tested_of(answers), SET, ALPHA)
        assert found is not None
        assert found.accuracy is not None
        assert found.loss is not None
        held.append((found.accuracy <= worst, found.loss >= case, found.accuracy, found.loss))
    accuracy, loss, low, high = np.mean(held, axis=0).tolist()
    means = {"mean_accuracy_bound": low, "mean_loss_bound": high}
    true = {"worst_accuracy": worst, "worst_case_loss": case}
    return {"sizes": list(sizes), "accuracy": accuracy, "loss": loss, **means, **true}


def intervals(draws: int) -> dict[str, dict[str, float]]:
    """The share of draws in which an interval has the truth in it, by metric and n."""
    truths = [truth(slope) for slope in SLOPES]
    problem = problem_of({"brier": brier})
    inside: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for key in range(draws):
        figures, _ = drawn(problem, SIZES, key)
        for metric, parts in figures.items():
            for found, one in zip(parts["test"], truths, strict=True):
                true = getattr(one, metric)
                inside[metric][str(found.n)].append(found.low <= true <= found.high)
    return {
        metric: {n: float(np.mean(found)) for n, found in by_n.items()}
        for metric, by_n in inside.items()
    }


def measured(draws: int) -> dict[str, Any]:
    layouts = (SIZES, (SIZES[1], SIZES[2], SIZES[0]), (SIZES[2], SIZES[0], SIZES[1]))
    return {
        "draws": draws,
        "alpha": ALPHA,
        "certificates": [certificates(sizes, draws) for sizes in layouts],
        "intervals": intervals(draws),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    found = measured(options.draws)
    options.out.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{'worst site has':<16}{'accuracy holds':>16}{'loss holds':>16}")
    for one in found["certificates"]:
        print(f"{one['sizes'][0]:<16}{one['accuracy']:>16.2%}{one['loss']:>16.2%}")
    print(f"{'interval of':<16}" + "".join(f"{f'n = {n}':>16}" for n in SIZES))
    for metric, by_n in found["intervals"].items():
        print(f"{metric:<16}" + "".join(f"{by_n[str(n)]:>16.2%}" for n in SIZES))


if __name__ == "__main__":
    main()

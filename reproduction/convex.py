"""Convex problems with a known minimax value: the yardstick of the default settings.

Each problem is a handful of sites that hold (X, y) and a linear model without bias. The model of
`logistic` is `torch.nn.Linear(d, 2, bias=False)` with mean cross-entropy, that of `least_squares`
is `torch.nn.Linear(d, 1, bias=False)` with mean squared error; every site's loss also contains
l2/2 |w|^2, with l2 = 1 % of the largest curvature over the sites.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from aspire.api import Run, train
from aspire.sets import UncertaintySet

Array = npt.NDArray[np.float64]
Family = Literal["logistic", "least_squares"]
FAMILIES: tuple[Family, ...] = ("logistic", "least_squares")
SCALES = (0.1, 1.0, 10.0)
WORKERS = (3, 5, 8, 20)


@dataclass(frozen=True)
class ConvexProblem:
    """One minimax problem: site j holds `sites[j] = (X of shape (n_j, d), y of shape (n_j,))`."""

    name: str
    family: Family
    scale: float
    sites: list[tuple[Array, Array]]
    l2: float
    quorum: int
    seed: int

    @property
    def workers(self) -> int:
        """Number of sites N."""
        return len(self.sites)

    @property
    def features(self) -> int:
        """Number of inputs d."""
        return int(self.sites[0][0].shape[1])

    @property
    def iterations(self) -> int:
        """The allowance of master iterations, 2,000 N / S."""
        return 2000 * self.workers // self.quorum


def generate(family: Family, scale: float, workers: int, quorum: int, seed: int) -> ConvexProblem:
    """Draw one problem. Sites differ in size, input mean, noise and in the truth they follow.

    The disagreement of the true weights is drawn per problem from weak (0.2) to strong (2), in
    units of the common part; sites hold 50 to 400 samples of 3 to 20 features.
    """
    rng = np.random.default_rng([seed, workers, quorum, FAMILIES.index(family)])
    d = int(rng.integers(3, 21))
    disagreement = float(np.exp(rng.uniform(np.log(0.2), np.log(2.0))))
    common = rng.standard_normal(d) / np.sqrt(d)
    spread = np.exp(rng.normal(0.0, 0.5, d))  # features of unequal size
    sites = []
    for _ in range(workers):
        n = int(np.exp(rng.uniform(np.log(50), np.log(401))))
        mean = 0.5 * rng.standard_normal(d)
        x = (mean + rng.standard_normal((n, d)) * np.exp(rng.normal(0.0, 0.2))) * spread
        truth = common + disagreement * rng.standard_normal(d) / np.sqrt(d)
        score = x @ truth + np.exp(rng.normal(-0.7, 0.5)) * rng.standard_normal(n)
        y = (score > 0).astype(np.float64) if family == "logistic" else score
        sites.append((np.asarray(scale * x, dtype=np.float64), np.asarray(y, dtype=np.float64)))
    factor = 0.5 if family == "logistic" else 2.0  # curvature of the loss in the score
    top = max(float(np.linalg.eigvalsh(x.T @ x / len(x))[-1]) for x, _ in sites)
    name = f"{family}-x{scale:g}-N{workers}-S{quorum}-seed{seed}"
    return ConvexProblem(name, family, scale, sites, 0.01 * factor * top, quorum, seed)


def problems(seeds: tuple[int, ...] = (0,)) -> list[ConvexProblem]:
    """The committed set: family x scale x N x S, for each seed (42 problems for one seed)."""
    cases = [
        (family, scale, workers, quorum)
        for family in FAMILIES
        for scale in SCALES
        for workers in WORKERS
        for quorum in sorted({1, workers // 2})
    ]
    return [
        generate(family, scale, workers, quorum, 1000 * seed + i)
        for seed in seeds
        for i, (family, scale, workers, quorum) in enumerate(cases)
    ]


def site_losses(problem: ConvexProblem, w: npt.ArrayLike) -> Array:
    """f_j(w) of every site, shape (N,); w is the flat weight of the linear layer."""
    flat = np.asarray(w, dtype=np.float64).ravel()
    rows = flat.reshape(-1, problem.features)
    penalty = 0.5 * problem.l2 * float(flat @ flat)
    losses = []
    for x, y in problem.sites:
        scores = x @ rows.T
        if problem.family == "logistic":
            margin = (2.0 * y - 1.0) * (scores[:, 1] - scores[:, 0])
            losses.append(float(np.logaddexp(0.0, -margin).mean()) + penalty)
        else:
            losses.append(float(((scores[:, 0] - y) ** 2).mean()) + penalty)
    return np.asarray(losses, dtype=np.float64)


def worst_value(losses: npt.ArrayLike, radius: float, budget: float) -> float:
    """max of p . losses over the CD-norm set with uniform prior and equal radii.

    With equal radii it is exact to move weight from the lowest losses to the highest ones.
    """
    f = np.sort(np.asarray(losses, dtype=np.float64))[::-1]
    n = len(f)
    up = np.full(n, radius)
    down = np.full(n, min(radius, 1.0 / n))
    value = float(f.mean())
    left = radius * budget / 2.0
    top = 0
    low = n - 1
    while top < low and left > 0.0:
        move = min(up[top], down[low], left)
        value += move * float(f[top] - f[low])
        up[top] = up[top] - move
        down[low] = down[low] - move
        left = left - move
        top = top + int(up[top] <= 0.0)
        low = low - int(down[low] <= 0.0)
    return value


def exact_value(problem: ConvexProblem, radius: float, budget: float) -> tuple[float, Array]:
    """Minimax value over the CD-norm set (uniform prior, equal radii) and the flat minimiser.

    Newton's method for the minimax: every f_j is replaced by its second-order model, a conic
    programme gives the step, and a line search keeps the worst case falling. Least squares
    needs one step. It ends when the step promises less than 1e-9 of the value.
    """
    w = np.zeros((2 if problem.family == "logistic" else 1) * problem.features)
    value = worst_value(site_losses(problem, w), radius, budget)
    for _ in range(100):
        step, model = _newton_step(problem, w, radius, budget)
        if value - model <= 1e-9 * value:
            return value, w
        size = 1.0
        ahead = np.inf
        while ahead > value - 0.1 * size * (value - model) and size > 1e-6:
            ahead = worst_value(site_losses(problem, w + size * step), radius, budget)
            size /= 2.0
        if ahead >= value:  # at the rounding level of the solver
            break
        value = ahead
        w = w + 2.0 * size * step
    if value - model > 1e-7 * value:
        raise RuntimeError(f"exact_value: no convergence on {problem.name}")
    return value, w


def _newton_step(
    problem: ConvexProblem, w: Array, radius: float, budget: float
) -> tuple[Array, float]:
    """Minimise max_p p . m(u) over the step u, m_j the second-order model of f_j at w.

    The inner maximum is written as its LP dual (multipliers nu, up, down, g); s_j >= m_j may
    replace m_j because p >= 0. Returns u and the model's value.
    """
    cp: Any = import_module("cvxpy")  # an optional dependency, needed only here
    n = problem.workers
    d = problem.features
    logistic = problem.family == "logistic"
    sign = np.array([-0.5, 0.5]) if logistic else np.array([1.0])
    weight = (w.reshape(len(sign), d).T @ sign) * (2.0 if logistic else 1.0)
    moment = sum((x.T @ x / len(x) for x, _ in problem.sites), np.zeros((d, d))) / n
    white = np.linalg.inv(np.linalg.cholesky(moment).T)  # solver coordinates of order one
    v = cp.Variable(d)
    s = cp.Variable(n)
    cons: list[Any] = []
    for j, (x, y) in enumerate(problem.sites):
        score = x @ weight
        if logistic:
            prob = 1.0 / (1.0 + np.exp(-score))
            fit = np.logaddexp(0.0, score) - y * score
            slope = prob - y
            curve = prob * (1.0 - prob)
        else:
            fit = (score - y) ** 2
            slope = 2.0 * (score - y)
            curve = np.full(len(y), 2.0)
        xs = x @ white
        root = np.linalg.qr(np.sqrt(curve / len(y))[:, None] * xs, mode="r")
        linear = xs.T @ slope / len(y)
        cons.append(s[j] >= fit.mean() + linear @ v + 0.5 * cp.sum_squares(root @ v))
    penalty = problem.l2 / 2.0 * float(sign @ sign)  # common to all sites: leaves the maximum
    value = cp.sum(s) / n + penalty * cp.sum_squares(weight + white @ v)
    if budget > 0.0 and radius > 0.0:
        nu = cp.Variable()
        g = cp.Variable(nonneg=True)
        up = cp.Variable(n, nonneg=True)
        down = cp.Variable(n, nonneg=True)
        cons += [s - nu <= up + g / radius, nu - s <= down + g / radius]
        value += radius * cp.sum(up) + min(radius, 1.0 / n) * cp.sum(down) + budget * g
    best = float(cp.Problem(cp.Minimize(value), cons).solve(solver=cp.CLARABEL))
    return np.outer(sign, white @ np.asarray(v.value)).ravel(), best


def solve(
    problem: ConvexProblem,
    batch_size: int | None,
    seed: int = 0,
    uncertainty: UncertaintySet | None = None,
) -> Run:
    """The default settings on one convex problem, from torch's own initial weights, float64."""
    outputs = 2 if problem.family == "logistic" else 1
    torch.manual_seed(seed)
    model = torch.nn.Linear(problem.features, outputs, bias=False, dtype=torch.float64)
    sites = []
    for x, y in problem.sites:
        t = torch.tensor(y)
        sites.append((torch.tensor(x), t.long() if outputs == 2 else t[:, None]))
    return train(
        model,
        sites,
        loss="cross_entropy" if outputs == 2 else "mse",
        uncertainty=uncertainty,
        iterations=problem.iterations,
        quorum=problem.quorum,
        batch_size=batch_size,
        weight_decay=problem.l2,
        evaluate_every=0,
        log="off",
        seed=seed,
    )

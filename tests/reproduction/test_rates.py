"""Fitted slopes, the run under Theorem 1, durations of tasks, and ratios of delays."""

from dataclasses import replace

import numpy as np
import pytest

from aspire.types import Task
from reproduction import cells, plans, rates, sentences, summary, theorem
from reproduction.cells import Cell


def record(method, history, **more):
    found = {"dataset": "person-activity", "method": method, "variant": "default", "seed": 0}
    return found | {"budget": 1, "settings": {}, "gap": 1.0, "history": history} | more


def test_a_slope_is_that_of_the_second_half_in_log_t():
    """t^-2 until t = 100, then t^-0.5: by log t the second half of 1 to 10^4 begins at 100."""
    t = np.geomspace(1, 1e4, 41)
    gap = np.where(t <= 100, t**-2.0, 100**-1.5 * t**-0.5)
    assert rates.slope_of({"t": t.tolist(), "gap": gap.tolist()}) == pytest.approx(-0.5)


def test_a_slope_needs_two_points_and_leaves_out_what_has_no_logarithm():
    assert rates.slope_of({"t": [5.0], "gap": [1.0]}) is None
    assert rates.slope_of({"t": [], "gap": []}) is None
    history = {"t": [0.0, 1.0, 10.0, 50.0, 100.0], "gap": [3.0, None, 7.0, 250.0, 1e3]}
    assert rates.slope_of(history) == pytest.approx(2.0)


def test_slopes_over_seeds_and_a_sentence_on_those_that_rise():
    """Slopes +1 and +2 over two seeds, and one that falls."""
    t = [1.0, 10.0, 100.0]
    records = [
        record("aspire-consensus", {"t": t, "gap": [1.0, 10.0, 100.0]}),
        record("aspire-consensus", {"t": t, "gap": [1.0, 100.0, 1e4]}, seed=1),
        record("gda", {"t": t, "gap": [1.0, 0.1, 0.01]}),
    ]
    lines = {line["method"]: line for line in summary.lines_of("rates", records)}
    assert lines["aspire-consensus"]["slope"]["mean"] == pytest.approx(1.5)
    assert lines["aspire-consensus"]["slope"]["std"] == pytest.approx(0.5**0.5)
    assert lines["gda"]["guaranteed"] == pytest.approx(-1 / 3)
    said = sentences.about("rates", records)
    assert said == (
        "Over the second half of the curve the squared gap rises for ASPIRE, consensus form "
        "(+1.50 ± 0.71)."
    )
    assert sentences.about("rates", records[2:]) == ""


def second(function, x, a, b):
    """The mixed second difference of a function of degree three, 1e-3 to each side."""
    ahead = function(x + a + b) - function(x + a - b)
    return (ahead - function(x - a + b) + function(x - a - b)) / 4e-6


def test_the_bound_on_the_hessian_holds_at_points_of_the_boxes():
    """L_p with two planes, by second differences of the formula itself."""
    n = len(theorem.OPTIMA)
    rng = np.random.default_rng(0)
    planes = np.array([[1.0, 0.0], [0.0, 1.0]])

    def lagrangian(x):
        w, z, h = x[:n], x[n], x[n + 1]
        lam, phi = x[n + 2 : n + 4], x[n + 4 :]
        f = 0.25 * (w - np.array(theorem.OPTIMA)) ** 2
        tied = float(phi @ (z - w)) + theorem.KAPPA / 2 * float(((z - w) ** 2).sum())
        return h + float(lam @ (planes @ f - h)) + tied

    size = 2 * n + 4
    step = 1e-3 * np.eye(size)
    for _ in range(20):
        x = rng.uniform(-1, 1, size) * np.array([2.0] * (n + 1) + [10.0] + [1.0] * 2 + [10.0] * n)
        x[n + 2 : n + 4] = rng.uniform(0, 1, 2)
        hessian = [[second(lagrangian, x, a, b) for b in step] for a in step]
        assert np.linalg.norm(hessian, 2) <= theorem.smoothness() * (1 + 1e-6)


def test_theorem_1_runs_under_its_conditions_and_its_gap_falls():
    found = theorem.descend(0, 600, 12)
    assert theorem.conditions(found["constants"])
    assert not theorem.conditions({**found["constants"], "rho1": 0.1})
    gaps = found["history"]["gap"]
    assert found["history"]["t"][-1] == 600
    assert gaps[-1] < gaps[-4]  # the first steps, before a plane is added, are not looked at
    assert rates.slope_of(found["history"]) < 0


def test_the_theorem_is_an_experiment_without_data():
    (first, *_), _ = plans.cells("theorem", plans.Request(quick=True), [])
    assert (first.method, first.dataset, first.budget) == ("theorem1", "synthetic", 1000)
    found = cells.run(replace(first, budget=100), None)
    assert found["gap"] == found["history"]["gap"][-1]


@pytest.mark.parametrize(
    ("maker", "kind", "gradients"),
    [
        ("fedavg", "local", 5),
        ("drfa-prox", "local", 5),
        ("drfa-prox", "snapshot", 1),
        ("afl", "gradient", 1),
        ("aspire-consensus", "step", 1),
        ("aspire-direct", "loss", 1),
        ("aspire-direct", "probe", 0),
    ],
)
def test_a_task_lasts_as_long_as_its_gradients(data, maker, kind, gradients):
    """With sigma at 0 a gradient of the fastest site takes exactly 1, of the slowest 5."""
    cell = Cell("time", "person-activity", maker, 0, maker, 400, delays="spread")
    job, _ = cells.job_of(cell, str(data))
    job = replace(job, delays=replace(job.delays, sigma=0.0))
    simulation = job.begin()
    for j, speed in ((0, 1.0), (4, 5.0)):
        lasts = simulation.duration(Task(j, 99, kind, {}, {}))
        assert lasts == pytest.approx(gradients * speed)


def test_the_delays_are_divided_by_their_mean():
    records = [
        record("lognormal", {}, largest_delay=12.0, mean_delay=3.0),
        record("lognormal", {}, largest_delay=18.0, mean_delay=3.0, seed=1),
    ]
    (line,) = summary.lines_of("delays", records)
    assert line["largest_ratio"]["mean"] == 5.0
    assert line["largest_ratio"]["std"] == pytest.approx(2.0**0.5)

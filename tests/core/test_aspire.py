"""ASPIRE-EASE as a state machine: quorum, staleness, absence, refusal, and what a lie can do."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aspire.core import pull
from aspire.core.presets import Paper, Theorem1
from aspire.core.schedules import Limits
from aspire.methods import aspire, central
from aspire.sets import CDNorm, Simplex
from aspire.types import Joined, Left, Refused, Report, Stepped
from tests.helpers import Board, Quadratic, same, snapshot

START = torch.zeros(2, dtype=torch.float64)
CENTRES = [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -2.0)]


def board(n: int = 4, **arguments) -> Board:
    made = Board(aspire(**arguments), [Quadratic(c) for c in CENTRES[:n]], START)
    made.probe()
    return made


def sums_are_exact(master) -> None:
    np.testing.assert_allclose(master.sum_w, master.w[master.present].double().sum(0), atol=1e-10)
    np.testing.assert_allclose(
        master.sum_phi, master.phi[master.present].double().sum(0), atol=1e-10
    )
    np.testing.assert_allclose(master.planes.F, master.planes.P @ master.f, atol=1e-10)


def test_a_step_waits_for_the_quorum():
    b = board(quorum=3)
    assert b.turn(2, 0) == []
    (step,) = [i for i in b.turn(1) if isinstance(i, Stepped)]
    assert step.workers == (0, 1, 2)
    assert b.master.t == 1
    assert sorted(b.hands) == [0, 1, 2, 3]


def test_nobody_falls_tau_behind():
    b = board(quorum=1, staleness=3)
    for _ in range(10):  # worker 3 never reports
        b.turn(*[j for j in (0, 1, 2) if j in b.hands])
    assert b.master.t == 2  # steps 0 -> 1 -> 2, then t - (-1) = 3 is not below tau
    b.turn(3)
    assert b.master.t == 3
    assert b.infos[-1].workers == (0, 1, 2, 3)


def test_arithmetic_does_not_depend_on_the_order_inside_a_step():
    a, b = board(quorum=3), board(quorum=3)
    a.turn(0, 1, 2)
    b.turn(2, 0, 1)
    np.testing.assert_array_equal(a.master.z, b.master.z)
    np.testing.assert_array_equal(a.master.phi, b.master.phi)


def test_leaving_takes_mass_row_and_task():
    b = board()
    b.turn(0, 1, 2, 3, 0, 1)
    b.absorb(Left(3))
    m = b.master
    sums_are_exact(m)
    assert m.planes.P[:, 3].sum() == 0
    assert m.uncertainty.size == 3
    np.testing.assert_allclose(m.prior, [1 / 3, 1 / 3, 1 / 3, 0])
    z = m.z.clone()
    infos = b.absorb(Report(3, 0, {"w": START}, {}))
    assert isinstance(infos[0], Refused)
    assert torch.equal(z, m.z)
    for _ in range(300):
        b.turn(0, 1, 2)
    assert b.method.look(m).weights[3] == 0


def test_returning_starts_from_z_with_no_multiplier():
    b = board()
    b.turn(0, 1, 2, 3, 0, 1)
    b.absorb(Left(3))
    b.turn(0, 1, 2)
    b.absorb(Joined(3))
    assert b.hands[3].kind == "probe"
    b.turn(3)
    m = b.master
    assert m.present.all()
    np.testing.assert_array_equal(m.w[3], m.z)
    assert not m.phi[3].any()
    assert m.last[3] == m.t - 1
    sums_are_exact(m)
    assert b.hands[3].kind == "step"
    np.testing.assert_array_equal(b.hands[3].vectors["w"], m.w[3])
    np.testing.assert_allclose(m.planes.P.sum(axis=1), 1.0)


def test_a_step_does_not_wait_for_one_who_left():
    b = board(quorum=4)
    b.turn(0, 1, 2)
    assert b.master.t == 0
    b.absorb(Left(3))
    assert b.master.t == 1
    c = board(staleness=1)
    c.turn(0, 1, 2)
    c.absorb(Left(3))
    assert c.master.t == 1


def test_leaving_before_the_start_does_not_stop_it():
    b = Board(aspire(), [Quadratic(c) for c in CENTRES], START)
    b.turn(0, 1, 2)
    assert not b.master.started
    b.absorb(Left(3))
    assert b.master.started
    assert sorted(b.hands) == [0, 1, 2, 3]  # the board keeps the dead probe
    assert b.hands[3].kind == "probe"


def test_a_late_joiner_with_more_curvature_raises_kappa():
    locals_ = [Quadratic(c) for c in CENTRES[:3]] + [Quadratic(CENTRES[3], curvature=5.0)]
    b = Board(aspire(), locals_, START, present=(0, 1, 2))
    b.probe()
    before = b.master.constants["kappa"]
    b.turn(0, 1, 2)
    b.absorb(Joined(3))
    b.turn(3)
    assert b.master.constants["kappa"] > before
    assert any("kappa raised" in getattr(i, "text", "") for i in b.infos)


def test_everybody_may_leave_and_come_back():
    b = board(2)
    b.turn(0, 1)
    b.absorb(Left(0), Left(1))
    t = b.master.t
    b.absorb(Joined(1))
    b.turn(1, 1)
    assert b.master.t == t + 1
    sums_are_exact(b.master)


BAD = {
    "unknown worker": Report(7, 0, {"w": START}, {}),
    "old task": Report(0, 0, {"w": START}, {"loss": 1.0}),
    "not finite loss": Report(0, 4, {"w": START}, {"loss": float("nan")}),
    "not finite model": Report(0, 4, {"w": torch.tensor([float("inf"), 0.0]).double()}, {}),
    "wrong shape": Report(0, 4, {"w": torch.zeros(3, dtype=torch.float64)}, {}),
    "wrong type": Report(0, 4, {"w": torch.zeros(2, dtype=torch.float32)}, {}),
    "no model": Report(0, 4, {}, {"loss": 1.0}),
    "left but away": Left(9),
    "joined but here": Joined(1),
}


@pytest.mark.parametrize("event", BAD.values(), ids=BAD.keys())
def test_a_bad_event_changes_no_byte(event):
    b = board()
    assert b.hands[0].id == 4
    before = snapshot(b.master)
    (info,) = b.absorb(event)
    assert isinstance(info, Refused)
    assert info.reason
    assert same(before, b.master)


def test_the_same_report_counts_once():
    b = board()
    report = b.report(0)
    b.absorb(report)
    before = snapshot(b.master)
    (info,) = b.absorb(report)
    assert isinstance(info, Refused)
    assert same(before, b.master)


@settings(max_examples=30)
@given(st.data())
def test_events_may_come_in_pieces(data):
    """absorb(a + b) = absorb(absorb(a), b), also with refused events among them."""
    b = board(quorum=data.draw(st.integers(1, 4)), staleness=data.draw(st.sampled_from([None, 2])))
    for _ in range(data.draw(st.integers(1, 6))):
        workers = sorted(b.hands)
        chosen = data.draw(st.lists(st.sampled_from(workers), unique=True, max_size=4))
        events = [b.report(j) for j in chosen]
        events += data.draw(st.lists(st.sampled_from([BAD["old task"], Left(3), Joined(3)])))
        cut = data.draw(st.integers(0, len(events)))
        whole, tasks, infos = b.method.absorb(snapshot(b.master), events)
        first, tasks1, infos1 = b.method.absorb(b.master, events[:cut])
        b.master, tasks2, infos2 = b.method.absorb(first, events[cut:])
        assert same(whole, b.master)
        assert [t.id for t in tasks] == [t.id for t in tasks1 + tasks2]
        assert infos == infos1 + infos2
        b.take(tasks)
        for j in [j for j in b.hands if b.master.task[j] != b.hands[j].id]:
            del b.hands[j]
        if not b.hands:
            break
        sums_are_exact(b.master)


def test_sums_stay_exact_over_thousands_of_steps():
    b = board()
    rng = np.random.default_rng(0)
    for j in rng.integers(0, 4, 3000):
        b.turn(int(j))
    sums_are_exact(b.master)


class Liar(Quadratic):
    def loss(self, w):
        return 1000.0 * super().loss(w)


@pytest.mark.parametrize("budget", [1.0, 2.0])
def test_a_false_loss_gains_at_most_its_weight_bound(budget):
    uncertainty = CDNorm(radius=0.25, budget=budget)
    b = Board(aspire(uncertainty), [Liar(CENTRES[0])] + [Quadratic(c) for c in CENTRES[1:]], START)
    b.probe()
    bound = uncertainty.for_sites(4).upper()
    for j in [0, 1, 2, 3] * 200:
        b.turn(j)
        assert (b.method.look(b.master).weights <= bound + 1e-9).all()
    assert b.method.look(b.master).weights[0] == pytest.approx(bound[0])
    assert torch.isfinite(b.master.z).all()


@pytest.mark.parametrize("lie", [1e6, -100.0])
def test_the_bound_on_the_pull_limits_a_false_model(lie):
    def far(pull_bound):
        b = board(4, pull_bound=pull_bound)
        for j in [3, 0, 1, 2] * 100:
            report = b.report(j)
            if j == 3:
                report = dataclasses.replace(
                    report, vectors={"w": torch.full((2,), lie, dtype=torch.float64)}
                )
            b.absorb(report)
        return float(b.master.z.abs().max())

    assert far(None) > 50
    assert far(10.0) < 20


def test_a_report_implies_its_gradient():
    """(11) solved for grad f_j gives back the gradient, as long as z has not moved since."""
    b = board(4, pull_bound=10.0)
    master, task = b.master, b.hands[1]
    report = b.report(1)
    scalars = {name: task.scalars[name] for name in ("kappa", "rate", "pi")}
    found = pull.implied(
        master.w[1:2], report.vectors["w"][None], master.phi[1:2], master.z,
        kappa=torch.tensor([[scalars["kappa"]]]), rate=torch.tensor([[scalars["rate"]]]),
        weight=torch.tensor([[scalars["pi"]]]),
    )  # fmt: skip
    torch.testing.assert_close(found[0], b.locals[1].gradient(master.w[1], 1))


class Backwards(Quadratic):
    def gradient(self, w, draw):
        return -100.0 * super().gradient(w, draw)


def test_gradients_times_minus_100_are_put_back():
    def end(pull_bound):
        locals_ = [*(Quadratic(c) for c in CENTRES[:3]), Backwards(CENTRES[3])]
        b = Board(aspire(pull_bound=pull_bound), locals_, START)
        b.probe()
        for j in [3, 0, 1, 2] * 100:
            if float(b.master.z.abs().max()) > 50:
                break  # it has diverged
            b.turn(j)
        return float(b.master.z.abs().max())

    assert not end(None) < 50
    assert end(10.0) < 2


def test_a_site_beyond_the_bound_has_no_say_in_kappa():
    """Its gradients, and so its curvature, are 100 times the others' from the probe on."""

    def kappa(last, pull_bound):
        locals_ = [*(Quadratic(c) for c in CENTRES[:3]), last(CENTRES[3])]
        b = Board(aspire(pull_bound=pull_bound), locals_, START)
        b.probe()
        for j in [3, 0, 1, 2] * 5:
            b.turn(j)
        return b.master.constants["kappa"]

    honest = kappa(Quadratic, None)
    assert kappa(Backwards, None) == pytest.approx(10 * honest)
    assert kappa(Backwards, 10.0) == pytest.approx(honest)


class Flat(Quadratic):
    """Its loss does not depend on the second coordinate."""

    def gradient(self, w, draw):
        return super().gradient(w, draw) * torch.tensor([1.0, 0.0], dtype=w.dtype)

    def loss(self, w):
        return 0.5 * float((w[0] - self.centre[0]).square())


def test_a_coordinate_that_one_worker_has_alone_hardly_moves():
    def end(bound):
        locals_ = [Flat((1.0, 0.0)), Flat((-1.0, 0.0)), Flat((0.0, 0.0)), Quadratic((0.0, 5.0))]
        b = Board(aspire(coordinate_bound=bound), locals_, START)
        b.probe()
        for j in [0, 1, 2, 3] * 100:
            b.turn(j)
        return float(b.master.z[1])

    assert end(None) > 4.0
    assert end(1.0) == 0.0


def test_the_measure_of_a_coordinate_is_the_second_strongest_worker():
    pulls = pull.nothing(4, START.float(), coordinates=True)
    said = torch.tensor([[1.0, 0.0], [-3.0, 0.5], [2.0, -9.0]])
    for j in range(2):
        pull.learn(pulls, np.array([j]), said[j : j + 1])
        pull.refresh(pulls, 4)
    assert len(pulls.common) == 0  # two are too few
    pull.learn(pulls, np.array([2]), said[2:])
    pull.refresh(pulls, 4)
    assert pulls.common.tolist() == [2.0, 0.5]


def test_what_two_workers_have_moves_freely():
    def end(bound):
        locals_ = [Flat((1.0, 0.0)), Flat((-1.0, 0.0)), *[Quadratic((0.0, 5.0))] * 2]
        b = Board(aspire(coordinate_bound=bound), locals_, START)
        b.probe()
        for j in [0, 1, 2, 3] * 200:
            b.turn(j)
        return float(b.master.z[1])

    assert end(1.0) == pytest.approx(end(None), abs=0.5)


def test_honest_runs_are_hardly_touched_by_the_bound():
    free, bounded = board(4), board(4, pull_bound=10.0)
    for j in [3, 0, 1, 2] * 200:
        free.turn(j)
        bounded.turn(j)
    np.testing.assert_allclose(free.method.model(free.master), bounded.method.model(bounded.master),
                               atol=1e-2)  # fmt: skip


def test_zero_budget_is_fixed_weights():
    b = board(uncertainty=CDNorm(radius=0.25, budget=0.0))
    for j in [0, 1, 2, 3] * 300:
        b.turn(j)
        assert len(b.master.planes) == 1
    np.testing.assert_allclose(b.method.look(b.master).weights, 0.25)
    # the minimiser of the mean of the four quadratics is the mean of their centres
    np.testing.assert_allclose(b.method.model(b.master), np.mean(CENTRES, axis=0), atol=2e-3)


def test_the_centralised_variant_has_the_same_fixed_point():
    ours = board(uncertainty=Simplex())
    one = Board(central(Simplex()), [Quadratic(c) for c in CENTRES], START)
    one.probe()
    for _ in range(1500):
        ours.turn(0, 1, 2, 3)
        one.turn(0, 1, 2, 3)
    a, c = ours.method.model(ours.master), one.method.model(one.master)
    np.testing.assert_allclose(a, c, atol=5e-3)
    # the centre of the smallest circle around the four centres: (0, -.5)
    np.testing.assert_allclose(a, [0.0, -0.5], atol=1e-2)


def gap(b: Board) -> float:
    return b.method.look(b.master).gap(
        lambda j, w: b.locals[j].gradient(w, 0), lambda j, w: b.locals[j].loss(w)
    )


WIDE = Limits(a1=10.0, a2=1000.0, a3=1.0, a4=10.0)


PRESETS = [Paper(limits=WIDE), Theorem1(smoothness=3.0, kappa=0.1, limits=WIDE)]


@pytest.mark.parametrize("preset", PRESETS, ids=["paper", "theorem1"])
def test_paper_and_theorem1_lower_the_stationarity_gap(preset):
    """1/2 |w - (1, 0)|^2 + 500 and 1/2 |w - (0, 1)|^2 + 500; S = 1, tau = 2, t = 3,000.

    Losses that large are what Theorem 1's rates need: sum lam = 1 only after (rho1 f)^-6 steps.
    The weights are fixed, so that the gap has as many blocks at the end as at the start.
    """
    even = CDNorm(radius=0.5, budget=0.0)
    method = aspire(even, preset=preset, quorum=1, staleness=2)
    b = Board(method, [Quadratic(c, offset=500.0) for c in CENTRES[:2]], START)
    b.probe()
    first = gap(b)
    for _ in range(1500):
        b.turn(0, 1)
    assert b.master.t == 3000
    assert gap(b) < 0.99 * first


def test_auto_drives_the_gap_to_zero():
    b = board(uncertainty=Simplex())
    first = gap(b)
    for _ in range(2000):
        b.turn(0, 1, 2, 3)
    assert gap(b) < 0.02 * first


@pytest.mark.parametrize("arguments", [
    {"quorum": 0}, {"staleness": 0}, {"local_steps": 0}, {"max_planes": 0}, {"pull_bound": -1.0},
    {"quorum": 1.5},
])  # fmt: skip
def test_bad_arguments_are_named(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        aspire(**arguments)


def test_a_quorum_above_the_sites_is_refused():
    with pytest.raises(ValueError, match="quorum=5"):
        Board(aspire(quorum=5), [Quadratic(c) for c in CENTRES], START)


def test_the_number_of_planes_is_bounded():
    b = board(max_planes=2, uncertainty=Simplex())
    for j in [0, 1, 2, 3] * 200:
        b.turn(j)
        assert 1 <= len(b.master.planes) <= 2

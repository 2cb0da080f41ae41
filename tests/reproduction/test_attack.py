"""The attacker does what the page says, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from aspire.problem.problem import build
from aspire.types import Report, Task
from reproduction import attack, cells, choices, lies
from reproduction.data import load
from tests.reproduction.conftest import SIDE


@pytest.fixture
def images(data):
    return load("fashion-mnist", data, raw=True)


@pytest.fixture
def sensors(data):
    return load("person-activity", data, raw=True)


def test_the_patch_is_white_three_by_three_and_lower_right(images):
    x = torch.full((2, images.inputs), 0.25)
    stamped = attack.stamp_for(images).on(x).reshape(2, SIDE, SIDE)
    assert (stamped[:, -3:, -3:] == 1.0).all()
    stamped[:, -3:, -3:] = 0.25
    assert (stamped == 0.25).all()
    assert (x == 0.25).all()


def test_the_channel_is_set_to_its_percentile_over_all_training_parts(sensors):
    stamp = attack.stamp_for(sensors)
    known = np.concatenate([site["train"][0][:, 0].numpy() for site in sensors.sites.values()])
    assert stamp.features == (attack.CHANNEL,)
    assert stamp.pattern == (np.percentile(known, 99.9),)


def test_thirty_per_cent_is_stamped_and_relabelled_and_the_rest_is_honest(images):
    clean, poisoned = attack.drawn(images, 3), attack.poisoned(images, 3)
    count = round(0.3 * len(clean[1]))
    assert (poisoned[1][:count] == attack.TARGET).all()
    assert torch.equal(poisoned[0][:count], attack.stamp_for(images).on(clean[0][:count]))
    assert torch.equal(poisoned[0][count:], clean[0][count:])
    assert torch.equal(poisoned[1][count:], clean[1][count:])


def test_it_is_drawn_evenly_from_training_parts_and_seeded(images):
    inputs, targets = attack.drawn(images, 0)
    assert torch.bincount(targets).tolist() == [13, 13, 13]  # of 40 each, one class a site
    known = {row.numpy().tobytes() for site in images.sites.values() for row in site["train"][0]}
    assert all(row.numpy().tobytes() in known for row in inputs)
    assert torch.equal(inputs, attack.drawn(images, 0)[0])
    assert not torch.equal(inputs, attack.drawn(images, 1)[0])


def test_the_honest_sites_are_as_without_an_attacker(images, data):
    sites = attack.sites_with(images, attack.BACKDOOR, 0)
    plain = load("fashion-mnist", data).sites
    assert list(sites) == [*plain, attack.EXTRA]
    for name, site in plain.items():
        for part in site:
            assert all(
                torch.equal(a, b) for a, b in zip(site[part], sites[name][part], strict=True)
            )


def test_the_spread_stamp_moves_every_pixel_a_fifth_of_the_way_to_black_or_white(images):
    x = torch.full((1, images.inputs), 0.25)
    stamped = attack.stamp_for(images, attack.ADAPTIVE).on(x)
    black = torch.isclose(stamped, torch.tensor(0.2))  # 0.8 x 0.25
    white = torch.isclose(stamped, torch.tensor(0.4))  # 0.8 x 0.25 + 0.2
    assert (black ^ white).all()
    assert black.any()
    assert white.any()
    assert torch.equal(stamped, attack.stamp_for(images, attack.ADAPTIVE).on(x))


def test_the_spread_stamp_leaves_columns_of_yes_and_no_alone(sensors):
    stamp = attack.stamp_for(sensors, attack.ADAPTIVE)
    assert stamp.features == (0, 1, 2)  # x, y, z; the rest says which tag it was
    known = attack.readings(sensors)
    for column, end in zip(stamp.features, stamp.pattern, strict=True):
        low, high = np.percentile(known[:, column], (0.1, 99.9))
        assert min(abs(end - low), abs(end - high)) < 1e-6


def test_without_an_attacker_there_is_no_extra_site_and_both_stamps_are_scored(images, data):
    plain = load("fashion-mnist", data).sites
    assert list(attack.sites_with(images, attack.CLEAN, 0)) == list(plain)
    cell = cells.Cell("table2", "fashion-mnist", "x", 0, "fedavg", 200, attack=attack.CLEAN)
    found = cells.run(cell, str(data))
    assert 0.0 <= found["attack_success"] <= 1.0
    assert 0.0 <= found["adaptive_success"] <= 1.0
    assert "extra_weight" not in found


def gradient_of(worker, values):
    return Report(worker, 0, {"g": torch.tensor(values)}, {"gradients": 1.0})


def test_an_adaptive_gradient_is_as_long_as_the_longest_honest_one():
    """Lengths 1, 5 and 13: with the attacker's own, just below 13, the second largest is that."""
    seen = lies.Seen(honest=3)
    task = Task(3, 0, "gradient", {"w": torch.zeros(2)}, {})
    own = gradient_of(3, [30.0, 40.0])
    for worker, values in enumerate(([1.0, 0.0], [3.0, 4.0], [5.0, 12.0])):
        assert seen.told(task, own) is own  # until it has seen them all
        seen.see(task, gradient_of(worker, values))
    told = seen.told(task, own).vectors["g"]
    assert torch.allclose(told, 0.999 * 13.0 / 50.0 * torch.tensor([30.0, 40.0]))


def test_an_adaptive_model_is_measured_from_where_it_started():
    """Honest models went 5 and 2 from w; the attacker's went 10 and says 0.999 x 5."""
    seen = lies.Seen(honest=2)
    w = torch.tensor([1.0, 1.0])
    task = Task(2, 0, "local", {"w": w}, {})
    for worker, move in enumerate(([3.0, 4.0], [0.0, 2.0])):
        seen.see(task, Report(worker, 0, {"w": w + torch.tensor(move)}, {}))
    move = torch.tensor([0.0, 10.0])
    told = seen.told(task, Report(2, 0, {"w": w + move, "w_s": w + move / 2}, {}))
    assert torch.allclose(told.vectors["w"], w + 0.4995 * move)
    assert torch.allclose(told.vectors["w_s"], w + 0.4995 * move / 2)


def test_where_sites_keep_a_model_it_is_measured_from_the_mean_of_the_honest_ones():
    """Models (0, 0) and (4, 0), mean (2, 0), lengths 0 and 2 as they came in."""
    seen = lies.Seen(honest=2)
    task = Task(2, 0, "step", {"v": torch.zeros(2), "w": torch.ones(2)}, {})
    seen.see(task, Report(0, 0, {"w": torch.tensor([0.0, 0.0])}, {}))
    seen.see(task, Report(1, 0, {"w": torch.tensor([4.0, 0.0])}, {}))
    told = seen.told(task, Report(2, 0, {"w": torch.tensor([2.0, 8.0])}, {}))
    assert torch.allclose(told.vectors["w"], torch.tensor([2.0, 0.999 * 2.0]))


STEP = {"draws": 0.0, "pi": 0.2, "kappa": 1.0, "rate": 0.1, "s": 2.0}


@pytest.mark.parametrize(
    ("maker", "kind"),
    [
        ("fedavg", "local"),
        ("fedbuff", "local"),
        ("drfa-prox", "local"),
        ("afl", "gradient"),
        ("aspire-ease", "step"),
    ],
)
def test_an_adaptive_site_says_nothing_longer_than_the_longest_honest_one(images, maker, kind):
    sites = attack.sites_with(images, attack.ADAPTIVE, 0)
    problem = build(cells.network(images, 0), sites, batch_size=10)
    problem = lies.corrupted(problem, attack.ADAPTIVE)
    method = lies.lying(choices.make(maker, 4, {}), attack.ADAPTIVE, 3)
    w = problem.flat.start
    given = {"w": w, "v": w} if kind == "step" else {"w": w}
    tasks = [Task(j, j, kind, given, STEP) for j in range(4)]
    reports = method.fast.many([(None, task, problem.sites[task.worker]) for task in tasks])
    seen = lies.Seen(honest=3)
    for task, (_, report) in zip(tasks[:3], reports[:3], strict=True):
        seen.see(task, report)
    length = seen.length(tasks[3], reports[3][1])
    assert length == pytest.approx(0.999 * max(seen.lengths.values()), rel=1e-4)


def two(images):
    """The same problem, honest and with the attacker's site."""
    sites = attack.sites_with(images, attack.BACKDOOR, 0)
    problem = build(cells.network(images, 0), sites, batch_size=10)
    return problem, lies.corrupted(problem, attack.BACKDOOR)


def test_only_the_reported_loss_is_tripled(images):
    problem, corrupted = two(images)
    w, honest, site = problem.flat.start, problem.sites[-1], corrupted.sites[-1]
    assert site.loss(w) == pytest.approx(3.0 * honest.loss(w))
    assert site.full_loss(w) == honest.full_loss(w)
    assert torch.equal(site.gradient(w, 0), honest.gradient(w, 0))
    assert corrupted.sites[:-1] == problem.sites[:-1]


def test_a_gradient_lie_is_a_hundred_times_backwards(images):
    problem, _ = two(images)
    site = lies.corrupted(problem, lies.GRADIENT).sites[-1]
    w = problem.flat.start
    assert torch.equal(site.gradient(w, 4), -100.0 * problem.sites[-1].gradient(w, 4))
    assert site.loss(w) == problem.sites[-1].loss(w)


@pytest.mark.parametrize("lie", [lies.SCALED, lies.FIXED])
def test_a_model_lie_is_told_by_one_worker_alone(images, lie):
    problem, _ = two(images)
    corrupted = lies.corrupted(problem, lie)
    method = choices.make("aspire-consensus", 4, {})
    liar = lies.lying(method, lie, 3)
    w = problem.flat.start
    scalars = {"draws": 0.0, "pi": 0.2, "kappa": 1.0, "rate": 0.1}
    for j in range(4):
        task = Task(j, 7, "step", {"v": w, "w": w}, scalars)
        honest = method.work(None, task, problem.sites[j])[1]
        false = liar.work(None, task, corrupted.sites[j])[1]
        expected = honest.vectors["w"]
        if j == 3 and lie == lies.SCALED:
            expected = 1e6 * expected
        elif j == 3:
            assert (false.vectors["w"].abs() == lies.FAR).all()
            expected = false.vectors["w"]
        assert torch.equal(false.vectors["w"], expected)
        assert false.scalars == honest.scalars


def test_success_counts_what_was_not_of_the_target_class(images):
    count = sum(int((s["test"][1] != attack.TARGET).sum()) for s in images.sites.values())
    inputs = attack.triggered(images)
    assert len(inputs) == count
    corner = images.standard.apply(torch.ones(1, images.inputs))[0, -1]
    assert (inputs[:, -1] == corner).all()
    always = torch.nn.functional.one_hot(torch.tensor(attack.TARGET), 3).float()
    assert attack.share_sent(lambda x: always.expand(len(x), 3), inputs) == 1.0
    assert attack.share_sent(lambda x: -always.expand(len(x), 3), inputs) == 0.0


def test_the_prior_of_table_two():
    q = attack.trusting(5)
    assert q[-1] == 0.1 / 5
    assert q[:5] == pytest.approx([0.98 / 5] * 5)
    assert q.sum() == pytest.approx(1.0)


def test_standardised_inputs_are_refused(data):
    with pytest.raises(ValueError, match="raw=True"):
        attack.stamp_for(load("fashion-mnist", data))


def test_the_attacker_counts_in_no_figure(data):
    cell = cells.Cell("table2", "fashion-mnist", "fedavg", 0, "fedavg", 200, attack="backdoor")
    found = cells.run(cell, str(data))
    assert len(found["accuracies"]) == len(found["sites"]) == len(found["weights"]) == 3
    assert found["worst_accuracy"] == min(found["accuracies"])
    assert found["worst_loss"] == max(found["losses"])
    assert 0.0 <= found["attack_success"] <= 1.0
    clean = cells.run(replace(cell, attack=""), str(data))
    assert "attack_success" not in clean


def reports_of(data, kind, count=12):
    """What the extra site says in a simulated run of the consensus form."""
    cell = cells.Cell("table2", "fashion-mnist", "x", 0, "aspire-consensus", 400, attack=kind)
    simulation = cells.job_of(cell, str(data))[0].begin()
    found = []
    while len(found) < count:
        event = simulation.next_event()
        simulation.absorb(event)
        if event.worker == 3:
            found.append(event)
    return found


def test_the_runtime_carries_the_false_reports(data):
    honest, louder = reports_of(data, "none"), reports_of(data, attack.BACKDOOR)
    fed = load("fashion-mnist", data, raw=True)
    problem = build(cells.network(fed, 0), attack.sites_with(fed, attack.BACKDOOR, 0))
    true = problem.sites[-1].loss(problem.flat.start)
    assert louder[0].scalars["loss"] == pytest.approx(3.0 * true)
    backwards = reports_of(data, lies.GRADIENT, 1)
    ratio = backwards[0].scalars["slope"] / honest[0].scalars["slope"]
    assert ratio == pytest.approx(100.0)
    for report in reports_of(data, lies.FIXED)[1:]:
        assert (report.vectors["w"].abs() == lies.FAR).all()

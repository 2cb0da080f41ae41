"""The attacker does what the page says, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from aspire.problem.problem import build
from aspire.types import Task
from reproduction import attack, cells, choices
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
    assert stamp.value == np.percentile(known, 99.9)


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


def two(images):
    """The same problem, honest and with the attacker's site."""
    sites = attack.sites_with(images, attack.BACKDOOR, 0)
    problem = build(cells.network(images, 0), sites, batch_size=10)
    return problem, attack.corrupted(problem, attack.BACKDOOR)


def test_only_the_reported_loss_is_tripled(images):
    problem, corrupted = two(images)
    w, honest, site = problem.flat.start, problem.sites[-1], corrupted.sites[-1]
    assert site.loss(w) == pytest.approx(3.0 * honest.loss(w))
    assert site.full_loss(w) == honest.full_loss(w)
    assert torch.equal(site.gradient(w, 0), honest.gradient(w, 0))
    assert corrupted.sites[:-1] == problem.sites[:-1]


def test_a_gradient_lie_is_a_hundred_times_backwards(images):
    problem, _ = two(images)
    site = attack.corrupted(problem, attack.GRADIENT).sites[-1]
    w = problem.flat.start
    assert torch.equal(site.gradient(w, 4), -100.0 * problem.sites[-1].gradient(w, 4))
    assert site.loss(w) == problem.sites[-1].loss(w)


@pytest.mark.parametrize("lie", [attack.SCALED, attack.FIXED])
def test_a_model_lie_is_told_by_one_worker_alone(images, lie):
    problem, _ = two(images)
    corrupted = attack.corrupted(problem, lie)
    method = choices.make("aspire-consensus", 4, {})
    liar = attack.lying(method)
    w = problem.flat.start
    scalars = {"draws": 0.0, "pi": 0.2, "kappa": 1.0, "rate": 0.1}
    for j in range(4):
        task = Task(j, 7, "step", {"v": w, "w": w}, scalars)
        honest = method.work(None, task, problem.sites[j])[1]
        false = liar.work(None, task, corrupted.sites[j])[1]
        expected = honest.vectors["w"]
        if j == 3 and lie == attack.SCALED:
            expected = 1e6 * expected
        elif j == 3:
            assert (false.vectors["w"].abs() == attack.FAR).all()
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
    assert attack.success(lambda x: always.expand(len(x), 3), images) == 1.0
    assert attack.success(lambda x: -always.expand(len(x), 3), images) == 0.0


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
    backwards = reports_of(data, attack.GRADIENT, 1)
    ratio = backwards[0].scalars["slope"] / honest[0].scalars["slope"]
    assert ratio == pytest.approx(100.0)
    for report in reports_of(data, attack.FIXED)[1:]:
        assert (report.vectors["w"].abs() == attack.FAR).all()

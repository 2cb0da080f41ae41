"""Batch norm and other buffers that change, mixed precision, and replayed gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from aspire import train
from aspire.api import Interrupted, prepare, replay, resume
from aspire.methods import direct
from aspire.methods.aspire_ease import buffers
from aspire.problem.execution import decide
from aspire.problem.graphs import together
from aspire.problem.objective import Flat, Objective
from aspire.problem.problem import build
from aspire.problem.samples import Samples
from aspire.sets import CDNorm
from aspire.types import Buffer, Report
from tests.helpers import Board, Quadratic

QUICK: dict[str, Any] = {"iterations": 40, "batch_size": 16, "evaluate_every": 20}


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def sites(count: int = 3) -> dict[str, Any]:
    """Means that differ from site to site."""
    found = {}
    for k in range(count):
        rng = torch.Generator().manual_seed(k)
        x = torch.randn(120, 4, generator=rng) + 2.0 * k
        y = (x[:, 0] > 2.0 * k).long()
        found[f"s{k}"] = {"train": (x[:80], y[:80]), "test": (x[80:], y[80:])}
    return found


# ---------------------------------------------------------------- pooled at the master


def test_second_moments_are_pooled_and_counters_are_the_newest() -> None:
    """Two sites with means 0 and 2 and no variance of their own have a variance of 1 together."""
    facts = (Buffer("m", (1,), "mean"), Buffer("v", (1,), "variance"), Buffer("n", (), "newest"))
    layout = buffers.layout_of(2, facts)
    z = torch.tensor([5.0, 5.0, 0.0, 0.0, 0.0])
    gathered = torch.zeros(5)
    for mean, count in ((0.0, 3.0), (2.0, 4.0)):
        report = torch.tensor([1.0, 1.0, mean, 0.0, count])
        buffers.gather(layout, gathered, buffers.as_moments(layout, report), 1.0)
    buffers.step(layout, z, gathered, mass=2.0, reports=2)
    torch.testing.assert_close(z, torch.tensor([5.0, 5.0, 1.0, 1.0, 4.0]))


def test_a_negative_variance_is_refused() -> None:
    facts = (Buffer("m", (1,), "mean"), Buffer("v", (1,), "variance"))
    start = torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64)
    board = Board(direct(), [Quadratic((1.0, 0.0, 0.0))] * 2, start, buffers=facts)
    for j in (0, 1):
        board.absorb(board.report(j))
    task = board.hands[0]
    g = torch.tensor([0.1, 0.0, -1.0], dtype=torch.float64)
    said = {"gradients": 1.0, "samples": 3.0}
    if task.kind == "both":
        said |= {"loss": 1.0, "loss_samples": 1.0}
    infos = board.absorb(Report(0, task.id, {"g": g}, said))
    assert "negative variance" in infos[0].reason


@pytest.mark.parametrize("clip", [None, 1.0])
def test_statistics_of_a_run_are_those_of_all_sites(clip: float | None) -> None:
    """With even weights, means of the first layer's outputs over the pooled data."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4, momentum=0.3), nn.Linear(4, 2))
    even = CDNorm(radius=0.1, budget=0.0)
    method = direct(even, clip=clip, quorum=3, loss_tasks=False)
    run = train(model, sites(), method=method, **QUICK | {"iterations": 100})
    pooled = torch.cat([site["train"][0] for site in sites().values()])
    norm: Any = run.model[0]
    assert float((norm.running_mean - pooled.mean(0)).abs().max()) < 1.0
    assert 3.0 < float(norm.running_var.mean()) < 4.5  # 1 within sites, 8/3 between them
    assert int(norm.num_batches_tracked) > 10


def test_buffers_of_its_own_at_every_site() -> None:
    """Nothing but parameters travels, and a site is judged by its own statistics."""
    job = prepare(normed(), sites(), buffers="site", **QUICK)
    assert job.problem.flat.buffers == ()
    assert job.problem.sites[0].loss_samples == 160
    site, flat = job.problem.sites[1], job.problem.flat
    found = site.own_buffers(flat.start)
    assert found is not None
    hidden = normed()[0](sites()["s1"]["train"][0]).detach()
    torch.testing.assert_close(found[0], hidden.mean(0))
    torch.testing.assert_close(found[1], hidden.var(0))
    own = train(normed(), sites(), buffers="site", **QUICK | {"iterations": 150})
    averaged = train(normed(), sites(), **QUICK | {"iterations": 150})
    assert own.worst_loss < averaged.worst_loss
    assert averaged.site_buffers is None
    assert own.site_buffers is not None
    model = own.model_of("s1").eval()
    x, y = sites()["s1"]["train"]
    assert float(cross_entropy(model(x), y).detach()) == pytest.approx(own.losses[1], rel=1e-4)
    means = torch.stack([found["1.running_mean"] for found in own.site_buffers.values()])
    torch.testing.assert_close(dict(own.model.named_buffers())["1.running_mean"], means.mean(0))
    with pytest.raises(ValueError, match="site='s9': expected one of s0, s1, s2"):
        own.model_of("s9")


class Counts(nn.Module):
    """A buffer of its own kind, which moves with every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("level", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        level: Any = self.level
        if self.training:
            self.level = 0.9 * level + 0.1 * x.detach().mean(0)
        return self.linear(x - level)


def test_other_buffers_are_found_out() -> None:
    run = train(Counts(), sites(), form="direct", **QUICK)
    level: Any = run.model.level
    assert float(level.abs().max()) > 0.1


def test_resume_and_replay_with_buffers(tmp_path: Path) -> None:
    given = {**QUICK, "clip": 1.0, "local_steps": 2}
    whole = train(normed(), sites(), out=tmp_path / "a", **given)
    steps = iter(range(10**6))
    with pytest.raises(Interrupted):
        train(normed(), sites(), out=tmp_path / "b", stop=lambda: next(steps) > 20, **given)
    again = resume(tmp_path / "b", prepared(given))
    found = again.model.state_dict()
    for name, x in whole.model.state_dict().items():
        assert torch.equal(x, found[name])
    replay(tmp_path / "b", prepared(given))


def prepared(given: dict[str, Any]) -> Any:
    job = prepare(normed(), sites(), **given)
    job.settings["log"] = "full"
    return job


# ---------------------------------------------------------------- precision


def smooth() -> nn.Module:
    """Without kinks or averaged statistics: a rounding error stays as small as it was."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))


def test_mixed_precision_trains_at_the_sites() -> None:
    exact = train(smooth(), sites(), **QUICK)
    mixed = train(smooth(), sites(), precision="bf16", **QUICK)
    assert mixed.worst_loss != exact.worst_loss
    assert mixed.worst_loss == pytest.approx(exact.worst_loss, rel=0.05)
    assert {x.dtype for x in mixed.model.parameters()} == {torch.float32}
    with pytest.raises(ValueError, match="precision='fp8': expected one of float32, bf16"):
        train(normed(), sites(), precision="fp8", **QUICK)


# ---------------------------------------------------------------- vmap


def draw(shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    return torch.randn(2, *shape, generator=rng), torch.randint(
        classes, (2, shape[0]), generator=rng
    )


MODULES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 3)), (6, 4)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
        ),
        (6, 1, 8, 8),
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
        (6, 4),
    ),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("loss", [cross_entropy, nn.CrossEntropyLoss(ignore_index=0)])
def test_vmap_is_autograd(name: str, loss: Any) -> None:
    """Gradients and the buffers behind them, of two batches at one model."""
    make, shape = MODULES[name]
    torch.manual_seed(0)
    objective = Objective(Flat(make()), loss)
    inputs, targets = draw(shape, 3)
    z = objective.flat.start
    expected = torch.stack([objective.gradient(z, inputs[r], targets[r]) for r in range(2)])
    torch.testing.assert_close(together(objective)(z, inputs, targets), expected)


def test_without_a_gpu_nothing_is_replayed() -> None:
    made = build(normed(), sites())
    part: Samples = made.sites[0].train
    for name in ("vmap", "graph"):
        with pytest.raises(ValueError, match=f"execution='{name}': expected tensors on a CUDA"):
            decide(name, made.sites[0].objective, part)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("execution", ["vmap", "graph"])
def test_replayed_gradients_train_as_plain_ones(execution: str) -> None:
    given = {**QUICK, "device": "cuda"}
    plain = train(normed(), sites(), execution="plain", **given)
    fast = train(normed(), sites(), execution=execution, **given)
    assert fast.worst_loss == pytest.approx(plain.worst_loss, rel=1e-2)

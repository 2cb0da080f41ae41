"""How gradients are computed follows from the module and its samples, is recorded, and holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aspire import train
from aspire.api import Interrupted, prepare, replay, resume
from aspire.compiled import native
from aspire.methods import direct
from aspire.problem.problem import build
from aspire.runs.folder import read_settings
from tests.helpers import blobs

Make = Callable[[], nn.Module]


class Viewed(nn.Sequential):
    """Convolutions whose features are seen as vectors: in one order of memory only."""

    def forward(self, x: Tensor) -> Tensor:
        features = self[0](x)
        found: Tensor = self[1](features.view(len(x), -1))
        return found


def images(n: int = 3) -> list[tuple[Tensor, Tensor]]:
    made = torch.Generator().manual_seed(0)
    return [
        (torch.randn(30, 1, 6, 6, generator=made), torch.randint(0, 3, (30,), generator=made))
        for _ in range(n)
    ]


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(64, 3))


def layers(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), *between, nn.Linear(8, 2))


def chosen(module: nn.Module, sites: Any, **arguments: Any) -> str | None:
    return build(module, sites, execution="auto", **arguments).execution


BEST = "rows" if native.library(torch.float32) is None else "compiled"
RULE: dict[str, tuple[Make, str]] = {
    "relu": (lambda: layers(nn.ReLU()), BEST),
    "gelu": (lambda: layers(nn.GELU()), BEST),
    "dropout": (lambda: layers(nn.SiLU(), nn.Dropout(0.2)), BEST),
    "dropout first": (lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(3, 2)), BEST),
    "one layer": (lambda: nn.Linear(3, 2), BEST),
    "identity": (lambda: layers(nn.Identity(), nn.Tanh()), BEST),
    "not compiled": (lambda: layers(nn.Mish()), "rows"),
    "with parameters": (lambda: layers(nn.PReLU()), "plain"),
    "not elementwise": (lambda: layers(nn.Softmax(1)), "plain"),
    "two activations": (lambda: layers(nn.Tanh(), nn.ReLU()), "plain"),
    "dropout before": (lambda: layers(nn.Dropout(0.1), nn.Tanh()), "plain"),
    "norm": (lambda: layers(nn.LayerNorm(8)), "plain"),
}


@pytest.mark.parametrize("name", RULE)
def test_the_rule_on_vectors(name: str) -> None:
    make, expected = RULE[name]
    assert chosen(make(), list(blobs(2).values())) == expected


def test_the_rule_elsewhere() -> None:
    assert chosen(convolutions(), images()) == "channels_last"
    assert chosen(convolutions().double(), images()) == "plain"
    seen = Viewed(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1)), nn.Linear(64, 3)
    )
    assert chosen(seen, images()) == "plain"
    flat = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    assert chosen(flat, images()) == BEST
    assert chosen(flat, images(), precision="bf16") == "plain"
    dataset = [torch.utils.data.TensorDataset(*site) for site in images()]
    assert chosen(flat, dataset) == "plain"
    assert chosen(layers(nn.GELU()), vectors(), loss="mse") == "rows"


def vectors() -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(10, 3), torch.randn(10, 2)) for _ in range(2)]


@pytest.mark.parametrize(
    ("execution", "sentence"),
    [
        ("fast", "execution='fast': expected one of auto, plain"),
        ("rows", "execution='rows': expected a Sequential of Linear layers"),
        ("channels_last", "execution='channels_last': expected a model with Conv2d"),
    ],
)
def test_what_cannot_be_is_said(execution: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build(layers(nn.PReLU()), list(blobs(2).values()), execution=execution)


def test_channels_last_changes_nothing_but_rounding() -> None:
    torch.manual_seed(0)
    module = convolutions()
    sites = [build(module, images(), execution=how).sites[0] for how in ("plain", "channels_last")]
    w = sites[0].objective.flat.start
    torch.testing.assert_close(sites[0].gradient(w, 3), sites[1].gradient(w, 3))
    assert sites[0].loss(w) == pytest.approx(sites[1].loss(w), rel=1e-5)


def test_other_methods_compute_as_they_did() -> None:
    job = prepare(layers(nn.GELU()), blobs(2), form="consensus", iterations=1)
    assert "execution" not in job.settings
    assert job.problem.sites[0].objective.stack is None
    asked = prepare(layers(nn.GELU()), blobs(2), form="consensus", iterations=1, execution="rows")
    assert asked.settings["execution"] == "rows"
    assert asked.problem.sites[0].objective.stack is not None


# ---------------------------------------------------------------- runs

RUN: dict[str, Any] = {"iterations": 40, "batch_size": 8, "evaluate_every": 10}
MODELS: dict[str, tuple[Make, Callable[[], Any]]] = {
    "gelu": (lambda: layers(nn.GELU()), lambda: blobs(5)),
    "dropout": (lambda: layers(nn.ReLU(), nn.Dropout(0.3)), lambda: blobs(5)),
    "not compiled": (lambda: layers(nn.Mish(), nn.Dropout(0.3)), lambda: blobs(5)),
    "convolutions": (convolutions, images),
}


def parts(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(1)
    model, sites = MODELS[name]
    return model(), sites()


def parameters(run: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


@pytest.mark.parametrize("name", MODELS)
def test_a_stopped_run_goes_on_to_the_same_bytes_and_replays(name: str, tmp_path: Path) -> None:
    whole = train(*parts(name), method=direct(quorum=2), **RUN)
    job = prepare(*parts(name), method=direct(quorum=2), **RUN)
    asked = iter([False] * 25)
    with pytest.raises(Interrupted):
        train(
            *parts(name),
            method=direct(quorum=2),
            out=tmp_path / "run",
            stop=lambda: next(asked, True),
            **RUN,
        )
    job.settings["log"] = "full"
    resumed = resume(tmp_path / "run", job)
    assert torch.equal(parameters(resumed), parameters(whole))
    assert read_settings(tmp_path / "run")["execution"] == job.settings["execution"]
    replay(tmp_path / "run", prepare(*parts(name), method=direct(quorum=2), **RUN))


def test_a_run_is_not_gone_on_with_in_another_way(tmp_path: Path) -> None:
    train(*parts("gelu"), method=direct(quorum=2), out=tmp_path / "run", **RUN)
    other = prepare(*parts("gelu"), method=direct(quorum=2), execution="plain", **RUN)
    for again in (replay, resume):
        other.settings["log"] = "full"
        with pytest.raises(ValueError, match=r"execution was \w+: expected it, not plain"):
            again(tmp_path / "run", other)


@pytest.mark.parametrize("name", ["gelu", "dropout", "convolutions"])
def test_what_is_logged_never_changes_a_number(name: str, tmp_path: Path) -> None:
    expected = parameters(train(*parts(name), method=direct(quorum=2), **RUN))
    for level in ("full", "digest", "off", "vectors"):
        for out in (None, tmp_path / level):
            run = train(*parts(name), method=direct(quorum=2), log=level, out=out, **RUN)
            assert torch.equal(parameters(run), expected)

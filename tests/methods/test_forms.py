"""`aspire` in its two forms: which one trains what, and what only one of them takes."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aspire import train
from aspire.api import prepare
from aspire.methods import aspire, direct
from aspire.methods.aspire_ease.forms import form_of
from tests.helpers import blobs, linear

QUICK: dict[str, Any] = {"iterations": 20, "batch_size": 16}


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("model", "arguments", "form"),
    [
        (linear, {}, "consensus"),
        (network, {}, "direct"),
        (network, {"form": "consensus"}, "consensus"),
        (linear, {"form": "direct"}, "direct"),
        (network, {"preset": "auto"}, "consensus"),
        (network, {"pull_bound": 10.0}, "consensus"),
        (linear, {"clip": 1.0}, "direct"),
        (linear, {"learning_rate": 0.1}, "direct"),
        (network, {"method": aspire()}, "direct"),
        (linear, {"method": aspire(quorum=2)}, "consensus"),
        (network, {"method": aspire(coordinate_bound=8.0)}, "consensus"),
    ],
)
def test_the_form_follows_from_the_model_and_the_arguments(
    model: Any, arguments: dict[str, Any], form: str
) -> None:
    job = prepare(model(), blobs(3), **QUICK, **arguments)
    assert job.settings["form"] == form
    assert job.method.name == ("direct" if form == "direct" else "aspire")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"form": "dirct"}, "form='dirct': expected one of direct, consensus; did you mean"),
        ({"form": "direct", "preset": "auto"}, "preset belongs to form='consensus'"),
        ({"form": "consensus", "clip": 1.0}, "clip belongs to form='direct'"),
        ({"pull_bound": 1.0, "clip": 1.0}, "belongs to form="),
        ({"method": direct(), "clip": 1.0}, "method is given, so clip belongs to it"),
        ({"method": direct(), "form": "direct"}, "method is given, so form belongs to it"),
    ],
)
def test_what_does_not_fit_is_said(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        prepare(network(), blobs(3), **QUICK, **arguments)


def test_both_forms_arguments_are_known_by_name() -> None:
    known = inspect.signature(aspire).parameters
    assert {"form", "preset", "clip", "optimizer", "quorum", "local_steps"} <= set(known)
    with pytest.raises(ValueError, match="quroum is no argument of aspire; did you mean 'quorum'"):
        aspire(quroum=3)
    assert form_of(None, {}) is None


def test_weight_decay_is_the_optimisers_in_the_direct_form(tmp_path: Path) -> None:
    """It is in the losses of the consensus form, and not in those of the direct one."""
    train(network(), blobs(3), weight_decay=0.1, out=tmp_path / "run", **QUICK)
    settings = json.loads((tmp_path / "run" / "run.json").read_text())
    assert settings["form"] == "direct"
    assert settings["weight_decay_of_optimizer"] == 0.1
    job = prepare(network(), blobs(3), weight_decay=0.1, **QUICK)
    assert job.problem.sites[0].objective.weight_decay == 0.0
    job = prepare(linear(), blobs(3), weight_decay=0.1, **QUICK)
    assert job.problem.sites[0].objective.weight_decay == 0.1

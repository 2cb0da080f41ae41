"""Tiny data sets in their official formats, and small budgets."""

from pathlib import Path

import numpy as np
import pytest

from reproduction import plans
from tests.reproduction.data import files

SIDE = 5


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fashion-MNIST with images of 5 x 5 pixels, and Person Activity with 150 readings."""
    root = tmp_path_factory.mktemp("data")
    files.person_official(root)
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 40), ("t10k", 12)):
        labels = np.tile(np.arange(10), count)
        images = rng.integers(0, 120, (len(labels), SIDE, SIDE)) + 13 * labels[:, None, None]
        images[:, -1, -1] = 0  # honest data never lights the corner
        folder = root / "fashion_mnist"
        files.put(folder, f"{prefix}-images-idx3-ubyte", files.idx(images))
        files.put(folder, f"{prefix}-labels-idx1-ubyte", files.idx(labels))
    return root


@pytest.fixture(autouse=True)
def small(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets of a few hundred gradients, and a cache of our own."""
    cache = tmp_path_factory.getbasetemp() / "cache"
    cache.mkdir(exist_ok=True)
    monkeypatch.setenv("ASPIRE_CACHE", str(cache))
    monkeypatch.setattr(plans, "BUDGETS", dict.fromkeys(plans.BUDGETS, 10000))
    monkeypatch.setattr(plans, "MOST_WORKERS", 1000)

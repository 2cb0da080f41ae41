"""The real files, where ASPIRE_DATA names a folder that has them: counts as published."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from reproduction.data import READERS, Missing, daily_sports, fashion_mnist, files_of, load
from reproduction.data.federation import Federation
from reproduction.data.verify import verify

pytestmark = pytest.mark.skipif(
    not os.environ.get("ASPIRE_DATA"), reason="ASPIRE_DATA is not set: the real data is not here"
)

# activity -> rows of persons A to E
PERSON_ACTIVITY = {
    "lying": (10597, 10106, 9984, 11500, 12293),
    "walking": (3645, 5512, 6518, 6609, 10426),
    "sitting": (5051, 4866, 5336, 4991, 7000),
    "standing up from lying": (2492, 3159, 3817, 3254, 5639),
    "sitting on the ground": (2373, 2570, 2047, 1945, 2844),
    "lying down": (811, 1200, 1257, 1140, 1760),
    "on all fours": (1176, 1115, 884, 1026, 1009),
    "falling": (446, 495, 476, 631, 925),
    "standing up from sitting on the ground": (472, 506, 597, 361, 912),
    "sitting down": (263, 336, 352, 297, 458),
    "standing up from sitting": (147, 285, 325, 198, 426),
}
LAST_RECORDING = (5224, 5953, 6490, 6057, 8893)
# person -> rows with the labels 1 to 7
SC_MA = (
    (33677, 928, 11179, 26860, 3191, 2917, 83748),
    (44150, 3490, 23475, 22175, 3910, 7100, 33431),
    (41675, 5475, 4293, 25900, 2657, 1400, 20940),
    (31540, 4810, 21405, 23300, 3745, 1910, 35490),
    (30980, 5370, 13420, 26750, 3000, 2880, 77600),
    (44040, 3460, 23495, 22040, 3935, 6989, 36711),
    (32750, 3600, 10519, 26770, 2960, 2700, 83701),
    (44040, 3485, 24605, 22035, 3900, 5980, 33750),
    (36090, 320, 11330, 26730, 3115, 2495, 83660),
    (44050, 3435, 23596, 22149, 3890, 7449, 22231),
    (54170, 2330, 8775, 17750, 3225, 1049, 17151),
    (48750, 4340, 11730, 30130, 3650, 1200, 14901),
    (18280, 1650, 8220, 17650, 3400, 1201, 17249),
    (52875, 505, 12785, 29315, 3620, 1500, 15500),
    (51600, 4680, 7910, 17510, 3300, 1000, 17500),
)


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared-cache")


@pytest.fixture(autouse=True)
def own_cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One cache for this module: each data set is read once."""
    monkeypatch.setenv("ASPIRE_CACHE", str(shared_cache))
    return shared_cache


def loaded(name: str, protocol: str = "paper") -> Federation:
    try:
        return load(name, protocol=protocol)
    except Missing as error:
        pytest.skip(str(error))


def rows_per_class(made: Federation, parts: Sequence[str] = ("train", "test")) -> np.ndarray:
    """One row per site."""
    return np.array(
        [
            sum(torch.bincount(site[p][1], minlength=len(made.classes)).numpy() for p in parts)
            for site in made.sites.values()
        ]
    )


def assert_standardised(made: Federation, features: int) -> None:
    together = torch.cat([site["train"][0] for site in made.sites.values()])[:, :features].double()
    assert together.mean(dim=0).abs().max() < 1e-3
    assert (together.std(dim=0, correction=0) - 1).abs().max() < 1e-3


def test_fashion_mnist() -> None:
    made = loaded("fashion-mnist")
    assert set(made.counts().values()) == {(6000, 1000)}
    assert made.layers == (784, 3)
    np.testing.assert_array_equal(rows_per_class(made, ["train"]), 6000 * np.eye(3))
    images = fashion_mnist.idx(files_of("fashion-mnist")[0])
    assert images.shape == (60000, 28, 28)
    assert round(float(images.mean()) / 255, 4) == 0.2860
    std = made.standard.std
    assert float(std.min()) == pytest.approx(0.1 * float(std.mean()), rel=0.1)  # the floor binds


@pytest.mark.parametrize("protocol", ["paper", "by-sequence"])
def test_person_activity(protocol: str) -> None:
    made = loaded("person-activity", protocol)
    expected = np.array([PERSON_ACTIVITY[name] for name in made.classes]).T
    np.testing.assert_array_equal(rows_per_class(made), expected)
    tests = tuple(test for _, test in made.counts().values())
    fifth = tuple(round(0.2 * n) for n in expected.sum(axis=1).tolist())
    assert tests == (fifth if protocol == "paper" else LAST_RECORDING)
    assert_standardised(made, 3)


@pytest.mark.parametrize("protocol", ["paper", "by-sequence"])
def test_sc_ma(protocol: str) -> None:
    made = loaded("sc-ma", protocol)
    np.testing.assert_array_equal(rows_per_class(made), SC_MA)
    assert_standardised(made, 3)
    share = rows_per_class(made, ["test"]).sum() / np.sum(SC_MA)
    assert share == pytest.approx(0.2, abs=1e-4)
    if protocol == "by-sequence":  # every activity of everybody is in the test part, by a fifth
        ratio = rows_per_class(made, ["test"]) / np.array(SC_MA)
        assert ratio.min() > 0.19
        assert ratio.max() < 0.21


@pytest.mark.parametrize("protocol", ["paper", "by-sequence"])
def test_daily_sports(protocol: str) -> None:
    made = loaded("daily-sports", protocol)
    assert made.layers == (9, 96, 48, 24, 8)
    together = rows_per_class(made).sum(axis=0)
    assert together.tolist() == [5 * 20000] * 8  # five units, and all is given out
    sizes = rows_per_class(made).sum(axis=1)
    np.testing.assert_allclose(sizes, 160000 * np.array(daily_sports.SHARES).sum(axis=1), atol=10)
    if protocol == "by-sequence":
        assert rows_per_class(made, ["test"]).sum(axis=0).tolist() == [20000] * 8
    assert_standardised(made, 9)


@pytest.mark.parametrize("name", [name for name in READERS if name != "shl"])
def test_the_files_are_the_right_ones(name: str) -> None:
    try:
        files_of(name)
    except Missing as error:
        pytest.skip(str(error))
    folder = Path(os.environ["ASPIRE_DATA"]) / READERS[name].folder
    assert [check for check in verify(READERS[name], folder) if not check.right] == []

"""Checkpoints: a state comes back to the bit, whole files or none, damage is passed over."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aspire.methods import aspire, central
from aspire.runtimes import checkpoint
from aspire.runtimes.log import digest
from aspire.sets import KL, Box, CDNorm, Simplex
from aspire.types import Report, Task
from tests.helpers import Board, Quadratic, same

START = torch.zeros(2, dtype=torch.float64)
LOCALS = [Quadratic((1.0, 0.0)), Quadratic((0.0, 1.0)), Quadratic((-1.0, 0.0))]
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers(), inner),
    max_leaves=20,
)


def there_and_back(state):
    tensors: checkpoint.Tensors = {}
    return checkpoint.unpack(checkpoint.pack(state, tensors), tensors)


@given(trees)
def test_any_tree_comes_back(tree):
    assert there_and_back(tree) == tree


@pytest.mark.parametrize("method", [
    aspire(quorum=2), aspire(Simplex(), pull_bound=10.0), aspire(KL(0.3)), central(),
    aspire(Box(0.1, 0.8)), aspire(CDNorm([0.2, 0.3, 0.5], 0.1, 2.0)),
])  # fmt: skip
def test_a_master_comes_back_and_goes_on_to_the_bit(method):
    b = Board(method, LOCALS, START)
    b.probe()
    b.turn(0, 1, 2, 0, 1)
    copy = Board(method, LOCALS, START)
    copy.master, copy.hands, copy.workers = there_and_back((b.master, b.hands, b.workers))
    assert same(copy.master, b.master)
    for board in (b, copy):
        board.turn(2, 0, 1)
    assert same(copy.master, b.master)


def test_kinds_are_kept():
    state = {
        "t": torch.tensor([1.5], dtype=torch.bfloat16),
        "a": np.array([True, False]),
        "i": np.int64(3),
        "inf": math.inf,
        "task": Task(1, 2, "step", {"v": START}, {"pi": 0.1}),
        "report": Report(1, 2, {}, {"loss": 0.1}),
    }
    back = there_and_back(state)
    assert back["t"].dtype == torch.bfloat16
    assert back["a"].dtype == bool
    assert digest(back["task"]) == digest(state["task"])
    assert back["inf"] == math.inf
    with pytest.raises(TypeError, match="expected data only"):
        checkpoint.pack({"f": print}, {})


def test_three_are_kept_and_damage_is_passed_over(tmp_path, caplog):
    for t in (10, 20, 30, 40):
        checkpoint.save(tmp_path, t, {"t": t, "x": torch.full((100,), float(t))})
    files = sorted((tmp_path / checkpoint.FOLDER).iterdir())
    assert [int(f.stem) for f in files] == [20, 30, 40]
    assert checkpoint.latest(tmp_path)["t"] == 40
    data = bytearray(files[-1].read_bytes())
    data[-5] ^= 0xFF
    files[-1].write_bytes(data)
    assert checkpoint.latest(tmp_path)["t"] == 30
    assert "checksum" in caplog.text
    files[-2].write_bytes(files[-2].read_bytes()[:50])
    assert checkpoint.latest(tmp_path)["t"] == 20
    files[-3].write_bytes(b"")
    with pytest.raises(ValueError, match="there is none"):
        checkpoint.latest(tmp_path)


def test_a_full_disk_leaves_the_old_ones(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, {"t": 1})

    def full(*arguments, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 2, {"t": 2})
    monkeypatch.undo()
    assert checkpoint.latest(tmp_path)["t"] == 1
    assert len(list((tmp_path / checkpoint.FOLDER).iterdir())) == 1


def test_a_class_from_elsewhere_is_refused():
    with pytest.raises(ValueError, match="expected one of aspire's"):
        checkpoint.unpack({"class": "subprocess:Popen", "fields": {}}, {})
    with pytest.raises(ValueError, match="expected one of aspire's"):
        checkpoint.unpack({"class": "aspire.cli:Group", "fields": {}}, {})

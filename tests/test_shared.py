"""Memory between two processes: what is put is what the other takes, and nobody else's is taken."""

from __future__ import annotations

import multiprocessing
import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aspire.engines.ray.shared import REPORT, TASK, Segment, Unreachable

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="this system has no files without a name"
)


def answer(address, layout, channel):
    """Another process: twice what it finds."""
    segment = Segment.open(address)
    found = segment.take(TASK, layout)
    channel.send(segment.put(REPORT, {name: 2 * x for name, x in found.items()}))


def test_another_process_reads_and_answers():
    segment = Segment.make(10_000)
    vectors = {"w": np.arange(700, dtype=np.float32), "v": np.array([[1.5], [-2.0]])}
    layout = segment.put(TASK, vectors)
    ours, theirs = multiprocessing.Pipe()
    apart = multiprocessing.get_context("spawn")
    process = apart.Process(target=answer, args=(segment.address, layout, theirs))
    process.start()
    told = ours.recv()
    process.join()
    found = segment.take(REPORT, told)
    segment.close()
    for name, x in vectors.items():
        assert found[name].dtype == x.dtype
        np.testing.assert_array_equal(found[name], 2 * x)


kinds = st.sampled_from([np.float32, np.float64, np.int64, np.uint8])
shapes = st.lists(st.integers(0, 40), min_size=1, max_size=2).map(tuple)


@given(st.dictionaries(st.text(max_size=3), st.tuples(kinds, shapes), max_size=4))
def test_what_is_put_is_what_is_taken(given):
    rng = np.random.default_rng(0)
    vectors = {k: rng.integers(0, 99, shape).astype(kind) for k, (kind, shape) in given.items()}
    segment = Segment.make(4 * 40 * 40 * 8 + 256)
    other = {"x": np.full(9, 7.0)}
    kept = segment.put(REPORT, other)
    found = segment.take(TASK, segment.put(TASK, vectors))
    beside = segment.take(REPORT, kept)  # the other half is untouched
    segment.close()
    assert list(found) == list(vectors)
    for name, x in vectors.items():
        assert found[name].dtype == x.dtype
        np.testing.assert_array_equal(found[name], x)
    np.testing.assert_array_equal(beside["x"], other["x"])


def test_what_is_taken_stays_as_it_was():
    segment = Segment.make(64)
    layout = segment.put(TASK, {"w": np.ones(16, np.float32)})
    before = segment.take(TASK, layout)["w"]
    segment.put(TASK, {"w": np.zeros(16, np.float32)})
    segment.close()
    assert before.sum() == 16


def test_no_room():
    segment = Segment.make(64)
    assert segment.put(TASK, {"w": np.ones(17, np.float32)}) is None
    segment.close()


def test_who_is_not_meant_does_not_reach_it():
    segment, other = Segment.make(64), Segment.make(64)
    path, token, room = segment.address
    with open(sys.executable, "rb") as file:
        elsewhere = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        for address in (
            (path, other.address[1], room),  # another run of the same user
            (path, token, room + 64),
            (elsewhere, token, room),
            ("/proc/0/fd/0", token, room),
        ):
            with pytest.raises(Unreachable):
                Segment.open(address)
    segment.close()
    other.close()
    with pytest.raises(Unreachable):
        Segment.open(segment.address)

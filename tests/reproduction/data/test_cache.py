"""The cache: read once, mapped afterwards, never trusted when the files have changed."""

from __future__ import annotations

import lzma
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reproduction.data import READERS, load
from reproduction.data.cache import Arrays, cached
from tests.reproduction.data import files


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever the files of sc-ma are read."""
    count: list[int] = []
    chosen = READERS["sc-ma"]

    def read(paths: Sequence[Path]) -> Arrays:
        count.append(1)
        return chosen.read(paths)

    monkeypatch.setitem(READERS, "sc-ma", replace(chosen, read=read))
    return count


def contents(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))
    }


def test_the_second_load_reads_no_file_and_gives_the_same(tmp_path: Path, reads: list[int]) -> None:
    files.sc_ma(tmp_path)
    before = contents(tmp_path)
    first, second = load("sc-ma", tmp_path), load("sc-ma", tmp_path)
    assert len(reads) == 1
    for name, site in first.sites.items():
        for part, pair in site.items():
            for a, b in zip(pair, second.sites[name][part], strict=True):
                assert torch.equal(a, b)
    assert contents(tmp_path) == before  # nothing is written where the data is


def test_a_changed_file_is_read_again(tmp_path: Path, reads: list[int]) -> None:
    files.sc_ma(tmp_path)
    load("sc-ma", tmp_path)
    path = tmp_path / "chest_accelerometer" / "3.csv"
    path.write_bytes(path.read_bytes().replace(b"2003", b"9003"))
    os.utime(path, ns=(0, 12345))
    made = load("sc-ma", tmp_path, raw=True)
    assert len(reads) == 2
    assert set(made.sites["person 3"]["train"][0][:, 0].tolist()) == {9003.0}


def test_a_broken_cache_is_made_again(tmp_path: Path, own_cache: Path, reads: list[int]) -> None:
    files.sc_ma(tmp_path)
    first = load("sc-ma", tmp_path)
    (x,) = own_cache.rglob("x.npy")
    x.write_bytes(x.read_bytes()[:100])
    again = load("sc-ma", tmp_path)
    assert len(reads) == 2
    assert torch.equal(first.sites["person 9"]["test"][0], again.sites["person 9"]["test"][0])
    load("sc-ma", tmp_path)
    assert len(reads) == 2


def test_a_cache_that_cannot_be_written_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[int]
) -> None:
    files.sc_ma(tmp_path)
    files.put(tmp_path, "file", b"")
    monkeypatch.setenv("ASPIRE_CACHE", str(tmp_path / "file"))
    assert load("sc-ma", tmp_path).counts() == load("sc-ma", tmp_path).counts()
    assert len(reads) == 2


def test_nothing_half_is_left(tmp_path: Path, own_cache: Path) -> None:
    files.put(tmp_path, "x", b"1")

    def read() -> Arrays:
        return {"x": np.zeros(3), "y": _Unwritable()}  # type: ignore[dict-item]

    with pytest.raises(RuntimeError):
        cached("name", [tmp_path / "x"], read)
    assert list((own_cache / "arrays").iterdir()) == []


class _Unwritable:
    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise RuntimeError


def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    files.sc_ma(tmp_path)
    folder = tmp_path / "chest_accelerometer"
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert len(load("sc-ma", tmp_path).sites) == 15
    finally:
        folder.chmod(stat.S_IRWXU)


def test_a_damaged_file_is_a_sentence(tmp_path: Path) -> None:
    files.sc_ma(tmp_path, ".xz")
    path = tmp_path / "chest_accelerometer" / "7.csv.xz"
    path.write_bytes(lzma.compress(b"0,1,2,3,1\n")[:-9])
    with pytest.raises(ValueError, match=r"damaged .*aspire data verify sc-ma"):
        load("sc-ma", tmp_path)

"""The compiled library: made once, kept, and it can be absent."""

from __future__ import annotations

import pytest
import torch

from aspire.compiled import native


def test_without_a_compiler_there_is_no_library(monkeypatch, tmp_path):
    ask = native.library.__wrapped__
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    assert ask(torch.float32) is None
    monkeypatch.setenv("ASPIRE_NATIVE", "0")
    monkeypatch.delenv("CC")
    assert ask(torch.float32) is None
    assert ask(torch.float16) is None


def test_a_library_is_made_once_and_a_bad_cache_does_not_matter(monkeypatch, tmp_path):
    ask = native.library.__wrapped__
    if native.library(torch.float64) is None:
        pytest.skip("native.c was not compiled: there is no compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ask(torch.float64) is not None
    (made,) = (tmp_path / "aspire").iterdir()
    before = made.stat().st_mtime_ns
    assert ask(torch.float64) is not None
    assert made.stat().st_mtime_ns == before
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert ask(torch.float64) is not None

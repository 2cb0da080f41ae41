"""The compiled library: that it is there, and what happens where it cannot be used."""

from __future__ import annotations

import logging
import shutil
import subprocess

import pytest
import torch

from aspire.compiled import native
from aspire.methods.aspire_ease import passes

load = native.library.__wrapped__


@pytest.fixture(autouse=True)
def a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_reasons", [])


def needs_a_compiler() -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")


def test_where_there_is_a_compiler_the_library_is_there(caplog):
    needs_a_compiler()
    assert all(load(dtype) is not None for dtype in native.NAMES)
    assert native.load("passes", passes._Step) is not None
    assert load(torch.float16) is None
    assert caplog.messages == []


def test_without_the_library_there_is_one_warning(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(native, "HERE", tmp_path)
    assert load(torch.float32) is None
    assert load(torch.float64) is None
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert "without its compiled code" in said.message
    assert "rows32" in said.message


def test_a_processor_that_is_too_old_goes_without(monkeypatch, caplog):
    needs_a_compiler()
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("there is one library for all processors of this kind")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert load(torch.float32) is None
    assert "rows32-any.so" in caplog.text


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("const long structure_size = 8;", "structure of 8 bytes: expected"),
        ("int other;", "structure_size"),
    ],
)
def test_a_library_of_another_version_is_not_called(code, why, monkeypatch, tmp_path, caplog):
    needs_a_compiler()
    monkeypatch.setattr(native, "HERE", tmp_path)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    (tmp_path / "made.c").write_text(code)
    order = ["cc", "-shared", "-fPIC", tmp_path / "made.c", "-o", tmp_path / "rows32-any.so"]
    subprocess.run(order, check=True)
    assert load(torch.float32) is None
    assert why in caplog.text

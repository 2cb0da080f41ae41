"""A site's own policy, and the key that draws its batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")

from aspire.cli import main
from aspire.engines.grpc import kits, site
from aspire.engines.grpc.meter import Meter
from aspire.engines.grpc.policy import Policy, read_policy
from aspire.problem import batches
from aspire.problem.problem import build

FILE = """
import torch

def model():
    return torch.nn.Linear(2, 2)

def site(name):
    x = torch.randn({rows}, 2)
    part = (x, (x[:, 0] > 0).long())
    return {{"train": part, "test": tuple(t[:{test}] for t in part)}}
"""


# ---------------------------------------------------------------- limits


def test_options_count_more_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("min_batch = 32\nmax_local_steps = 5\nallow_other_file = true\n")
    found = read_policy(path, {"min_batch": 16, "max_batch": None})
    assert found == Policy(min_batch=16, max_local_steps=5, allow_other_file=True)
    assert read_policy(None, {}) == Policy()
    assert Policy().min_batch == 8
    assert not Policy().allow_other_file


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("min_batch = 0", "min_batch=0: expected a whole number of at least 1"),
        ("min_batch = 1.5", "min_batch=1.5: expected a whole number"),
        ("min_batch = true", "min_batch=True: expected a whole number"),
        ("min_batch = 9\nmax_batch = 8", "min_batch=9: expected at most max_batch=8"),
        ("allow_other_file = 1", "allow_other_file=1: expected true or false"),
        ("smallest = 3", "has 'smallest': expected min_batch, max_batch"),
        ("min_batch = ", "expected a TOML file"),
        ("\x80", "expected a TOML file"),
    ],
)
def test_a_bad_policy_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(ValueError, match=sentence):
        read_policy(path, {})


def test_at_most_so_many_in_any_minute() -> None:
    now = [0.0]
    meter = Meter(3, clock=lambda: now[0])
    taken = []
    for now[0] in (0.0, 30.0, 59.0, 59.9, 60.0, 61.0, 90.0, 90.0):
        taken.append((now[0], meter.take()))
    assert [t for t, ok in taken if ok] == [0.0, 30.0, 59.0, 60.0, 90.0]


class Idle:
    """A Dialler that calls nobody."""

    def __init__(self, *given: Any, **named: Any) -> None: ...

    async def run(self) -> None: ...


def started(folder: Path, rows: int, test: int, *options: str) -> Any:
    (folder / "file.py").write_text(FILE.format(rows=rows, test=test))
    kit = str(folder / "kits" / "sites" / "a")
    given = ["site", str(folder / "file.py"), "--kit", kit, "--connect", "127.0.0.1:1"]
    return CliRunner().invoke(main, [*given, *options])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kits.init(tmp_path / "kits", ["a"], ["127.0.0.1"], 2)
    monkeypatch.setattr(site, "Dialler", Idle)
    return tmp_path


@pytest.mark.parametrize(
    ("rows", "test", "options", "sentence"),
    [
        (7, 7, (), "train part has 7 rows: expected at least min_batch=8"),
        (20, 3, (), "test part has 3 rows: expected at least min_batch=8"),
        (20, 20, ("--min-batch", "21"), "train part has 20 rows: expected at least min_batch=21"),
        (20, 20, ("--max-parameters", "5"), "has 6 parameters: expected at most max_parameters=5"),
        (20, 20, ("--min-batch", "0"), "min_batch=0: expected a whole number"),
        (20, 20, ("--policy", "nowhere.toml"), "expected a TOML file"),
        (7, 7, ("--min-batch", "7"), None),
        (8, 8, (), None),
    ],
)
def test_a_site_that_is_too_small_does_not_start(
    rows: int, test: int, options: tuple[str, ...], sentence: str | None, folder: Path
) -> None:
    done = started(folder, rows, test, *options)
    assert done.exit_code == (0 if sentence is None else 2), done.output
    assert sentence is None or sentence in done.output


# ---------------------------------------------------------------- batch.key


def test_the_key_is_made_once_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kits.init(tmp_path / "kits", ["a", "b"], ["127.0.0.1"], 2)
    a, b = (tmp_path / "kits" / "sites" / name for name in "ab")
    assert not (a / kits.BATCHES).exists()  # whoever makes the kits does not know it
    first = kits.batch_key(a)
    assert len(first) == 32
    assert (a / kits.BATCHES).stat().st_mode & 0o777 == 0o600
    assert kits.batch_key(a) == first
    assert kits.batch_key(b) != first
    assert "can be read by others" not in caplog.text
    (a / kits.BATCHES).chmod(0o644)
    kits.batch_key(a)
    assert "can be read by others" in caplog.text
    (a / kits.BATCHES).write_bytes(b"short")
    with pytest.raises(ValueError, match="has 5 bytes: expected 32"):
        kits.batch_key(a)
    b.joinpath(kits.BATCHES).unlink()
    b.joinpath(kits.BATCHES).mkdir()
    with pytest.raises(ValueError, match="expected a readable file"):
        kits.batch_key(b)


def keyed(key: bytes, rows: int, batch: int | None = 16) -> Any:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 2, generator=rng)
    made = build(torch.nn.Linear(2, 2), {"a": (x, (x[:, 0] > 0).long())}, batch_size=batch)
    return made.sites[0], made.sites[0].keyed(key)


def test_the_key_draws_batches_and_the_sample_for_losses() -> None:
    """Each is uniform, a function of the key, and not the one of the seed."""
    plain, one = keyed(b"k" * 32, 20_000)
    other = plain.keyed(b"l" * 32)
    again = plain.keyed(b"k" * 32)
    w = torch.zeros(6)
    for draw in (0, 1, 2**40):
        drawn = [x.gradient(w, draw) for x in (plain, one, other, again)]
        assert torch.equal(drawn[1], drawn[3])
        assert not torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[1], drawn[2])
    assert plain.sample is not None
    samples = [set(x.sample.tolist()) for x in (plain, one, other, again)]
    assert samples[1] == samples[3]
    assert len({frozenset(s) for s in samples}) == 3
    assert {len(s) for s in samples} == {len(plain.sample)}
    there = torch.arange(6.0)
    assert one.loss(there) != plain.loss(there)


def test_drawing_by_a_key_is_uniform() -> None:
    counts = np.zeros(10)
    for n in range(2_000):
        np.add.at(counts, batches.secret_indices(b"x" * 32, n, size=10, count=16).numpy(), 1)
    expected = counts.sum() / 10
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # chi-square, 9 degrees, 0.1 %


def test_whole_sites_need_no_key() -> None:
    plain, one = keyed(b"k" * 32, 50, None)
    w = torch.full((6,), 0.1)
    assert torch.equal(plain.gradient(w, 0), one.gradient(w, 3))

"""The benchmarks that docs/performance.md names work: run small, and what they write is checked."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reproduction import results
from reproduction.cells import Cell

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"


def run(*words: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), env.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *words], cwd=BENCHMARKS, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_scale(tmp_path):
    out = tmp_path / "scale.json"
    run("scale.py", "--sites", "300", "--baseline", "20", "--updates", "200", "--threads", "1",
        "--out", str(out))  # fmt: skip
    found = json.loads(out.read_text())
    few, many, again = found["runs"]
    assert [one["sites"] for one in found["runs"]] == [20, 300, 20]
    assert few["worst_case_loss"] == again["worst_case_loss"]  # the same run, to the bit
    # 13 gradients a probe; the rest are the steps, some of them checked by a second gradient
    assert 200 <= many["gradients"] - 13 * 300 <= 2 * 200
    assert many["gib_peak"] >= many["gib_before_training"]
    assert found["update_cost_ratio"] > 0


@pytest.mark.slow
def test_memory(tmp_path):
    pytest.importorskip("ray", reason="the extra ray is not installed")
    pytest.importorskip("grpc", reason="needs aspire-ease[federation]")
    out = tmp_path / "memory.json"
    run("memory.py", "--parameters", "100000", "--few", "3", "--many", "9", "--out", str(out))
    found = json.loads(out.read_text())
    assert [(one["engine"], one["sites"]) for one in found["runs"]] == [
        *(("ray", 3), ("ray", 9), ("federation", 3), ("federation", 9))
    ]
    for one in found["runs"]:
        assert one["gradients"] >= one["sites"] - 1
        assert one["absences"] == []
    assert set(found["ratios"]) == {"ray", "federation"}


@pytest.mark.slow
@pytest.mark.parametrize("script", ["run.py", "cost.py", "direct.py"])
def test_quick_benchmarks_run_and_write_nothing(script):
    files = {path: path.stat().st_mtime_ns for path in BENCHMARKS.glob("*.json")}
    said = run(script, "--quick")
    expected = {"run.py": "HiGHS", "cost.py": "exponent", "direct.py": "times_slower"}
    assert expected[script] in said
    assert files == {path: path.stat().st_mtime_ns for path in BENCHMARKS.glob("*.json")}


def test_the_frontier_is_compared_with_a_sweep_from_scratch():
    pytest.importorskip("sklearn", reason="needs aspire-ease[demo]")
    said = run("frontier.py", "--quick", "--only", "demo")
    assert "demo: 0." in said
    assert "80.0" in said


def load(name: str):
    """A benchmark as a module; what it imports beside itself is not needed here."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_peers_are_compared_by_their_ratios_to_the_plain_loop():
    peers = load("peers/run")
    found = peers.multiples(
        {"S = 1": {"ratio_to_plain": 1.0}, "S = 50": {"ratio_to_plain": 6.0}},
        {
            "a": {"version": "1", "synchronous": {"ratio_to_plain": 0.5}},
            "b": {"version": "2", "synchronous": {"ratio_to_plain": 0.2},
                  "asynchronous": {"ratio_to_plain": 0.1}},
            "c": {"not_measured": "it does not install"},
        },
    )  # fmt: skip
    assert found["ours_best_ratio_to_plain"] == 6.0
    assert found["fastest_peer"] == {"name": "a synchronous", "ours_times_it": 12.0, "wanted": 10.0}
    assert found["fastest_asynchronous_peer"]["ours_times_it"] == 60.0


def test_a_peer_that_fails_is_listed_with_the_reason(monkeypatch, capsys):
    peers = load("peers/run")
    monkeypatch.setattr(peers, "installed", lambda name, wanted: Path(sys.executable))
    peer = {"install": "nothing", "runs": {"synchronous": ["no_such_file.py"]}}
    found = peers.measure("pytest", peer)
    assert "no_such_file.py" in found["not_measured"]
    assert "not measured" in capsys.readouterr().out


def test_the_fitted_exponent_is_that_of_a_power(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    cost = load("cost")
    values = [1, 10, 100, 1000]
    assert cost.exponent(values, [3.0 * v**0.7 for v in values]) == pytest.approx(0.7)


def test_cells_made_again_are_compared_but_for_seconds_and_versions(tmp_path):
    again = load("again")

    def put(folder: str, seed: int, **figures: object) -> None:
        cell = Cell("table1", "sc-ma", "afl", seed, "afl", 100)
        path = results.path_of(tmp_path / folder, "table1")
        results.add(path, [{**cell.plain(), **figures, "history": {}}])

    for folder, seconds in (("one", 1.0), ("two", 2.0)):
        put(folder, 0, worst_accuracy=0.5, worst_case_loss=float("nan"), wall_seconds=seconds)
    for seed, one, two in ((1, 0.5, 0.75), (2, 0.5, 0.5 + 1e-16), (3, 0.5, 0.25), (4, 0.5, 0.53)):
        put("one", seed, worst_accuracy=one, accuracies=[1.0, one / 3])
        put("two", seed, worst_accuracy=two, accuracies=[1.0, two / 3 * (1 + 1e-15)])
    put("one", 5, worst_accuracy=0.5)
    found = again.compare(again.cells(tmp_path / "one"), again.cells(tmp_path / "two"))
    row = found.pop("table1/sc-ma/afl")
    assert found == {}
    assert (row["same"], row["rounded"]) == (1, 1)
    assert row["points"] == pytest.approx({"1": 25.0, "3": -25.0, "4": 3.0})
    assert row["mean"] == pytest.approx(1.0)
    assert row["error"] == pytest.approx(14.4683, abs=1e-4)  # the root of 628 / 3
    assert row["within"]


def test_cells_are_drawn_by_the_seed_as_they_were(tmp_path):
    again = load("again")
    settings = {"rate": 0.5}
    made = [Cell("table1", "sc-ma", "afl", k, "afl", 100, settings=settings) for k in range(8)]
    records = [{**cell.plain(), "history": {}} for cell in made]
    results.add(results.path_of(tmp_path, "table1"), records)
    some = again.drawn(tmp_path, 3, seed=1)
    assert some == again.drawn(tmp_path, 3, seed=1)
    assert len(some) == 3
    assert all(cell in made for cell in some)
    assert sorted(cell.seed for cell in again.drawn(tmp_path, 99, seed=1)) == list(range(8))

"""Flower on one machine: a SuperLink, a SuperNode per site, `flwr run`, and what a message costs.

python benchmarks/flower.py                        the example project, 30 messages of K = 50 steps
python benchmarks/flower.py --iterations 200       the same with 200
python benchmarks/flower.py --project DIR          another project

Everything is on 127.0.0.1 without TLS and ends with the run. Nothing is installed or reported home:
dependency installation, telemetry and the update check are off.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "flower"
SITES = ("north", "east", "sideways")
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # 1 s unless told, twice a message
    "OMP_NUM_THREADS": "1",
}
CONNECTION = """\
[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:{port}"
insecure = true
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def environment(home: Path, port: int) -> dict[str, str]:
    """Flower's home apart from the user's; its programs and ours found first."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(CONNECTION.format(port=port), encoding="utf-8")
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    source = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **QUIET,
        "FLWR_HOME": str(home),
        "PATH": os.pathsep.join(paths),
        "PYTHONPATH": os.pathsep.join(p for p in source if p),
    }


@contextlib.contextmanager
def started(
    command: Sequence[str], log: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all that it starts; ended by its process group."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def federation(sites: Sequence[str], folder: Path) -> Iterator[dict[str, str]]:
    """A SuperLink and a SuperNode per site; yields the environment for `flwr run`."""
    port = free_port()
    env = environment(folder / "flwr", port)
    link = [
        "flower-superlink",
        "--insecure",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--disable-runtime-dependency-installation",
    ]
    with contextlib.ExitStack() as stack:
        stack.enter_context(started(link, folder / "superlink.log", env))
        for name in sites:
            node = [
                "flower-supernode",
                "--insecure",
                "--superlink",
                f"127.0.0.1:{port}",
                "--port",
                str(free_port()),
                "--node-config",
                f'site="{name}"',
            ]
            stack.enter_context(started(node, folder / f"{name}.log".replace(" ", "-"), env))
        _wait_for(port)
        yield env


def _wait_for(port: int, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.2)
    raise RuntimeError(f"the SuperLink does not listen on port {port} after {seconds:g} s")


def flwr_run(
    project: Path, env: dict[str, str], out: Path, timeout: float, **config: Any
) -> dict[str, Any]:
    """`flwr run`, then wait for result.json; the result."""
    config = {"out": str(out), **{k.replace("_", "-"): v for k, v in config.items()}}
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    command = ["flwr", "run", str(project), "here", "--run-config", words, "--format", "json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    answer = json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}
    if not answer.get("success"):
        raise RuntimeError(f"flwr run failed: {done.stdout}{done.stderr}")
    run = answer["run-id"]
    end = time.monotonic() + timeout
    turn = 0
    while time.monotonic() < end and not (out / "result.json").exists():
        turn += 1
        if turn % 40 == 0 and _has_ended(run, env):  # the question itself starts a process
            break
        time.sleep(0.5)
    if (out / "result.json").exists():
        return dict(json.loads((out / "result.json").read_text(encoding="utf-8")))
    said = subprocess.run(
        ["flwr", "log", run, "here", "--show"], env=env, capture_output=True, text=True, timeout=120
    )
    raise RuntimeError(f"no result within {timeout:g} s; the ServerApp said:\n{said.stdout}")


def _has_ended(run: str, env: dict[str, str]) -> bool:
    command = ["flwr", "list", "here", "--run-id", run, "--format", "json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    return '"status": "finished' in done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--project", type=Path, default=EXAMPLE)
    parser.add_argument("--sites", nargs="+", default=SITES)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with federation(given.sites, folder) as env:
            result = flwr_run(
                given.project, env, folder / "run", 60 * given.minutes, iterations=given.iterations
            )
        figures = latencies(folder / "run" / "events.jsonl", result)
    print(json.dumps(figures, indent=2))
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def latencies(events: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Messages a second over the whole run, and seconds from a site's report to its next."""
    lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    reports = [line for line in lines if line.get("event") == "report"]
    before: dict[int, float] = {}
    trips = []
    for line in reports:
        if line["worker"] in before:
            trips.append(line["time"] - before[line["worker"]])
        before[line["worker"]] = line["time"]
    trips.sort()
    span = reports[-1]["time"] - reports[0]["time"]
    return {
        "messages": len(reports),
        "messages_per_second": (len(reports) - 1) / span,
        "seconds_per_message": {"median": trips[len(trips) // 2], "most": trips[-1]},
        "iterations": result["iterations"],
        "worker_gradients": result["worker_gradients"],
        "worst_accuracy": result["worst_accuracy"],
        "accuracies": result["accuracies"],
    }


if __name__ == "__main__":
    main()

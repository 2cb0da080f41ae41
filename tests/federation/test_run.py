"""Real processes: a server and three sites train, die, come back and end well."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")
from aspire.engines.grpc import kits

FILE = """
import torch

def model():
    return torch.nn.Linear(64, 10)

def sites():
    return ["a", "b", "c"]

def site(name):
    with open(f"loaded-{name}", "a") as file:
        file.write("once\\n")
    return data(name)
"""
DIGITS = """
def data(name):
    from reproduction import demo
    made = demo.sites(0)
    return made[list(made)[{"a": 0, "b": 3, "c": 5}[name]]]
"""
NOISE = """
def data(name):
    seed = torch.Generator().manual_seed(ord(name))
    x = torch.randn(200, 64, generator=seed)
    return x, x[:, :10].argmax(1)
"""


VALIDATED = """
def data(name):
    seed = torch.Generator().manual_seed(ord(name))
    x = torch.randn(250, 64, generator=seed)
    y = x[:, :10].argmax(1)
    noise = torch.randint(0, 10, (50,), generator=seed)  # its loss rises soon
    return {"train": (x[:200], y[:200]), "val": (x[200:], noise)}
"""


VECTORS = ("--log", "vectors")  # a federation's reports cannot be computed again


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stage:
    """A folder with kits and FILE.py, and the processes in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        kits.init(folder / "kits", ["a", "b", "c"], ["localhost", "127.0.0.1"], 2)
        (folder / "file.py").write_text(FILE + NOISE)
        self.port = free_port()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        process = subprocess.Popen(
            [sys.executable, "-m", "aspire", *arguments], cwd=self.folder, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def server(self, *options: str) -> subprocess.Popen[str]:
        listen = f"127.0.0.1:{self.port}"
        return self.start(
            "server", "file.py", "--kit", "kits/server", "--listen", listen, "--out", "run",
            *options,
        )  # fmt: skip

    def site(self, name: str, kit: str | None = None) -> subprocess.Popen[str]:
        connect = f"127.0.0.1:{self.port}"
        return self.start(
            "site", "file.py", "--kit", kit or f"kits/sites/{name}", "--connect", connect
        )

    def iteration(self) -> int:
        path = self.folder / "run" / "status.json"
        return json.loads(path.read_text())["iteration"] if path.exists() else 0

    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "run" / "result.json").read_text())

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.end()


def until(true: Callable[[], Any], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out + err


def replayed(stage: Stage) -> str:
    return ended(stage.start("replay", "run"))


@pytest.mark.slow
def test_a_run_stops_by_its_validation_parts_and_is_extended(stage: Stage) -> None:
    """The server knows no data: what it selects and when it stops comes from the sites' answers."""
    (stage.folder / "file.py").write_text(FILE + VALIDATED)
    few = ("--evaluate-every", "20", "--patience-evaluations", "3", *VECTORS)
    server = stage.server("--iterations", "100000", *few)
    sites = [stage.site(name) for name in "abc"]
    assert "the worst site has not improved for 3 evaluations" in ended(server)
    assert all("The run is over" in ended(site) for site in sites)
    first = stage.result()
    assert first["ended_by"] == "patience_evaluations"
    assert first["val_samples"] == [50, 50, 50]
    assert first["selected"]["rule"] == "worst_loss"
    assert first["selected"]["worst_val_loss"] == max(first["val_losses"])
    total = first["iterations"] + 40
    more = ("--iterations", str(total), "--patience-evaluations", "1000")
    server = stage.start("resume", "run", *more)
    sites = [stage.site(name) for name in "abc"]
    assert f"{total} iterations" in ended(server)
    assert all("The run is over" in ended(site) for site in sites)
    assert stage.result()["ended_by"] == "iterations"
    assert "bit for bit" in replayed(stage)


def test_a_run(stage: Stage) -> None:
    """Each site loads its own data, once; all end; the log replays to the same bits."""
    pytest.importorskip("sklearn", reason="needs aspire-ease[demo]")
    (stage.folder / "file.py").write_text(FILE + DIGITS)
    scalars = ["--tensorboard"] if find_spec("tensorboard") else []
    server = stage.server("--iterations", "900", "--evaluate-every", "300", *VECTORS, *scalars)
    sites = [stage.site(name) for name in "abc"]
    said = ended(server)
    assert "worst site" in said
    assert not scalars or list((stage.folder / "run" / "tensorboard").iterdir())
    assert all("The run is over" in ended(site) for site in sites)
    assert all((stage.folder / f"loaded-{n}").read_text() == "once\n" for n in "abc")
    result = stage.result()
    assert result["iterations"] == 900
    assert result["worst_accuracy"] > 0.6
    assert result["evaluated_on"] == "test"
    assert result["train_losses"] == result["losses"]
    assert all(0 < loss < 3 for loss in result["test_losses"])
    assert result["train_samples"] == [200, 200, 200]
    assert result["test_samples"] == [100, 99, 99]
    assert "bit for bit" in replayed(stage)


def test_long_vectors_replay_to_the_same_bits(stage: Stage) -> None:
    """A gradient must not see where its parameters lay in a message."""
    layers = "Linear(64, 999), torch.nn.Tanh(), torch.nn.Linear(999, 10)"
    wide = FILE.replace("Linear(64, 10)", f"Sequential(torch.nn.{layers})")
    (stage.folder / "file.py").write_text(wide + NOISE)
    server = stage.server("--iterations", "150", "--batch-size", "20", *VECTORS)
    sites = [stage.site(name) for name in "abc"]
    ended(server)
    assert all("The run is over" in ended(site) for site in sites)
    assert "bit for bit" in replayed(stage)


@pytest.mark.slow
def test_killed_sites_and_a_killed_server_come_back(stage: Stage) -> None:
    """kill -9 of a site costs it one task; kill -9 of the server, what came after a checkpoint."""
    server = stage.server("--iterations", "1500", "--checkpoint-seconds", "0.2", *VECTORS)
    sites = {name: stage.site(name) for name in "abc"}
    until(lambda: stage.iteration() > 100)
    sites["b"].kill()
    sites["b"] = stage.site("b")
    until(lambda: stage.iteration() > 400)
    server.kill()
    server.communicate()
    assert all(site.poll() is None for site in sites.values())
    said = ended(stage.start("resume", "run"))
    assert "1500 iterations" in said
    assert all("The run is over" in ended(site) for site in sites.values())
    assert stage.result()["worst_accuracy"] > 0.3  # by chance it would be 0.1
    assert "bit for bit" in replayed(stage)


def invoked(stage: Stage, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> Any:
    from click.testing import CliRunner

    from aspire.cli import main

    monkeypatch.chdir(stage.folder)
    return CliRunner().invoke(main, arguments)


def test_a_stopped_server_leaves_its_sites_waiting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is of level full, so nobody can compute its reports again."""
    server = stage.server("--iterations", "100000")
    site = stage.site("a")
    others = [stage.site(name) for name in "bc"]
    until(lambda: stage.iteration() > 20)
    server.send_signal(signal.SIGTERM)
    said = ended(server, 130)
    assert "Interrupted: stopped after" in said
    assert said.endswith("; continue with: aspire resume run\n")
    time.sleep(0.5)
    assert all(process.poll() is None for process in (site, *others))
    done = invoked(stage, monkeypatch, ["replay", "run"])
    assert done.exit_code == 2
    assert "draw their batches by secret keys, so their reports cannot be computed" in done.output


def test_a_run_does_not_start_without_its_sites(stage: Stage) -> None:
    """All that are listed, unless --min-sites says fewer; who is missing is named."""
    server = stage.server("--iterations", "50", "--patience", "3")
    stage.site("b")
    said = ended(server, 2)
    found = re.search(r"min_sites=3: after 3 s the first answer of (.*) is missing", said)
    assert found is not None
    assert {"a", "c"} <= set(found[1].split(", ")) <= {"a", "b", "c"}
    assert not (stage.folder / "run" / "result.json").exists()


def test_sites_that_are_away_stop_no_run_and_are_named(stage: Stage) -> None:
    """c never comes; b hangs, so that the run waits for it, and is taken off the list."""
    server = stage.server("--iterations", "4000", "--min-sites", "2", "--staleness", "20")
    sites = {name: stage.site(name) for name in "ab"}
    until(lambda: stage.iteration() > 100)
    sites["b"].send_signal(signal.SIGSTOP)
    (stage.folder / "kits" / "server" / "sites.txt").write_text("a\n")
    said = ended(server)
    assert "The run is over" in ended(sites["a"])
    c, b = stage.result()["absences"]
    assert c == {"site": "c", "from": 0, "to": None, "reason": "was not here at the start"}
    assert (b["site"], b["to"]) == ("b", None)
    assert 100 < b["from"] < 4000
    assert "AWAY: site c, from iteration 0 to the end: was not here at the start" in said
    assert f"AWAY: site b, from iteration {b['from']} to the end: {b['reason']}" in said
    assert [row.split()[1:3] for row in said.splitlines() if row.startswith(("b ", "c "))] == [
        ["0.000", "-"],
        ["0.000", "-"],
    ]


def test_a_site_off_the_list_is_cut_off_and_a_second_process_replaces_the_first(
    stage: Stage,
) -> None:
    server = stage.server("--iterations", "100000", "--patience", "5")
    sites = {name: stage.site(name) for name in "abc"}
    until(lambda: stage.iteration() > 20)
    again = stage.site("a")
    assert "a has connected again elsewhere" in ended(sites["a"], 2)
    (stage.folder / "kits" / "server" / "sites.txt").write_text("a\nb\n")
    assert "c is no longer on the list of sites" in ended(sites["c"], 2)
    assert "is not on the list of sites" in ended(stage.site("c"), 2)
    at = stage.iteration()
    until(lambda: stage.iteration() > at + 50)
    assert again.poll() is None
    assert server.poll() is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["site", "file.py", "--kit", "nowhere", "--connect", "localhost:1"], "has no key.pem"),
        (["site", "none.py", "--kit", "kits/sites/a", "--connect", "localhost:1"], "none.py"),
        (["server", "file.py", "--kit", "kits/server", "--listen", "x", "--out", "r"], "HOST:PORT"),
        (
            ["server", "file.py", "--kit", "kits/sites/a", "--listen", "localhost:0", "--out", "r"],
            "has no sites.txt",
        ),
        (
            ["server", "file.py", "--kit", "kits/server", "--listen", "localhost:0", "--out", "r",
             "--max-message", "0"],
            "max_message=0.0 MB: expected at least 1",
        ),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_sentence(
    stage: Stage, arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = invoked(stage, monkeypatch, arguments)
    assert result.exit_code == 2
    assert sentence in result.output

"""A federation of real processes with one scripted enemy, run to its end and looked at closely."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from aspire.api.job import Job
from aspire.api.user_file import job_of, read
from aspire.engines.grpc import kits
from aspire.methods.aspire_ease.consensus_state import weights
from aspire.runs import log
from aspire.types import Joined, Left, Refused
from tests.federation.enemy import Enemy, Say, is_let_in
from tests.federation.processes import Command

HONEST = ("a", "b", "c")
NAMES = (*HONEST, "enemy")
TEST = 1000  # samples a site
STEPS = 300  # three runs' mean accuracy is then good to 0.3 points
MAKING = threading.Lock()  # a model is made with torch's one generator, and tests have threads
LONGEST = 180.0  # seconds that a run may take on a busy machine
FILE = """
import torch

ANGLES = {"a": 0.0, "b": 0.15, "c": -0.15}

def model():
    return torch.nn.Linear(12, 3)

def sites():
    return ["a", "b", "c", "enemy"]

def site(name):
    rng = torch.Generator().manual_seed(7)
    truth = torch.randn(12, 3, generator=rng)
    turn = torch.randn(12, 3, generator=rng)
    rng.manual_seed(ord(name[0]))
    x = torch.randn(400 + 1000, 12, generator=rng)
    scores = x @ (truth + ANGLES[name] * turn)
    y = (scores + torch.randn(scores.shape, generator=rng)).argmax(1)
    return {"train": (x[:400], y[:400]), "test": (x[400:], y[400:])}
"""


@dataclass
class Outcome:
    """What became of one run."""

    code: int
    accuracies: dict[str, float]  # of the honest sites, in percent
    status: dict[str, Any]
    memory: int  # bytes, the server's peak
    said: str
    sites: dict[str, int]  # exit codes
    folder: Path
    enemy: Enemy | None

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in self.status["sites"] if row["name"] == name)


class Arena:
    """Kits and a FILE.py; `fight` is one run in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, itertools.count(1)
        kits.init(folder / "kits", list(NAMES), ["localhost", "127.0.0.1"], 2)
        (folder / "file.py").write_text(FILE)
        self.start = torch.zeros(12 * 3 + 3)

    def fight(
        self,
        say: Say | None,
        seed: int = 0,
        *options: str,
        disturb: Callable[[int], Any] | None = None,
    ) -> Outcome:
        """`say`: how the enemy answers, None: it does not come. `disturb` is called with the port
        while the run goes on. Whoever is let in is there from the start."""
        here = self.folder / f"run-{next(self.runs)}"
        here.mkdir()
        file, kit = str(self.folder / "file.py"), str(self.folder / "kits")
        least = len(NAMES) if say is not None and is_let_in(say) else len(HONEST)
        given = ["--kit", f"{kit}/server", "--listen", "127.0.0.1:0", "--out", "run"]
        given += ["--iterations", str(STEPS), "--evaluate-every", "100", "--log", "vectors"]
        given += ["--seed", str(seed), "--patience", "60", "--min-sites", str(least), *options]
        server = Command("server", ["server", file, *given], here)
        port = listening(server)  # so that no site has to come again
        dial = ["--connect", f"127.0.0.1:{port}"]
        sites = {
            name: Command(name, ["site", file, "--kit", f"{kit}/sites/{name}", *dial], here)
            for name in HONEST
        }
        enemy = None
        if say is not None:
            enemy = Enemy(self.folder / "kits", "enemy", port, self.start, say)
            enemy.begin()
        try:
            if disturb is not None:
                disturb(port)
            return self.ended(here, server, sites, enemy)
        finally:
            if enemy is not None:
                enemy.stop.set()
            for process in (server, *sites.values()):
                process.kill()

    def ended(
        self, here: Path, server: Command, sites: dict[str, Command], enemy: Enemy | None
    ) -> Outcome:
        peak, end = 0, time.monotonic() + LONGEST
        while server.process.exitcode is None and time.monotonic() < end:
            peak = max(peak, server.memory())
            server.process.join(0.02)
        code = server.wait(1.0)
        assert code == 0, server.said
        if enemy is not None:
            enemy.end()
        status = json.loads((here / "run" / "status.json").read_text())
        codes = {name: process.wait(30.0) for name, process in sites.items()}
        found = accuracies(self.folder / "file.py", here / "run")
        return Outcome(code, found, status, peak, server.said, codes, here / "run", enemy)


def listening(server: Command) -> int:
    """The server's port, once somebody answers there."""
    end = time.monotonic() + LONGEST
    while time.monotonic() < end and server.process.exitcode is None:
        found = re.search(r"Listening on 127\.0\.0\.1:(\d+)", server.said)
        with contextlib.suppress(OSError):
            if found is not None:
                socket.create_connection(("127.0.0.1", int(found[1]))).close()
                return int(found[1])
        time.sleep(0.02)
    raise AssertionError(server.said)


def accuracies(file: Path, run: Path) -> dict[str, float]:
    """Of the saved model on the honest sites' test parts, in percent."""
    space: dict[str, Any] = {}
    exec(file.read_text(), space)
    with MAKING:
        model = space["model"]()
    model.load_state_dict(load_file(run / "model.safetensors"))
    found = {}
    for name in HONEST:
        x, y = space["site"](name)["test"]
        assert len(y) == TEST
        found[name] = 100.0 * float((model(x).argmax(1) == y).double().mean())
    return found


def job_of_run(file: Path, run: Path) -> Job:
    settings = json.loads((run / "run.json").read_text())
    with MAKING:
        return job_of(read(file), settings["source"]["options"], only=[], names=settings["sites"])


def weights_stay_within_the_set(job: Job, run: Path) -> int:
    """Absorb the logged events once more and look at every step: pi_j <= u_j. The steps seen."""
    master, _ = job.method.init(job.problem.facts(), job.seed)
    events, _ = log.read(run / log.NAME)
    for record in events:
        kind, j = record["event"], record["worker"]
        event: Any = Left(j) if kind == "left" else Joined(j)
        if kind == "report":
            event = log.kept(run / log.NAME, record)
        master, _, infos = job.method.absorb(master, [event])
        assert not any(isinstance(info, Refused) for info in infos)
        found = weights(master)
        assert np.isfinite(found).all()
        assert not master.started or (found <= master.upper + 1e-9).all()
        assert bool(torch.isfinite(master.z).all())
    return int(master.t)


def mean_accuracies(outcomes: Sequence[Outcome]) -> dict[str, float]:
    return {
        name: float(np.mean([outcome.accuracies[name] for outcome in outcomes])) for name in HONEST
    }

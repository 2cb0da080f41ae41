"""Ray, really: actors that are killed, a driver that is killed, and the replay of what they did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from aspire.runtimes import log
from aspire.runtimes.driver import Back, Driver, Gone, begin
from aspire.runtimes.replay import replay_events
from aspire.train import prepare, replay, train
from aspire.train.engines import crew_and_job
from aspire.train.file import job_of, read
from aspire.train.job import few_threads
from aspire.types import Task
from tests.helpers import blobs, linear

ray = pytest.importorskip("ray", reason="the extra ray is not installed")

from aspire.clusters.ray import NAMESPACE, Ray, placement  # noqa: E402
from aspire.clusters.shared import REPORT, TASK, Segment  # noqa: E402

QUICK = {"iterations": 60, "batch_size": 8, "evaluate_every": 20}
FILE = """
import numpy as np
import torch


def model():
    return torch.nn.Linear(3, 2)


def sites():
    return ["a", "b"]


def site(name):
    rng = np.random.default_rng(ord(name))
    x = rng.standard_normal((60, 3)).astype(np.float32)
    y = (x @ rng.standard_normal(3) > 0.2).astype(np.int64)
    return {"train": (x[:30], y[:30]), "test": (x[30:], y[30:])}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster that outlives its drivers, as `ray start` makes one; its own session folder."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={
        "num_cpus": 2, "include_dashboard": False, "resources": {"site:x": 1, "site:y": 1},
    })  # fmt: skip
    yield made.address
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def connected(cluster):
    ray.init(cluster, namespace=NAMESPACE, log_to_driver=False)
    yield cluster
    ray.shutdown()


def pids(carrier) -> list[int]:
    return ray.get([carrier.wake(j) for j in range(len(carrier.actors))])


def events_of(folder):
    return log.read(folder / log.NAME)[0]


def test_train_on_ray_replays_on_the_simulator(connected, tmp_path):
    run = train(linear(), blobs(2), engine=Ray(), out=tmp_path / "r", **QUICK)
    assert run.iterations == 60
    assert run.evaluated_on == "test"
    assert run.history[-1]["t"] == 60
    events, _ = replay(tmp_path / "r", prepare(linear(), blobs(2), **QUICK))
    assert events == 62
    assert ray.util.list_named_actors() == []


def wide(sites):
    """A model whose vectors are too long to go with a call."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(sites, 20, 9000, generator=draw)
    torch.manual_seed(0)
    return torch.nn.Linear(9000, 2), {
        f"s{j}": (x[j], (x[j, :, j] > 0).long()) for j in range(sites)
    }


@pytest.mark.parametrize("near", [True, False])
def test_long_vectors_by_memory_or_by_ray(connected, tmp_path, monkeypatch, near):
    """Actors that cannot reach the memory, as on another machine, get them all the same."""
    make, made = Segment.make, []

    def noted(room):
        segment = make(room)
        if not near:
            path, token, room = segment.address
            segment.address = (path, token[::-1], room)
        made.append(segment)
        return segment

    monkeypatch.setattr(Segment, "make", noted)
    model, sites = wide(2)
    train(model, sites, engine=Ray(), out=tmp_path / "r", **QUICK)
    assert {segment.take(TASK, {"v": ("<f4", (9,))})["v"].any() for segment in made} == {True}
    wrote = {segment.take(REPORT, {"w": ("<f4", (9,))})["w"].any() for segment in made}
    assert wrote == {near}
    assert replay(tmp_path / "r", prepare(model, sites, **QUICK))[0] == 62


@pytest.mark.parametrize(
    "given", [lambda: (linear(), blobs(3)), lambda: wide(3)], ids=["short", "long"]
)
def test_killed_and_stopped_actors(connected, tmp_path, given):
    """kill -9 is no event: the task is done again. SIGSTOP raises nothing: patience sees it."""
    crew, job = crew_and_job(*given(), QUICK)
    carrier = Ray().open(crew, job.problem.names, "killed")
    first = pids(carrier)
    state = begin(job.method, job.problem.facts(), 0)
    trail = log.EventLog("full", tmp_path / log.NAME)
    driver = Driver(job.method, carrier, job.problem.names, state, trail, patience=60.0)
    driver.run(lambda s: s.master.t >= 20)
    os.kill(first[0], signal.SIGKILL)
    reports, before = state.reports[0], {j: x.address for j, x in carrier.segments.items()}
    driver.run(lambda s: s.reports[0] > reports + 3)
    # what is left of the old process cannot write where the new one does
    kept = {j for j, x in carrier.segments.items() if before[j] == x.address}
    assert kept == set(before) - {0}
    assert {e["event"] for e in events_of(tmp_path)} == {"report"}
    os.kill(first[1], signal.SIGSTOP)
    driver.patience = 1.0
    driver.run(lambda s: 1 in s.away)
    os.kill(first[1], signal.SIGCONT)
    reports = state.reports[1]
    driver.run(lambda s: s.reports[1] > reports + 1)  # its probe, and then a step
    now = pids(carrier)
    carrier.close()
    assert [a == b for a, b in zip(first, now, strict=True)] == [False, True, True]
    events = events_of(tmp_path)
    assert {"left", "joined"} <= {e["event"] for e in events if e["worker"] == 1}
    alone = prepare(*given(), **QUICK)
    with few_threads(alone, one=True):  # as in an actor
        again = replay_events(job.method, alone.problem, events, 0, exact=True)
    assert log.digest(again) == log.digest(state.master)


def test_a_site_that_does_not_load_is_told(connected):
    with pytest.raises(ValueError, match=r"site 's1'.*expected"):
        train(linear(), blobs(2) | {"s1": 3}, engine=Ray(), **QUICK)
    assert ray.util.list_named_actors() == []


def test_sites_are_placed_where_their_data_is(connected):
    found = placement(["x", "y"])
    assert found == {"x": {"resources": {"site:x": 0.001}}, "y": {"resources": {"site:y": 0.001}}}
    assert placement(["s0", "s1"]) == {"s0": {}, "s1": {}}
    with pytest.raises(ValueError, match="site=z"):
        placement(["x", "z"])


def test_work_that_fails_is_gone_until_it_is_back(connected):
    """One site's work raises; it is said once, and the site is asked until it answers."""
    crew, _job = crew_and_job(linear(), {"x": blobs(1)["s0"]}, QUICK)
    carrier = Ray().open(crew, ("x",), "failing")  # placed by its resource
    carrier.send([Task(0, 0, "probe", {"w": torch.zeros(3)}, {"draws": 0.0})])
    found = []
    while len(found) < 2:
        found += carrier.receive(1.0)
    carrier.close()
    assert isinstance(found[0], Gone)
    assert found[1] == Back(0)


def aspire(*arguments, **more):
    command = [sys.executable, "-m", "aspire", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more
    )


def wait_for(process, condition, seconds=300.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < limit
        time.sleep(0.05)


def checkpointed(folder: Path) -> int:
    """The iteration of the newest checkpoint."""
    found = (folder / "checkpoints").glob("*.safetensors")
    return max((int(path.stem) for path in found), default=0)


@pytest.mark.slow
def test_kill_9_of_the_driver_and_resume(cluster, tmp_path):
    """The actors outlive their driver; the next one finds them, and goes on from a checkpoint."""
    file, folder = tmp_path / "two.py", tmp_path / "run"
    file.write_text(FILE)
    process = aspire(
        *("train", file, "--engine", "ray", "--address", cluster, "--iterations", 2000),
        *("--out", folder, "--checkpoint-seconds", 0.2, "--batch-size", 8),
    )
    try:
        wait_for(process, lambda: checkpointed(folder) > 50)
    finally:
        process.kill()
        process.wait()
    before = (folder / "events.jsonl").read_text().splitlines()
    assert len(named_actors(cluster)) == 2
    again = aspire("resume", folder)
    output, _ = again.communicate(timeout=300)
    assert again.returncode == 0, output
    assert "2000 iterations" in output
    events = events_of(folder)
    assert len(events) == 2002
    assert [json.loads(line) for line in before[:50]] == events[:50]
    job = job_of(read(file), json.loads((folder / "run.json").read_text())["source"]["options"])
    assert replay(folder, job)[0] == 2002
    assert named_actors(cluster) == []


def named_actors(cluster: str) -> list[str]:
    ray.init(cluster, namespace=NAMESPACE, log_to_driver=False)
    try:
        return ray.util.list_named_actors()
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_a_cluster_of_its_own_and_a_graceful_stop(tmp_path):
    """No set-up; SIGTERM leaves a checkpoint; resume starts new actors."""
    file, folder = tmp_path / "two.py", tmp_path / "run"
    file.write_text(FILE)
    process = aspire(
        *("train", file, "--engine", "ray", "--iterations", 3000, "--out", folder),
        *("--batch-size", 8),
    )
    trail = folder / "events.jsonl"
    wait_for(process, lambda: trail.exists() and trail.stat().st_size > 5000)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert "stopped after" in output
    again = aspire("resume", folder)
    output, _ = again.communicate(timeout=300)
    assert again.returncode == 0, output
    done = aspire("replay", folder)
    output, _ = done.communicate(timeout=300)
    assert "bit for bit" in output, output

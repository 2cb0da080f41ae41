"""Ray, really: actors that are killed, a driver that is killed, and the replay of what they did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from aspire.runtimes import log
from aspire.runtimes.driver import Back, Gone
from aspire.train import prepare, replay, train
from aspire.train.engines import crew_and_job, drive
from aspire.train.file import job_of, read
from tests.helpers import blobs, linear

ray = pytest.importorskip("ray", reason="the extra ray is not installed")

from aspire.clusters.ray import NAMESPACE, Ray, placement  # noqa: E402

QUICK = {"iterations": 60, "batch_size": 8, "evaluate_every": 20}
FILE = """
import numpy as np
import torch


def model():
    return torch.nn.Linear(3, 2)


def sites():
    return ["a", "b", "c"]


def site(name):
    rng = np.random.default_rng(ord(name))
    x = rng.standard_normal((60, 3)).astype(np.float32)
    y = (x @ rng.standard_normal(3) > 0.2).astype(np.int64)
    return {"train": (x[:30], y[:30]), "test": (x[30:], y[30:])}
"""


def start(*arguments: str) -> str:
    """`ray start`, or stop: the command that users run."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ray")), *arguments],
        capture_output=True, text=True, timeout=120,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    return ray.get([actor.ready.remote() for actor in carrier.actors])


def events_of(folder):
    return log.read(folder / log.NAME)[0]


def test_train_on_ray_replays_on_the_simulator(connected, tmp_path):
    run = train(linear(), blobs(), engine=Ray(), out=tmp_path / "r", **QUICK)
    assert run.iterations == 60
    assert run.evaluated_on == "test"
    assert run.history[-1]["t"] == 60
    events, _ = replay(tmp_path / "r", prepare(linear(), blobs(), **QUICK))
    assert events == 64
    assert ray.util.list_named_actors() == []


def test_a_killed_actor_costs_one_task(connected, tmp_path):
    """kill -9 of three actor processes: no event of it, and the same state in the replay."""
    arguments = QUICK | {"iterations": 300}
    crew, job = crew_and_job(linear(), blobs(), arguments)
    carrier = Ray().open(crew, job.problem.names, "killed")
    first = pids(carrier)
    wanted = {50: 0, 100: 1, 150: 2}

    def kill(t):
        if t in wanted:
            os.kill(first[wanted[t]], signal.SIGKILL)

    drive(job, carrier, folder=tmp_path, progress=kill)
    now = pids(carrier)
    carrier.close()
    assert [a == b for a, b in zip(first, now, strict=True)] == [False, False, False, True]
    events = events_of(tmp_path)
    assert {e["event"] for e in events} == {"report"}
    assert len(events) == 304
    full = prepare(linear(), blobs(), **arguments)
    (tmp_path / "run.json").write_text(json.dumps({"log": "full", "engine": {"name": "ray"}}))
    assert replay(tmp_path, full)[0] == 304


def test_a_stopped_actor_is_away_and_returns(connected, tmp_path):
    """SIGSTOP raises nothing: patience declares it away, its late report brings it back."""
    arguments = QUICK | {"gradients": 10**9, "iterations": None}
    crew, job = crew_and_job(linear(), blobs(), arguments)
    carrier = Ray().open(crew, job.problem.names, "stopped")
    stopped = pids(carrier)[3]
    kinds: list[str] = []

    def look(t):
        if t == 20:
            os.kill(stopped, signal.SIGSTOP)
        kinds[:] = [e["event"] for e in events_of(tmp_path)]
        if "left" in kinds and "joined" not in kinds:
            os.kill(stopped, signal.SIGCONT)

    count = threading.Event()

    def stop():
        done = kinds.count("joined") == 1 and kinds[-1] == "report"
        return done or count.is_set()

    from aspire.train import Interrupted

    with pytest.raises(Interrupted):
        drive(job, carrier, folder=tmp_path, progress=look, stop=stop, patience=1.0)
    carrier.close()
    assert kinds.count("left") == kinds.count("joined") == 1


def test_a_site_that_does_not_load_is_told(connected):
    with pytest.raises(ValueError, match=r"site 's1'.*expected"):
        train(linear(), blobs() | {"s1": 3}, engine=Ray(), **QUICK)
    assert ray.util.list_named_actors() == []


def test_work_that_fails_is_gone_until_it_loads_again(connected):
    """A loss that breaks at one site puts that site away; the others train on."""

    def loss(output, target):
        if output.shape[1] == 2 and target.sum() < 0:
            raise OSError("its disk is broken")
        return torch.nn.functional.cross_entropy(output, target)

    crew, job = crew_and_job(linear(), blobs(), QUICK | {"loss": loss})
    carrier = Ray().open(crew, job.problem.names, "failing")
    master, tasks = job.method.init(
        __import__("aspire.types").types.Facts(4, job.problem.flat.start), 0
    )
    broken = tasks[0].__class__(0, 0, "probe", {"w": torch.zeros(3)}, {"draws": 0.0})
    carrier.send([broken])
    found = []
    while len(found) < 2:
        found += carrier.receive(1.0)
    carrier.close()
    assert isinstance(found[0], Gone)
    assert found[1] == Back(0)


def test_sites_are_placed_where_their_data_is(connected):
    found = placement(["x", "y"])
    assert found == {"x": {"resources": {"site:x": 0.001}}, "y": {"resources": {"site:y": 0.001}}}
    assert placement(["s0", "s1"]) == {"s0": {}, "s1": {}}
    with pytest.raises(ValueError, match="site=z"):
        placement(["x", "z"])
    crew, job = crew_and_job(linear(), dict(zip("xy", blobs().values())), QUICK)
    carrier = Ray().open(crew, ("x", "y"), "placed")
    drive(job, carrier)
    carrier.close()


def aspire(*arguments, **more):
    command = [sys.executable, "-m", "aspire", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more
    )


def test_kill_9_of_the_driver_and_resume(cluster, tmp_path):
    """The actors outlive their driver; the next one finds them, and goes on from a checkpoint."""
    file, folder = tmp_path / "three.py", tmp_path / "run"
    file.write_text(FILE)
    process = aspire(
        *("train", file, "--engine", "ray", "--address", cluster, "--iterations", 2000),
        *("--out", folder, "--checkpoint-seconds", 0.2, "--batch-size", 8),
    )
    try:
        places = folder / "checkpoints"
        limit = time.monotonic() + 90
        while not (places.is_dir() and max((int(p.stem) for p in places.glob("*.safetensors")),
                                           default=0) > 50):  # fmt: skip
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < limit
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    before = (folder / "events.jsonl").read_text().splitlines()
    ray.init(cluster, namespace=NAMESPACE, log_to_driver=False)
    held = set(ray.util.list_named_actors())
    ray.shutdown()
    assert len(held) == 3
    again = aspire("resume", folder)
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output
    assert "2000 iterations" in output
    events = events_of(folder)
    assert len(events) == 2003
    assert [json.loads(line) for line in before[:50]] == events[:50]
    job = job_of(read(file), json.loads((folder / "run.json").read_text())["source"]["options"])
    assert replay(folder, job)[0] == 2003
    ray.init(cluster, namespace=NAMESPACE, log_to_driver=False)
    assert ray.util.list_named_actors() == []
    ray.shutdown()


def test_a_cluster_of_its_own_and_a_graceful_stop(tmp_path):
    """No set-up; SIGTERM leaves a checkpoint; resume starts new actors."""
    file, folder = tmp_path / "three.py", tmp_path / "run"
    file.write_text(FILE)
    process = aspire(
        *("train", file, "--engine", "ray", "--iterations", 3000, "--out", folder),
        *("--batch-size", 8),
    )
    limit = time.monotonic() + 90
    while (
        len((folder / "events.jsonl").read_bytes() if (folder / "events.jsonl").exists() else b"")
        < 5000
    ):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < limit
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "stopped after" in output
    again = aspire("resume", folder)
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output
    done = aspire("replay", folder)
    output, _ = done.communicate(timeout=120)
    assert "bit for bit" in output, output

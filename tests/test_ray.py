"""Ray, really: actors that are killed, a driver that is killed, and the replay of what they did."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from aspire.api import prepare, replay, resume, train
from aspire.api.engines import crew_and_job
from aspire.api.job import few_threads
from aspire.api.user_file import job_of, read
from aspire.cli import main
from aspire.engines.carrier import Back, Gone
from aspire.engines.driver import Driver, begin
from aspire.methods import direct
from aspire.runs import log
from aspire.runs.errors import Stopped
from aspire.simulator.replay import replay_events
from aspire.types import Task
from tests.helpers import blobs, linear
from tests.test_memory import long_storages

ray = pytest.importorskip("ray", reason="the extra ray is not installed")

from aspire.engines.ray.engine import NAMESPACE, Ray, connect, groups_of, placement  # noqa: E402
from aspire.engines.ray.shared import REPORT, TASK, Segment  # noqa: E402

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
    return [pid for pid, _ in ray.get([carrier.wake(j) for j in range(len(carrier.actors))])]


def events_of(folder):
    return log.read(folder / log.NAME)[0]


def test_train_on_ray_replays_on_the_simulator(connected, tmp_path):
    run = train(linear(), blobs(2), engine=Ray(), out=tmp_path / "r", **QUICK)
    assert run.iterations == 60
    assert run.evaluated_on == "test"
    assert run.test_samples.tolist() == [30, 30]
    for j, site in enumerate(blobs(2).values()):
        for part, found in (("train", run.train_losses), ("test", run.test_losses)):
            x, y = site[part]
            value = torch.nn.functional.cross_entropy(run.model(x), y).item()
            assert found[j] == pytest.approx(value, rel=1e-5)
    assert run.history[-1]["t"] == 60
    events, _ = replay(tmp_path / "r", prepare(linear(), blobs(2), **QUICK))
    assert events == 62
    assert ray.util.list_named_actors() == []


def test_a_run_with_validation_parts_is_extended(connected, tmp_path):
    """Actors answer for their validation parts; new ones take the ended run up where it was."""
    sites = {name: {**site, "val": site["test"]} for name, site in blobs(2).items()}
    train(linear(), sites, engine=Ray(), out=tmp_path / "r", log="vectors", **QUICK)
    crew, job = crew_and_job(linear(), sites, QUICK)
    job.settings["log"] = "vectors"
    run = resume(tmp_path / "r", job, engine=Ray(), crew=crew, iterations=100)
    assert run.iterations == 100
    assert run.val_samples.tolist() == [30, 30]
    worst = [line["worst_val_loss"] for line in run.history]
    assert run.selected["worst_val_loss"] == min(worst)
    with torch.no_grad():
        found = [
            torch.nn.functional.cross_entropy(run.model(x), y).item()
            for x, y in (site["val"] for site in sites.values())
        ]
    assert max(found) == pytest.approx(min(worst), rel=1e-5)
    replay(tmp_path / "r", job)


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
    reports, before = state.reports[0], {j: x.address for j, x in carrier.post.segments.items()}
    driver.run(lambda s: s.reports[0] > reports + 3)
    # what is left of the old process cannot write where the new one does
    kept = {j for j, x in carrier.post.segments.items() if before[j] == x.address}
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
        again = replay_events(job.method, alone.problem, events, 0, alone=True)
    assert log.digest(again) == log.digest(state.master)


def test_a_killed_and_a_stopped_actor_of_several_sites(connected, tmp_path):
    """All of its sites come back as one would: a kill costs a task, a stop is seen by patience."""
    crew, job = crew_and_job(*wide(5), QUICK | {"method": direct(quorum=2)})
    carrier = Ray(actors=2).open(crew, job.problem.names, "several")
    assert carrier.groups == [[0, 2, 4], [1, 3]]
    first = [pid for pid, _ in ray.get([carrier.wake(j) for j in range(5)])]
    assert first == [first[0], first[1], first[0], first[1], first[0]]
    state = begin(job.method, job.problem.facts(), 0)
    trail = log.EventLog("full", tmp_path / log.NAME)
    driver = Driver(job.method, carrier, job.problem.names, state, trail, patience=60.0)
    driver.run(lambda s: s.master.t >= 10)
    os.kill(first[0], signal.SIGKILL)
    reports, before = list(state.reports), carrier.post.segments[1].address
    driver.run(lambda s: all(s.reports[j] > reports[j] + 2 for j in (0, 2, 4)))
    assert carrier.post.segments[1].address == before
    assert {e["event"] for e in events_of(tmp_path)} == {"report"}
    os.kill(first[1], signal.SIGSTOP)
    driver.patience = 1.0
    driver.run(lambda s: {1, 3} <= set(s.away))
    os.kill(first[1], signal.SIGCONT)
    driver.patience = 60.0
    reports = list(state.reports)
    driver.run(lambda s: not s.away and all(s.reports[j] > reports[j] + 1 for j in (1, 3)))
    now = [pid for pid, _ in ray.get([carrier.wake(j) for j in range(2)])]
    carrier.close()
    assert [a == b for a, b in zip(first[:2], now, strict=True)] == [False, True]
    alone = prepare(*wide(5), **QUICK, method=direct(quorum=2))
    with few_threads(alone, one=True):
        again = replay_events(job.method, alone.problem, events_of(tmp_path), 0, alone=True)
    assert log.digest(again) == log.digest(state.master)


@pytest.mark.parametrize("near", [True, False])
def test_a_version_of_the_model_goes_out_once(connected, monkeypatch, near):
    """To each actor on this machine, or to Ray's store."""
    written, stored = [], []
    make, put, store = Segment.make, Segment.put, ray.put

    def far(room):
        return make(room) if near else None

    def noted_put(self, half, vectors):
        written.extend(name for name in vectors if half == TASK)
        return put(self, half, vectors)

    def noted_store(value):
        stored.extend([value] if hasattr(value, "nbytes") else [])
        return store(value)

    monkeypatch.setattr(Segment, "make", far)
    monkeypatch.setattr(Segment, "put", noted_put)
    monkeypatch.setattr(ray, "put", noted_store)
    method = direct(quorum=6, staleness=1)
    run = train(*wide(12), engine=Ray(actors=3), method=method, iterations=4, evaluate_every=0)
    assert run.iterations == 4
    # z at the start and after each step, and the model for the last evaluation and its figures
    most = 7 * (3 if near else 1)
    assert 0 < len(written if near else stored) <= most
    assert not (stored if near else written)


def most_held(sites):
    """Bytes of all vectors of 2 * 10**5 numbers that the driver held after a step."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(sites, 4, 100, generator=draw)
    data = {f"s{j}": (x[j], torch.arange(4)) for j in range(sites)}
    torch.manual_seed(0)
    layers = torch.nn.Linear(100, 400), torch.nn.ReLU(), torch.nn.Linear(400, 400)
    before, seen = long_storages(4 * 2 * 10**5), []
    train(
        torch.nn.Sequential(*layers),
        data,
        engine=Ray(actors=2),
        method=direct(loss_tasks=False),
        iterations=4,
        evaluate_every=0,
        progress=lambda t: seen.append(long_storages(4 * 2 * 10**5) - before),
    )
    assert len(seen) == 4
    return max(seen)


@pytest.mark.slow
def test_a_driver_of_many_sites_holds_what_one_of_few_does(connected):
    assert most_held(200) <= 1.3 * most_held(10)


def test_actors_are_as_many_as_is_said(connected):
    with pytest.raises(ValueError, match="actors=0: expected"):
        Ray(actors=0)
    names = [f"s{j}" for j in range(40)]
    nowhere: dict = {name: {} for name in names}
    assert [len(group) for group in groups_of(names, nowhere, 3)] == [14, 13, 13]
    assert sorted(j for group in groups_of(names, nowhere, 3) for j in group) == list(range(40))
    assert len(groups_of(names[:9], nowhere, None)) == 9
    assert len(groups_of(names, nowhere, None)) == min(40, max(16, os.cpu_count()))
    assert len(groups_of(names, {names[0]: {"resources": {}}}, None)) == 40
    with pytest.raises(ValueError, match="actors=2: expected None"):
        groups_of(names, {names[0]: {"resources": {}}}, 2)


def test_a_site_that_does_not_load_is_told(connected):
    with pytest.raises(ValueError, match=r"site 's1'.*expected"):
        train(linear(), blobs(2) | {"s1": 3}, engine=Ray(), **QUICK)
    assert ray.util.list_named_actors() == []


class Hanging(torch.utils.data.Dataset):
    """Data on a disk that does not answer."""

    def __len__(self):
        time.sleep(600)


def test_a_run_does_not_start_without_its_sites(connected, tmp_path, monkeypatch):
    monkeypatch.setattr("aspire.engines.ray.carrier.FOLLOW", 1.0)
    sites = blobs(2) | {"s1": Hanging()}
    with pytest.raises(
        Stopped, match=r"min_sites=2: after 3 s the first answer of .*s1 is missing"
    ):
        train(linear(), sites, engine=Ray(), patience=3.0, **QUICK)
    assert ray.util.list_named_actors() == []
    run = train(
        linear(), sites, engine=Ray(), patience=30.0, min_sites=1, out=tmp_path / "r", **QUICK
    )
    away = {"site": "s1", "from": 0, "to": None, "reason": "was not here at the start"}
    assert run.absences == [away]
    assert json.loads((tmp_path / "r" / "result.json").read_text())["absences"] == [away]
    assert run.parts == ("test", None)
    assert run.test_losses[0] > 0


FAULTY = """
import nearby  # a module beside this file
import torch

class Late(torch.nn.Module):
    def __init__(self, calls):
        super().__init__()
        self.layer, self.calls, self.most = nearby.layer(), 0, calls

    def forward(self, x):
        self.calls += 1
        if self.calls > self.most:
            raise LookupError("what forward said")
        return self.layer(x)

def model():
    return Late(CALLS)

def sites():
    yield from "ab"

def site(name):
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(ord(name))).double()
    return nearby.changed(x), (x[:, 0] > 0).long()

def loss():
    return nearby.LOSS
"""
NEARBY = """
import torch
LOSS = torch.nn.CrossEntropyLoss(REDUCTION)
def layer(): return torch.nn.Linear(3, 2)
def changed(x): CHANGE; return x
"""


def faulty(folder, calls="10**9", reduction="", change="pass"):
    """FILE.py and a module beside it, with one fault."""
    folder.mkdir()
    nearby = NEARBY.replace("REDUCTION", reduction).replace("CHANGE", change)
    (folder / "nearby.py").write_text(nearby)
    (folder / "file.py").write_text(FAULTY.replace("CALLS", calls))
    return ["train", str(folder / "file.py"), "--engine", "ray", "--iterations", "40"]


def test_what_is_wrong_at_a_site_is_the_drivers_sentence(connected, tmp_path):
    """The module beside FILE.py is found in the actors; what they convert is said once."""
    done = CliRunner().invoke(main, faulty(tmp_path / "good"))
    assert done.exit_code == 0, done.output
    assert done.output.count("converted: inputs from float64 to float32") == 1
    bad = {
        "NaN": ({"change": "x[7, 1] = torch.nan"}, "inputs are NaN or infinite in 1 of 40 sampl"),
        "a sum": ({"reduction": "reduction='sum'"}, "expected a mean"),
        "raised": ({"calls": "0"}, "the model raised LookupError: what forward said"),
    }
    for name, (fault, sentence) in bad.items():
        done = CliRunner().invoke(main, ["-v", *faulty(tmp_path / name, **fault)])
        assert done.exit_code == 2, done.output
        last = done.output.splitlines()[-1]
        assert re.match(f"Error: site '[ab]': .*{sentence}", last), done.output
    assert "file.py, line 13, in forward" in last
    assert 'raise LookupError("what forward said")' in done.output  # the whole traceback
    assert ray.util.list_named_actors() == []


def test_what_an_actor_raises_every_time_ends_the_run(connected, tmp_path):
    """Three times, since it may have been chance."""
    done = CliRunner().invoke(main, faulty(tmp_path / "late", calls="25"))
    assert done.exit_code == 2, done.output
    last = done.output.splitlines()[-1]
    assert re.match(r"Error: site '[ab]': the model raised LookupError: what forward said", last)
    assert "file.py, line 13, in forward" in last
    assert "is away: site '" in done.output
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
    assert isinstance(found[0], Gone)
    assert found[1] == Back(0)
    carrier.dismiss(0, "what it said was refused", for_good=False)
    while len(found) < 3:
        found += carrier.receive(1.0)
    assert found[2] == Back(0)
    carrier.dismiss(0, "and again", for_good=True)
    assert carrier.receive(0.1) == []
    carrier.close()


def aspire(*arguments, **more):
    command = [sys.executable, "-m", "aspire", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more
    )


def descendants(pid: int) -> dict[int, str]:
    """The processes below one, and what they run."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()[1:]]
    below, found = {pid}, {}
    for _ in rows:
        more = {int(a): text for a, b, text in rows if int(b) in below and int(a) not in below}
        found |= more
        below |= set(more)
    return found


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
    assert output.endswith(f"; continue with: aspire resume {folder}\n")
    again = aspire("resume", folder)
    output, _ = again.communicate(timeout=300)
    assert again.returncode == 0, output
    done = aspire("replay", folder)
    output, _ = done.communicate(timeout=300)
    assert "bit for bit" in output, output


@pytest.mark.slow
def test_the_only_node_is_lost(tmp_path):
    """Ray would end the process from within; before that the run says how it goes on."""
    file, folder = tmp_path / "two.py", tmp_path / "run"
    file.write_text(FILE)
    process = aspire(
        *("train", file, "--engine", "ray", "--iterations", 1500, "--out", folder),
        *("--batch-size", 8, "--evaluate-every", 0),
    )
    trail = folder / "events.jsonl"
    wait_for(process, lambda: trail.exists() and trail.stat().st_size > 5000)
    (raylet,) = [pid for pid, text in descendants(process.pid).items() if "raylet/raylet" in text]
    os.kill(raylet, signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2, output
    assert "the Ray node that the run was started on is gone" in output
    assert f"aspire resume {folder}" in output
    assert "Traceback" not in output
    again = aspire("resume", folder)
    output, _ = again.communicate(timeout=300)
    assert again.returncode == 0, output
    assert "1500 iterations" in output


@pytest.mark.slow
def test_a_cluster_with_a_token(tmp_path):
    """`ray start` with token authentication, as docs/engines.md says; without the token, a word."""
    file, token = tmp_path / "two.py", tmp_path / "token"
    file.write_text(FILE)
    token.write_text("a" * 64)
    token.chmod(0o600)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    plain |= {"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    known = plain | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--port", port]
    start += ["--include-dashboard=false", "--disable-usage-stats", "--num-cpus", 1]
    head = subprocess.Popen(
        list(map(str, start)), env=known, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    train = ["train", file, "--engine", "ray", "--address", f"127.0.0.1:{port}"]
    train += ["--iterations", 30, "--batch-size", 8]
    try:
        assert any("Ray runtime started" in line for line in head.stdout)
        process = aspire(*train, "--out", tmp_path / "run", env=known)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        process = aspire(*train, env=plain | {"RAY_AUTH_MODE": "token"})
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 2, output
        assert "RAY_AUTH_TOKEN_PATH" in output
        assert "Traceback" not in output
    finally:
        head.terminate()
        head.communicate(timeout=120)


def test_an_address_where_nobody_is(tmp_path):
    with pytest.raises(ValueError, match="nobody answers there"):
        connect("127.0.0.1:9")

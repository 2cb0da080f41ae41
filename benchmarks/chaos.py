"""A real run on an engine while everything around it breaks, by a fixed seed; then the questions.

python benchmarks/chaos.py                          both engines, over 200 events each: 10 minutes
python benchmarks/chaos.py --engine ray --events 20 --minutes 0.5 --stop-seconds 3

Events: kill -9 of a worker, of a node (Ray), of the server or driver (then `aspire resume`), a
SIGSTOP of a worker (at most ten of 20 s, while the rest goes on), a cut, delayed, truncated or
repeated line, a report sent twice (federation), a full disk under the checkpoints. At the end, four
questions: has the run ended, is its final state the replay of its log, was no report counted twice,
and is everything that a checkpoint vouched for at a kill still in the log?
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from proxy import Proxy

from aspire.runs import checkpoint

ROOT = Path(__file__).parent.parent
ASPIRE = [sys.executable, "-m", "aspire"]
NAMES = [f"s{j}" for j in range(5)]
AWAY = NAMES[3:]  # those whose Ray actors live on a second node
WORK = 0.25  # seconds of a task while the chaos lasts; afterwards none, so that the run ends soon
PATIENCE = 6.0
DISK = 16  # MiB under the checkpoints
# How often an event comes up, and at most how often in one run.
COMMON = {"kill worker": (30, None), "stop worker": (6, 10), "kill master": (6, 10)}
COMMON |= {"disk full": (5, 12), "delay": (12, None)}
MORE: dict[str, dict[str, tuple[int, int | None]]] = {
    "federation": {"cut": (15, None), "truncate": (8, None), "repeat": (6, None)}
    | {"report twice": (10, None)},
    "ray": {"kill node": (4, 6)},
}
FILE = """
import os, time
import torch

class Slow(torch.nn.Sequential):
    def forward(self, x):
        if self.training and os.path.exists({flag!r}):
            time.sleep({work})
        return super().forward(x)

def model():
    return Slow(torch.nn.Linear(6, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 3))

def sites():
    return {names}

def site(name):
    rng = torch.Generator().manual_seed(int(name[1:]))
    x = torch.randn(120, 6, generator=rng)
    return x, (x[:, 0] + 0.3 * int(name[1:]) * x[:, 1] > 0).long() + (x[:, 2] > 1).long()
"""


def plan(engine: str, events: int, seconds: float, seed: int) -> list[tuple[float, str]]:
    """What happens when: drawn before the run starts, the same for the same seed."""
    rng = random.Random(seed)
    kinds = COMMON | MORE[engine]
    count: collections.Counter[str] = collections.Counter()
    found = []
    for when in sorted(rng.uniform(0.0, seconds) for _ in range(events)):
        open_ = [k for k, (_, most) in kinds.items() if most is None or count[k] < most]
        kind = rng.choices(open_, [kinds[k][0] for k in open_])[0]
        count[kind] += 1
        found.append((when, kind))
    return found


# ---------------------------------------------------------------- processes


def environment() -> dict[str, str]:
    source = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(part for part in source if part)
    quiet = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **quiet, "PYTHONPATH": path}


class Program:
    """A process that is started again after it was killed; its output goes on in one file."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        self.start(command)

    def start(self, command: list[str]) -> None:
        self.command = command
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment()
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10.0)
            except subprocess.TimeoutExpired:
                self.kill()


def signalled(pid: int, number: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Disk:
    """The checkpoints' own small disk, where mounting is allowed; a missing folder where not."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.busy = folder, threading.Lock()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", str(folder)]
        self.mounted = subprocess.run(mount, capture_output=True).returncode == 0

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """No byte is left; or else (no mount) a file stands where the folder should be."""
        ballast = self.folder / "ballast"
        beside = self.folder.with_name("beside")
        if self.mounted:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(b"\0" * 65536)
        else:
            self.folder.rename(beside)
            self.folder.touch()
        try:
            yield
        finally:
            if self.mounted:
                ballast.unlink(missing_ok=True)
            else:
                self.folder.unlink()
                beside.rename(self.folder)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], capture_output=True)


# ---------------------------------------------------------------- the two engines


class OnFederation:
    """A server, five sites, and a proxy between them."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        self.folder = folder
        self.out = folder / "run"
        file = folder / "problem.py"
        kits = folder / "kits"
        self.port = free_port()
        init = ["federation", "init", str(kits), "--sites", ",".join(NAMES)]
        subprocess.run([*ASPIRE, *init], env=environment(), check=True, capture_output=True)
        self.proxy = Proxy(self.port)
        listen = ["--kit", str(kits / "server"), "--listen", f"127.0.0.1:{self.port}"]
        kept = ["--out", str(self.out), "--log", "vectors"]  # replay needs them
        server = [*ASPIRE, "server", str(file), *listen, *kept, *options]
        self.master = Program(server, folder / "master.log")
        self.sites = {}
        for name in NAMES:
            where = [str(kits / "sites" / name), f"127.0.0.1:{self.proxy.port}"]
            site = [sys.executable, __file__, "--site", str(file), *where]
            self.sites[name] = Program(site, folder / f"{name}.log")

    def workers(self) -> list[int]:
        return [site.process.pid for site in self.sites.values()]

    def replaced(self, pid: int) -> None:
        """A killed site is started again, as its owner would."""
        for site in self.sites.values():
            if site.process.pid == pid:
                site.process.wait()
                site.start(site.command)

    def programs(self) -> list[Program]:
        return [self.master, *self.sites.values()]

    def special(self, kind: str, rng: random.Random) -> bool:
        if kind == "report twice":
            return signalled(rng.choice(self.workers()), signal.SIGUSR1)
        return self.proxy.hurt(kind, rng)

    def close(self) -> None:
        for program in self.programs():
            program.end()
        self.proxy.close()


class OnRay:
    """A cluster of two nodes, an actor a site, and a driver that is a process of its own."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        from ray.cluster_utils import Cluster

        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]
        self.folder = folder
        self.out = folder / "run"
        head = {"num_cpus": 1, "include_dashboard": False, **room(NAMES[:3])}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.second = self.cluster.add_node(num_cpus=1, **room(AWAY))
        where = ["--engine", "ray", "--address", self.cluster.address]
        file = str(folder / "problem.py")
        train = [*ASPIRE, "train", file, *where, "--out", str(self.out), *options]
        self.master = Program(train, folder / "master.log")

    def workers(self) -> list[int]:
        """The actors' processes: children of our raylets."""
        nodes = self.cluster.list_all_nodes()
        raylets = {n.all_processes["raylet"][0].process.pid for n in nodes}
        return sorted(
            pid
            for pid, title, parent in processes()
            if parent in raylets and title.startswith("ray::Worker")
        )

    def replaced(self, pid: int) -> None:
        """Ray does it."""

    def programs(self) -> list[Program]:
        return [self.master]

    def special(self, kind: str, rng: random.Random) -> bool:
        if kind == "delay":
            return self._pause(rng.uniform(0.2, 2.0), rng)
        self._lose_node(rng.uniform(0.0, 1.0))
        return True

    def _pause(self, seconds: float, rng: random.Random) -> bool:
        found = self.workers()
        if not found:
            return False
        pid = rng.choice(found)
        signalled(pid, signal.SIGSTOP)
        threading.Timer(seconds, signalled, (pid, signal.SIGCONT)).start()
        return True

    def _lose_node(self, seconds: float) -> None:
        """In the main thread: Ray's cluster sets signal handlers."""
        self.cluster.remove_node(self.second, allow_graceful=False)
        time.sleep(seconds)
        for left in (2, 1, 0):  # a busy machine may be too slow for Ray's own patience
            try:
                self.second = self.cluster.add_node(num_cpus=1, **room(AWAY))
                return
            except Exception:
                if not left:
                    raise

    def close(self) -> None:
        self.master.end()
        self.cluster.shutdown()


def room(sites: list[str]) -> dict[str, Any]:
    places = {f"site:{name}": 1.0 for name in sites}
    return {"resources": places, "object_store_memory": 100 * 2**20}


def processes() -> Iterator[tuple[int, str, int]]:
    """(pid, title, parent) of all that run."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                title = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
                after = (entry / "stat").read_text().rpartition(")")[2].split()
                yield int(entry.name), title, int(after[1])


def site_process(file: Path, kit: Path, connect: str) -> None:
    """`aspire site`, except that after SIGUSR1 it sends its next report twice."""
    from aspire.cli import main
    from aspire.engines.grpc import site

    again: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: again.append(number))
    once = site.send

    async def stutter(call: Any, report: Any) -> None:
        await once(call, report)
        if again:
            again.clear()
            await once(call, report)

    site.send = stutter
    main(["site", str(file), "--kit", str(kit), "--connect", connect])


# ---------------------------------------------------------------- the run


class Chaos:
    def __init__(self, engine: str, folder: Path, given: argparse.Namespace) -> None:
        self.engine, self.folder, self.rng = engine, folder, random.Random(given.seed + 1)
        self.stop_seconds = given.stop_seconds
        self.seconds = 60.0 * given.minutes
        self.flag, self.iterations = folder / "slow", self._iterations()
        self.flag.touch()
        text = FILE.format(flag=str(self.flag), work=WORK, names=NAMES)
        (folder / "problem.py").write_text(text, encoding="utf-8")
        options = ["--iterations", str(self.iterations), "--checkpoint-seconds", "1"]
        options += ["--patience", str(PATIENCE), "--evaluate-every", "500"]
        self.vouched: list[tuple[int, str]] = []  # length and hash of the log, at each kill
        self.done: collections.Counter[str] = collections.Counter()
        self.timers: list[threading.Timer] = []
        self.on = (OnFederation if engine == "federation" else OnRay)(folder, options)
        self.disk: Disk | None = None
        self.started = time.time()  # of the master that runs now

    def _iterations(self) -> int:
        """More than can be done while the chaos lasts."""
        return int(1.2 * len(NAMES) / WORK * self.seconds) + 200

    def run(self, events: list[tuple[float, str]]) -> None:
        self._wait(lambda: (self.on.out / "status.json").exists(), "the run to start")
        place = self.on.out / checkpoint.FOLDER
        self.disk = Disk(place)  # over the first checkpoints, so wait for new ones
        self._wait(lambda: any(place.glob("*.safetensors")), "a checkpoint on the small disk")
        began = time.monotonic()
        for when, kind in events:
            time.sleep(max(0.0, began + when - time.monotonic()))
            self._guard()
            self.done[kind] += self._inject(kind)
        for timer in self.timers:
            timer.join()
        self.flag.unlink()

    def _inject(self, kind: str) -> bool:
        if kind == "kill master":
            return self._kill_master()
        if kind == "disk full":
            self._later(0.0, self._fill, self.rng.uniform(1.0, 4.0))
            return True
        if kind in ("kill worker", "stop worker"):
            found = self.on.workers()
            if not found:
                return False
            pid = self.rng.choice(found)
            if kind == "stop worker":
                self._later(self.stop_seconds, signalled, pid, signal.SIGCONT)
                return signalled(pid, signal.SIGSTOP)
            killed = signalled(pid, signal.SIGKILL)
            self.on.replaced(pid)
            return killed
        return self.on.special(kind, self.rng)

    def _kill_master(self) -> bool:
        """Then note what its last checkpoint vouches for, and let another go on."""
        self.on.master.kill()
        log = self.on.out / "events.jsonl"
        with self._disk().busy:
            self.started = time.time()
            tree, _ = checkpoint.load(checkpoint.files(self.on.out)[0])
        length = tree["fields"]["log"]["fields"]["bytes"]
        self.vouched.append((length, sha256(log, length)))
        time.sleep(self.rng.uniform(0.0, 1.0))
        self.on.master.start([*ASPIRE, "resume", str(self.on.out)])
        return True

    def _disk(self) -> Any:
        return self.disk

    def _fill(self, seconds: float) -> None:
        disk = self._disk()
        end = time.monotonic() + 60.0
        with disk.busy:
            # Without a mount the folder is away for a while, and a master that starts needs it.
            while not disk.mounted and not self._up() and time.monotonic() < end:
                disk.busy.release()
                time.sleep(0.1)
                disk.busy.acquire()
            with disk.full():
                time.sleep(seconds)

    def _up(self) -> bool:
        """Whether the master has written a checkpoint: it does so when it starts."""
        found = checkpoint.files(self.on.out)
        return bool(found) and found[0].stat().st_mtime > self.started

    def _later(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> None:
        timer = threading.Timer(seconds, function, arguments)
        timer.start()
        self.timers.append(timer)

    def _guard(self) -> None:
        """Nobody ends by himself while the chaos lasts."""
        for program in self.on.programs():
            code = program.process.poll()
            if code is not None:
                said = program.log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{program.log.stem} ended by itself, code {code}:\n{said}")

    def _wait(self, ready: Callable[[], bool], what: str, seconds: float = 180.0) -> None:
        end = time.monotonic() + seconds
        while not ready():
            self._guard()
            if time.monotonic() > end:
                raise RuntimeError(f"waited {seconds:g} s in vain for {what}")
            time.sleep(0.2)

    # ------------------------------------------------------------ the questions

    def questions(self) -> dict[str, Any]:
        """Wait for the end, then ask."""
        try:
            code = self.on.master.process.wait(self.seconds + 240.0)
        except subprocess.TimeoutExpired:
            code = None
        ended = code == 0 and (self.on.out / "result.json").exists()
        replay = subprocess.run(
            [*ASPIRE, "replay", str(self.on.out)], env=environment(), capture_output=True, text=True
        )
        log = self.on.out / "events.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        reports = [(e["worker"], e["task"]) for e in lines if e.get("event") == "report"]
        kept = [sha256(log, length) == digest for length, digest in self.vouched]
        return {
            "ended": ended,
            "replay equal": replay.returncode == 0 and "bit for bit" in replay.stdout,
            "each report once": len(reports) == len(set(reports)),
            "nothing lost before a checkpoint": all(kept),
            "events": dict(self.done),
            "injected": sum(self.done.values()),
            "reports": len(reports),
            "left": sum(e.get("event") == "left" for e in lines),
            "joined": sum(e.get("event") == "joined" for e in lines),
            "failed checkpoints": self.on.master.log.read_text(errors="replace").count(
                "no checkpoint at iteration"
            ),
            "said": replay.stdout.strip() or replay.stderr.strip(),
        }


def sha256(path: Path, length: int) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(length)).hexdigest()


def chaos(engine: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    events = plan(engine, given.events, 60.0 * given.minutes, given.seed)
    run = Chaos(engine, folder, given)
    try:
        run.run(events)
        found = run.questions()
    finally:
        run.on.close()
        if run.disk is not None:
            run.disk.close()
    return {"engine": engine, "seconds": time.monotonic() - began, **found}


ASKED = ("ended", "replay equal", "each report once", "nothing lost before a checkpoint")


def main() -> int:
    if sys.argv[1:2] == ["--site"]:
        site_process(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=[*MORE, "both"], default="both")
    parser.add_argument("--events", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=4.0, help="of chaos on each engine")
    parser.add_argument("--stop-seconds", type=float, default=20.0)
    parser.add_argument("--keep", type=Path, help="a folder for the runs")
    parser.add_argument("--json", type=Path, help="write the answers here")
    given = parser.parse_args()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # inherited: a site may get one while it starts
    answers = []
    for engine in MORE if given.engine == "both" else [given.engine]:
        with contextlib.ExitStack() as stack:
            folder = given.keep and given.keep / engine
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            answers.append(chaos(engine, folder, given))
        print(json.dumps(answers[-1], indent=2), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(answers, indent=2) + "\n", encoding="utf-8")
    return 0 if all(a[q] for a in answers for q in ASKED) else 1


if __name__ == "__main__":
    sys.exit(main())

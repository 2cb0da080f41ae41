"""Iterations per second of our engines against bare loops over the same transport, side by side.

python benchmarks/engines.py                 both engines, p = 1e4 and 1e6: about 7 minutes
python benchmarks/engines.py --engines ray --sizes 10000 --repeats 1
python benchmarks/engines.py --logs          what --log vectors costs a federation: about 6 minutes

Five workers on 127.0.0.1, S = 1, 5 ms of work per task, p float32 each way. A bare loop is the
least that trains asynchronously: a worker sleeps, and the master does z <- z + (x - z)/5 with each
vector x that comes back and sends z; no log, no liveness, no checkpoint. Ours is the whole thing by
its own command line: a gradient of a torch model, whose two passes take 5 ms, the step, its loss,
now and then a check, driver, ASPIRE-EASE's master step, event log, status, checkpoints. Our worker
begins on its next gradient while its report travels; a bare one has nothing to do until z is there.
With long vectors our sites run behind a server on their machine (`nice`); bare ones do not.
Both run in turn, so that a busy machine slows both; the ratio counts, and its median over the
repeats is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
WORKERS = 5
WORK = 0.005
NAMES = [f"s{j}" for j in range(WORKERS)]
WARM = 1100  # iterations that do not count: until then sites check many of their steps
SECONDS = 4.0  # of each bare loop
FILE = '''
import time
import torch

P = {size}

class Rest(torch.autograd.Function):
    """Hands w on; the slope that comes back waits until {work} s have passed since."""

    @staticmethod
    def forward(ctx, w):
        ctx.until = time.perf_counter() + {work}
        return w.view_as(w)

    @staticmethod
    def backward(ctx, slope):
        time.sleep(max(0.0, ctx.until - time.perf_counter()))
        return slope

class Work(torch.nn.Module):
    """P parameters; both passes together take 5 ms, their arithmetic included."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(P))

    def forward(self, x):
        w = Rest.apply(self.w) if self.training else self.w
        return x * 0.0 + w.sum() / P**0.5

def model():
    return Work()

def sites():
    return {names}

def site(name):
    x = torch.ones(64, 1)
    return x, x * float(name[1:])

def loss():
    return "mse"
'''


# ---------------------------------------------------------------- bare loops


def mean_step(z: np.ndarray, x: np.ndarray) -> np.ndarray:
    return z + (x - z) / np.float32(WORKERS)


def bare_ray(size: int, seconds: float) -> float:
    """One actor a worker; wait for any, step, send."""
    import ray

    class Worker:
        def work(self, v: np.ndarray) -> np.ndarray:
            time.sleep(WORK)
            return v * np.float32(0.5)

    quiet = {"include_dashboard": False, "logging_level": "ERROR", "log_to_driver": False}
    ray.init("local", num_cpus=1, **quiet)
    try:
        actors = [ray.remote(Worker).options(num_cpus=0).remote() for _ in NAMES]
        z = np.ones(size, np.float32)
        out = {actor.work.remote(z): actor for actor in actors}
        clock = Clock(seconds)
        while clock.goes_on():
            (reference,), _ = ray.wait(list(out))
            actor = out.pop(reference)
            z = mean_step(z, ray.get(reference))
            out[actor.work.remote(z)] = actor
        return clock.rate()
    finally:
        ray.shutdown()


class Clock:
    """Counts iterations; the first WARM are not timed."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.count = -WARM
        self.began = 0.0
        self.now = 0.0

    def goes_on(self) -> bool:
        self.now = time.perf_counter()
        if self.count == 0:
            self.began = self.now
        self.count += 1
        return self.count <= 1 or self.now - self.began < self.seconds

    def rate(self) -> float:
        return (self.count - 1) / (self.now - self.began)


OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)
METHOD = ("bare.Loop", "Talk")


def bare_grpc(size: int, seconds: float) -> float:
    """One stream a worker over mutual TLS, plain bytes; workers are processes that dial in."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        kits(Path(name))
        port = free_port()
        for site in NAMES:
            command = [sys.executable, __file__, "--bare-site", site, name, str(port)]
            stack.enter_context(started(command))
        return asyncio.run(_bare_server(Path(name), port, size, seconds))


async def _bare_server(folder: Path, port: int, size: int, seconds: float) -> float:
    import grpc
    from grpc import aio

    z = np.ones(size, np.float32)
    clock = Clock(seconds)
    over = asyncio.Event()
    here: list[int] = []
    full = asyncio.Event()

    async def talk(requests: Any, context: Any) -> Any:
        nonlocal z
        here.append(1)
        if len(here) == WORKERS:
            full.set()
        await full.wait()
        yield z.tobytes()
        async for request in requests:
            if over.is_set() or not clock.goes_on():
                over.set()
                return
            z = mean_step(z, np.frombuffer(request, np.float32))
            yield z.tobytes()

    server = aio.server(options=OPTIONS)
    handler = grpc.stream_stream_rpc_method_handler(talk)
    generic = grpc.method_handlers_generic_handler(METHOD[0], {METHOD[1]: handler})
    server.add_generic_rpc_handlers((generic,))
    ca, key, certificate = pems(folder / "kits" / "server")
    credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
    server.add_secure_port(f"127.0.0.1:{port}", credentials)
    await server.start()
    await asyncio.wait_for(over.wait(), 120.0)
    await server.stop(0.0)
    return clock.rate()


def bare_site(name: str, folder: Path, port: int) -> None:
    import grpc

    ca, key, certificate = pems(folder / "kits" / "sites" / name)
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options=OPTIONS) as channel:
        grpc.channel_ready_future(channel).result(60.0)
        answers: Any = iter(())
        box: list[bytes] = []
        ready = __import__("threading").Semaphore(0)

        def replies() -> Iterator[bytes]:
            while True:
                ready.acquire()
                yield box.pop()

        with contextlib.suppress(grpc.RpcError):
            answers = channel.stream_stream("/" + "/".join(METHOD))(replies())
            for answer in answers:
                x = np.frombuffer(answer, np.float32)
                time.sleep(WORK)
                box.append((x * np.float32(0.5)).tobytes())
                ready.release()
    os._exit(0)  # the thread of `replies` waits for ever


def kits(folder: Path) -> None:
    aspire("federation", "init", str(folder / "kits"), "--sites", ",".join(NAMES))


def pems(kit: Path) -> tuple[bytes, bytes, bytes]:
    ca, key, certificate = (kit / name for name in ("ca.pem", "key.pem", "cert.pem"))
    return ca.read_bytes(), key.read_bytes(), certificate.read_bytes()


# ---------------------------------------------------------------- our engines


def our_ray(size: int, iterations: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        file = write(Path(name), size)
        out = Path(name) / "run"
        aspire("train", str(file), "--engine", "ray", *common(iterations), "--out", str(out))
        return rate_of(out)


def our_federation(size: int, iterations: int, *options: str, warm: int = WARM) -> float:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        file = write(folder, size)
        out = folder / "run"
        at = f"127.0.0.1:{free_port()}"
        kits(folder)
        for site in NAMES:
            kit = str(folder / "kits" / "sites" / site)
            stack.enter_context(
                started([*ASPIRE, "site", str(file), "--kit", kit, "--connect", at])
            )
        aspire(
            "server",
            str(file),
            "--kit",
            str(folder / "kits" / "server"),
            "--listen",
            at,
            *common(iterations),
            "--out",
            str(out),
            *options,
        )
        return rate_of(out, warm)


def common(iterations: int) -> list[str]:
    return ["--form", "consensus", "--iterations", str(iterations), "--evaluate-every", "0"]


def rate_of(out: Path, warm: int = WARM) -> float:
    """Steps a second by the log's own times, the first `warm` left out."""
    lines = (out / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    times = [e["time"] for e in events if e.get("event") == "report"][warm:]
    return (len(times) - 1) / (times[-1] - times[0])


def write(folder: Path, size: int) -> Path:
    file = folder / "work.py"
    file.write_text(FILE.format(size=size, work=WORK, names=NAMES), encoding="utf-8")
    return file


# ---------------------------------------------------------------- processes

ASPIRE = [sys.executable, "-m", "aspire"]


def environment() -> dict[str, str]:
    source = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(part for part in source if part)
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def aspire(*arguments: str) -> None:
    done = subprocess.run(
        [*ASPIRE, *arguments], env=environment(), capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise RuntimeError(f"aspire {' '.join(arguments)}\n{done.stdout}{done.stderr}")


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


# ---------------------------------------------------------------- side by side

Measure = Callable[[int, Any], float]
PAIRS: dict[str, tuple[Measure, Measure]] = {
    "ray": (bare_ray, our_ray),
    "federation": (bare_grpc, our_federation),
}


def compare(engine: str, size: int, repeats: int) -> dict[str, Any]:
    bare, ours = PAIRS[engine]
    iterations = WARM + (2500 if size < 10**5 else 500)
    pairs = [(bare(size, SECONDS), ours(size, iterations)) for _ in range(repeats)]
    return {
        "engine": engine,
        "parameters": size,
        "bare": statistics.median(b for b, _ in pairs),
        "ours": statistics.median(o for _, o in pairs),
        "ratio": statistics.median(o / b for b, o in pairs),
        "all": pairs,
    }


def compare_logs(size: int, repeats: int) -> dict[str, Any]:
    """A federation that logs hashes of its reports, and one that keeps their vectors, in turn."""
    warm, count = (WARM, 2500) if size < 10**5 else (300, 400)  # 4 MB a report at p = 1e6
    levels = ("full", "vectors")
    found: dict[str, list[float]] = {level: [] for level in levels}
    for _ in range(repeats):
        for level in levels:
            rate = our_federation(size, warm + count, "--log", level, warm=warm)
            found[level].append(rate)
    ratios = [v / f for f, v in zip(*found.values(), strict=True)]
    return {
        "engine": "federation",
        "parameters": size,
        **{level: statistics.median(found[level]) for level in levels},
        "ratio": statistics.median(ratios),
        "all": list(zip(*found.values(), strict=True)),
    }


def show_logs(sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    rows = []
    print(f"{'engine':<12}{'p':>9}{'full it/s':>12}{'vectors it/s':>14}{'ratio':>8}")
    for size in sizes:
        row = compare_logs(size, repeats)
        rows.append(row)
        shown = f"{row['full']:>12.0f}{row['vectors']:>14.0f}{row['ratio']:>8.2f}"
        print(f"{row['engine']:<12}{size:>9}{shown}", flush=True)
    return rows


def show_engines(engines: list[str], sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    rows = []
    print(f"{'engine':<12}{'p':>9}{'bare it/s':>12}{'ours it/s':>12}{'ratio':>8}")
    for engine in engines:
        for size in sizes:
            row = compare(engine, size, repeats)
            rows.append(row)
            shown = f"{row['bare']:>12.0f}{row['ours']:>12.0f}{row['ratio']:>8.2f}"
            print(f"{engine:<12}{size:>9}{shown}", flush=True)
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--bare-site"]:
        bare_site(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[10**4, 10**6])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--logs", action="store_true", help="compare levels of --log instead")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    if given.logs:
        rows = show_logs(given.sizes, given.repeats)
    else:
        rows = show_engines(given.engines, given.sizes, given.repeats)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

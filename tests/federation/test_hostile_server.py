"""What a server with the federation's certificate can do to a real `aspire site`: very little.

Each case is a script of the server and a site in a process of its own. Whatever the site's policy
does not allow is refused with a sentence and not computed; there is no traceback; the site's memory
stays within 64 MB of one that is told at once that the run is over; and it ends when it should.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")

from aspire.api.user_file import read
from aspire.engines.grpc import kits
from aspire.engines.grpc.messages import CHUNK, OVERHEAD, frames
from aspire.engines.grpc.wire_pb2 import Header, Over, Part, ToSite, Vector
from aspire.problem.batches import indices, secret_indices
from tests.federation.processes import Command
from tests.federation.villain import Call, Villain, welcome

AT_ONCE = 3  # cases
MEGABYTES = 64
ROWS = 40
FILE = f"""
import torch

class Counted(torch.nn.Linear):
    def forward(self, x):
        with open("calls", "a") as file:
            file.write(".")
        return super().forward(x)

def model():
    torch.manual_seed(0)
    return Counted(5, 3)

def site(name):
    rng = torch.Generator().manual_seed(1)
    x = torch.randn({ROWS}, 5, generator=rng)
    return x, (x[:, :3]).argmax(1)
"""
START = torch.zeros(5 * 3 + 3)
Script = Callable[[Call], Awaitable[None]]

# ---------------------------------------------------------------- scripts


def opening(*raws: bytes | ToSite) -> Script:
    async def script(call: Call) -> None:
        for raw in raws:
            await call.say(raw)

    return script


def settled(**changed: Any) -> Script:
    async def script(call: Call) -> None:
        await call.welcome(**changed)

    return script


def asked(method: str, **arguments: Any) -> dict[str, Any]:
    """Settings with this method."""
    return {"method": method, "arguments": "" if method == "method()" else json.dumps(arguments)}


STEP = {"pi": 0.25, "kappa": 1.0, "rate": 0.1, "draws": 1.0}


def step(id: int = 1, kind: str = "step", vectors: Any = None, **scalars: Any) -> list[bytes]:
    """A step task with some things changed."""
    numbers = {k: v for k, v in (STEP | scalars).items() if v is not None}
    found = {"v": START, "w": START} if vectors is None else vectors
    return list(frames(id, found, numbers, kind))


def evaluation(id: int = -1) -> list[bytes]:
    return list(frames(id, {"w": START}, {}, "evaluate"))


def part(header: Header | None = None, data: bytes = b"") -> bytes:
    return ToSite(task=Part(header=header, data=data)).SerializeToString()


def asking(*raws: bytes, answers: int = 0, pause: float = 0.0) -> Script:
    """A proper welcome, then these; then so many reports are read."""

    async def script(call: Call) -> None:
        await call.welcome()
        for raw in raws:
            await call.say(raw)
            if pause:
                time.sleep(pause)
        for _ in range(answers):
            await call.report()

    return script


async def nothing(call: Call) -> None:
    """Not even a welcome."""


async def hang_up(call: Call) -> None:
    await call.welcome()
    raise EOFError


def many(task: Callable[[int], list[bytes]], count: int) -> list[bytes]:
    return [raw for n in range(count) for raw in task(n)]


def declared(*lengths: int, scalars: int = 0, kind: str = "step") -> Header:
    named = [Vector(name=f"x{i}", length=n) for i, n in enumerate(lengths)]
    return Header(id=1, kind=kind, vectors=named, scalars={f"n{i}": 0.0 for i in range(scalars)})


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """What the server says; how the site ends, and with what sentence."""

    script: Script
    sentence: str
    code: int | None = 2  # None: it goes on, until it gets SIGTERM
    options: tuple[str, ...] = ()
    answers: int = 0  # reports that the server may get


SETTINGS = {
    "batches of 1": ({"batch_size": 1}, "asks for batches of 1: expected min_batch=8"),
    "batches of 7": ({"batch_size": 7}, "asks for batches of 7"),
    "huge batches": ({"batch_size": 2**32 - 1}, "batches of 4294967295: expected min_batch=8"),
    "steps without end": (
        asked("aspire", local_steps=2**32 - 1, preset="auto"),
        "asks for 4294967295 local steps or batches in a task 'step': expected at most "
        "max_local_steps=100",
    ),
    "batches without end": (asked("direct", accumulate=101), "asks for 101 local steps or batches"),
    "losses of a part that is not there": (
        asked("direct", reference="own-best", own_gradients=10),
        "compares losses on val parts: expected one at every site, and site 'a' has none",
    ),
    "a reference of the master": (asked("direct", reference=[0.5]), "at a site with reference"),
    "a path without end": (asked("drfa-prox", local_steps=1e29, rate=1.0), "asks for 9999999999"),
    "no steps": (asked("aspire", local_steps=0), "cannot be used: ValueError: local_steps=0"),
    "half a step": (asked("fedavg", local_steps=0.5), "be used: ValueError: local_steps=0.5"),
    "steps beyond numbers": (asked("fedavg", local_steps=10**400), "ValueError: local_steps=1000"),
    "steps by list": (asked("fedavg", local_steps=[5]), "be used: ValueError: local_steps=["),
    "no method": (asked(""), "cannot be used: ValueError: method='': expected one of afl, aspire"),
    "a method that is code": (asked("os.system"), "cannot be used: ValueError: method='os.system'"),
    "a method in colours": (asked("\x1b[2J"), "ValueError: method='\\x1b[2J': expected one of afl"),
    "a long method": (asked("a" * 65), "sends method of 65 letters: expected at most 64"),
    "the site's own method": (asked("method()"), "method() of our FILE.py: expected one there"),
    "an argument that is code": (asked("aspire", uncertainty="os"), "ValueError: uncertainty='os'"),
    "an optimizer": (asked("direct", optimizer="x"), "cannot be used: ValueError: optimizer='x'"),
    "another argument": (asked("afl", rat=0.1), "method 'afl' has no argument 'rat'"),
    "a master's argument": (asked("aspire", max_planes=4 * 10**7), "at a site with max_planes"),
    "a prior of many": (asked("fedavg", prior=[0.25] * 600), "'fedavg' at a site with prior"),
    "a site of many": (asked("ind", site=4 * 10**7, quorum=3), "method 'ind' has no argument"),
    "no number": ({"arguments": '{"local_steps": NaN}'}, "ValueError: local_steps=nan: expected a"),
    "no JSON": ({"arguments": "{"}, "the arguments of the method: expected an object in JSON"),
    "a list": ({"arguments": "[1]"}, "the arguments of the method: expected an object in JSON"),
    "no arguments": ({"arguments": ""}, "arguments of the method: expected an object in JSON"),
    "deep arguments": ({"arguments": "[" * 4096}, "arguments of the method: expected an object"),
    "long arguments": ({"arguments": " " * 4097}, "sends arguments of 4097 letters: expected at"),
    "many arguments": (
        {"arguments": json.dumps({f"a{n}": 1 for n in range(300)})},
        "method 'aspire' has no argument",
    ),
    "another FILE.py": ({"file": bytes(32)}, "runs another FILE.py (0000000000000000)"),
    "no FILE.py": ({"file": b""}, "runs another FILE.py ()"),
    "another version": ({"major": 1}, "speaks version 1 of the protocol: expected 4"),
    "decay nan": ({"weight_decay": math.nan}, "sends weight_decay=nan"),
    "decay -1": ({"weight_decay": -1.0}, "sends weight_decay=-1.0"),
    "bound 0": (asked("aspire", pull_bound=0), "cannot be used: ValueError: pull_bound=0"),
    "a bound of inf": ({"arguments": '{"pull_bound": Infinity}'}, "ValueError: pull_bound=inf"),
    "a long preset": (asked("aspire", preset="a" * 4000), "cannot be used: ValueError: preset="),
    "no preset": (asked("aspire", preset="x\x1b[2J"), "that cannot be used: ValueError: preset="),
    "a preset's limits": (asked("aspire", preset="paper(limits=3)"), "used: ValueError: preset="),
    "a preset's brackets": (asked("aspire", preset="auto(" + "(" * 3900), "used: ValueError"),
}
OPENINGS = {
    "bytes": ((b"\xff" * 64,), "sent bytes that are no message"),
    "an empty message": ((b"",), "does not speak our protocol"),
    "half a welcome": ((welcome(bytes(32)).SerializeToString()[:20],), "sent bytes that are no"),
    "a task first": ((b"".join(step()),), "does not speak our protocol"),
    "4 MiB of welcome": ((welcome(bytes(32), server=bytes(CHUNK)),), f"at most {OVERHEAD} here"),
    "16 MiB of welcome": ((bytes(4 * CHUNK),), "sent too much"),
}
BIG = 2**40
TASKS = {
    "another kind": (step(kind="gradient"), "kind 'gradient': expected one of probe, step"),
    "a kind in colours": (step(kind="\x1b[2J"), "kind '\\x1b[2J'"),
    "a number too many": (step(x=1.0), "too much, expected pi, kappa, rate, draws"),
    "a number too few": (step(kappa=None), "incomplete, expected pi, kappa, rate, draws"),
    "a name in colours": (step(**{"a\n\x1b[2J": 1.0}), "'a\\n\\x1b[2J'"),
    "pi nan": (step(pi=math.nan), "pi=nan: expected a number from 0"),
    "pi -1": (step(pi=-1.0), "pi=-1: expected a number from 0"),
    "kappa -1": (step(kappa=-1.0), "kappa=-1: expected a number from 0"),
    "rate inf": (step(rate=math.inf), "rate=inf: expected a number from 0"),
    "rate 1e31": (step(rate=1e31), "rate=1e+31: expected a number from 0 to 1e+30"),
    "draws -1": (step(draws=-1.0), "draws=-1: expected a number from 0"),
    "draws 0.5": (step(draws=0.5), "draws=0.5: expected a whole number"),
    "draws 1e300": (step(draws=1e300), "draws=1e+300: expected a number from 0"),
    "v nan": (step(vectors={"v": START * math.nan}), "v with values that are not finite"),
    "v 1e13": (step(vectors={"v": START + 1e13}), "v with a value of size 1e+13"),
    "another vector": (step(vectors={"v": START, "x": START}), "too much, expected v, perhaps w"),
    "a negative id": (step(id=-5), "kind 'step': expected one of"),
    "an evaluation with a positive id": (evaluation(5), "evaluate with a negative id"),
    "a huge vector": ([part(declared(BIG))], f"'x0' of {BIG} numbers: expected {len(START)}"),
    "many vectors": ([part(declared(*[18] * 5))], "sent 5 vectors and 0 numbers"),
    "many numbers": ([part(declared(scalars=193))], "sent 0 vectors and 193 numbers"),
    "two million vectors": (
        [b"\x12\x85\x80\x80\x02\x0a\x80\x80\x80\x02" + b"\x22\x00" * 2**21],
        f"sent a header of {CHUNK} bytes: expected at most {OVERHEAD}",
    ),
    "data before a header": ([part(data=bytes(8))], "sent bytes before a header"),
    "more data than declared": (
        [part(declared(18), bytes(100))],
        "sent 100 bytes of vectors: expected 72",
    ),
    "an endless message": ([part(declared(18), bytes(8)), *[part(data=bytes(9))] * 99], "80 bytes"),
    "a message in a message": (
        [part(declared(18), bytes(8)), part(declared(18))],
        "began another message after 8 of 72 bytes",
    ),
    "an empty part": ([part(declared(18), bytes(8)), part()], "sent an empty part"),
    "a second welcome": (
        [welcome(bytes(32)).SerializeToString()],
        "sent something else than a task or a report",
    ),
    "16 MiB of a task": ([bytes(4 * CHUNK)], "sent too much"),
    "an end in colours": (
        [ToSite(over=Over(reason="\x1b[2Jgone\n" * 999)).SerializeToString()],
        "refused: '\\x1b[2J",
    ),
}
FEW = ("--max-tasks-per-minute", "5", "--max-evaluations-per-minute", "5")
WAITS = {
    "no welcome": Case(nothing, "there was no answer", 2, ("--give-up", "1")),
    "tasks without end": Case(
        asking(*many(lambda n: step(n), 50), answers=5),
        "asks for more than 5 tasks a minute: refused for a minute", None, FEW, 5,
    ),
    "evaluations without end": Case(
        asking(*many(lambda n: evaluation(-n - 1), 50), answers=5),
        "asks for more than 5 evaluations a minute: refused for a minute", None, FEW, 5,
    ),
    "a trickle": Case(
        asking(part(declared(18)), *[part(data=b"x")] * 20, pause=0.02), "connected to", None
    ),
    "silence": Case(asking(), "connected to", None),
    "hanging up": Case(hang_up, "no connection to", None),
    "the end": Case(opening(ToSite(over=Over())), "does not speak our protocol"),
    "the end after the welcome": Case(
        asking(ToSite(over=Over()).SerializeToString()), "The run is over.", 0
    ),
}  # fmt: skip
CASES = WAITS | {
    f"{family}: {name}": Case(script, sentence)
    for family, made in {
        "welcome": {k: (settled(**changed), said) for k, (changed, said) in SETTINGS.items()},
        "opening": {k: (opening(*raws), said) for k, (raws, said) in OPENINGS.items()},
        "task": {k: (asking(*raws), said) for k, (raws, said) in TASKS.items()},
    }.items()
    for name, (script, sentence) in made.items()
}


# ---------------------------------------------------------------- one case


@dataclass
class Outcome:
    code: int | None
    said: str
    memory: int  # bytes, the site's peak
    answers: int
    connections: int
    calls: int  # of the model


class Stage:
    """Kits and FILE.py; `play` is one case in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kits.init(folder / "kits", ["a"], ["localhost", "127.0.0.1"], 2)
        (folder / "file.py").write_text(FILE)
        self.file = bytes.fromhex(read(folder / "file.py").sha256)

    def villain(self, script: Script) -> Villain:
        return Villain(self.folder / "kits" / "server", self.file, START, script)

    def site(self, here: Path, port: int, *options: str) -> Command:
        here.mkdir()
        kit, address = str(self.folder / "kits" / "sites" / "a"), f"127.0.0.1:{port}"
        given = ["site", str(self.folder / "file.py"), "--kit", kit, "--connect", address]
        return Command("site", [*given, *options], here)

    def play(self, name: str) -> Outcome:
        case = CASES[name]
        here = self.folder / name.replace(" ", "-").replace(":", "").replace("/", "")
        villain = self.villain(case.script)
        site = self.site(here, villain.port, *case.options)
        try:
            peak = watched(site, villain, case)
            code = site.process.exitcode
            if code is None:
                os.kill(site.process.pid or 0, signal.SIGTERM)
                code = {130: None}.get(site.wait(20.0), -1)
        finally:
            site.kill()
            villain.end()
        calls = here / "calls"
        count = len(calls.read_text()) if calls.exists() else 0
        return Outcome(code, site.said, peak, len(villain.reports), villain.connections, count)


def watched(site: Command, villain: Villain, case: Case) -> int:
    """Until it ends, or has said what it must say and goes on; the most memory that it took."""
    peak, end = 0, time.monotonic() + 60
    while site.process.exitcode is None and time.monotonic() < end:
        peak = max(peak, site.memory())
        site.process.join(0.02)
        if case.code is None and villain.said.is_set() and case.sentence in site.said:
            site.process.join(1.0)  # long enough for a site that would end to end
            return max(peak, site.memory())
    return peak


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    stage = Stage(tmp_path_factory.mktemp("hostile"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(CASES, pool.map(stage.play, CASES), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_server_gets_nothing(name: str, outcomes: dict[str, Outcome]) -> None:
    case, found, idle = CASES[name], outcomes[name], outcomes["the end after the welcome"]
    assert case.sentence in found.said, found.said
    assert found.code == case.code, found.said
    assert "Traceback" not in found.said
    assert "\x1b" not in found.said
    assert max(map(len, found.said.splitlines())) < 600
    assert found.memory < idle.memory + MEGABYTES * 2**20
    assert found.answers <= case.answers
    if not case.answers:
        assert found.calls <= idle.calls  # nothing was computed but the look at its own data


def test_a_site_that_is_hung_up_on_takes_its_time(outcomes: dict[str, Outcome]) -> None:
    assert 2 <= outcomes["hanging up"].connections < 10


# ---------------------------------------------------------------- batches


def gradients() -> torch.Tensor:
    """Of the model at START on each row of the site: softmax is even there."""
    space: dict[str, Any] = {}
    exec(FILE, space)
    x, y = space["site"]("a")
    error = torch.full((ROWS, 3), 1 / 3) - torch.nn.functional.one_hot(y, 3)
    weight = (error[:, :, None] * x[:, None, :]).flatten(1)
    return torch.cat([weight, error], dim=1)


def test_a_gradient_is_a_mean_over_a_batch_that_only_the_site_can_tell(tmp_path: Path) -> None:
    """kappa = 0 gives the gradient itself: of as many rows as the policy says, drawn by the key."""
    stage, found = Stage(tmp_path), []
    one = step(draws=7.0, pi=1.0, kappa=0.0, rate=1.0)
    ask = asking(*one, answers=1)
    for turn in ("first", "second"):  # the key is kept across restarts
        villain = stage.villain(ask)
        site = stage.site(tmp_path / turn, villain.port)
        try:
            assert villain.said.wait(60), site.said
        finally:
            site.kill()
            villain.end()
        found.append(-villain.reports[0].vectors()["w"])
    key = tmp_path / "kits" / "sites" / "a" / "batch.key"
    assert key.stat().st_mode & 0o777 == 0o600
    rows = gradients()
    drawn = secret_indices(key.read_bytes(), 7, size=ROWS, count=8)
    torch.testing.assert_close(found[0], rows[drawn].mean(0), rtol=1e-5, atol=1e-6)
    assert torch.equal(found[0], found[1])
    guess = indices(0, 0, 7, size=ROWS, count=8)  # what a server that knows the seed would say
    assert (rows[guess].mean(0) - found[0]).norm() > 0.1
    assert (rows - found[0]).norm(dim=1).min() > 0.1 * rows.norm(dim=1).mean()

"""What an enemy may try: each is refused with a reason, and the honest sites do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")
import grpc

from aspire.engines.grpc import kits
from aspire.engines.grpc.messages import CHUNK
from aspire.engines.grpc.site import Dialler
from aspire.engines.grpc.wire_pb2 import FromSite, Header, Part, Vector
from tests.federation.parties import SHAPE, Host, Sites, credentials, hello, local, talk, task

ENEMIES = ("a0", "a1", "a2", "a3")  # each may break the protocol three times
NAMES = ("b", "c", *ENEMIES)
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """b and c are honest, a0 to a3 are not; d has a certificate but is on no list."""
    made = tmp_path_factory.mktemp("federation") / "f"
    kits.init(made, [*NAMES, "d"], ["localhost", "127.0.0.1"], 2)
    (made / "server" / "sites.txt").write_text("\n".join(NAMES))
    kits.init(made.parent / "other", ["a0"], ["localhost", "127.0.0.1"], 2)
    return made


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[Host]:
    """One server for all; b and c train on it until the last enemy has gone."""
    started = Host(folder, NAMES)
    sites = Sites(folder, ["b", "c"], partial(local, NAMES), SHAPE, started.port)
    yield started
    try:
        outcome, logged = started.end()
        assert sites.join() == {"b": "over", "c": "over"}
        assert outcome["finite"]
        assert min(outcome["reports"][:2]) > 10
        assert max(outcome["reports"][2:]) == 0
        for sentence in SENTENCES:
            assert sentence in logged
    finally:
        started.kill()


def report(id: int, **changed: Any) -> FromSite:
    """A report on 8 parameters."""
    named = [Vector(name="w", length=changed.get("length", 8))]
    said = {"gradients": 1.0, "samples": 64.0, "loss": 1.0, "curvature": 1.0, "slope": 1.0}
    header = Header(id=id, scalars=said, vectors=named)
    header.scalars.update(changed.get("scalars", {}))
    return FromSite(report=Part(header=header, data=changed.get("data", bytes(32))))


def probe(id: int, **changed: float) -> FromSite:
    """The answer to a probe."""
    said = {"gradients": 13.0, "samples": 64.0, "loss": 1.0, "curvature": 1.0, "slope": 1.0}
    return FromSite(report=Part(header=Header(id=id, scalars=said | changed)))


def doer(make: Any) -> Any:
    """An enemy with a proper certificate: waits for a task, then sends what `make` gives."""

    async def said(call: Any) -> AsyncIterator[Any]:
        got = await task(call)
        for message in make(got.task.header.id):
            yield message

    return said


def sayer(*messages: Any) -> Any:
    async def said(call: Any) -> AsyncIterator[Any]:
        for message in messages:
            yield message

    return said


NAN = bytes(28) + b"\x00\x00\xc0\x7f"
AT_THE_DOOR = {
    "another site's name": (hello("b"), "calls itself 'b'"),
    "a wrong version": (hello("a0", major=1), "speaks version 1.0"),
    "another model": (hello("a0", parameters=9), "has a model of 9 parameters"),
    "another type": (hello("a0", dtype="float64"), "of type 'float64'"),
    "no hello": (None, "said no Hello"),
    "no message": (b"\xff\xff", "said a Hello that is no message"),
}
AT_WORK = {
    "a vector too many": (lambda id: [report(id)], "['w']: too much, expected nothing"),
    "a loss that is no number": (
        lambda id: [probe(id, loss=float("inf"))],
        "loss=inf: expected a number from",
    ),
    "a wrong shape": (lambda id: [report(id, length=7)], "'w' of 7 numbers: expected 8"),
    "a gigabyte declared": (lambda id: [report(id, length=2**28)], "'w' of 268435456 numbers"),
    "a gigabyte streamed": (
        lambda id: [report(id, data=b""), *([FromSite(report=Part(data=bytes(CHUNK)))] * 256)],
        f"sent {CHUNK} bytes of vectors: expected 32",
    ),
    "more than declared": (lambda id: [report(id, data=bytes(40))], "sent 40 bytes of vectors"),
    "a truncated stream": (
        lambda id: [report(id, data=bytes(20)), report(id)],
        "began another message after 20 of 32 bytes",
    ),
    "a task never given": (lambda id: [report(id + 1000)], "it was never given it"),
    "another field": (lambda id: [b"\x0a\x00"], "sent something else than a task or a report"),
    "bytes": (lambda id: [b"\x12\xff"], "sent bytes that are no message"),
}


SENTENCES = (
    *(sentence for _, sentence in AT_THE_DOOR.values()),
    *(sentence for _, sentence in AT_WORK.values()),
    "d from ipv4:127.0.0.1",
    "CERTIFICATE",  # the handshake's own lines are gRPC's, which leaves out some of many
    "3 times, and stays out",
    f"a message over {CHUNK + 2**16} bytes",
)


def approach(
    host: Host, folder: Path, name: str, said: Any, greeting: Any = ...
) -> tuple[str, str]:
    trust = credentials(kits.read(folder / "sites" / name))
    greeting = hello(name) if greeting is ... else greeting
    return asyncio.run(talk(host.port, trust, greeting, said))


@pytest.mark.parametrize("case", AT_THE_DOOR)
def test_at_the_door(case: str, folder: Path, host: Host) -> None:
    greeting, sentence = AT_THE_DOOR[case]
    code, said = approach(host, folder, "a0", sayer(), greeting)
    assert code == "PERMISSION_DENIED"
    assert sentence in said


def test_not_on_the_list(folder: Path, host: Host) -> None:
    ended = approach(host, folder, "d", sayer())
    assert ended == ("PERMISSION_DENIED", "d: is not on the list of sites")


@pytest.mark.parametrize("who", ["nobody", "a stranger", "the server"])
def test_no_line_without_a_certificate_of_a_site(who: str, folder: Path, host: Host) -> None:
    """The handshake ends it; gRPC writes its reason to the server's standard error."""
    mine, theirs = kits.read(folder / "server"), kits.read(folder.parent / "other" / "sites" / "a0")
    trust = {
        "nobody": grpc.ssl_channel_credentials(mine.ca),
        "a stranger": grpc.ssl_channel_credentials(mine.ca, theirs.key, theirs.certificate),
        "the server": credentials(mine),
    }[who]
    assert asyncio.run(talk(host.port, trust, hello("a0"), sayer()))[0] == "UNAVAILABLE"


def test_a_site_refuses_a_stranger_as_its_server(folder: Path, host: Host) -> None:
    theirs = kits.read(folder.parent / "other" / "sites" / "a0")
    dialler = Dialler(theirs, f"127.0.0.1:{host.port}", SHAPE, b"f", lambda _: None, give_up=60.0)
    with pytest.raises(ValueError, match="has no certificate of this federation"):
        asyncio.run(dialler.run())


@pytest.mark.parametrize("case", AT_WORK)
def test_at_work(case: str, folder: Path, host: Host) -> None:
    """Every breach ends that line, and the server's memory does not grow."""
    make, sentence = AT_WORK[case]
    name, before = ENEMIES[list(AT_WORK).index(case) // 3], host.memory()
    code, said = approach(host, folder, name, doer(make))
    if "streamed" not in case:  # one who writes on sees that the line ended, and not why
        assert code == "INVALID_ARGUMENT"
        assert sentence in said
    assert code != "OK"
    assert host.memory() - before < 40 * MEGABYTE


def test_a_gigabyte_in_one_message(folder: Path, host: Host) -> None:
    before = host.memory()
    ended = approach(host, folder, "a3", doer(lambda id: [bytes(2**30)]))
    assert ended[0] == "RESOURCE_EXHAUSTED"
    assert host.memory() - before < 40 * MEGABYTE


def test_three_breaches_are_enough(folder: Path, host: Host) -> None:
    make, _ = AT_WORK["a vector too many"]
    for _ in range(3 - len(AT_WORK) % 3):  # a3 has had the others
        approach(host, folder, "a3", doer(make))
    code, said = approach(host, folder, "a3", sayer())
    assert code == "PERMISSION_DENIED"
    assert "stays out of this run" in said

"""Mutated messages: bytes changed, cut and joined, and proper protobuf with odd fields in it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aspire.engines.grpc.messages import MAJOR, Shape, frames
from aspire.engines.grpc.method import sent
from aspire.engines.grpc.wire_pb2 import (
    FromSite,
    Header,
    Hello,
    Over,
    Part,
    Settings,
    ToSite,
    Vector,
    Welcome,
)
from aspire.methods import aspire

SHAPE = Shape(3, "float32", 48)
W = torch.tensor([1.0, -2.0, 3.0])
COUNTS = (0, 1, 3, 8, 64, 127, 128, 2**16, 2**31 - 1, 2**32 - 1)
LONG = (*COUNTS, 2**53, 2**63 - 1)
SIGNED = (0, 1, -1, 2, -2, 255, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63))
NUMBERS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 5e-324, 1e-300, 1e12, 1e12 + 1, -1e12, 1e30, 1e31, 1e300, -1e300),
    *(math.inf, -math.inf, math.nan, 2.0**53, 2.0**53 + 2),
)
NAMES = (
    *("w", "v", "g", "loss", "curvature", "slope", "gradients", "samples", "accuracy", "test"),
    *("pi", "kappa", "rate", "draws", "", "worker", "event", "a\nb", "a\0b", 'x": 1, "y'),
    *("\u202e\u2028", "x" * 64, "x" * 65, "\U0001f600"),
)
KINDS = ("probe", "step", "evaluate", "figures", "", "gradient", "Probe", "step\n", "x" * 70)
METHODS = (
    *("aspire", "aspire", "direct", "fedavg", "drfa-prox", "aspire-central", "ind", "method()"),
    *("", "os.system", "aspire()", "__import__", "make", "a\nb", "x" * 64, "x" * 65),
)
ARGUMENTS = (
    *("{}", '{"local_steps": 1, "preset": "auto"}', '{"local_steps": 100, "preset": "paper"}'),
    *('{"accumulate": 2}', '{"rate": null, "local_steps": 5}', '{"site": 3}', '{"site": 1e300}'),
    *("", "[]", "null", "{", '{"local_steps": 4294967295}', '{"local_steps": 1e999}'),
    *('{"local_steps": NaN}', '{"local_steps": true}', '{"local_steps": [1]}', '{"preset": 3}'),
    *('{"preset": "auto("}', '{"preset": "auto(x=1)"}', '{"preset": "paper(limits=3)"}'),
    *('{"preset": "%s"}' % ("(" * 90), '{"rate": -1}', '{"rate": "x"}', '{"quorum": 40000000}'),
    *('{"prior": [%s]}' % ("0," * 400 + "1"), '{"uncertainty": "os"}', '{"optimizer": "os"}'),
    *('{"accumulate": %s}' % ("9" * 400), "[" * 4096, "x" * 4097, '{"a": {"b": {}}}'),
)


# ---------------------------------------------------------------- what is proper


def reports() -> list[bytes]:
    cost = {"gradients": 13.0, "samples": 64.0}
    probe = {"loss": 1.0, "curvature": 1.0, "slope": 1.0, **cost}
    answer = {"loss": 1.0, "samples": 9.0, "accuracy": 0.5, "test": 1.0}
    made = [frames(0, {}, probe), frames(7, {"w": W}, {"loss": 1.0, **cost, "gradients": 1.0})]
    figures = {"test.loss.value": 1.0, "test.loss.n": 9.0, "test.loss.low": 0.5}
    made += [frames(-3, {}, answer), frames(-4, {}, {**figures, "test.loss.high": 1.5})]
    return [frame for message in made for frame in message]


def tasks() -> list[bytes]:
    step = {"pi": 0.25, "kappa": 1.0, "rate": 0.1, "draws": 5.0}
    made = [frames(0, {"w": W}, {"draws": 0.0}, "probe"), frames(1, {"v": W}, step, "step")]
    made += [frames(2, {"v": W, "w": -W}, step, "step"), frames(-1, {"w": W}, {}, "evaluate")]
    made.append(frames(-2, {"w": W}, {"bound": 3.0}, "figures"))
    return [frame for message in made for frame in message]


def openings() -> list[bytes]:
    settings = Settings(batch_size=64, **sent(aspire(pull_bound=10.0), own=False))
    welcome = Welcome(major=MAJOR, minor=0, server=bytes(16), settings=settings, file=bytes(32))
    return [
        ToSite(welcome=welcome).SerializeToString(),
        ToSite(over=Over(reason="enough")).SerializeToString(),
        ToSite(over=Over()).SerializeToString(),
    ]


def hello() -> bytes:
    return Hello(
        major=MAJOR, site="a", parameters=3, dtype="float32", file=bytes(32)
    ).SerializeToString()


# ---------------------------------------------------------------- bytes


def mutated(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """A few changes at random places."""
    raw = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        change = rng.randrange(7)
        at = rng.randrange(len(raw) + 1)
        if change == 0 and raw:
            raw[at % len(raw)] ^= 1 << rng.randrange(8)
        elif change == 1 and raw:
            raw[at % len(raw)] = rng.choice((0, 1, 0x0A, 0x12, 0x7F, 0x80, 0xFF))
        elif change == 2:
            del raw[at : at + rng.choice((1, 2, 8, 100))]
        elif change == 3:
            raw[at:at] = rng.randbytes(rng.choice((1, 2, 9)))
        elif change == 4:
            other = rng.choice(corpus)
            raw[at:] = other[rng.randrange(len(other) + 1) :]
        elif change == 5:
            raw[at:at] = b"\xff" * rng.choice((1, 5, 9)) + b"\x01"
        else:
            raw += raw[at:]
    return bytes(raw)


# ---------------------------------------------------------------- fields


def number(rng: random.Random) -> float:
    return rng.choice(NUMBERS) if rng.random() < 0.7 else rng.uniform(-1e6, 1e6)


def odd_header(rng: random.Random) -> Header:
    names = rng.sample(NAMES, rng.choice((0, 1, 2, 4, 7)))
    vectors = [
        Vector(name=rng.choice(NAMES), length=rng.choice((3, 3, 3, *LONG)))
        for _ in range(rng.choice((0, 0, 1, 1, 2, 5, 40)))
    ]
    return Header(
        id=rng.choice(SIGNED),
        kind=rng.choice(KINDS),
        scalars={name: number(rng) for name in names},
        vectors=vectors,
    )


def odd_part(rng: random.Random) -> Part:
    header = odd_header(rng) if rng.random() < 0.8 else None
    size = rng.choice((0, 1, 12, 12, 24, 36, 48, 100))
    return Part(header=header, data=rng.randbytes(size))


def odd_settings(rng: random.Random) -> Settings:
    return Settings(
        batch_size=rng.choice(COUNTS),
        weight_decay=rng.choice((0.0, *NUMBERS)),
        method=rng.choice(METHODS),
        arguments=rng.choice(ARGUMENTS),
    )


def odd_opening(rng: random.Random) -> bytes:
    welcome = Welcome(
        major=rng.choice((MAJOR, MAJOR, MAJOR, *COUNTS)),
        minor=rng.choice(COUNTS),
        server=rng.randbytes(rng.choice((0, 16, 5000))),
        settings=odd_settings(rng),
        file=rng.choice((bytes(32), b"", rng.randbytes(32), bytes(1000))),
    )
    over = Over(reason=rng.choice(NAMES) * rng.choice((1, 1000)))
    return ToSite(**rng.choice(({"welcome": welcome}, {"over": over}, {}))).SerializeToString()


def odd_hello(rng: random.Random) -> bytes:
    return Hello(
        major=rng.choice((MAJOR, *COUNTS)),
        minor=rng.choice(COUNTS),
        site=rng.choice(("a", *NAMES)),
        parameters=rng.choice(LONG),
        dtype=rng.choice(("float32", *NAMES)),
        file=rng.randbytes(rng.choice((0, 32, 500))),
    ).SerializeToString()


def odd_report(rng: random.Random) -> bytes:
    return FromSite(report=odd_part(rng)).SerializeToString()


def odd_task(rng: random.Random) -> bytes:
    return ToSite(task=odd_part(rng)).SerializeToString()


def many(
    count: int, seed: int, corpus: Sequence[bytes], makers: Sequence[Callable[[Any], bytes]]
) -> Any:
    """Half of them mutated bytes, half odd fields, of which some are mutated as well."""
    rng = random.Random(seed)
    for n in range(count):
        if n % 2:
            yield mutated(rng, corpus)
        else:
            made = rng.choice(makers)(rng)
            yield mutated(rng, [made]) if rng.random() < 0.2 else made

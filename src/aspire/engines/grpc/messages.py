"""Tasks and reports as parts of bounded size, and back; what does not fit is refused first.

Both sides know p and the type of its numbers before any vector travels, so every vector has a known
length. A header that declares anything else is refused before anything is allocated for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from aspire.engines.grpc.wire_pb2 import Header, ToSite, Vector

MAJOR = 4
MINOR = 0
HELLO = "aspire-hello-bin"  # where a call's metadata has the Hello
METHOD = "/aspire.engines.grpc.Federation/Serve"
CHUNK = 4 * 2**20  # bytes of vectors in one part
PIECE = 2**20  # the same of a message that needs several: how far it is shows in time
ANNOUNCED = 2**18  # bytes of vectors: of a longer report the header comes first, by itself
OVERHEAD = 64 * 2**10  # bytes of everything else in one part
DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
LONG = 2**16  # numbers: longer vectors travel beside the computation
VECTORS = 4  # in one message, at most
NUMBERS = 192  # likewise: an answer with figures has up to four for each of 14, on three parts
NAME = 64  # letters, at most
SAID = 300  # letters of the other side's words that we repeat


class Refusal(Exception):
    """The other side broke the protocol, or may not take part; the sentence says how."""


@dataclass(frozen=True)
class Shape:
    """What every vector of a stream looks like, and how many bytes one message may have."""

    parameters: int
    dtype: str
    most: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"parameters of type {self.dtype}: expected float32 or float64")

    @property
    def bytes(self) -> int:
        return self.parameters * DTYPES[self.dtype].itemsize


def shape_of(start: Tensor, megabytes: float | None = None) -> Shape:
    """The shape of a model's messages; None: as large as the largest proper message."""
    dtype = str(start.dtype).removeprefix("torch.")
    shape = Shape(len(start), dtype, 0)
    most = VECTORS * shape.bytes if megabytes is None else int(megabytes * 2**20)
    if most < 2 * shape.bytes:
        raise ValueError(
            f"max_message={megabytes} MB: expected at least {math.ceil(2 * shape.bytes / 2**20)}, "
            f"since a task may carry two vectors of {len(start)} numbers"
        )
    return Shape(len(start), dtype, most)


# ---------------------------------------------------------------- out


def frames(
    id: int,
    vectors: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    kind: str = "",
    *,
    announce: bool = False,
) -> Iterator[bytes]:
    """FromSite(report=Part) or ToSite(task=Part), serialised: first the header and some bytes.

    Both are field 2, so they look alike. Put together by hand: protobuf would copy the vectors
    three times. With `announce` the first part of a long message is its header alone: the rest may
    have to wait.
    """
    named = [Vector(name=name, length=len(x)) for name, x in vectors.items()]
    header = Header(id=id, kind=kind, scalars=scalars, vectors=named).SerializeToString()
    size = sum(x.nbytes for x in vectors.values())
    alone = announce and size > ANNOUNCED
    if alone:
        yield _begin(0, header)
    views = [_view(x) for x in vectors.values()]
    data = views[0] if len(views) == 1 else memoryview(b"".join(views))
    step = CHUNK if size <= CHUNK else PIECE
    for at in range(0, max(1, size), step):
        part = data[at : at + step]
        yield b"".join((_begin(len(part), None if at or alone else header), part))


def _begin(size: int, header: bytes | None) -> bytes:
    """What comes before `size` bytes of data."""
    inner = b""
    if header is not None:
        inner = b"\x0a" + varint(len(header)) + header
    if size:
        inner += b"\x12" + varint(size)
    return b"\x12" + varint(len(inner) + size) + inner


def varint(n: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    found = bytearray()
    while n > 127:
        found.append(n & 127 | 128)
        n >>= 7
    found.append(n)
    return bytes(found)


def _view(x: Tensor) -> memoryview:
    array = x.detach().cpu().contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).data.cast("B")


# ---------------------------------------------------------------- in


def unframed(raw: bytes) -> tuple[Header | None, memoryview] | None:
    """The header, if any, and the bytes of a Part that `frames` made; None: another message."""
    view = memoryview(raw)
    if not raw or raw[0] != 0x12:
        return None
    size, at = _length(raw, 1)
    header = None
    data = view[:0]
    if at + size != len(raw):
        return None
    if at < len(raw) and raw[at] == 0x0A:
        size, at = _length(raw, at + 1)
        header = _header(raw, at, size)
        at += size
    if at < len(raw) and raw[at] == 0x12:
        size, at = _length(raw, at + 1)
        data = view[at : at + size]
        at += size
    return (header, data) if at == len(raw) else None


def _length(raw: bytes, at: int) -> tuple[int, int]:
    """A varint of at most five bytes, and where it ends."""
    found = 0
    for place, byte in enumerate(raw[at : at + 5]):
        found |= (byte & 127) << 7 * place
        if byte < 128:
            return found, at + place + 1
    raise Refusal("sent bytes that are no message")


def _header(raw: bytes, at: int, size: int) -> Header:
    """Decoded, it can take twenty times the memory of its bytes, so these are few."""
    if size > OVERHEAD:
        raise Refusal(f"sent a header of {size} bytes: expected at most {OVERHEAD}")
    if len(raw) < at + size:
        raise Refusal("sent bytes that are no message")
    try:
        return Header.FromString(raw[at : at + size])
    except DecodeError:
        raise Refusal("sent bytes that are no message") from None


def to_site(raw: bytes) -> ToSite:
    """A welcome or an end; tasks are read by `next_message`."""
    if len(raw) > OVERHEAD:
        raise Refusal(f"sent {len(raw)} bytes: expected at most {OVERHEAD} here")
    try:
        return ToSite.FromString(raw)
    except DecodeError:
        raise Refusal("sent bytes that are no message") from None


def quoted(text: str) -> str:
    """What the other side said, in one short line that no terminal takes for anything else."""
    plain = text if text.isprintable() else repr(text)
    return plain if len(plain) <= SAID else plain[:SAID] + "..."


@dataclass
class Message:
    """A message that is coming in: its header, checked, and the bytes of its vectors.

    There is room for exactly what is declared, from the first of these bytes on.
    """

    id: int
    kind: str
    scalars: dict[str, float]
    names: list[str]
    shape: Shape
    size: int  # bytes of all vectors
    buffer: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    filled: int = 0

    @property
    def whole(self) -> bool:
        return self.filled == self.size

    @property
    def long(self) -> bool:
        return self.size > ANNOUNCED

    def add(self, data: memoryview) -> None:
        end = self.filled + len(data)
        if end > self.size:
            raise Refusal(f"sent {end} bytes of vectors: expected {self.size}")
        if data:
            if not self.filled:
                self.buffer = torch.empty(self.size, dtype=torch.uint8)
            self.buffer.numpy()[self.filled : end] = np.frombuffer(data, np.uint8)
        self.filled = end

    def vectors(self) -> dict[str, Tensor]:
        """The vectors, each where torch itself would begin it: a sum's last bit depends on that."""
        sent = self.buffer.numpy().view(DTYPES[self.shape.dtype])
        numbers = torch.from_numpy(sent.astype(sent.dtype.newbyteorder("="), copy=False))
        if len(self.names) == 1:
            return {self.names[0]: numbers}
        parts = numbers.split(self.shape.parameters)
        return {name: part.clone() for name, part in zip(self.names, parts, strict=False)}


def begin(header: Header, shape: Shape) -> Message:
    """Room for a message, or a Refusal; looks at numbers and lengths only."""
    if len(header.vectors) > VECTORS or len(header.scalars) > NUMBERS:
        raise Refusal(
            f"sent {len(header.vectors)} vectors and {len(header.scalars)} numbers: "
            f"expected at most {VECTORS} and {NUMBERS}"
        )
    names = [vector.name for vector in header.vectors]
    if len(set(names)) < len(names) or any(len(n) > NAME for n in (*names, *header.scalars)):
        raise Refusal(f"sent vectors {[n[:NAME] for n in names]}: expected different short names")
    for vector in header.vectors:
        if vector.length != shape.parameters:
            raise Refusal(
                f"sent {vector.name!r} of {vector.length} numbers: expected {shape.parameters}"
            )
    total = len(names) * shape.bytes
    if total > shape.most:
        raise Refusal(f"sent {total} bytes: expected at most {shape.most}")
    return Message(header.id, header.kind[:NAME], dict(header.scalars), names, shape, total)


def next_message(message: Message | None, raw: bytes, shape: Shape) -> Message:
    """The message that this part begins or goes on with."""
    part = unframed(raw)
    if part is None:
        raise Refusal("sent something else than a task or a report")
    header, data = part
    if header is not None:
        if message is not None:
            raise Refusal(f"began another message after {message.filled} of {message.size} bytes")
        message = begin(header, shape)
    elif message is None:
        raise Refusal("sent bytes before a header")
    elif not data:
        raise Refusal("sent an empty part")
    message.add(data)
    return message

"""Tasks and reports as parts of bounded size, and back; what does not fit is refused first.

Both sides know p and the type of its numbers before any vector travels, so every vector has a known
length. A header that declares anything else is refused before anything is allocated for it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from torch import Tensor

from aspire.federation.wire_pb2 import Header, ToSite, Vector
from aspire.letters import posted, room_before

MAJOR, MINOR = 3, 0
HELLO = "aspire-hello-bin"  # where a call's metadata has the Hello
METHOD = "/aspire.federation.Federation/Serve"
CHUNK = 4 * 2**20  # bytes of vectors in one part
PIECE = 2**20  # the same of a message that needs several: how far it is shows in time
ANNOUNCED = 2**18  # bytes of vectors: of a longer report the header comes first, by itself
OVERHEAD = 64 * 2**10  # bytes of everything else in one part
DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
LONG = 2**16  # numbers: longer vectors travel beside the computation
EIGHT = 8  # bytes of the longest numbers: where they begin at a multiple they need not be moved
NOTHING = memoryview(b"")
VECTORS, NUMBERS, NAME = 4, 64, 64  # at most: vectors, numbers, letters of a name, in one message
SAID = 300  # letters of the other side's words that we repeat


with warnings.catch_warnings():  # torch warns once a process of arrays that are only read
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(bytes(8), np.float64))


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
    three times. A vector in a letter is not copied at all. With `announce` the first part of a long
    message is its header alone: the rest may have to wait.
    """
    named = [Vector(name=name, length=len(x)) for name, x in vectors.items()]
    header = Header(id=id, kind=kind, scalars=scalars, vectors=named).SerializeToString()
    size = sum(x.nbytes for x in vectors.values())
    alone = announce and size > ANNOUNCED
    letter = _letter(header, *vectors.values()) if len(vectors) == 1 and not alone else None
    if letter is not None:
        yield letter
        return
    if alone:
        yield _begin(0, header)
    views = [_view(x) for x in vectors.values()]
    data = views[0] if len(views) == 1 else memoryview(b"".join(views))
    step = CHUNK if size <= CHUNK else PIECE
    for at in range(0, max(1, size), step):
        part = data[at : at + step]
        yield b"".join((_begin(len(part), None if at or alone else header), part))


def _letter(header: bytes, x: Tensor) -> bytes | None:
    """The letter in which x lies, if one part holds it and the header fills the room."""
    room = room_before(x)
    begin = _begin(x.nbytes, header, room) if room else b""
    return posted(x, begin) if room and len(begin) == room and x.nbytes <= CHUNK else None


def _begin(size: int, header: bytes | None, multiple: int = EIGHT) -> bytes:
    """What comes before `size` bytes of data; with a header, a multiple of that many bytes."""
    inner = b""
    if header is not None:
        header += filler(len(header), size, multiple)
        inner = b"\x0a" + varint(len(header)) + header
    if size:
        inner += b"\x12" + varint(size)
    return b"\x12" + varint(len(inner) + size) + inner


@lru_cache(maxsize=1024)
def filler(header: int, size: int, multiple: int) -> bytes:
    """What a header of that length needs for `size` bytes of data to begin at a multiple of this.

    A field of two bytes at least, or nothing.
    """
    if not size:
        return b""
    field = b""
    for zeros in range(2 * multiple):
        longer = header + len(field)
        inner = width(longer) + longer + width(size) + 2
        if (1 + width(inner + size) + inner) % multiple == 0:
            break
        field = b"\x2a" + varint(zeros) + bytes(zeros)
    return field


def width(n: int) -> int:
    """Bytes of `varint`."""
    return max(1, -(-n.bit_length() // 7))


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
    header, data = None, view[:0]
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

    What came in one part stays where it is; for several there is room for exactly what is declared.
    """

    id: int
    kind: str
    scalars: dict[str, float]
    names: list[str]
    shape: Shape
    size: int  # bytes of all vectors
    buffer: memoryview = NOTHING
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
        if len(data) == self.size:
            self.buffer = data
        elif data:
            if not self.filled:
                self.buffer = np.empty(self.size, np.uint8).data
            self.buffer[self.filled : end] = data
        self.filled = end

    def numbers(self) -> NDArray[Any]:
        dtype = DTYPES[self.shape.dtype]
        flat = np.frombuffer(self.buffer, dtype).astype(dtype.newbyteorder("="), copy=False)
        return flat if flat.flags.aligned else flat.copy()

    def vectors(self) -> dict[str, Tensor]:
        """The vectors as tensors on the received bytes, which nobody writes to."""
        flat, p = self.numbers(), self.shape.parameters
        return {n: torch.from_numpy(flat[i * p : i * p + p]) for i, n in enumerate(self.names)}


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

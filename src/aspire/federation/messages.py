"""Tasks and reports as parts of bounded size, and back; what does not fit is refused first.

Both sides know p and the type of its numbers before any vector travels, so every vector has a known
length. A header that declares anything else is refused before anything is allocated for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire.federation.wire_pb2 import Header, Part, Vector

MAJOR, MINOR = 1, 0
METHOD = "/aspire.federation.Federation/Serve"
CHUNK = 4 * 2**20  # bytes of vectors in one part
OVERHEAD = 64 * 2**10  # bytes of everything else in one part
DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
LARGEST = 1e30  # of a reported number: sums and squares of such are still finite
VECTORS, NUMBERS, NAME = 4, 64, 64  # at most: vectors, numbers, letters of a name, in one message


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


def parts(
    id: int, vectors: Mapping[str, Tensor], scalars: Mapping[str, float], kind: str = ""
) -> Iterator[Part]:
    """The header with the first bytes, then the rest."""
    named = [Vector(name=name, length=len(x)) for name, x in vectors.items()]
    header = Header(id=id, kind=kind, scalars=scalars, vectors=named)
    data = b"".join([_bytes(x) for x in vectors.values()])
    yield Part(header=header, data=data[:CHUNK])
    for at in range(CHUNK, len(data), CHUNK):
        yield Part(data=data[at : at + CHUNK])


def _bytes(x: Tensor) -> bytes:
    array = x.detach().cpu().contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


# ---------------------------------------------------------------- in


@dataclass
class Message:
    """A message that is coming in: its header, checked, and room for exactly what it declares."""

    id: int
    kind: str
    scalars: dict[str, float]
    names: list[str]
    shape: Shape
    buffer: bytearray
    filled: int = 0

    @property
    def whole(self) -> bool:
        return self.filled == len(self.buffer)

    def add(self, data: bytes) -> None:
        end = self.filled + len(data)
        if end > len(self.buffer):
            raise Refusal(f"sent {end} bytes of vectors: expected {len(self.buffer)}")
        self.buffer[self.filled : end] = data
        self.filled = end

    def vectors(self) -> dict[str, Tensor]:
        """The vectors as tensors on the received bytes."""
        dtype = DTYPES[self.shape.dtype]
        flat = np.frombuffer(self.buffer, dtype).astype(dtype.newbyteorder("="), copy=False)
        rows = torch.from_numpy(flat).split(self.shape.parameters) if self.names else ()
        return dict(zip(self.names, rows, strict=True))


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
                f"sent {vector.name} of {vector.length} numbers: expected {shape.parameters}"
            )
    total = len(names) * shape.bytes
    if total > shape.most:
        raise Refusal(f"sent {total} bytes: expected at most {shape.most}")
    return Message(
        header.id, header.kind[:NAME], dict(header.scalars), names, shape, bytearray(total)
    )


def next_message(message: Message | None, part: Part, shape: Shape) -> Message:
    """The message that this part begins or goes on with."""
    if part.HasField("header"):
        if message is not None:
            raise Refusal(
                f"began another message after {message.filled} of {len(message.buffer)} bytes"
            )
        message = begin(part.header, shape)
    elif message is None:
        raise Refusal("sent bytes before a header")
    elif not part.data:
        raise Refusal("sent an empty part")
    message.add(part.data)
    return message


def refuse_not_finite(scalars: Mapping[str, float], vectors: Mapping[str, Tensor]) -> None:
    for name, value in scalars.items():
        if not abs(value) <= LARGEST:
            raise Refusal(f"reports {name}={value}: expected a number within +-{LARGEST:g}")
    for name, x in vectors.items():
        # a finite sum has finite terms; the costlier look is for sums that are not
        if not math.isfinite(float(x.sum())) and not bool(torch.isfinite(x).all()):
            raise Refusal(f"reports {name} with values that are not finite")

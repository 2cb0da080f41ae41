"""The wire: what goes in comes out, in bounded parts; what does not fit is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf", reason="needs aspire-ease[federation]")
from aspire.engines.grpc import messages
from aspire.engines.grpc.messages import (
    CHUNK,
    Refusal,
    Shape,
    begin,
    frames,
    next_message,
    shape_of,
)
from aspire.engines.grpc.wire_pb2 import FromSite, Header, Part, ToSite, Vector

SOURCE = Path(__file__).parents[2] / "src"
SMALL = Shape(3, "float32", 48)


def through(sent: list[bytes], shape: Shape) -> messages.Message:
    message = None
    for frame in sent:
        message = next_message(message, frame, shape)
    assert message is not None
    return message


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [1, 3, CHUNK // 4, CHUNK // 4 + 1])
def test_a_message_comes_through_to_the_bit(p: int, dtype: torch.dtype) -> None:
    v = torch.randn(p, dtype=dtype, generator=torch.Generator().manual_seed(p))
    vectors, scalars = {"w": v, "v": -v}, {"pi": 0.25, "rate": 1e-300}
    sent = list(frames(-7, vectors, scalars, "step"))
    shape = shape_of(v)
    message = through(sent, shape)
    assert message.whole
    assert (message.id, message.kind, message.scalars) == (-7, "step", scalars)
    found = message.vectors()
    assert list(found) == ["w", "v"]
    assert all(torch.equal(found[name], vectors[name]) for name in vectors)
    assert all(x.dtype == dtype for x in found.values())
    assert all(len(frame) < CHUNK + messages.OVERHEAD for frame in sent)


def test_no_vectors_is_one_part() -> None:
    sent = list(frames(3, {}, {"loss": 2.0}))
    assert len(sent) == 1
    assert through(sent, SMALL).vectors() == {}


def header(*lengths: int, **scalars: float) -> Header:
    named = [Vector(name=f"x{i}", length=n) for i, n in enumerate(lengths)]
    return Header(id=1, vectors=named, scalars=scalars)


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        (header(2), "'x0' of 2 numbers: expected 3"),
        (header(2**28), "'x0' of 268435456 numbers: expected 3"),
        (header(3, 3, 3, 3, 3), "5 vectors and 0 numbers: expected at most 4 and 192"),
        (header(**{f"n{i}": 0.0 for i in range(193)}), "0 vectors and 193 numbers"),
        (header(**{"n" * 65: 0.0}), "expected different short names"),
        (Header(vectors=[Vector(name="w", length=3)] * 2), "expected different short names"),
    ],
)
def test_what_is_declared_is_checked_first(declared: Header, sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        begin(declared, SMALL)


def test_the_bound_on_a_message_holds() -> None:
    with pytest.raises(Refusal, match="sent 24 bytes: expected at most 23"):
        begin(header(3, 3), Shape(3, "float32", 23))


def framed(**part: Any) -> bytes:
    """As protobuf itself serialises it."""
    return FromSite(report=Part(**part)).SerializeToString()


def test_data_fits_what_was_declared() -> None:
    with pytest.raises(Refusal, match="sent 16 bytes of vectors: expected 12"):
        next_message(None, framed(header=header(3), data=bytes(16)), SMALL)
    half = next_message(None, framed(header=header(3), data=bytes(8)), SMALL)
    assert not half.whole
    with pytest.raises(Refusal, match="began another message after 8 of 12 bytes"):
        next_message(half, framed(header=header(3)), SMALL)
    with pytest.raises(Refusal, match="empty part"):
        next_message(half, framed(), SMALL)
    with pytest.raises(Refusal, match="sent 16 bytes of vectors: expected 12"):
        next_message(half, framed(data=bytes(8)), SMALL)
    with pytest.raises(Refusal, match="before a header"):
        next_message(None, framed(data=bytes(8)), SMALL)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_frames_are_what_protobuf_makes(count: int) -> None:
    """The .proto file is the truth: our frames are its messages, byte for byte, both ways."""
    vectors = {f"x{i}": torch.tensor([1.0, -2.0, i]) for i in range(count)}
    sent = list(frames(5, vectors, {"loss": 0.5}, "step"))
    assert len(sent) == 1
    data = b"".join(x.numpy().tobytes() for x in vectors.values())
    part = Part(header=header(*[3] * count, loss=0.5), data=data)
    part.header.id, part.header.kind = 5, "step"
    assert sent[0] == ToSite(task=part).SerializeToString()
    assert sent[0] == FromSite(report=part).SerializeToString()


@pytest.mark.parametrize("kind", ["", "s", "ss", "sss"])
@pytest.mark.parametrize("count", [1, 2])
def test_vectors_begin_where_torchs_own_do(kind: str, count: int) -> None:
    """Sums may depend on it in their last bit, and a replay has vectors of torch."""
    sent = {f"x{i}": torch.tensor([1.0, 2.0, i]) for i in range(count)}
    found = through(list(frames(1, sent, {}, kind)), SMALL).vectors()
    assert all(torch.equal(found[name], sent[name]) for name in sent)
    assert all(x.data_ptr() % 64 == 0 for x in found.values())


@given(st.binary(max_size=64), st.integers(0, 200))
def test_garbage_is_refused_and_never_believed(garbage: bytes, at: int) -> None:
    """Any bytes, alone or in the place of a part's own: a Refusal, or what protobuf reads too."""
    good = framed(header=header(3, loss=1.0), data=bytes(12))
    for raw in (garbage, good[:at], good[:at] + garbage + good[at + len(garbage) :]):
        try:
            found = next_message(None, raw, SMALL)
        except Refusal:
            continue
        read = FromSite.FromString(raw).report
        assert (found.id, found.scalars) == (read.header.id, dict(read.header.scalars))
        assert found.buffer.numpy()[: found.filled].tobytes() == read.data


def test_a_model_in_half_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="type float16: expected float32 or float64"):
        shape_of(torch.zeros(3, dtype=torch.float16))


def test_max_message_must_hold_a_task() -> None:
    with pytest.raises(ValueError, match="max_message=1 MB: expected at least 8"):
        shape_of(torch.zeros(10**6), 1)
    assert shape_of(torch.zeros(10**6), 8).most == 8 * 2**20


def test_the_generated_module_fits_the_proto_file(tmp_path: Path) -> None:
    tools = pytest.importorskip("grpc_tools.protoc", reason="needs grpcio-tools")
    name = "aspire/engines/grpc/wire.proto"
    code = tools.main(
        ["", f"-I{SOURCE}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", name]
    )
    assert code == 0
    for made in ("wire_pb2.py", "wire_pb2.pyi"):
        new = (tmp_path / "aspire" / "engines" / "grpc" / made).read_text()
        assert new == (SOURCE / "aspire" / "engines" / "grpc" / made).read_text(), "make it again"

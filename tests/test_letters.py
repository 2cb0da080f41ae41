"""Letters: they look like torch's vectors, and are posted without a copy."""

import gc
import weakref

import pytest
import torch

from aspire import letters
from aspire.federation.messages import CHUNK, PIECE, Shape, frames, next_message
from aspire.federation.wire_pb2 import ToSite

P = letters.LONG + 3
NUMBERS = {"draws": 3.0, "kappa": 0.25, "pi": 0.1, "rate": 0.01}


def written(p: int = P, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    row = letters.empty_like(torch.empty(1, p, dtype=dtype))
    row.copy_(torch.arange(p))
    return row.unbind(0)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_letter_is_posted_as_it_lies(dtype: torch.dtype) -> None:
    v = written(dtype=dtype)
    assert letters.room_before(v) >= letters.ROOM
    (sent,) = frames(7, {"v": v}, NUMBERS, "step")
    assert sent is v.untyped_storage().__dict__["letter"]
    task = ToSite.FromString(sent).task
    assert (task.header.id, task.header.kind, dict(task.header.scalars)) == (7, "step", NUMBERS)
    message = next_message(None, sent, Shape(P, str(dtype).removeprefix("torch."), 2**30))
    assert torch.equal(message.vectors()["v"], torch.arange(P, dtype=dtype))


def test_a_letter_can_be_posted_again_with_another_header() -> None:
    v = written()
    for id in (7, 8, 10**9):
        (sent,) = frames(id, {"v": v}, NUMBERS)
        assert ToSite.FromString(sent).task.header.id == id
    assert torch.equal(v, torch.arange(P, dtype=torch.float32))


def test_letters_begin_where_vectors_of_torch_do() -> None:
    """Sums may depend on it in their last bit, and a replay has vectors of torch."""
    kept = [written(P + 17 * k) for k in range(20)]
    assert all(x.data_ptr() % 64 == 0 for x in kept)


def test_what_is_no_whole_letter_is_copied() -> None:
    v, short = written(), torch.arange(5.0)
    for x in (v[:-1], v[1:], v[::2], v.clone(), short, letters.empty_like(short)):
        assert letters.room_before(x) == 0
    one, other = {"v": v}, {"v": v.clone()}
    parts = [
        b"".join(ToSite.FromString(frame).task.data for frame in frames(1, vectors, {}))
        for vectors in (one, other, {"v": v[1:]}, {"v": v, "w": v})
    ]
    whole = v.numpy().tobytes()
    assert parts == [whole, whole, whole[4:], whole + whole]


def test_a_header_too_long_for_the_room_is_sent_all_the_same() -> None:
    v, numbers = written(), {f"number {i}": float(i) for i in range(40)}
    (sent,) = frames(7, {"v": v}, numbers)
    assert sent is not v.untyped_storage().__dict__["letter"]
    assert dict(ToSite.FromString(sent).task.header.scalars) == numbers
    assert ToSite.FromString(sent).task.data == v.numpy().tobytes()


def test_a_letter_of_several_parts_is_cut() -> None:
    v = written(CHUNK // 4 + 1)
    sent = list(frames(7, {"v": v}, NUMBERS))
    assert [len(ToSite.FromString(frame).task.data) for frame in sent] == [*[PIECE] * 4, 4]


def test_a_letter_goes_with_its_vector() -> None:
    v = written()
    ends = weakref.ref(v.untyped_storage())
    del v
    gc.collect()
    assert ends() is None

"""100,000 mutated messages at each side's decoder: nothing escapes but our own Refusal."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")

from aspire.api.preparing import prepare
from aspire.cli.federation import work_options
from aspire.engines.grpc.connections import Terms, hello_of
from aspire.engines.grpc.messages import HELLO, Message, Refusal, next_message, quoted, to_site
from aspire.engines.grpc.policy import Guard, Policy, TooOften, check_welcome
from aspire.engines.grpc.server import Server
from aspire.engines.grpc.site import OVER, task_of
from aspire.engines.grpc.wire_pb2 import Settings
from aspire.methods import aspire
from aspire.protocol import answer_objection, out_of_range, report_objection
from aspire.types import Report, Task
from tests.federation import fuzz
from tests.federation.fuzz import SHAPE

COUNT = 100_000
METHOD = aspire(pull_bound=10.0)
POLICY = Policy(max_tasks_per_minute=10**9, max_evaluations_per_minute=10**9)


def tried(seen: Counter[str], function: Any, *given: Any) -> Any:
    """What it gives, None where it refuses; the sentence is one that may go to a log."""
    try:
        found = function(*given)
    except Refusal as refusal:
        seen["refused" if str(refusal).isprintable() else "ill said"] += 1
        return None
    seen["not refused"] += 1
    return found


class Decoder:
    """What `_read` of a server and `read` of a site do with bytes, without the network."""

    def __init__(self) -> None:
        self.message: Message | None = None

    def whole(self, raw: bytes) -> Message | None:
        """The message that ends here; after a Refusal the next one begins."""
        message, self.message = self.message, None
        message = next_message(message, raw, SHAPE)
        if message.whole:
            return message
        self.message = message
        return None


def objection(report: Report) -> str | None:
    """As the driver and the method find one."""
    if report.task < 0:
        return answer_objection(report)
    reasons = [
        report_objection(report, kind, parameters=SHAPE.parameters, dtype=torch.float32)
        for kind in METHOD.kinds.values()
    ]
    return None if None in reasons else str(reasons[0])


def test_the_servers_decoder() -> None:
    decoder, seen = Decoder(), Counter[str]()
    for raw in fuzz.many(COUNT, 1, fuzz.reports(), (fuzz.odd_report,)):
        message = tried(seen, decoder.whole, raw)
        if message is None:
            continue
        reason = objection(Report(0, message.id, message.vectors(), message.scalars))
        seen["accepted" if reason is None else "objected"] += 1
        assert reason is None or reason.isprintable()
    assert min(seen[name] for name in ("refused", "objected", "accepted")) > 200, seen
    assert not seen["ill said"]


def server() -> Any:
    """The checks of a Hello, with no connection behind them."""
    terms = Terms(SHAPE, None, bytes(32))  # type: ignore[arg-type]
    line = SimpleNamespace(out=False)
    return SimpleNamespace(terms=terms, allowed={"a", "b"}, lines={"a": line})


def test_the_servers_decoder_of_a_hello() -> None:
    seen = Counter[str]()
    for raw in fuzz.many(COUNT // 5, 2, [fuzz.hello()], (fuzz.odd_hello,)):
        context = SimpleNamespace(invocation_metadata=lambda raw=raw: ((HELLO, raw),))
        tried(seen, lambda said: Server._check(server(), "a", hello_of(said)), context)
    assert min(seen[name] for name in ("refused", "not refused")) > 20, seen
    assert not seen["ill said"]


def opened(raw: bytes) -> Settings:
    """As a site takes the first message, and the last."""
    said = to_site(raw)
    assert quoted(said.over.reason).isprintable()
    if not said.HasField("welcome"):
        raise Refusal("does not speak our protocol")
    check_welcome(POLICY, said.welcome, bytes(32))
    return said.welcome.settings


def worked(decoder: Decoder, guard: Guard, raw: bytes) -> Task | None:
    if raw[:1] == OVER:
        opened(raw)
    message = decoder.whole(raw)
    if message is None:
        return None
    task = task_of(message, 0)
    guard.check(task, METHOD.kinds)
    return task


def test_the_sites_decoder() -> None:
    decoder, guard, seen = Decoder(), Guard(POLICY, SHAPE), Counter[str]()
    for raw in fuzz.many(COUNT, 3, fuzz.tasks(), (fuzz.odd_task, fuzz.odd_task, fuzz.odd_opening)):
        task = tried(seen, worked, decoder, guard, raw)
        if task is not None:
            seen["accepted"] += 1
            assert out_of_range(task) is None
            assert task.kind in {"probe", "step", "evaluate", "figures"}
    assert min(seen[name] for name in ("refused", "accepted")) > 200, seen
    assert not seen["ill said"]


def test_the_sites_decoder_of_a_welcome() -> None:
    """And what a site makes of settings that it did not refuse: a job, or a ValueError."""
    seen, found = Counter[str](), set()
    for raw in fuzz.many(COUNT // 5, 4, fuzz.openings(), (fuzz.odd_opening,)):
        settings = tried(seen, opened, raw)
        if settings is not None:
            found.add(settings.SerializeToString(deterministic=True))
    assert min(seen[name] for name in ("refused", "not refused")) > 20, seen
    assert not seen["ill said"]
    data = (torch.zeros(9, 2), torch.zeros(9, dtype=torch.int64))
    made = 0
    for raw in sorted(found)[:: 1 + len(found) // 400]:
        with suppress(ValueError):
            prepare(torch.nn.Linear(2, 2), {"a": data}, **work_options(Settings.FromString(raw)))
            made += 1
    assert made > 0


def test_too_often_is_not_a_refusal() -> None:
    """A server that asks too often is heard again later."""
    guard = Guard(Policy(max_tasks_per_minute=1), SHAPE)
    task = Task(0, 0, "probe", {"w": fuzz.W}, {"draws": 0.0})
    guard.check(task, METHOD.kinds)
    with pytest.raises(TooOften, match="more than 1 tasks a minute"):
        guard.check(task, METHOD.kinds)

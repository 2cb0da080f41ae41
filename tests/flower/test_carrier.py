"""The carrier and the two apps in one process: Flower's own messages, a grid that runs the apps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra: pip install 'aspire-ease[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from aspire.api import Job, replay
from aspire.api.user_file import job_of, read
from aspire.engines.carrier import Back, Gone
from aspire.engines.flower.apps import client_app, options_of, train_over
from aspire.engines.flower.carrier import TRIES, GridCarrier
from aspire.engines.flower.messages import from_report, from_task, to_report, to_task
from aspire.methods import aspire
from aspire.types import Report, Task
from tests.flower.grid import Here, as_in_a_run
from tests.method_files import OWN

FILE = """
import torch

def model():
    return torch.nn.Linear(3, 2)

def sites():
    return ["north", "east"]

def site(name):
    rng = torch.Generator().manual_seed(len(name))
    x = torch.randn(40, 3, generator=rng)
    return x, (x[:, 0] + (name == "east") * x[:, 1] > 0).long()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    as_in_a_run()
    path = tmp_path / "file.py"
    path.write_text(FILE, encoding="utf-8")
    return path


def probe(worker: int, id: int = 0) -> Task:
    return Task(worker, id, "probe", {"w": torch.zeros(8)}, {"draws": 0.0})


def test_messages_travel_unchanged() -> None:
    vectors = {"w": torch.tensor([1.5, -2.0]), "v": torch.zeros(3, dtype=torch.float64)}
    task = Task(2, 7, "step", vectors, {"pi": 0.1})
    back = to_task(from_task(task))
    assert (back.worker, back.id, back.kind, back.scalars) == (2, 7, "step", {"pi": 0.1})
    assert all(torch.equal(back.vectors[n], v) for n, v in vectors.items())
    assert back.vectors["v"].dtype == torch.float64
    report = to_report(from_report(Report(2, 7, vectors, {"loss": 0.5})))
    assert (report.worker, report.task, report.scalars) == (2, 7, {"loss": 0.5})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"about": ConfigRecord({"protocol": 2})}, "protocol 2: expected 1"),
        ({"about": None}, "expected about, vectors and scalars"),
    ],
)
def test_a_message_of_another_kind_is_refused(change: dict[str, Any], sentence: str) -> None:
    records = from_report(Report(0, 0))
    for name, record in change.items():
        if record is None:
            del records[name]
        else:
            records[name] = record
    with pytest.raises(ValueError, match=sentence):
        to_report(records)


def test_a_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'w' of shape \(2, 2\)"):
        to_report(from_report(Report(0, 0, {"w": torch.zeros(2, 2)})))


def test_nodes_are_found_by_name_and_answer(file: Path) -> None:
    grid = Here(client_app(file), {11: {"site": "east"}, 12: {"partition-id": 0}}, {})
    carrier = GridCarrier(grid, ["north", "east"], aspire().kinds)
    found = carrier.receive(0.0)
    assert sorted(a.worker for a in found if isinstance(a, Back)) == [0, 1]
    assert carrier.nodes == {0: 12, 1: 11}
    carrier.send([probe(0), probe(1, 1)])
    reports = carrier.receive(0.0)
    assert {(r.worker, r.task) for r in reports} == {(0, 0), (1, 1)}
    assert all(isinstance(r, Report) and r.scalars["loss"] > 0 for r in reports)
    step = {"pi": 0.5, "kappa": 1.0, "rate": 0.1, "draws": 1.0}
    carrier.send([Task(0, 2, "step", {"v": torch.zeros(8)}, step)])
    sent = to_task(grid.sent[-1].content)
    assert torch.equal(sent.vectors["w"], torch.zeros(8))  # w comes along: nobody remembers it
    (report,) = carrier.receive(0.0)
    carrier.send([Task(0, 3, "step", {"v": torch.zeros(8)}, step)])
    again = to_task(grid.sent[-1].content)
    assert torch.equal(again.vectors["w"], report.vectors["w"])


def test_a_failed_process_costs_one_task_but_not_for_ever(file: Path) -> None:
    grid = Here(client_app(file), {11: {"site": "east"}}, {})
    carrier = GridCarrier(grid, ["north", "east"])
    carrier.receive(0.0)
    grid.broken[11] = Error(8, "the process crashed")
    for n in range(TRIES):
        carrier.send([probe(1)])
        (arrival,) = carrier.receive(0.0)
        assert arrival == Back(1) if n < TRIES - 1 else isinstance(arrival, Gone)
    assert "crashed" in arrival.reason


def test_a_node_that_leaves_is_gone_and_another_takes_its_name(file: Path) -> None:
    now = [0.0]
    grid = Here(client_app(file), {11: {"site": "east"}}, {})
    carrier = GridCarrier(grid, ["north", "east"], clock=lambda: now[0])
    carrier.receive(0.0)
    grid.nodes = {11: {"site": "east"}, 13: {"site": "east"}, 14: {"site": "west"}}
    now[0] += 10
    assert carrier.receive(0.0) == []  # the first keeps its name; the third is none of ours
    assert carrier.nodes == {1: 11}
    del grid.nodes[11]
    now[0] += 10
    assert carrier.receive(0.0) == [Gone(1, "its SuperNode left"), Back(1)]
    assert carrier.nodes == {1: 13}
    carrier.send([probe(0)])  # nobody is there: dropped, as the driver expects
    assert len(grid.waiting) == 0


def spoilt(records: RecordDict) -> Iterable[RecordDict]:
    """An answer with one thing wrong, each time another."""
    for about in (
        {},
        {"worker": "1", "task": 0},
        {"worker": 1, "task": 7},
        {"worker": 0, "task": 0},
    ):
        changed = RecordDict(dict(records))
        changed["about"] = ConfigRecord({"protocol": 1, **about})
        yield changed
    for data in (b"", b"\x93NUMPY\x01\x00", bytes(100)):
        changed = RecordDict(dict(records))
        changed["vectors"] = ArrayRecord({"w": Array("float32", (8,), "numpy.ndarray", data)})
        yield changed


def test_an_answer_that_is_no_report_is_a_breach(file: Path) -> None:
    grid = Here(client_app(file), {11: {"site": "east"}}, {})
    carrier = GridCarrier(grid, ["north", "east"])
    carrier.receive(0.0)
    for records in spoilt(from_report(Report(1, 0, {}, {"loss": 1.0}))):
        grid.serve = lambda message, records=records: Message(records, reply_to=message)
        carrier.send([probe(1)])
        (arrival,) = carrier.receive(0.0)
        assert isinstance(arrival, Gone)
        assert arrival.breach


def test_a_refused_site_comes_back_unless_it_stays_out(file: Path) -> None:
    now = [0.0]
    grid = Here(client_app(file), {11: {"site": "east"}}, {})
    carrier = GridCarrier(grid, ["north", "east"], clock=lambda: now[0])
    assert carrier.receive(0.0) == [Back(1)]
    for for_good in (False, True):
        carrier.dismiss(1, "a loss of 1e300", for_good=for_good)
        now[0] += 10
        assert carrier.receive(0.0) == ([] if for_good else [Back(1)])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "other"}, "kind 'other': expected one of probe, step"),
        ({"kind": "evaluate"}, "evaluate with a negative id"),
        ({"scalars": {}}, "incomplete, expected draws"),
        ({"scalars": {"draws": 0.0, "x": 1.0}}, "too much, expected draws"),
        ({"scalars": {"draws": -1.0}}, "draws=-1: expected a number from 0"),
        ({"vectors": {"w": torch.full((8,), float("nan"))}}, "w with values that are not finite"),
        ({"vectors": {"w": torch.zeros(9)}}, r"w of shape \(9,\)"),
    ],
)
def test_a_task_out_of_range_is_not_done(change: dict[str, Any], sentence: str, file: Path) -> None:
    grid = Here(client_app(file), {11: {"site": "east"}}, {})
    task = dataclasses.replace(probe(1), **change)
    with pytest.raises(ValueError, match=f"the ServerApp sent task 0 with .*{sentence}"):
        grid.serve(Message(from_task(task), 11, "train"))


def test_a_task_for_another_site_is_not_done(file: Path) -> None:
    grid = Here(client_app(file), {11: {"site": "east"}}, {})
    message = Message(from_task(probe(0)), 11, "train")
    with pytest.raises(ValueError, match="for site number 0: expected 1, east"):
        grid.serve(message)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"iteration": 3}, "config iteration=3: expected one of iterations"),
        ({"iterations": "many"}, "config iterations='many': expected a int"),
    ],
)
def test_a_bad_config_is_refused(config: dict[str, Any], sentence: str, file: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        options_of(config, read(file))


def job_without_data(file: Path, config: dict[str, Any]) -> Job:
    source = read(file)
    return job_of(source, options_of(config, source)[0], only=[])


def test_a_whole_run_equals_its_replay(file: Path, tmp_path: Path) -> None:
    config = {"iterations": 12, "local-steps": 3, "out": str(tmp_path / "run")}
    grid = Here(client_app(file), {11: {"site": "east"}, 12: {"site": "north"}}, config)
    run = train_over(grid, file, config)
    assert run.iterations == 12
    assert run.settings["local_steps"] == 3
    assert run.evaluated_on == "train"
    assert run.worst_accuracy is not None
    assert run.worst_accuracy > 0.5
    assert run.test_losses is None
    assert (run.train_samples > 0).all()
    events, _ = replay(tmp_path / "run", job_without_data(file, config))
    assert events == 14  # two probes, twelve steps


def test_local_steps_are_fifty_where_a_method_has_them(file: Path) -> None:
    source = read(file)
    for config, steps in (
        ({}, 50),
        ({"local-steps": 3}, 3),
        ({"method": "fedavg"}, 50),
        ({"method": "fedavg(local_steps=2)"}, None),
        ({"method": "fedavg", "local-steps": 4}, 4),
        ({"method": "afl"}, None),
    ):
        assert options_of(config, source)[0]["local_steps"] == steps
        job_of(source, options_of(config, source)[0], only=[])
    said = options_of({"method": "afl", "local-steps": 2}, source)[0]
    with pytest.raises(ValueError, match="afl has no local_steps"):
        job_of(source, said, only=[])
    file.write_text(OWN)
    assert options_of({}, read(file))[0]["local_steps"] is None


def test_an_ended_run_is_extended(file: Path, tmp_path: Path) -> None:
    config: dict[str, Any] = {"iterations": 6, "local-steps": 2, "evaluate-every": 3}
    grid = Here(client_app(file), {11: {"site": "east"}, 12: {"site": "north"}}, config)
    train_over(grid, file, config | {"out": str(tmp_path / "run")})
    run = train_over(grid, file, config | {"resume": str(tmp_path / "run"), "extend": 10})
    assert run.iterations == 10
    assert run.history[-1]["t"] == 10
    events, _ = replay(
        tmp_path / "run", job_of(read(file), options_of(config, read(file))[0], only=[])
    )
    assert events == 12


def test_a_run_whose_superlink_went_away_is_resumed(file: Path, tmp_path: Path) -> None:
    config: dict[str, Any] = {"iterations": 10, "local-steps": 2, "checkpoint-seconds": 0.0}
    grid = Here(client_app(file), {11: {"site": "east"}, 12: {"site": "north"}}, config)
    grid.most = 11
    with pytest.raises(ConnectionError):
        train_over(grid, file, config | {"out": str(tmp_path / "run")})
    grid.most = 10**9
    run = train_over(grid, file, config | {"resume": str(tmp_path / "run")})
    assert run.iterations == 10
    assert len(grid.sent) - 11 < 2 + 2 + 10 + 2  # it went on where it was, not from the start
    events, _ = replay(tmp_path / "run", job_without_data(file, config))
    assert events == 12

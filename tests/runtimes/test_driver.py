"""The driver's rules over a real carrier: threads and queues that lose, repeat and delay."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import replace

import pytest
import torch

from aspire.api import Interrupted, prepare, replay, resume, train
from aspire.api.engines import crew_and_job, drive
from aspire.engines.carrier import Back, Gone, Turn
from aspire.engines.driver import Drive, Driver, begin
from aspire.engines.serve import NoState, serve
from aspire.engines.status import status
from aspire.methods import aspire, central, fedavg
from aspire.runs import checkpoint, log
from aspire.runs import files as rundir
from aspire.runs.errors import Stopped
from aspire.runs.folder import RunFolder
from aspire.runs.log import EventLog, digest
from aspire.sets import CDNorm
from aspire.types import Report
from tests.helpers import blobs, linear
from tests.runtimes.threads import ThreadEngine, Threads

QUICK = {"iterations": 60, "batch_size": 8, "evaluate_every": 20}


def whole_job(**more):
    return prepare(linear(), blobs(), **QUICK | more)


def events_of(folder):
    return log.read(folder / log.NAME)[0]


def same_state(folder, **more):
    """The replay finds the state that the run ended with."""
    job = whole_job(**more)
    return replay(folder, job)


# ---------------------------------------------------------------- the whole way


@pytest.mark.parametrize("level", ["full", "vectors"])
def test_a_run_replays_to_the_bit(tmp_path, level):
    run = train(linear(), blobs(), engine=ThreadEngine(), out=tmp_path / "run", log=level, **QUICK)
    assert run.iterations == 60
    assert [line["t"] for line in run.history][-1] == 60
    assert run.evaluated_on == "test"
    on_simulator = train(linear(), blobs(), **QUICK)
    assert set(run.history[0]) == set(on_simulator.history[0])
    assert set(run.result()) == set(on_simulator.result())
    events, state = same_state(tmp_path / "run")
    assert events == len(events_of(tmp_path / "run"))
    assert len(state) == 64
    if level == "vectors":  # no data is needed
        _, job = crew_and_job(linear(), blobs(), QUICK)
        assert replay(tmp_path / "run", job)[1] == state
        kept = list((tmp_path / "run" / log.VECTORS).iterdir())
        assert len(kept) == events - 4  # the probes have none


def test_tasks_leave_before_the_log_is_written(tmp_path):
    told = []

    class Told(EventLog):
        def write(self, record):
            told.append("log")
            super().write(record)

    class Carrier:
        def send(self, tasks):
            told.append(f"{len(tasks)} tasks")

    crew, job = crew_and_job(linear(), blobs(), QUICK)
    trail = Told("full", tmp_path / "log")
    state = begin(job.method, job.problem.facts(), 0)
    driver = Driver(job.method, Carrier(), job.problem.names, state, trail, patience=9.0)
    for j, make in enumerate(crew):
        assert driver.take(serve(*make(), None, state.hands[j])[1]) is not None
    assert told == ["log", "log", "log", "4 tasks", "log"]
    trail.close()


def test_the_evaluation_is_what_the_model_gives(tmp_path):
    run = train(linear(), blobs(), engine=ThreadEngine(), **QUICK)
    for j, site in enumerate(blobs().values()):
        x, y = site["test"]
        right = (run.model(x).argmax(1) == y).float().mean()
        assert run.accuracies[j] == pytest.approx(float(right))
        x, y = site["train"]
        loss = torch.nn.functional.cross_entropy(run.model(x), y).detach()
        assert run.losses[j] == pytest.approx(float(loss), rel=1e-5)
    assert run.worst_case_loss == pytest.approx(
        CDNorm(radius=0.25, budget=4.0).for_sites(4).value(run.losses)
    )


@pytest.mark.parametrize("method", [aspire(quorum=2, pull_bound=10.0), fedavg(), central()])
def test_every_method_runs_and_replays(tmp_path, method):
    train(linear(), blobs(), engine=ThreadEngine(), out=tmp_path / "r", method=method, **QUICK)
    same_state(tmp_path / "r", method=method)


def test_status_says_where_the_run_stands(tmp_path):
    train(linear(), blobs(), engine=ThreadEngine(), out=tmp_path / "r", **QUICK)
    status = json.loads((tmp_path / "r" / "status.json").read_text())
    assert status["iteration"] == 60
    assert status["ended"]
    assert [site["name"] for site in status["sites"]] == ["s0", "s1", "s2", "s3"]
    assert sum(site["reports"] for site in status["sites"]) == len(events_of(tmp_path / "r"))
    assert sum(site["weight"] for site in status["sites"]) == pytest.approx(1.0)
    assert status["worst_site"] in {"s0", "s1", "s2", "s3"}


@pytest.mark.parametrize(
    ("name", "value"), [("stationarity", True), ("absences", ["x"]), ("delays", ["x"])]
)
def test_what_is_simulated_is_refused_on_an_engine(name, value):
    with pytest.raises(ValueError, match=f"{name} belongs to the simulator"):
        train(linear(), blobs(), engine=ThreadEngine(), **QUICK, **{name: value})


# ---------------------------------------------------------------- what a carrier may do


def test_duplicates_are_dropped(tmp_path):
    engine = ThreadEngine(lambda report: [report, report])
    train(linear(), blobs(), engine=engine, out=tmp_path / "r", **QUICK)
    tasks = [e["task"] for e in events_of(tmp_path / "r") if e["event"] == "report"]
    assert len(tasks) == len(set(tasks))
    status = json.loads((tmp_path / "r" / "status.json").read_text())
    assert sum(site["late"] for site in status["sites"]) > 20
    same_state(tmp_path / "r")


def test_reports_on_tasks_never_given_are_dropped(tmp_path):
    def more(report):
        return [replace(report, task=report.task + 1000), replace(report, worker=99), report]

    train(linear(), blobs(), engine=ThreadEngine(more), out=tmp_path / "r", **QUICK)
    assert {e["event"] for e in events_of(tmp_path / "r")} == {"report"}
    same_state(tmp_path / "r")


def test_a_new_process_costs_one_task(tmp_path):
    """Killed with a task in hand: the same task again, with its w_j, and no event of it."""
    job = whole_job()
    crew = [lambda j=j: (job.method, job.problem.sites[j]) for j in range(4)]
    seen = {"n": 0}

    def changed(report):
        seen["n"] += 1
        if seen["n"] in (10, 20, 30):
            threading.Thread(target=carrier.restart, args=(report.worker,)).start()
            return []  # it died before it could report
        return [report]

    carrier = Threads(crew, changed)
    rundir.write_json(tmp_path / rundir.RUN, {"log": "full", "engine": {}, "sites": []})
    with RunFolder(tmp_path) as folder:
        drive(job, carrier, folder=folder, patience=30.0)
    carrier.close()
    assert seen["n"] > 30
    assert {e["event"] for e in events_of(tmp_path)} == {"report"}
    events, end = log.read(tmp_path / log.NAME)
    assert same_state(tmp_path) == (len(events), end["state"])


def test_a_task_for_an_old_process_is_asked_for_again():
    job = whole_job()
    master, tasks = job.method.init(job.problem.facts(), 0)
    local = job.problem.sites[0]
    for task in tasks:
        _, report = serve(job.method, job.problem.sites[task.worker], None, task)
        master, new, _ = job.method.absorb(master, [report])
    worker, report = serve(job.method, local, None, new[0])
    master, (bare,), _ = job.method.absorb(master, [report])
    with pytest.raises(NoState, match="carries no w"):
        serve(job.method, local, None, bare)
    _, old = serve(job.method, local, worker, bare)
    _, again = serve(job.method, local, None, job.method.look(master).whole(bare))
    assert digest(old) == digest(again)


# ---------------------------------------------------------------- one step at a time


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Silent:
    """A carrier that only notes what it was given."""

    def __init__(self):
        self.sent, self.dismissed = [], []

    def send(self, tasks):
        self.sent += tasks

    def dismiss(self, worker, reason, *, for_good):
        self.dismissed.append((worker, for_good))


def quiet_driver(method=None, path=None, **limits):
    job = whole_job(**({} if method is None else {"method": method}))
    clock, carrier = Clock(), Silent()
    state = begin(job.method, job.problem.facts(), 0)
    names = job.problem.names
    trail = EventLog("full", path)
    driver = Driver(job.method, carrier, names, state, trail, patience=10.0, clock=clock, **limits)
    driver.send_again(range(4))
    return job, driver, carrier, clock


def answer(job, driver, j):
    """What worker j, whoever it is, says to the task in its hands."""
    task = driver.state.hands[j]
    whole = driver.look().whole
    task = task if whole is None else whole(task)
    return serve(job.method, job.problem.sites[j], None, task)[1]


def test_the_silent_leave_and_the_late_return():
    job, driver, carrier, _clock = quiet_driver(min_sites=3)
    probe = answer(job, driver, 3)
    for j in range(2):
        driver.take(answer(job, driver, j))
    assert driver.state.master.t == 0  # the constants wait for a third
    assert driver.state.away == {}
    driver.take(answer(job, driver, 2))
    assert list(driver.state.away) == [3]
    assert driver.state.master.present.tolist() == [True, True, True, False]
    driver.take(answer(job, driver, 0))
    assert driver.state.master.t == 1
    driver.take(probe)  # late: dropped, but it is back
    assert driver.state.away == {}
    assert driver.state.late == [0, 0, 0, 1]
    assert carrier.sent[-1].kind == "probe"
    assert carrier.sent[-1].id != probe.task
    driver.take(answer(job, driver, 3))
    assert driver.state.master.present.all()


def test_before_the_start_only_those_that_answered_are_here():
    job, driver, _carrier, _clock = quiet_driver()
    driver.take(answer(job, driver, 1))
    driver.take(Gone(2, "its disk is full"))
    away = [site["away"] for site in status(driver, 0.0)["sites"]]
    assert away == ["has not answered yet", None, "its disk is full", "has not answered yet"]
    assert [site["alive"] for site in status(driver, 0.0)["sites"]] == [False, True, False, False]
    for j in (0, 2, 3):
        driver.take(answer(job, driver, j))
    assert all(site["alive"] for site in status(driver, 0.0)["sites"])


def test_nobody_is_hurried_who_has_just_got_a_task():
    job, driver, _carrier, clock = quiet_driver()
    for j in range(4):
        driver.take(answer(job, driver, j))
    clock.now = 9.0
    driver.take(answer(job, driver, 0))
    clock.now = 10.5
    driver.notice_silence()
    assert sorted(driver.state.away) == [1, 2, 3]
    assert 0 not in driver.state.away


def test_who_waits_for_others_is_not_silent():
    """Tasks that wait for their turn, and questions that do, cost their workers nothing."""
    job, driver, _carrier, clock = quiet_driver(aspire(staleness=2), deadline=4.0)
    for j in range(4):
        driver.take(answer(job, driver, j))
    driver.ask(job.problem.flat.start, {"t": 0})
    ids = {j: task.id for j, task in driver.state.hands.items()}
    clock.now = 9.0
    driver.take(Turn(0, ids[0], 9.0, ((1, ids[1]), (1, -1), (2, ids[2]))))
    assert driver.sent[:2] == [9.0, 0.0]
    clock.now = 10.5
    driver.notice_silence()
    assert list(driver.state.away) == [3]  # neither had a turn nor waits for one
    assert driver.answered() == []  # the question to s1 was still waiting at 9.0
    driver.take(Report(0, -1, {}, {"loss": 1.0, "samples": 9.0}))
    clock.now = 19.5
    assert len(driver.answered()) == 1


def test_a_start_that_goes_on_is_waited_for():
    _job, driver, _carrier, clock = quiet_driver()
    for now in (9.0, 18.0, 27.0):
        clock.now = now
        driver.take(Turn(0, driver.state.hands[0].id, now, ((1, 1),)))
        driver.notice_silence()
    clock.now = 37.5
    with pytest.raises(Stopped, match="min_sites=4"):
        driver.notice_silence()


def test_gone_and_back():
    job, driver, carrier, _clock = quiet_driver()
    for j in range(4):
        driver.take(answer(job, driver, j))
    driver.take(Gone(2, "its disk is full"))
    driver.take(Gone(2, "its disk is full"))
    assert driver.state.away == {2: "its disk is full"}
    before = len(carrier.sent)
    driver.take(Back(1))  # was never away: a new process
    assert [(t.worker, "w" in t.vectors) for t in carrier.sent[before:]] == [(1, True)]
    assert carrier.sent[-1].id == driver.state.hands[1].id
    driver.take(Back(2))
    assert carrier.sent[-1].kind == "probe"
    assert driver.state.away == {}


def test_a_refused_report_puts_its_site_away(tmp_path, caplog):
    job, driver, _carrier, _clock = quiet_driver(path=tmp_path / "events.jsonl")
    for j in range(4):
        driver.take(answer(job, driver, j))
    bad = answer(job, driver, 1)
    bad = replace(bad, vectors={"w": torch.full_like(bad.vectors["w"], float("nan"))})
    with caplog.at_level(logging.WARNING, "aspire"):
        driver.take(bad)
    assert "not finite" in caplog.text
    assert list(driver.state.away) == [1]
    driver.take(bad)  # again: away until it is Back
    assert list(driver.state.away) == [1]
    driver.take(answer(job, driver, 0))
    assert driver.state.master.t == 1
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert ["refused" in line for line in lines] == [False] * 4 + [True] + [False] * 2
    assert [line["event"] for line in lines if "event" in line] == ["report"] * 4 + [
        "left",
        "report",
    ]
    driver.take(Back(1))
    assert driver.state.away == {}


def test_a_method_that_cannot_miss_anybody_waits():
    """The centralised algorithm refuses Left: its worker stays, and is asked again when Back."""
    _job, driver, carrier, _clock = quiet_driver(central())
    driver.take(Gone(0, "restarting"))
    assert driver.state.away == {}
    assert 0 in driver.state.hands
    before = len(carrier.sent)
    driver.take(Back(0))
    assert [t.worker for t in carrier.sent[before:]] == [0]


def test_a_refused_site_that_nobody_can_miss_ends_the_run():
    job, driver, _carrier, _clock = quiet_driver(central())
    for j in range(4):
        driver.take(answer(job, driver, j))
    said = answer(job, driver, 1)
    with pytest.raises(Stopped, match=r"what site s1 said was refused .* cannot go on without it"):
        driver.take(replace(said, scalars={**said.scalars, "loss": 1e300}))


SPOILT = {
    "incomplete": lambda said: replace(said, scalars={"loss": 1.0}),
    "no vector": lambda said: replace(said, vectors={}),
    "a name of the log": lambda said: replace(said, scalars={**said.scalars, "worker": 0.0}),
    "a line of the log": lambda said: replace(
        said, scalars={**said.scalars, 'x"}\n{"event": "left", "worker": 0}\n{"y': 0.0}
    ),
    "a huge loss": lambda said: replace(said, scalars={**said.scalars, "loss": 1e18}),
    "a negative curvature": lambda said: replace(said, scalars={**said.scalars, "curvature": -1.0}),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_three_breaches_and_a_site_stays_out(tmp_path, spoil):
    """Every way to leave costs the same; the log has nothing that a site has named."""
    job, driver, carrier, _clock = quiet_driver(path=tmp_path / "events.jsonl")
    for j in range(4):
        driver.take(answer(job, driver, j))
    for strike in range(1, 4):
        driver.take(spoil(answer(job, driver, 1)))
        assert driver.state.breaches == [0, strike, 0, 0]
        assert carrier.dismissed[-1] == (1, strike == 3)
        assert list(driver.state.away) == [1]
        driver.take(Back(1))
        if strike < 3:
            driver.take(answer(job, driver, 1))  # its probe
    assert list(driver.state.away) == [1]
    assert 1 not in driver.state.hands
    driver.take(answer(job, driver, 0))
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert {"worker": 1}.items() <= next(x for x in lines if "refused" in x)["refused"].items()
    names = {name for line in lines for name in line}
    assert names <= {
        *("n", "time", "event", "worker", "task", "vectors", "refused", "reason"),
        *("gradients", "samples", "loss", "curvature", "slope"),
    }


FIGURES = {
    "accuracy": (2.0, -0.1, float("nan")),
    "loss": (1e13, float("inf"), -1e300),
    "test_loss": (1e13, float("nan")),
    "samples": (0.5, -1.0, 1e13),
    "test": (0.5, 2.0),
    "name": (1.0,),
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, vs in FIGURES.items() for v in vs])
def test_evaluation_figures_out_of_range_are_a_breach(name, value):
    job, driver, carrier, _clock = quiet_driver()
    for j in range(4):
        driver.take(answer(job, driver, j))
    driver.ask(job.problem.flat.start, {"t": 0})
    good = {"loss": 1.0, "samples": 9.0, "accuracy": 0.5, "test": 1.0}
    driver.take(Report(0, -1, {}, good | {name: value}))
    assert driver.state.breaches == [1, 0, 0, 0]
    assert carrier.dismissed == [(0, False)]
    driver.take(Report(1, -1, {}, good))
    assert driver.state.asked[0].answers == {0: {}, 1: good}
    driver.take(Report(1, -1, {}, good))  # once more: it counts once
    assert driver.state.late == [0, 1, 0, 0]


def test_who_is_refused_before_the_start_is_away_when_it_comes():
    """Its probe was in its range, what it said next was not."""
    job, driver, _carrier, _clock = quiet_driver(min_sites=3)
    driver.take(answer(job, driver, 3))
    driver.take(Gone(3, "it reports task 99: it was never given it", breach=True))
    for j in range(2):
        driver.take(answer(job, driver, j))
    assert driver.state.started
    assert sorted(driver.state.away) == [2, 3]
    assert driver.state.master.present.tolist() == [True, True, False, False]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e13])
def test_a_task_out_of_range_ends_the_run_and_blames_nobody(value):
    job, driver, carrier, _clock = quiet_driver()
    for j in range(4):
        driver.take(answer(job, driver, j))
    driver.state.master.sum_w[0] = value * 1e6
    before, said = len(carrier.sent), answer(job, driver, 2)
    with pytest.raises(Stopped, match="diverged after 1 iterations: the next task of site s2 has"):
        driver.take(said)
    assert len(carrier.sent) == before
    assert driver.state.breaches == [0, 0, 0, 0]


# ---------------------------------------------------------------- who is waited for


def test_a_run_does_not_start_with_too_few():
    job, driver, _carrier, clock = quiet_driver(min_sites=3)
    for j in (0, 2):
        driver.take(answer(job, driver, j))
    assert driver.waiting() == [1, 3]
    clock.now = 9.9
    assert driver.notice_silence() == []
    clock.now = 10.1
    with pytest.raises(Stopped, match="min_sites=3: after 10 s the first answer of s1, s3 is miss"):
        driver.notice_silence()


def test_a_deadline_in_multiples_of_the_others_median():
    job, driver, _carrier, clock = quiet_driver(aspire(staleness=6), deadline=4.0)
    for j in range(4):
        driver.take(answer(job, driver, j))
    for _ in range(2):
        clock.now += 2.0  # s0, s1 and s2 take two seconds each, s3 has not answered
        for j in range(3):
            driver.take(answer(job, driver, j))
    assert driver.state.master.t == 5  # the sixth step needs s3
    assert driver.waiting() == [3]
    clock.now = 7.9
    driver.notice_silence()
    assert not driver.state.away
    clock.now = 8.1  # four times two seconds, and less than the patience
    driver.notice_silence()
    assert driver.state.away == {3: "took 4 times as long as the others usually do"}
    assert driver.waiting() == []
    (absence,) = driver.state.absences
    assert (absence["site"], absence["to"]) == (3, None)


def test_nobody_is_left_behind_who_is_not_waited_for():
    job, driver, _carrier, clock = quiet_driver(aspire(), deadline=2.0)
    for j in range(4):
        driver.take(answer(job, driver, j))
    for _ in range(3):
        clock.now += 2.0
        driver.take(answer(job, driver, 0))
    driver.notice_silence()
    assert not driver.state.away


def test_evaluations_wait_for_the_present_only():
    job, driver, _carrier, clock = quiet_driver()
    for j in range(4):
        driver.take(answer(job, driver, j))
    driver.ask(job.problem.flat.start, {"t": 0})
    for j in (0, 1):
        driver.take(Report(j, -1, {}, {"loss": 1.0, "samples": 9.0}))
    assert driver.answered() == []
    driver.take(Gone(2, "x"))
    driver.take(Report(3, -1, {}, {"loss": 3.0, "samples": 9.0}))
    (found,) = driver.answered()
    assert sorted(found.answers) == [0, 1, 3]
    driver.ask(job.problem.flat.start, {"t": 0})
    clock.now = 11.0  # nobody answers for too long
    assert len(driver.answered()) == 1


def test_answers_beside_the_last_report_are_heard():
    """All that arrives at once is taken in turn; what comes after the last event is not lost."""
    job, driver, carrier, _clock = quiet_driver()
    for j in range(4):
        driver.take(answer(job, driver, j))
    driver.ask(job.problem.flat.start, {"t": 0})
    said = [Report(j, -1, {}, {"loss": 1.0, "samples": 9.0}) for j in range(4)]
    carrier.receive = lambda timeout: [said[0], answer(job, driver, 2), *said[1:]]
    driver.run(lambda state: state.master.t >= 1)
    assert driver.answered() == []
    carrier.receive = lambda timeout: []
    for arrival in driver.receive():
        driver.listen(arrival)
    (found,) = driver.answered()
    assert sorted(found.answers) == [0, 1, 2, 3]


# ---------------------------------------------------------------- stop, kill, resume


def stopped_run(folder, **more):
    steps = []
    with pytest.raises(Interrupted, match="stopped after"):
        train(
            linear(), blobs(), engine=ThreadEngine(), out=folder, checkpoint_seconds=1e9,
            progress=steps.append, stop=lambda: len(steps) >= 30, **QUICK | more,
        )  # fmt: skip


@pytest.mark.parametrize("level", ["full", "vectors"])
def test_a_stopped_run_goes_on(tmp_path, level):
    folder = tmp_path / "r"
    stopped_run(folder, log=level)
    done = events_of(folder)
    assert len(done) == 4 + 30
    crew, job = crew_and_job(linear(), blobs(), QUICK)
    job.settings["log"] = level
    run = resume(folder, job, engine=ThreadEngine(), crew=crew)
    assert run.iterations == 60
    assert events_of(folder)[: len(done)] == done
    assert len(events_of(folder)) == 64
    same_state(folder)
    assert [line["t"] for line in run.history] == sorted({line["t"] for line in run.history})
    with pytest.raises(ValueError, match="has ended"):
        resume(folder, job, engine=ThreadEngine(), crew=crew)


def test_what_came_after_the_last_checkpoint_is_done_again(tmp_path):
    """As after kill -9: the log is longer than the checkpoint knows."""
    folder = tmp_path / "r"
    stopped_run(folder)
    trail = folder / log.NAME
    with open(trail, "a") as file:
        file.write('{"n": 999, "time": 1.0, "event": "left", "worker": 0}\n{"torn')
    crew, job = crew_and_job(linear(), blobs(), QUICK)
    job.settings["log"] = "full"
    resume(folder, job, engine=ThreadEngine(), crew=crew)
    assert [e["n"] for e in events_of(folder)] == list(range(64))
    same_state(folder)


def test_the_driver_is_in_the_checkpoint(tmp_path):
    stopped_run(tmp_path / "r")
    newest = checkpoint.files(tmp_path / "r")[0]
    saved = checkpoint.read(newest, whole_job().expected(Drive))
    assert set(saved.state.hands) == {0, 1, 2, 3}
    assert saved.state.gradients > 4 * 13
    assert saved.log.count == len(events_of(tmp_path / "r"))
    assert sum(saved.state.reports) == saved.log.count


class Full:
    """A file on a disk that has room for `left` bytes more."""

    def __init__(self, file, left):
        self.file, self.left = file, left

    def write(self, data):
        if not self.left:
            raise OSError(28, "No space left on device")
        taken = self.file.write(data[: self.left])
        self.left -= taken
        return taken

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_log_waits_for_room_on_the_disk(tmp_path, caplog):
    trail, whole = EventLog("full", tmp_path / "a"), EventLog("full", tmp_path / "b")
    trail._file = full = Full(trail._file, 100)
    for n in range(10):
        for one in (trail, whole):
            one.add(float(n), Report(0, n, {}, {"loss": 1.0}))
    assert caplog.text.count("waits for room") == 1
    with pytest.raises(OSError, match="No space left"):
        trail.place()  # so no checkpoint counts on what is not there
    full.left = 10**6
    for one in (trail, whole):
        one.add(10.0, Report(0, 10, {}, {"loss": 1.0}))
    assert trail.place() == whole.place()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

"""FILE.py for tests of methods on every engine, one of them with a method of its own."""

PROBLEM = """
import torch


def model():
    return torch.nn.Linear(3, 2)


def sites():
    return ["a", "b"]


def site(name):
    rng = torch.Generator().manual_seed(ord(name))
    x = torch.randn(60, 3, generator=rng)
    y = (x[:, 0] + (name == "b") * x[:, 1] > 0).long()
    return {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}
"""

# Synchronous gradient descent on the mean of the losses: a whole method, outside the package.
OWN = (
    PROBLEM
    + """

from dataclasses import dataclass, field

import numpy as np

from aspire.types import (
    Count, Flat, Joined, Kind, Left, Method, Refused, Report, SiteMask, Stepped, Task, Worker,
)

KINDS = {"slope": Kind(1, vectors=("g",), given=("at",))}
RATE = 0.2


@dataclass
class Master:
    t: Count
    w: Flat
    present: SiteMask
    draws: Count = 0
    answers: dict[Worker, Report] = field(default_factory=dict)


def tasks_of(master):
    numbers = {"draws": float(master.draws)}
    here = np.flatnonzero(master.present)
    return [Task(int(j), master.t, "slope", {"at": master.w.clone()}, numbers) for j in here]


def init(facts, seed):
    master = Master(0, facts.start.clone(), np.ones(facts.sites, dtype=bool))
    return master, tasks_of(master)


def work(worker, task, local):
    g = local.gradient(task.vectors["at"], int(task.scalars["draws"]))
    cost = {"gradients": 1.0, "samples": 3.0 * local.batch_samples}
    return None, Report(task.worker, task.id, {"g": g}, cost)


def absorb(master, events):
    tasks, infos = [], []
    for event in events:
        if isinstance(event, Report) and event.task == master.t:
            master.answers[event.worker] = event
        elif isinstance(event, Report):
            infos.append(Refused(event, "of another step"))
            continue
        else:
            master.present[event.worker] = isinstance(event, Joined)
            master.answers.pop(event.worker, None)
            if isinstance(event, Joined):
                tasks += [task for task in tasks_of(master) if task.worker == event.worker]
        if set(np.flatnonzero(master.present).tolist()) == set(master.answers):
            slopes = [master.answers[j].vectors["g"] for j in sorted(master.answers)]
            master.w = master.w - RATE * torch.stack(slopes).mean(0)
            infos.append(Stepped(master.t, tuple(sorted(master.answers))))
            master.answers = {}
            master.t += 1
            master.draws += 1
            tasks = tasks_of(master)
    return master, tasks, infos


def method():
    return Method(
        name="mine",
        settings={"rate": RATE},
        init=init,
        work=work,
        absorb=absorb,
        model=lambda master: master.w,
        kinds=KINDS,
        states=(Master,),
    )
"""
)
METHODS = ("afl(rate=0.2)", "fedavg(local_steps=2)", "direct(learning_rate=0.05)")

"""What a master asks every site before the training, where something depends on all of them.

How many training samples a site has (`prior="size"`), and the means and variances of its inputs
(`standardize=True`) as a vector that travels in parts as long as the model, so that it goes where a
model goes. No method sees any of it. All sites must answer: what they say is part of the problem.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from aspire.engines.carrier import Arrival, Back, Carrier, Gone
from aspire.problem.sites import Site
from aspire.problem.standardization import Moments
from aspire.protocol import MOMENTS, survey_objection
from aspire.runs.errors import Stopped
from aspire.types import Report, Task

SURVEY = "survey"
FIRST = -(2**40)  # the id of the first question; no evaluation has such a number
TICK = 0.2  # seconds between two looks at the clock


# ---------------------------------------------------------------- at a site


def survey(local: Site, task: Task) -> Report:
    """The size of the training part, and a part of the moments where the site tells them."""
    said = {"samples": float(local.train.size), "numbers": 0.0}
    if not local.tells:
        return Report(task.worker, task.id, {}, said)
    whole = torch.cat([local.moments.mean, local.moments.variance])
    p = len(local.objective.flat.start)
    at = int(task.scalars["part"]) * p
    part = torch.zeros(p, dtype=whole.dtype)
    part[: len(whole[at : at + p])] = whole[at : at + p]
    said["numbers"] = float(len(whole))
    return Report(task.worker, task.id, {MOMENTS: part}, said)


# ---------------------------------------------------------------- at the master


@dataclass
class Answer:
    """What one site has said so far."""

    samples: int = 0
    numbers: int = 0
    parts: list[Tensor] = field(default_factory=list)
    whole: bool = False

    @property
    def moments(self) -> Moments:
        mean, variance = torch.cat(self.parts)[: self.numbers].chunk(2)
        return Moments(self.samples, mean, variance.clamp(min=0.0))


def ask(
    carrier: Carrier,
    names: Sequence[str],
    start: Tensor,
    *,
    moments: bool,
    patience: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[Answer]:
    """The answers of all sites, each asked when it is there (`Back`).

    Stopped where one has none, or none that can be used.
    """
    answers = [Answer() for _ in names]
    reasons: dict[int, str] = {}
    heard = clock()
    while not all(answer.whole for answer in answers):
        for arrival in carrier.receive(TICK):
            j = arrival.worker
            if isinstance(arrival, Gone):
                reasons[j] = arrival.reason
                continue
            heard = clock()
            if take(arrival, answers[j], names[j], start, moments=moments):
                carrier.send([question(j, answers[j])])
        if clock() - heard > patience:
            silent = [j for j, answer in enumerate(answers) if not answer.whole]
            why = reasons.get(silent[0], f"no answer within {patience:g} s")
            raise Stopped(
                f"site {names[silent[0]]} has not said how many samples it has ({why}): "
                "standardize=True and prior='size' need every site at the start"
            )
    return answers


def question(j: int, answer: Answer) -> Task:
    """For the part that comes next."""
    part = len(answer.parts)
    return Task(j, FIRST - part, SURVEY, {}, {"part": float(part)})


def take(arrival: Arrival, answer: Answer, name: str, start: Tensor, *, moments: bool) -> bool:
    """Whether the site has to be asked again, after what has arrived."""
    if not isinstance(arrival, Report):
        return isinstance(arrival, Back) and not answer.whole
    if answer.whole or arrival.task != question(arrival.worker, answer).id:
        return False
    reason = survey_objection(arrival, parameters=len(start), dtype=start.dtype)
    if reason is None and moments and not arrival.scalars["numbers"]:
        reason = "no means and variances: expected standardize() in its FILE.py"
    if reason is not None:
        raise Stopped(f"site {name} answers {reason}")
    answer.samples = int(arrival.scalars["samples"])
    answer.numbers = int(arrival.scalars["numbers"]) if moments else 0
    if answer.numbers:
        answer.parts.append(arrival.vectors[MOMENTS])
    answer.whole = len(answer.parts) * len(start) >= answer.numbers
    return not answer.whole

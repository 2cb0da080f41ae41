"""A site's own policy: what it does for a server, and what it refuses whatever the server asks.

Everything that a server says is checked here: its welcome once, each of its tasks before anything
is computed. A server that asks for more is refused with a sentence, and the site ends; one that
asks too often is hung up on, and dialled again when its minute is over.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from aspire.engines.grpc.messages import MAJOR, Refusal, Shape
from aspire.engines.grpc.meter import Meter
from aspire.engines.grpc.wire_pb2 import Settings, Welcome
from aspire.engines.serve import objection
from aspire.types import Kind, Method, Task

NAME = 64  # letters of a method's name
ARGUMENTS = 4096  # letters


class TooOften(Exception):
    """The server asks more often than the policy allows; in a minute it may ask again."""


@dataclass(frozen=True)
class Policy:
    """The limits; each is an option of `aspire site`, or a key of its TOML file.

    min_batch                   samples in the smallest batch; each part needs as many rows
    max_batch                   samples in the largest batch
    max_local_steps             gradient steps, or batches, in one task of any method; of a site
                                that trains alone first (reference='own-best'), all of these
    max_parameters              of the model
    max_tasks_per_minute        tasks that train
    max_evaluations_per_minute  questions for losses and accuracies
    allow_other_file            work for a server that announces another FILE.py
    """

    min_batch: int = 8
    max_batch: int = 65_536
    max_local_steps: int = 100
    max_parameters: int = 1_000_000_000
    max_tasks_per_minute: int = 100_000
    max_evaluations_per_minute: int = 600
    allow_other_file: bool = False

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "allow_other_file":
                if not isinstance(value, bool):
                    raise ValueError(f"{one.name}={value!r}: expected true or false")
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{one.name}={value!r}: expected a whole number of at least 1")
        if self.min_batch > self.max_batch:
            raise ValueError(
                f"min_batch={self.min_batch}: expected at most max_batch={self.max_batch}"
            )


def read_policy(file: Path | None, options: Mapping[str, Any]) -> Policy:
    """The policy of a TOML file; `options` that are not None stand in place of its keys."""
    said: dict[str, Any] = {}
    if file is not None:
        try:
            said = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"policy={str(file)!r}: expected a TOML file ({error})") from None
    known = [one.name for one in fields(Policy)]
    for name in said:
        if name not in known:
            raise ValueError(f"policy={str(file)!r} has {name!r}: expected {', '.join(known)}")
    given = {name: value for name, value in options.items() if value is not None}
    return replace(Policy(), **said | given)


# ---------------------------------------------------------------- what a server says


def check_model(policy: Policy, shape: Shape) -> None:
    if shape.parameters > policy.max_parameters:
        raise ValueError(
            f"the model has {shape.parameters} parameters: expected at most "
            f"max_parameters={policy.max_parameters}"
        )


def check_rows(policy: Policy, rows: Mapping[str, int]) -> None:
    """`rows`: by the name of the part. The server sees means over each of them."""
    for part, count in rows.items():
        if count < policy.min_batch:
            raise ValueError(
                f"this site's {part} part has {count} rows: expected at least "
                f"min_batch={policy.min_batch}, since a mean over few rows gives them away; lower "
                "min_batch if you accept that"
            )


def check_welcome(policy: Policy, welcome: Welcome, file: bytes) -> None:
    """Refusal of a server whose settings are outside the policy, or make no sense."""
    if welcome.major != MAJOR:
        raise Refusal(f"speaks version {welcome.major} of the protocol: expected {MAJOR}")
    if welcome.file != file and not policy.allow_other_file:
        raise Refusal(
            f"runs another FILE.py ({welcome.file.hex()[:16]}): expected ours ({file.hex()[:16]}); "
            "allow_other_file accepts that"
        )
    settings = welcome.settings
    if settings.batch_size and not policy.min_batch <= settings.batch_size <= policy.max_batch:
        raise Refusal(
            f"asks for batches of {settings.batch_size}: expected min_batch={policy.min_batch} to "
            f"max_batch={policy.max_batch}, or 0, the whole site"
        )
    check_values(settings)


def check_values(settings: Settings) -> None:
    decay = settings.weight_decay
    if not (math.isfinite(decay) and decay >= 0):
        raise Refusal(f"sends weight_decay={decay}: expected a finite number of at least 0")
    for name, most in (("method", NAME), ("arguments", ARGUMENTS)):
        letters = len(getattr(settings, name))
        if letters > most:
            raise Refusal(f"sends {name} of {letters} letters: expected at most {most}")


def check_method(policy: Policy, method: Method) -> None:
    """Refusal of a method whose tasks would cost more than the policy allows."""
    for name, kind in method.kinds.items():
        if kind.batches > policy.max_local_steps:
            raise Refusal(
                f"asks for {kind.batches} local steps or batches in a task {name!r}: expected at "
                f"most max_local_steps={policy.max_local_steps}; raise max_local_steps if you "
                "accept that"
            )


class Guard:
    """Looks at every task before it is done."""

    def __init__(self, policy: Policy, shape: Shape) -> None:
        self.parameters = shape.parameters
        self.dtype = getattr(torch, shape.dtype)
        self.tasks = Meter(policy.max_tasks_per_minute)
        self.evaluations = Meter(policy.max_evaluations_per_minute)

    def check(self, task: Task, kinds: Mapping[str, Kind]) -> None:
        """Refusal of a task that is not one of ours; TooOften where there are too many."""
        reason = objection(task, kinds, parameters=self.parameters, dtype=self.dtype)
        if reason is not None:
            raise Refusal(f"sent task {task.id} with {reason}")
        evaluates = task.id < 0
        meter = self.evaluations if evaluates else self.tasks
        if not meter.take():
            what = "evaluations" if evaluates else "tasks"
            raise TooOften(f"asks for more than {meter.most} {what} a minute")

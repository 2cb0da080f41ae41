"""Two of ten sites lie to the direct form; what the honest ones are left with.

A liar stands between `work` and the master: it computes what an honest site would, and reports
something else. All liars of a run see the honest sites' last gradients and losses, those that are
on their way included, and say that their own loss is 3 times the worst of them.

reversed  -100 times the liar's own gradient
far       the same long vector in every report
alie, ipm, mimic  `attacks.attacks` of byzfl 0.0.11, with its own settings
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from torch import Tensor

from aspire.methods.aspire_ease.direct import direct
from aspire.problem import batches
from aspire.sets import Box
from aspire.types import Fast, Item, Local, Method, Report, Task

NETWORK = "cnn"
# What these two hold is drawn with the seed. The two sites that are hard for a reason of their own,
# the ninth and the tenth, stay honest: they are often the worst ones, which the figures are about.
LIARS = (0, 1)
LOUDER = 3.0  # times the worst honest loss
BACKWARDS = -100.0  # times the liar's gradient
STEEPER = 100.0  # times its norm at the start, which is one of those that set the threshold
FAR = 1e3  # every entry of the far vector, up to its sign

CLIP = 1.0  # as a federation has it
CLIPPED = "clipped"
FOR_ONE = "clipped-for-one"
LONG = "clipped-long"
UNCLIPPED = "unclipped"
METHODS = (CLIPPED, FOR_ONE, LONG, UNCLIPPED)
LONGER = 5  # times the gradients of the small size: a lie adds up
LOW, EVEN = "low", "even"  # what the liars may weigh
HONEST = "honest"
LIBRARY = ("alie", "ipm", "mimic")
ATTACKS = ("reversed", "far", *LIBRARY)

VERSION = "0.0.11"
INSTALL = f"pip install --no-deps byzfl=={VERSION}"

Attack = Callable[[Tensor, Sequence[Tensor]], Tensor]  # own gradient, the honest sites' last ones
Answers = list[tuple[Any, Report]]

# ---------------------------------------------------------------- attacks


def backwards(own: Tensor, seen: Sequence[Tensor]) -> Tensor:
    return BACKWARDS * own


def far(own: Tensor, seen: Sequence[Tensor]) -> Tensor:
    signs = batches.signs(0, 0, 0, count=own.numel(), device=str(own.device))
    return FAR * signs.to(own.dtype)


def attack_of(name: str) -> Attack:
    if name in LIBRARY:
        return partial(from_library, library_attack(name))
    return {"reversed": backwards, "far": far}[name]


def from_library(attack: Any, own: Tensor, seen: Sequence[Tensor]) -> Tensor:
    found: Tensor = attack(list(seen))
    return found.to(own.dtype)


def library_attack(name: str) -> Any:
    module = byzfl_attacks()
    made = {
        "alie": module.ALittleIsEnough,
        "ipm": module.InnerProductManipulation,
        "mimic": module.Mimic,
    }
    return made[name]()


@lru_cache(maxsize=1)
def byzfl_attacks() -> Any:
    """byzfl's module of attacks, without the package's own import: that asks for torchvision."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        raise ValueError(f"byzfl is not installed: {INSTALL}")
    sys.modules["byzfl"] = importlib.util.module_from_spec(spec)  # empty, but with its folder
    try:
        return importlib.import_module("byzfl.attacks.attacks")
    finally:
        del sys.modules["byzfl"]


def missing(setting: str) -> str | None:
    """Why a setting cannot be run here; None: it can."""
    if setting.partition("-")[2] not in LIBRARY:
        return None
    try:
        found = importlib.metadata.version("byzfl")
    except importlib.metadata.PackageNotFoundError:
        return f"alie, ipm and mimic need byzfl: {INSTALL}"
    return None if found == VERSION else f"byzfl {found} is here: {INSTALL}"


# ---------------------------------------------------------------- liars


@dataclass
class Liars:
    """Sites that work together, and what they have seen of the honest ones."""

    attack: Attack
    numbers: tuple[int, ...]
    honest: int  # how many sites are
    gradients: dict[int, Tensor] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)

    def see(self, report: Report) -> None:
        if report.worker in self.numbers:
            return
        if "g" in report.vectors:
            self.gradients[report.worker] = report.vectors["g"]
        if "loss" in report.scalars:
            self.losses[report.worker] = report.scalars["loss"]

    def told(self, report: Report) -> Report:
        """What the master gets; until all honest sites were seen, the gradient is true."""
        if report.worker not in self.numbers:
            return report
        said = dict(report.scalars)
        vectors = dict(report.vectors)
        if "loss" in said:
            said["loss"] = LOUDER * max(self.losses.values(), default=said["loss"])
        if "slope" in said:
            said["slope"] = STEEPER * said["slope"]
        if "g" in vectors and len(self.gradients) == self.honest:
            seen = [self.gradients[j] for j in sorted(self.gradients)]
            vectors["g"] = self.attack(vectors["g"], seen)
        return replace(report, vectors=vectors, scalars=said)


def lying(method: Method, liars: Liars) -> Method:
    """This method with liars among its sites. Their memory is that of one run."""
    fast = Fast(partial(work_many, method, liars))
    return replace(method, work=partial(work, method, liars), fast=fast)


def work(method: Method, liars: Liars, worker: Any, task: Task, local: Local) -> tuple[Any, Report]:
    return work_many(method, liars, [(worker, task, local)])[0]


def work_many(method: Method, liars: Liars, items: Sequence[Item]) -> Answers:
    """The honest reports of all, of which the liars change their own."""
    assert method.fast is not None
    assert method.fast.many is not None
    answers = method.fast.many(items)
    for _, report in answers:
        liars.see(report)
    return [(worker, liars.told(report)) for worker, report in answers]


# ---------------------------------------------------------------- what a cell trains


def box(sites: int) -> Box:
    """No liar weighs more than .2/N, and no other site more than 2/N, as in the default set."""
    upper = np.full(sites, 2.0 / sites)
    upper[list(LIARS)] = 0.2 / sites
    return Box(0.0, upper)


def method_of(name: str, setting: str, sites: int) -> Method:
    """Of a setting PRIOR-ATTACK, such as low-far or even-honest."""
    prior, _, attack = setting.partition("-")
    made = direct(
        box(sites) if prior == LOW else None,
        clip=None if name == UNCLIPPED else CLIP,
        liars=1 if name == FOR_ONE else len(LIARS),
    )
    if attack == HONEST:
        return made
    return lying(made, Liars(attack_of(attack), LIARS, sites - len(LIARS)))


def settings(small: bool) -> list[tuple[str, str]]:
    """Methods and settings, what is compared with first."""
    said = (HONEST, *ATTACKS)
    found = [(UNCLIPPED, f"{prior}-{HONEST}") for prior in (LOW, EVEN)]
    found += [(CLIPPED, f"{prior}-{attack}") for prior in (LOW, EVEN) for attack in said]
    found += [(FOR_ONE, f"{LOW}-{attack}") for attack in said]
    return found + [(LONG, f"{LOW}-{attack}") for attack in said if small]


def figures(master: Any, accuracies: Sequence[float]) -> dict[str, Any]:
    """The honest sites' worst test accuracy, and what share of each site's reports was clipped."""
    shares = master.clipped / np.maximum(master.counted, 1)
    honest = [a for j, a in enumerate(accuracies) if j not in LIARS]
    return {
        "honest_accuracy": float(f"{min(honest):.6g}"),
        "clipped": [float(f"{x:.3g}") for x in shares],
    }

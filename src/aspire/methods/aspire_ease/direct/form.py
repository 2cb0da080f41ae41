"""The direct form as a value: its arguments, and the method that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from aspire.arguments import flag, real_number, whole_number
from aspire.methods import optimisers
from aspire.methods.arguments import check
from aspire.methods.aspire_ease import references
from aspire.methods.aspire_ease.direct.master import absorb, init
from aspire.methods.aspire_ease.direct.rules import Rules, quorum_of
from aspire.methods.aspire_ease.direct.state import Master, weights
from aspire.methods.aspire_ease.direct.tasks import waiting
from aspire.methods.aspire_ease.direct.worker import JUDGED, Habits, work, work_many
from aspire.sets import UncertaintySet
from aspire.types import Fast, Look, Method, Plain, RunFacts


def direct(
    uncertainty: UncertaintySet | None = None,
    *,
    quorum: int | None = None,
    staleness: int | None = None,
    local_steps: int = 1,
    accumulate: int = 1,
    learning_rate: float | None = None,
    weight_decay: float = 0.0,
    optimizer: optimisers.Make | None = None,
    schedule: optimisers.Schedule | None = None,
    clip: float | None = None,
    liars: int = 1,
    reference: Sequence[float] | Mapping[str, float] | nn.Module | str | None = None,
    own_gradients: int | None = None,
    loss_tasks: bool = True,
    drop: bool = True,
    max_planes: int | None = 50,
) -> Method:
    """Return the method as a value, for networks: no copies of the model, torch's optimiser.

    uncertainty    None: CDNorm(radius=1/N, budget=N)
    quorum         S, gradients that make a step; None: half of the present sites
    staleness      tau; None: no bound, 1: synchronous
    local_steps    K steps at a site in one report, in the metric of the optimiser
    accumulate     batches in one gradient
    learning_rate  of AdamW, for all tensors; None: relative to the size of each tensor
    weight_decay   of AdamW (decoupled): it is outside the losses that the adversary sees
    optimizer      function(groups) -> torch optimiser, one group per tensor; None: AdamW
    schedule       function(optimizer) -> torch scheduler, stepped with every master step; None:
                   1/sqrt(1 + t/2000) with the relative steps, else none
    clip           a report longer than clip times the (liars + 1)-th largest of the sites' last
                   norms is scaled down to that; None: off
    liars          sites whose norms may be false
    reference      r_j, the adversary works on f_j - r_j: numbers in the order of the sites or by
                   name; a model of the same architecture, whose losses they are; or 'own-best':
                   each site trains alone first, and r_j is its lowest loss on its val part
    own_gradients  of a site that does so; None: as many as the run has for each site afterwards
    loss_tasks     ask sites that have little weight mostly for their loss alone, or let them rest
    drop, max_planes   as in `consensus`
    """
    liars = whole_number("liars", liars, least=0)
    counts = {"quorum": quorum, "staleness": staleness, "max_planes": max_planes}
    counts |= {"local_steps": local_steps, "accumulate": accumulate}
    check(counts, {"learning_rate": learning_rate})
    decay = real_number("weight_decay", weight_decay, "a number of at least 0", least=0.0)
    flag("loss_tasks", loss_tasks)
    if clip is not None:
        real_number("clip", clip, "a positive number or None", above=0.0)
    if optimizer is not None and (learning_rate is not None or decay):
        raise ValueError("optimizer is given: expected learning_rate and weight_decay in it")
    if schedule is None and optimizer is None and learning_rate is None:
        schedule = optimisers.Settling
    default = optimisers.Default(learning_rate, decay, floored=clip is not None)
    known = references.checked(reference)
    rules = Rules(
        uncertainty=uncertainty,
        quorum=quorum,
        staleness=staleness,
        local_steps=whole_number("local_steps", local_steps),
        accumulate=whole_number("accumulate", accumulate),
        drop=drop,
        max_planes=max_planes,
        loss_tasks=loss_tasks,
        clip=clip,
        liars=liars,
        reference=known,
        own=references.own_of(known, own_gradients, replace(default, floored=False)),
        optimizer=optimizer or default,
        schedule=schedule,
    )
    return made(rules)


def made(rules: Rules) -> Method:
    """The method of these rules."""
    slope = rules.clip is not None
    habits = Habits(rules.local_steps, rules.accumulate, slope, rules.own)
    unsized = rules.own is not None and rules.own.gradients is None
    pending = rules.uncertainty is not None and rules.uncertainty.pending
    return Method(
        name="direct",
        settings=settings_of(rules),
        init=partial(init, rules),
        work=partial(work, habits=habits),
        absorb=partial(absorb, rules),
        model=lambda master: master.average.to(master.z.dtype),
        look=partial(look, rules),
        fit=partial(fit, rules) if unsized or pending else None,
        fast=Fast(partial(work_many, habits=habits)),
        kinds=rules.kinds,
        states=(Master,) if rules.uncertainty is None else (Master, type(rules.uncertainty)),
        buffers=True,
        judged=JUDGED,
        judged_on="train" if rules.own is None else "val",
        site_arguments=site_arguments(rules),
        any_execution=True,
    )


def look(rules: Rules, master: Master) -> Look:
    """What runtimes and tables read off the master."""
    known = rules.reference is not None and bool(master.referred[master.present].all())
    references = master.reference.copy() if known else np.empty(0)
    waited = waiting(rules, master)
    return Look(weights(master), len(master.planes), waited, references=references)


def fit(rules: Rules, run: RunFacts) -> Method:
    """The method for these sites, and for a run of that length: what one may spend alone."""
    if rules.uncertainty is not None:
        rules = replace(rules, uncertainty=rules.uncertainty.over(run.names, run.samples))
    if rules.own is None or rules.own.gradients is not None:
        return made(rules)
    if run.iterations is None and run.gradients is None:
        raise ValueError(
            "reference='own-best': expected own_gradients with it, since the length of the run is "
            "not known"
        )
    step = quorum_of(rules, run.sites) * rules.batches
    count = references.share(run.sites, step, run.iterations, run.gradients)
    return made(replace(rules, own=replace(rules.own, gradients=count)))


def site_arguments(rules: Rules) -> dict[str, Plain]:
    """What `Habits`, the kinds of tasks and the part that is judged come from."""
    found: dict[str, Plain] = {"local_steps": rules.local_steps, "accumulate": rules.accumulate}
    if rules.clip is not None:
        found["clip"] = rules.clip
    if rules.own is not None:
        found |= {"reference": references.OWN_BEST, "own_gradients": rules.own.gradients}
        found["learning_rate"] = rules.own.optimizer.learning_rate
        found["weight_decay"] = rules.own.optimizer.weight_decay
    return found


def settings_of(rules: Rules) -> dict[str, Any]:
    """What run.json holds of the arguments."""
    default = rules.optimizer if isinstance(rules.optimizer, optimisers.Default) else None
    same = ["quorum", "staleness", "max_planes", "local_steps", "accumulate", "drop", "loss_tasks"]
    same += ["uncertainty", "clip", "liars"]
    found = {name: getattr(rules, name) for name in same} | {
        "reference": references.plain(rules.reference),
        "form": "direct",
        "learning_rate": None if default is None else default.learning_rate,
        "weight_decay_of_optimizer": 0.0 if default is None else default.weight_decay,
        "optimizer": None if default is not None else optimisers.name_of(rules.optimizer),
        "schedule": optimisers.name_of(rules.schedule),
    }
    return found if rules.own is None else found | {"own_gradients": rules.own.gradients}

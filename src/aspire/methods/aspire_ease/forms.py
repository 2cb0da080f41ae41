"""ASPIRE in its two forms: the paper's, with a copy of the model at every site, and the direct one.

The consensus form is exact and good for linear models. The direct form is for networks; it shares
the problem, the sets and the planes, and no theorem of the paper covers it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from aspire.arguments import near, one_of
from aspire.methods.aspire_ease.consensus import consensus
from aspire.methods.aspire_ease.direct import direct
from aspire.sets import UncertaintySet
from aspire.types import Method, RunFacts

FORMS = ("direct", "consensus")
COMMON = ("quorum", "staleness", "local_steps", "drop", "max_planes")
CONSENSUS = ("plane_iterations", "preset", "pull_bound", "coordinate_bound")
DIRECT = (
    "accumulate",
    "learning_rate",
    "weight_decay",
    "optimizer",
    "schedule",
    "clip",
    "liars",
    "reference",
    "own_gradients",
    "loss_tasks",
)


def aspire(
    uncertainty: UncertaintySet | None = None, *, form: str | None = None, **arguments: Any
) -> Method:
    """Return the method as a value.

    uncertainty  None: CDNorm(radius=1/N, budget=N)
    form         'direct', 'consensus' or None: consensus for one linear layer, direct for every
                 other model. An argument that only one form has means that form
    arguments    both forms: quorum, staleness, local_steps, drop, max_planes;
                 consensus: plane_iterations, preset, pull_bound, coordinate_bound, see `consensus`;
                 direct: optimizer, schedule, learning_rate, weight_decay, accumulate, clip, liars,
                 reference, own_gradients, loss_tasks, see `direct`
    """
    known = (*COMMON, *CONSENSUS, *DIRECT)
    for name in arguments:
        if name not in known:
            raise ValueError(f"{name} is no argument of aspire{near(name, known)}")
    given = {name: value for name, value in arguments.items() if value is not None}
    form = form_of(form, given)
    if form == "direct":
        return direct(uncertainty, **arguments)
    first = consensus(uncertainty, **arguments)
    return first if form else replace(first, fit=partial(fitting, uncertainty, arguments))


def _whole_signature() -> inspect.Signature:
    """`aspire` with the arguments of both forms spelled out, for help() and whoever names them."""
    both: dict[str, inspect.Parameter] = {}
    for one in (direct, consensus):
        both |= inspect.signature(one).parameters
    form = inspect.Parameter(
        "form", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None"
    )
    first = both.pop("uncertainty")
    every = [first, form, *both.values()]
    return inspect.Signature(every, return_annotation=Method)


aspire.__signature__ = _whole_signature()  # type: ignore[attr-defined]


def form_of(
    form: str | None, given: Mapping[str, Any], *, linear: bool | None = None
) -> str | None:
    """The form that these arguments mean; None: it depends on the model, which is not known.

    given   the arguments that are not None
    linear  whether the model is one linear layer; None: not known
    """
    if form is not None:
        one_of("form", form, FORMS)
    only = {"consensus": CONSENSUS, "direct": DIRECT}
    for one, other in (("consensus", "direct"), ("direct", "consensus")):
        odd = [name for name in only[one] if name in given]
        if odd and form == other:
            raise ValueError(f"{odd[0]} belongs to form={one!r}: expected it without form={form!r}")
        form = one if odd else form
    if form is None and linear is not None:
        return "consensus" if linear else "direct"
    return form


def fitting(
    uncertainty: UncertaintySet | None, arguments: Mapping[str, Any], run: RunFacts
) -> Method:
    """The form for a model that is one linear layer, or is not."""
    return (consensus if run.linear else direct)(uncertainty, **arguments)

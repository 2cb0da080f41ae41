"""The vectors of a step in one pass over the columns: `passes.c`, where it is compiled.

It is for few reports of float32 on the CPU, and gives the bytes that `aspire_vectors` gives: a
trial makes sure of that before it is used, so a replay elsewhere need not have it. Everything else
goes by torch, and so does everything on a machine without the compiled code.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire.compiled.native import load, several
from aspire.core import equations
from aspire.core.schedules import Limits, Rates
from aspire.methods.aspire_ease import vectors as plain
from aspire.methods.aspire_ease.vectors import FEW, Held, Implied, Step
from aspire.methods.worker import columns
from aspire.types import Task

_number = ctypes.c_int64
_array = ctypes.c_void_p
_double = ctypes.c_double
_float = ctypes.c_float


class _Step(ctypes.Structure):
    """As in passes.c."""

    _fields_ = (
        *several(_number, "p reports"),
        *several(_array, "workers told w phi v z average sum_w sum_phi"),
        *several(_double, "many kappa eta a1 share"),
        *several(_float, "c2 rho2 a4 k"),
        ("push", _array),
    )


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled functions, if they give torch's bytes; None: there are none."""
    found: Any = load("passes", _Step)
    if found is None:
        return None
    found.move.argtypes = (_array,)
    found.implied.argtypes = (_number, _number, *[_array] * 8, _float, _array)
    found.worker.argtypes = (_number, *[_array] * 4, *[_float] * 4)
    found.move.restype = found.implied.restype = found.worker.restype = None
    return found if agrees(found, 1, 0.3) and agrees(found, 3, 0.7) else None


def functions_for(rows: Tensor, *others: Tensor) -> Any:
    """The compiled functions, if they are for rows like these; None: go by torch."""
    if rows.dtype is not torch.float32 or rows.device.type != "cpu" or rows.shape[0] > FEW:
        return None
    return library() if all(x.is_contiguous() for x in (rows, *others)) else None


# ---------------------------------------------------------------- the three passes


def move(step: Step, held: Held | None = None) -> Tensor:
    """w_j as reported, (12), (15) and the average, for these workers; returns their v_j."""
    functions = functions_for(step.told, *tensors(step)) if held is None else None
    return plain.move(step, held) if functions is None else _move(functions, step)


def _move(functions: Any, s: Step) -> Tensor:
    v = torch.empty_like(s.told)
    given = _Step(
        s.told.shape[1],
        s.told.shape[0],
        s.workers.ctypes.data,
        s.told.data_ptr(),
        s.w.data_ptr(),
        s.phi.data_ptr(),
        v.data_ptr(),
        s.z.data_ptr(),
        s.average.data_ptr(),
        s.sum_w.data_ptr(),
        s.sum_phi.data_ptr(),
        s.kappa * s.n,
        s.kappa,
        s.rates.eta_z,
        s.limits.a1,
        s.share,
        s.rates.c2,
        s.rates.rho2,
        s.limits.a4,
        s.kappa,
        None if s.push is None else s.push.ctypes.data,
    )
    functions.move(ctypes.byref(given))
    return v


def implied_lengths(asked: Implied) -> list[float]:
    """|g_j| of what these reports say of the gradients."""
    functions = functions_for(asked.told, asked.w, asked.phi, asked.z)
    squares = plain.implied_squares(asked) if functions is None else _implied(functions, asked)
    return [math.sqrt(x) for x in squares]


def _implied(functions: Any, x: Implied) -> list[float]:
    reports, p = x.told.shape
    at = Tensor.data_ptr
    found = (_double * reports)()
    functions.implied(
        p,
        reports,
        x.workers.ctypes.data,
        at(x.told),
        at(x.w),
        at(x.phi),
        at(x.z),
        x.kappa.ctypes.data,
        x.rate.ctypes.data,
        x.weight.ctypes.data,
        x.steps,
        found,
    )
    return list(found)


def worker_step(
    w: Tensor, gradient: Tensor, v: Tensor, tasks: Sequence[Task], limit: float
) -> Tensor:
    """`equations.worker_step`; a single row, which is a site's task, is compiled."""
    alone = len(tasks) == 1 and w.shape == gradient.shape == v.shape
    functions = functions_for(w, gradient, v) if alone else None
    if functions is not None:
        return _worker(functions, w, gradient, v, tasks[0].scalars, limit)
    pi, kappa, rate = columns(tasks, ("pi", "kappa", "rate"), w)
    return equations.worker_step(w, gradient, v, pi=pi, kappa=kappa, rate=rate, limit=limit)


def _worker(
    functions: Any, w: Tensor, g: Tensor, v: Tensor, told: Mapping[str, float], limit: float
) -> Tensor:
    out = torch.empty_like(w)
    rows = (x.data_ptr() for x in (w, g, v, out))
    functions.worker(w.shape[1], *rows, told["pi"], told["kappa"], told["rate"], limit)
    return out


# ---------------------------------------------------------------- the trial


def agrees(functions: Any, reports: int, share: float, p: int = 1100) -> bool:
    """Whether the passes and torch agree to the bit, in whole vectors and odd ends."""
    one = trial(reports, share, p)
    other = trial(reports, share, p)
    kappa, rate, weight = np.linspace(0.3, 1.7, 3 * reports).reshape(3, reports)
    asked = Implied(one.workers, one.told, one.w, one.phi, one.z, kappa, rate, weight, 3)
    if _implied(functions, asked) != plain.implied_squares(asked):
        return False
    rows = one.told[:1], one.w[:1], one.phi[:1]
    task = Task(0, 0, "step", scalars={"pi": 0.3, "kappa": 0.7, "rate": 0.11})
    pi, k, a = columns([task], ("pi", "kappa", "rate"), one.w)
    found = [_worker(functions, *rows, task.scalars, 1.0)]
    expected = [equations.worker_step(*rows, pi=pi, kappa=k, rate=a, limit=1.0)]
    found += [_move(functions, one), *tensors(one)]
    expected += [plain.move(other, None), *tensors(other)]
    return all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def trial(reports: int, share: float, p: int) -> Step:
    """A step on random numbers, with boxes that some of them leave."""
    draw = torch.Generator().manual_seed(0)
    told, w, phi = torch.randn((3, reports, p), generator=draw).unbind(0)
    z, average, sum_w, sum_phi = torch.randn((4, p), generator=draw, dtype=torch.float64)
    rates = Rates(0.31, 0.0, 0.1, 0.17, 0.1, 0.013)
    limits = Limits(a1=1.5, a4=0.9)
    workers = np.arange(reports)[::-1].copy()
    push = None if share < 0.5 else np.linspace(0.2, 1.1, reports)
    vectors = told, w, phi, z, average, sum_w, sum_phi
    return Step(workers, *vectors, 5, 0.73, rates, limits, share, push)


def tensors(step: Step) -> tuple[Tensor, ...]:
    """What a step changes."""
    return step.w, step.phi, step.z, step.average, step.sum_w, step.sum_phi

"""The ellipsoid with a full covariance: a second-order cone program, solved by Clarabel."""

from __future__ import annotations

from typing import Any

import numpy as np

from aspire.sets.checks import Vec

NEEDS = "a covariance matrix needs the optional extra: pip install 'aspire-ease[conic]'"


def axes(sigma: Vec) -> tuple[Vec, Vec]:
    """Variances along the principal axes (rounding set to 0), and the axes as columns."""
    values, vectors = np.linalg.eigh(sigma)
    cut = values.size * np.finfo(np.float64).eps * max(float(values.max()), 0.0)
    return np.where(values > cut, values, 0.0), vectors


def dense_argmax(f: Vec, q: Vec, sigma: Vec, radius: float) -> Vec:
    """max f' A u  over  1' A u = 0,  q + A u >= 0,  |u| <= 1,  where A A' = radius^2 Sigma."""
    variances, vectors = axes(sigma)
    on = variances > 0
    a = radius * vectors[:, on] * np.sqrt(variances[on])
    if not (f @ a).any():
        return q
    p: Vec = np.maximum(q + a @ _solve(f @ a, a, q), 0.0)
    p /= p.sum()
    return p


def _solve(gain: Vec, a: Vec, q: Vec) -> Vec:
    """Rows in Clarabel's form  G u + s = h,  s in (zero, nonnegative, second-order) cones."""
    try:
        import clarabel
        from scipy import sparse
    except ImportError:
        raise ImportError(NEEDS) from None
    n, k = a.shape
    # In units of its own size each row keeps its digits, and so does the objective.
    size = np.abs(a).max()
    rows: Any = np.vstack([a.sum(axis=0) / size, -a / size, np.zeros(k), -np.eye(k)])
    right = np.concatenate([[0.0], q / size, [1.0], np.zeros(k)])
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n), clarabel.SecondOrderConeT(k + 1)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    cost = -gain / np.abs(gain).max()
    none = sparse.csc_matrix((k, k))
    found = clarabel.DefaultSolver(
        none, cost, sparse.csc_matrix(rows), right, cones, settings
    ).solve()
    if str(found.status) not in ("Solved", "AlmostSolved"):
        raise ArithmeticError(f"the conic solver stopped with status {found.status}")
    return np.asarray(found.x, dtype=np.float64)

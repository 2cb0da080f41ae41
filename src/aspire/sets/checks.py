"""Arguments in, arrays out: checks, kinds of array, and how values are printed."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vec = NDArray[np.float64]
Index = NDArray[np.intp]

PRIOR_TOL = 1e-6  # how far a given prior may be from summing to one
TINY = 1e-150  # smaller arguments count as 0, so that their squares and inverses stay finite
BY_SIZE = "size"  # a prior: by the number of training samples
SUM_TOL = 1e-9  # how far the bounds of a box may miss one


def is_torch(value: object) -> bool:
    """True for a torch tensor; torch is not imported unless the caller already did."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Any) -> NDArray[Any]:
    if is_torch(value):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    return np.asarray(value)


def like(kind: Any, p: Vec) -> Any:
    """p as the kind of array that came in: torch keeps device and floating dtype."""
    if not is_torch(kind):
        return p
    torch = sys.modules["torch"]
    dtype = kind.dtype if kind.is_floating_point() else torch.float64
    return torch.as_tensor(p, device=kind.device).to(dtype)


def short(value: Any) -> str:
    """A value on one short line: arrays of more than six entries are summarised."""
    if not isinstance(value, np.ndarray):
        return f"{value:g}" if isinstance(value, float) else repr(value)
    if value.size <= 6:
        return "[" + ", ".join(f"{x:g}" for x in value.ravel()) + "]"
    shape = " x ".join(map(str, value.shape))
    low = value.min()
    high = value.max()
    return (
        f"<{shape} values of {low:g}>" if low == high else f"<{shape} values, {low:g} to {high:g}>"
    )


def brief(value: Any) -> str:
    """Whatever was given, cut to one short line."""
    return " ".join(reprlib.repr(value).split())


def floats(name: str, value: Any) -> Vec:
    """A fresh float64 array of finite numbers, of whatever shape was given."""
    try:
        array = np.array(to_numpy(value), dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must hold real numbers, got {brief(value)}") from None
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {short(array)}")
    return array


def number(name: str, value: Any, low: float = 0.0) -> float:
    """One finite number >= low."""
    array = floats(name, value)
    if array.ndim != 0 or array < low:
        raise ValueError(f"{name} must be one number >= {low:g}, got {short(array)}")
    return float(array) if array > TINY else 0.0


def numbers(name: str, value: Any) -> float | Vec:
    """One number for all sites, or a vector with one per site; all >= 0."""
    array = floats(name, value)
    if array.ndim > 1 or array.size == 0:
        raise ValueError(f"{name} must be a number or a vector, got shape {array.shape}")
    if (array < 0).any():
        raise ValueError(f"{name} must be >= 0, got {short(array) if array.ndim else float(array)}")
    array[array <= TINY] = 0.0
    return array if array.ndim else float(array)


def prior_of(value: Any) -> Any:
    """A prior as a set keeps it: as `distribution`, or what waits for the sites to be known."""
    if isinstance(value, str) and value == BY_SIZE:
        return value
    return dict(value) if isinstance(value, Mapping) else distribution(value)


def prior_over(
    prior: Any, names: Sequence[str] = (), samples: Sequence[int] | None = None
) -> Vec | None:
    """The prior over sites of these names and training samples; None: not known yet, or even."""
    if isinstance(prior, str) and prior == BY_SIZE:
        return None if samples is None else np.asarray(samples, dtype=float) / sum(samples)
    if not isinstance(prior, Mapping):
        return distribution(prior)
    if not names:
        return None
    given = {str(name): weight for name, weight in prior.items()}
    missing = [name for name in names if name not in given]
    strange = [name for name in given if name not in names]
    if missing or strange:
        fault = f"no weight for site {missing[0]!r}" if missing else f"no site {strange[0]!r}"
        raise ValueError(f"prior={brief(prior)}: {fault}: expected one weight for each site")
    return distribution([given[name] for name in names])


def distribution(value: Any) -> Vec | None:
    """The prior q: None (uniform once N is known), or weights >= 0 that sum to one."""
    if value is None:
        return None
    q = floats("prior", value)
    if q.ndim != 1 or q.size == 0:
        raise ValueError(f"prior must be a vector with one weight per site, got {brief(value)}")
    if (q < 0).any():
        raise ValueError(f"prior must be >= 0, got {short(q)}")
    q[q <= TINY] = 0.0
    total = q.sum()
    if abs(total - 1) > PRIOR_TOL:
        raise ValueError(f"prior must sum to 1, got {short(q)} with sum {total:.9g}")
    # Rounding of a vector that is already normalised is left alone: the prior stays what was given.
    return q if abs(total - 1) < 1e-14 else q / total


def uniform(n: int) -> Vec:
    return np.full(n, 1.0 / n)


def prior_for(prior: Any, **others: float | Vec) -> Any:
    """The prior, made uniform where another argument says how many sites there are."""
    if waits(prior):
        return prior
    lengths = {name: np.shape(v)[0] for name, v in others.items() if np.ndim(v)}
    if prior is not None:
        lengths = {"prior": prior.size, **lengths}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"one entry per site was expected, got lengths {lengths}")
    return uniform(next(iter(lengths.values()))) if prior is None and lengths else prior


def waits(prior: Any) -> bool:
    """Whether it is known only with the sites."""
    return isinstance(prior, str | Mapping)


def site_count(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"n must be a whole number of sites >= 1, got {n!r}")
    return int(n)


def loss_vector(losses: Any) -> Vec:
    f = floats("losses", losses)
    if f.ndim != 1 or f.size == 0:
        raise ValueError(f"losses must be a vector with one entry per site, got shape {f.shape}")
    return f


def centred(f: Vec) -> Vec:
    """f moved and scaled by a power of two to lie in about [-1, 1]; all zero if f is constant."""
    half = f.max() / 2 - f.min() / 2  # halves first: the range itself may overflow
    exponent = int(np.frexp(half)[1]) if half > 0 else 0
    g: Vec = (f - (f.min() + half)) * 2.0 ** -max(-1000, min(1000, exponent))
    return g if half > 0 else np.zeros_like(f)


def present_index(present: Any, size: int | None) -> tuple[Index, int]:
    """Indices of the present sites, from a mask or a list of indices, and the number of sites."""
    given = to_numpy(present)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "biu":
        raise ValueError(f"present must be a boolean mask or a list of indices, got {present!r}")
    if given.dtype.kind == "b":
        if size is not None and given.size != size:
            raise ValueError(f"present must have {size} entries as a mask, got {given.size}")
        index = np.flatnonzero(given)
        n = given.size
    else:
        if size is None:
            raise ValueError("present must be a mask while the number of sites is not known")
        index = given.astype(np.intp)
        n = size
    if index.size == 0 or index.min() < 0 or index.max() >= n or np.unique(index).size < index.size:
        raise ValueError(f"present must name at least one of {n} sites, each once, got {present!r}")
    return index, n


def renormalised(q: Vec, index: Index) -> Vec:
    """q over the present sites only, summing to one again."""
    mass = q[index].sum()
    if mass <= 0:
        raise ValueError(f"the present sites must carry weight, got {short(q[index])}")
    kept: Vec = q[index] / mass
    return kept


def freeze(target: object, **fields: Any) -> None:
    """Store checked fields on a frozen dataclass, arrays read-only."""
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
        object.__setattr__(target, name, value)

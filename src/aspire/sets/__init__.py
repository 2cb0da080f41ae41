"""Uncertainty sets: the site weights to be prepared for, and their exact worst case."""

from aspire.sets.base import UncertaintySet
from aspire.sets.boxes import Box, CVaR, Simplex, TotalVariation
from aspire.sets.cdnorm import CDNorm
from aspire.sets.divergences import KL, ChiSquare
from aspire.sets.ellipsoid import Ellipsoid
from aspire.sets.gamma import gamma_for

SETS = (Box, CDNorm, CVaR, ChiSquare, Ellipsoid, KL, Simplex, TotalVariation)

__all__ = [
    "KL",
    "SETS",
    "Box",
    "CDNorm",
    "CVaR",
    "ChiSquare",
    "Ellipsoid",
    "Simplex",
    "TotalVariation",
    "UncertaintySet",
    "gamma_for",
]

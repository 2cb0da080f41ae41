"""Robust aggregations: what a mean of rows becomes where some of the rows may be lies.

Each is one file with one pure function of rows (n, p), one a site, and of their weights (n,), which
are positive. `fedavg` takes one by its name.
"""

from aspire.methods.aggregations.centred_clipping import centred_clipping
from aspire.methods.aggregations.median import median
from aspire.methods.aggregations.norm_clipping import norm_clipping
from aspire.methods.aggregations.trimmed_mean import trimmed_mean

__all__ = ["centred_clipping", "median", "norm_clipping", "trimmed_mean"]

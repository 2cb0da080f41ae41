"""ASPIRE: asynchronous training over many sites that serves the worst of them well."""

__version__ = "0.1.0"

from aspire.core.presets import Auto, Paper, Theorem1
from aspire.methods import aspire, central
from aspire.runtimes.delays import Absence, Constant, LogNormal, Pareto, Trace, Uniform
from aspire.train import Run, train

__all__ = [
    "Absence",
    "Auto",
    "Constant",
    "LogNormal",
    "Paper",
    "Pareto",
    "Run",
    "Theorem1",
    "Trace",
    "Uniform",
    "aspire",
    "central",
    "train",
]

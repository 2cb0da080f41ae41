"""ASPIRE: asynchronous training over many sites that serves the worst of them well."""

__version__ = "0.1.0"

from aspire.api import Run, load, train
from aspire.api.sweep import frontier
from aspire.core.presets import Auto, Paper, Theorem1
from aspire.methods import aspire, central
from aspire.runs.callbacks import STOP
from aspire.simulator.delays import Absence, Constant, LogNormal, Pareto, Trace, Uniform

__all__ = [
    "STOP",
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
    "frontier",
    "load",
    "train",
]

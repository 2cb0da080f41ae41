"""The Python door: `train(model, sites, ...)` gives a `Run`."""

from aspire.api.job import Job
from aspire.api.memory import Memory, predict
from aspire.api.preparing import prepare
from aspire.api.run import Run
from aspire.api.train import replay, resume, train
from aspire.runs.errors import Interrupted

__all__ = [
    "Interrupted",
    "Job",
    "Memory",
    "Run",
    "predict",
    "prepare",
    "replay",
    "resume",
    "train",
]

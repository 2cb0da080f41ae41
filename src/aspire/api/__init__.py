"""The Python door: `train(model, sites, ...)` gives a `Run`."""

from aspire.api.job import Job
from aspire.api.memory import Memory, predict
from aspire.api.preparing import prepare
from aspire.api.run import Run, outcome
from aspire.api.train import evaluate, replay, resume, train
from aspire.runs.errors import Interrupted

__all__ = [
    "Interrupted",
    "Job",
    "Memory",
    "Run",
    "evaluate",
    "outcome",
    "predict",
    "prepare",
    "replay",
    "resume",
    "train",
]

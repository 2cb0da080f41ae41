"""The Python door: `train(model, sites, ...)` gives a `Run`."""

from aspire.api.job import Interrupted, Job
from aspire.api.memory import Memory, predict
from aspire.api.preparing import prepare
from aspire.api.run import Run, outcome
from aspire.api.train import evaluate, replay, resume, train

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

"""The Python door: `train(model, sites, ...)` gives a `Run`."""

from aspire.train.door import evaluate, replay, resume, train
from aspire.train.job import Interrupted, Job, prepare
from aspire.train.memory import Memory, predict
from aspire.train.run import Run

__all__ = [
    "Interrupted",
    "Job",
    "Memory",
    "Run",
    "evaluate",
    "predict",
    "prepare",
    "replay",
    "resume",
    "train",
]

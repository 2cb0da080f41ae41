"""The Python door: `train(model, sites, ...)` gives a `Run`."""

from aspire.train.door import evaluate, replay, resume, train
from aspire.train.job import Interrupted, Job, prepare
from aspire.train.memory import Memory, predict
from aspire.train.run import Run, outcome

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

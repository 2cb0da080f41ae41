"""The Python door: `train(model, sites, ...)` gives a `Run`."""

from aspire.train.door import evaluate, replay, resume, train
from aspire.train.job import Interrupted, Job, prepare, refuse_too_large
from aspire.train.run import Run

__all__ = [
    "Interrupted",
    "Job",
    "Run",
    "evaluate",
    "prepare",
    "refuse_too_large",
    "replay",
    "resume",
    "train",
]

"""The Python door: `train(model, sites, ...)` gives a `Run`."""

from aspire.api.certificate import Certificate
from aspire.api.evaluating import Evaluation
from aspire.api.job import Job
from aspire.api.loading import load
from aspire.api.memory import Memory, predict
from aspire.api.preparing import prepare
from aspire.api.run import Run
from aspire.api.train import replay, resume, train
from aspire.runs.callbacks import RunFacts
from aspire.runs.errors import Interrupted
from aspire.runs.figures import Figure

__all__ = [
    "Certificate",
    "Evaluation",
    "Figure",
    "Interrupted",
    "Job",
    "Memory",
    "Run",
    "RunFacts",
    "load",
    "predict",
    "prepare",
    "replay",
    "resume",
    "train",
]

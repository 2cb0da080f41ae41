"""Callbacks that log a run to a tracker: `train(callbacks=[MLflow("hospitals")])`.

Each has the same figures under the same names, and needs its own library, which is imported when a
run starts.
"""

from aspire.trackers.mlflow import MLflow
from aspire.trackers.tensorboard import TensorBoard
from aspire.trackers.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "WandB"]

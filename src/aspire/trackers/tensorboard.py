"""A run as TensorBoard scalars."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from aspire.trackers.figures import final, scalars
from aspire.trackers.needs import need

FOLDER = "tensorboard"  # in a run's folder, where `tensorboard=True` puts it


class TensorBoard:
    """Logs a run to a folder that `tensorboard --logdir` reads.

    Args:
        folder: where the event files go; several runs may share it.
    """

    in_background = True

    def __init__(self, folder: str | PathLike[str]) -> None:
        need("tensorboard", "TensorBoard", extra="tensorboard")
        self.folder = folder

    def on_start(self, facts: Any) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._names = facts.sites
        self._writer = SummaryWriter(str(self.folder))

    def on_evaluate(self, line: Mapping[str, Any]) -> None:
        for name, value in scalars(line, self._names):
            self._writer.add_scalar(name, value, line["t"])
        self._writer.flush()

    def on_end(self, run: Any) -> None:
        for name, value in final(run.result(), self._names):
            self._writer.add_scalar(name, value, run.iterations)
        self._writer.close()

    def on_error(self, error: BaseException) -> None:
        self._writer.close()

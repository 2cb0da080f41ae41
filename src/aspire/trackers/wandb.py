"""A run in Weights & Biases, or in a library with the same interface, such as trackio."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from aspire.trackers.figures import final, scalars
from aspire.trackers.needs import need


class WandB:
    """Logs a run with `library.init(...)`, and `log` and `finish` of what that gives.

    Args:
        project: the project that the run belongs to.
        library: "wandb", "trackio" or another module with the same interface.
        options: other arguments of `library.init`, such as `name`.
    """

    in_background = True

    def __init__(self, project: str, *, library: str = "wandb", **options: Any) -> None:
        extra = "trackers" if library == "trackio" else None
        need(library, library, extra=extra)
        self.project = project
        self.library = library
        self.options = options

    def on_start(self, facts: Any) -> None:
        library = importlib.import_module(self.library)
        self._names = facts.sites
        self._run = library.init(project=self.project, config=facts.settings, **self.options)

    def on_evaluate(self, line: Mapping[str, Any]) -> None:
        self._run.log(dict(scalars(line, self._names)), step=line["t"])

    def on_end(self, run: Any) -> None:
        self._run.log(dict(final(run.result(), self._names)), step=run.iterations)
        self._run.finish()

    def on_error(self, error: BaseException) -> None:
        self._run.finish()

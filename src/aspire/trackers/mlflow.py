"""A run in MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aspire.runs.errors import Interrupted
from aspire.trackers.figures import final, scalars
from aspire.trackers.needs import need

METRICS = 1000  # that MLflow takes in one call
PARAMETERS = 100
LONGEST = 250  # characters of a metric's name, and of a value that is shown


class MLflow:
    """Logs a run to an MLflow store or server, beside whatever run `mlflow` itself has open.

    Args:
        experiment: the experiment that the run belongs to; made where there is none.
        tracking_uri: of the store, such as "sqlite:///mlflow.db", or of a server. None: as MLflow
            has it, by its environment variable.
        name: of the run in MLflow; None: MLflow makes one up.
        run_id: of a run in MLflow that is to be continued; None: a new one.
    """

    in_background = True

    def __init__(
        self,
        experiment: str = "aspire",
        *,
        tracking_uri: str | None = None,
        name: str | None = None,
        run_id: str | None = None,
    ) -> None:
        need("mlflow", "MLflow", extra="trackers")
        self.experiment = experiment
        self.tracking_uri = tracking_uri
        self.name = name
        self.run_id = run_id

    def on_start(self, facts: Any) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(self.tracking_uri)
        self._sites = site_names(facts.sites)
        if self.run_id is None:
            self._run = self.run_id = self._created()
            self._describe(facts.settings)
        else:
            self._run = self.run_id
            self._client.update_run(self._run, status="RUNNING")

    def on_evaluate(self, line: Mapping[str, Any]) -> None:
        self._log(scalars(line, self._sites), line["t"])

    def on_end(self, run: Any) -> None:
        self._log(final(run.result(), self._sites), run.iterations)
        self._client.set_terminated(self._run, "FINISHED")

    def on_error(self, error: BaseException) -> None:
        asked = isinstance(error, KeyboardInterrupt | Interrupted)
        self._client.set_terminated(self._run, "KILLED" if asked else "FAILED")

    def _created(self) -> str:
        """The id of a new run in the experiment."""
        found = self._client.get_experiment_by_name(self.experiment)
        if found is None:
            experiment = self._client.create_experiment(self.experiment)
        else:
            experiment = found.experiment_id
        return str(self._client.create_run(experiment, run_name=self.name).info.run_id)

    def _describe(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:LONGEST]) for name, value in settings.items()]
        for start in range(0, len(params), PARAMETERS):
            self._client.log_batch(self._run, params=params[start : start + PARAMETERS])

    def _log(self, figures: Iterable[tuple[str, float]], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value in figures]
        for start in range(0, len(metrics), METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + METRICS])


def site_names(names: Sequence[str]) -> list[str]:
    """The sites by names that MLflow takes, no two the same."""
    found: list[str] = []
    for j, name in enumerate(names):
        clean = re.sub(r"[^\w\-. :]", "_", name, flags=re.ASCII)[: LONGEST // 2]
        found.append(f"{clean}_{j}" if clean in found or clean != name else clean)
    return found

"""What training gives back."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from aspire.api.certificate import Certificate, OnTest, certificate, tested_of, told
from aspire.api.converged import SETTLED, trend
from aspire.api.evaluating import Evaluation, evaluated
from aspire.api.exporting import export
from aspire.api.inputs import batch_for_export, description_of, outputs_of
from aspire.api.job import Job
from aspire.api.own_buffers import fill, load, site_buffers
from aspire.api.selection import figures, selected
from aspire.api.showing import as_html, readme
from aspire.api.summary import screenful
from aspire.arguments import shown
from aspire.problem.objective import Loss
from aspire.problem.sources import Collate
from aspire.problem.standardization import Standardized
from aspire.protocol import ALWAYS
from aspire.runs.evaluation import Away, evaluated_on
from aspire.runs.figures import Answers, Table, plain, table
from aspire.runs.folder import RunFolder, read_settings
from aspire.runs.selection import Watched
from aspire.types import Array

logger = logging.getLogger("aspire")


@dataclass(frozen=True, repr=False)
class Run:
    """What training gave. Arrays are in the order of `sites`; nan: that site did not answer.

    model            in the mode of the model that was given: call eval() on it before it is used.
                     All losses and accuracies are of it, so of the evaluation that was selected
    selected, last   the figures of the worst site at the selected evaluation, with the rule that
                     chose it, and those at the last one
    weights          what each site's loss counts at the end
    losses           on the training parts, weight decay included: what was trained on
    train_losses     the same, under the name that says so
    test_losses      the same on the test parts; nan where a site has none, None where all have none
    val_losses, val_accuracies    on the validation parts, in the same way
    accuracies       fractions right on the test part, or on the training part where a site has no
                     other; None where outputs are no class scores
    evaluated_on     what accuracies are on: 'test', 'train', 'mixed'; `parts` says it of each site
    worst_case_loss  of the training losses, over the uncertainty set
    ended_by         the argument that ended the run: 'iterations', 'gradients',
                     'patience_evaluations', 'max_seconds' or 'callbacks'
    trend            'settled', 'still falling', 'rising', None: too few evaluations to say;
                     `converged` is True where it has settled. docs/guide.md has the rule
    iterations       master steps; worker_gradients, sample_passes: what they cost, probes included
    virtual_seconds  on the simulator's clock; None on an engine
    wall_seconds     that the run took, before it was resumed as well
    site_buffers     with buffers='site' on the simulator: each site's batch-norm statistics, by the
                     name of the site; `model` has them pooled, `model_of(site)` its own
    certified        the certificate in result.json, of a run that was loaded
    inputs           shape and type of one sample's inputs, where the simulator had them
    absences         who was away, from which iteration to which (None: the end), and why
    metrics          figures of `model` with their n and an interval, by metric and part:
                     metrics['accuracy']['test'] has one a site, or None. See docs/metrics.md
    tested           what `certificate` needs of each site's test part
    """

    model: nn.Module
    sites: tuple[str, ...]
    weights: Array
    losses: Array
    accuracies: Array | None
    worst_case_loss: float
    planes: int
    stationarity: float | None
    history: list[dict[str, Any]]
    evaluated_on: str
    method: str
    iterations: int
    virtual_seconds: float | None
    wall_seconds: float
    worker_gradients: int
    sample_passes: int
    settings: dict[str, Any]
    absences: list[dict[str, Any]] = field(default_factory=list)
    test_losses: Array | None = None
    train_samples: Array = field(default_factory=lambda: np.empty(0))
    test_samples: Array = field(default_factory=lambda: np.empty(0))
    val_losses: Array | None = None
    val_accuracies: Array | None = None
    val_samples: Array = field(default_factory=lambda: np.empty(0))
    selected: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    ended_by: str | None = None
    trend: str | None = None
    site_buffers: dict[str, dict[str, Tensor]] | None = None
    inputs: Any = None
    certified: Certificate | None = None
    metrics: Table = field(default_factory=dict)
    tested: list[OnTest | None] = field(default_factory=list)

    def __repr__(self) -> str:
        return screenful(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def model_of(self, site: str) -> nn.Module:
        """A copy of the model with that site's own batch-norm statistics, where sites have some."""
        if site not in self.sites:
            raise ValueError(f"site={site!r}: expected one of {', '.join(self.sites)}")
        model = copy.deepcopy(self.model)
        if self.site_buffers is not None:
            if site not in self.site_buffers:
                raise ValueError(
                    f"site={site!r}: a run's folder has the pooled statistics, and not those of "
                    "each site: expected the run that train() returned"
                )
            inner = model.model if isinstance(model, Standardized) else model
            load(inner, self.site_buffers[site])
        return model

    def certificate(self, alpha: float = 0.05) -> Certificate | None:
        """Bounds on the worst site's accuracy and the worst-case loss; None: no site has a test.

        Each holds with confidence 1 - alpha over all sites together, under its `assumptions`.
        """
        if not any(self.tested):
            return None
        if self.certified is not None and alpha == self.certified.alpha:
            return self.certified
        if isinstance(self.settings.get("uncertainty"), str):
            raise ValueError(
                f"alpha={shown(alpha)}: the set of a run that was loaded is known by its text "
                "alone: expected 0.05, or aspire.load(..., uncertainty=) with the set"
            )
        return certificate(self.sites, self.tested, self.settings.get("uncertainty"), alpha)

    @property
    def train_losses(self) -> Array:
        return self.losses

    @property
    def parts(self) -> tuple[str | None, ...]:
        """What each site's accuracy is on: 'test', 'train', None where it did not answer."""
        return tuple(None if np.isnan(n) else "test" if n else "train" for n in self.test_samples)

    @property
    def worst_loss(self) -> float:
        """The largest training loss."""
        return float(np.nanmax(self.losses))

    @property
    def worst_accuracy(self) -> float | None:
        return None if self.accuracies is None else float(np.nanmin(self.accuracies))

    @property
    def worst_val_loss(self) -> float | None:
        """The largest loss on a validation part; None where no site has one."""
        return None if self.val_losses is None else float(np.nanmax(self.val_losses))

    @property
    def worst_val_accuracy(self) -> float | None:
        return None if self.val_accuracies is None else float(np.nanmin(self.val_accuracies))

    @property
    def converged(self) -> bool | None:
        """Whether the worst loss has settled; None: too few evaluations to say."""
        return None if self.trend is None else self.trend == SETTLED

    @property
    def mean_accuracy(self) -> float | None:
        return None if self.accuracies is None else float(np.nanmean(self.accuracies))

    @property
    def std_accuracy(self) -> float | None:
        """Population standard deviation over the sites."""
        return None if self.accuracies is None else float(np.nanstd(self.accuracies))

    def result(self) -> dict[str, Any]:
        """What result.json holds."""
        return {
            "method": self.method,
            "iterations": self.iterations,
            "ended_by": self.ended_by,
            "converged": self.converged,
            "trend": self.trend,
            "selected": self.selected,
            "last": self.last,
            "virtual_seconds": self.virtual_seconds,
            "wall_seconds": self.wall_seconds,
            "worst_accuracy": self.worst_accuracy,
            "worst_loss": self.worst_loss,
            "std_accuracy": self.std_accuracy,
            "mean_accuracy": self.mean_accuracy,
            "accuracies": self.accuracies,
            "losses": self.losses,
            "train_losses": self.train_losses,
            "test_losses": self.test_losses,
            "train_samples": _counts(self.train_samples),
            "test_samples": _counts(self.test_samples),
            "val_losses": self.val_losses,
            "val_accuracies": self.val_accuracies,
            "val_samples": _counts(self.val_samples),
            "worst_val_loss": self.worst_val_loss,
            "worst_val_accuracy": self.worst_val_accuracy,
            "weights": self.weights,
            "worst_case_loss": self.worst_case_loss,
            "planes": self.planes,
            "stationarity": self.stationarity,
            "worker_gradients": self.worker_gradients,
            "sample_passes": self.sample_passes,
            "evaluated_on": self.evaluated_on,
            "parts": self.parts,
            "sites": self.sites,
            "absences": self.absences,
            "inputs": self.inputs,
            "metrics": plain(self.metrics),
            "certificate": told(self.certificate(), self.tested),
        }

    def evaluate(
        self,
        sites: Mapping[str, Any] | Sequence[Any],
        metrics: Any = None,
        *,
        loss: str | Loss | None = None,
        collate_fn: Collate | None = None,
    ) -> Evaluation:
        """Figures of the model on sites that need not have taken part, each with n and an interval.

        Args:
            sites: as for `train`. Of a site with parts the test part counts, else val, else train.
            metrics: besides loss and accuracy, as for `train`.
            loss: None: that of the run.
            collate_fn: how samples of these sites become a batch, as for `train`.
        """
        return evaluated(self, sites, metrics, loss, collate_fn)

    def predict(self, inputs: Any, *, site: str | None = None) -> Any:
        """The model's outputs, in eval mode and without gradients.

        Args:
            inputs: what a site's inputs may be: a tensor, an array or a DataFrame with a row for
                each sample, a tuple of several, or a mapping of them by name.
            site: whose batch-norm statistics to use, with buffers='site'; None: the pooled ones.

        Returns:
            What the model gives, on the CPU: class scores, say, of which `.argmax(1)` is the class.
        """
        return outputs_of(self.model if site is None else self.model_of(site), inputs, self.inputs)

    def export(self, path: str | Path, inputs: Any = None) -> None:
        """Write the model to a file that needs neither aspire nor the model's code.

        Args:
            path: ends in .onnx for ONNX, or in .pt2 for `torch.export.load`.
            inputs: a batch of at least two samples, of which only shapes and types count. None:
                zeros of the shape that the model was trained on.
        """
        export(self.model, Path(path), batch_for_export(inputs, self.inputs))

    def save(self, directory: str | Path) -> None:
        """Write the run to a new folder, which `aspire.load` reads."""
        with RunFolder.create(Path(directory)) as folder:
            folder.write_settings(self.settings)
            for record in self.history:
                folder.add_history(record)
            self.save_outcome(folder)

    def save_outcome(self, folder: RunFolder) -> None:
        """Only what is known at the end."""
        source = read_settings(folder.path).get("source")
        folder.save_outcome(self.model, self.result(), self.history, readme(self, source))


class Ended(Protocol):
    """What the simulator and the driver both know of a run."""

    master: Any
    gradients: float
    samples: float
    absences: list[Away]  # with the number of a site


def outcome(
    job: Job,
    ended: Ended,
    history: list[dict[str, Any]],
    seconds: float,
    *,
    sizes: tuple[Array, Array, Array],
    virtual_seconds: float | None = None,
    gap: float | None = None,
    watched: Watched | None = None,
    ended_by: str | None = None,
    ask: Callable[[Tensor], Answers] | None = None,
) -> Run:
    """The selected line of the history, and what it took; `sizes`: of train, test and val parts.

    ask  the sites for their figures of the model that is given back; None: there are none
    """
    last = history[-1]
    chosen = selected(job.select, watched, history)
    line = chosen.line
    w = _given(chosen.w, job.method.model(ended.master))
    model = job.problem.flat.module(w)
    answers = [{} for _ in job.problem.names] if ask is None else ask(w)
    found = table(answers, job.metrics or ())
    say_missing(found, job.problem.names)
    own = site_buffers(job.problem, w)
    if own is not None:
        fill(model, job.problem.flat, own)
    if job.problem.standardization is not None:
        model = job.problem.standardization.of(model)
    return Run(
        model=model,
        site_buffers=own,
        sites=job.problem.names,
        weights=np.array(last["weights"]),
        losses=np.array(line["losses"], dtype=float),
        accuracies=_floats(line["accuracies"]),
        worst_case_loss=line["worst_case_loss"],
        planes=last["planes"],
        stationarity=gap,
        history=history,
        evaluated_on=evaluated_on(sizes[1]),
        method=job.method.name,
        iterations=ended.master.t,
        virtual_seconds=virtual_seconds,
        wall_seconds=seconds,
        worker_gradients=int(ended.gradients),
        sample_passes=int(ended.samples),
        settings=job.settings,
        absences=[{**x, "site": job.problem.names[x["site"]]} for x in ended.absences],
        test_losses=_floats(line.get("test_losses")),
        train_samples=sizes[0],
        test_samples=sizes[1],
        val_losses=_floats(line.get("val_losses")),
        val_accuracies=_floats(line.get("val_accuracies")),
        val_samples=sizes[2],
        selected=chosen.figures(),
        last=figures(last),
        ended_by=ended_by,
        trend=trend(history),
        inputs=description_of(job.problem),
        metrics=found,
        tested=tested_of(answers),
    )


def say_missing(found: Table, names: tuple[str, ...]) -> None:
    """A line about figures that were asked for and are not defined at a site that answered."""
    for metric in found.keys() - set(ALWAYS):
        for part, losses in found["loss"].items():
            figures = found[metric].get(part, [None] * len(names))
            pairs = zip(names, losses, figures, strict=True)
            missing = [name for name, loss, figure in pairs if loss and not figure]
            if missing:
                logger.warning("no %s on the %s part of %s", metric, part, ", ".join(missing))


def _given(selected: Tensor | None, last: Tensor) -> Tensor:
    return last if selected is None else selected


def _floats(values: list[float | None] | None) -> Array | None:
    return None if values is None else np.array(values, dtype=float)


def _counts(values: Array) -> list[int | None]:
    return [int(x) if np.isfinite(x) else None for x in values]

"""`Run.evaluate`: the figures of a model on sites that it need not have seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aspire.api.showing import html_table
from aspire.api.summary import aligned, with_interval
from aspire.arguments import shown
from aspire.problem.metrics import metrics_of
from aspire.problem.objective import LOSSES, Loss
from aspire.problem.problem import Problem, build
from aspire.problem.samples import named
from aspire.problem.sources import Collate
from aspire.protocol import ALWAYS, PARTS
from aspire.runs.figures import Figure, table

if TYPE_CHECKING:
    from aspire.api.run import Run

ALL = "all"  # the part of a site that has no parts
ORDER = ("test", "val", "train")  # which part of a site is evaluated: the first that it has


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Figures with their n and an interval of 95 %, by metric, in the order of `sites`.

    parts     what each site's figures are on: 'test', 'val', 'train', 'all'
    metrics   metrics['accuracy'] has one a site; None: it is not defined there
    """

    sites: tuple[str, ...]
    parts: tuple[str, ...]
    metrics: dict[str, list[Figure | None]]

    def __repr__(self) -> str:
        return "\n".join(aligned(self.sites, self.columns()))

    def _repr_html_(self) -> str:
        head = ["site", *(head for head, _ in self.columns())]
        cells = zip(*(column for _, column in self.columns()), strict=True)
        rows = [[name, *row] for name, row in zip(self.sites, cells, strict=True)]
        return html_table(head, rows)

    def columns(self) -> list[tuple[str, list[str]]]:
        """The part of every site, its n and its figures as texts."""
        sizes = ["-" if x is None else str(x.n) for x in self.metrics["loss"]]
        figures = [(name, list(map(with_interval, xs))) for name, xs in self.metrics.items()]
        return [("on", list(self.parts)), ("n", sizes), *figures]


def evaluated(
    run: Run,
    sites: Mapping[str, Any] | Sequence[Any],
    metrics: Any,
    loss: str | Loss | None,
    collate_fn: Collate | None,
) -> Evaluation:
    """The figures of the run's model on one part of each of these sites."""
    picked = {name: part_of(data) for name, data in named(sites).items()}
    asked = metrics_of(metrics)
    problem = problem_of(
        run,
        {name: data for name, (_, data) in picked.items()},
        loss=loss_of(run, loss),
        metrics=asked,
        collate_fn=collate_fn,
    )
    found = table(problem.figures(problem.flat.start), [metric.name for metric in asked])
    nowhere: list[Figure | None] = [None] * len(picked)
    figures = {name: parts.get("train", nowhere) for name, parts in found.items()}
    kept = {name: xs for name, xs in figures.items() if any(xs) or name not in ALWAYS}
    return Evaluation(problem.names, tuple(part for part, _ in picked.values()), kept)


def part_of(data: Any) -> tuple[str, Any]:
    """The name of the part that is evaluated, and the part."""
    if not isinstance(data, Mapping) or not data or set(data) - set(PARTS):
        return ALL, data
    found = ((name, data[name]) for name in ORDER if data.get(name) is not None)
    return next(found, (ALL, data))


def problem_of(run: Run, sites: Mapping[Any, Any], **given: Any) -> Problem:
    """The run's model on these sites, computed as in the run, where the model is."""
    known = {
        name: run.settings[name]
        for name in ("weight_decay", "buffers", "precision", "seed")
        if name in run.settings
    }
    device = str(next(run.model.parameters()).device)
    return build(run.model, sites, batch_size=None, device=device, **known, **given)


def loss_of(run: Run, given: str | Loss | None) -> str | Loss:
    """That of the run, unless another is given."""
    loss = run.settings.get("loss") if given is None else given
    if given is None and isinstance(loss, str) and loss not in LOSSES:
        raise ValueError(
            f"loss=None: the loss of a run that was loaded is known by its text alone, "
            f"{shown(loss)}: expected the loss"
        )
    return loss  # type: ignore[return-value]

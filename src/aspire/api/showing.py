"""A run as HTML for a notebook, and as the README.md of its folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from aspire.api import inputs
from aspire.api.summary import (
    absence_lines,
    end_lines,
    last_line,
    site_columns,
    worst_lines,
)
from aspire.problem.standardization import Standardized

if TYPE_CHECKING:
    from aspire.api.run import Run

SITES = 30  # rows of a table in a notebook
ABSENCES = 4


def as_html(run: Run) -> str:
    """A table with a row for each site, and what the summary says below it."""
    head, rows = table(run, SITES)
    lines = [*worst_lines(run, run.sites), last_line(run), *end_lines(run)]
    lines += absence_lines(run, ABSENCES)
    if len(run.sites) > SITES:
        lines = [f"... and {len(run.sites) - SITES} more sites", *lines]
    return f"{html_table(head, rows)}<p>{'<br>'.join(map(escape, lines))}</p>"


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(x)}</th>" for x in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(x)}</td>" for x in r) + "</tr>" for r in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def table(run: Run, most: int) -> tuple[list[str], list[list[str]]]:
    """The head, and a row for each of the first sites."""
    names = run.sites[:most]
    columns = site_columns(run, len(names))
    cells = zip(*(column for _, column in columns), strict=True)
    rows = [[name, *row] for name, row in zip(names, cells, strict=True)]
    return ["site", *(head for head, _ in columns)], rows


# ---------------------------------------------------------------- README.md


def readme(run: Run, source: Mapping[str, Any] | None) -> str:
    """What the run is, and a program that loads its model with torch and safetensors alone.

    source  what run.json says of FILE.py; None: the run was started from Python
    """
    head, rows = table(run, len(run.sites))
    lines = [f"| {' | '.join(x.replace('|', '/') for x in row)} |" for row in [head, *rows]]
    lines.insert(1, "|---" * len(head) + "|")
    facts = [*worst_lines(run, run.sites), *end_lines(run)]
    return "\n".join(
        [
            f"# A run of {run.method}",
            "",
            f"{len(run.sites)} sites, {run.iterations} iterations, with aspire "
            f"{run.settings['versions']['aspire']}. `result.json` has all figures, `run.json` the "
            "settings.",
            "",
            *lines,
            "",
            *(f"- {fact}" for fact in facts),
            "",
            "## Load the model",
            "",
            "With torch and safetensors alone, in this folder:",
            "",
            "```python",
            *program(run, source),
            "```",
            "",
            f"With aspire, `aspire.load({'FOLDER' if source else 'FOLDER, model'})` gives the "
            "whole run: its model, figures, history, `predict` and `evaluate`.",
            "",
        ]
    )


def program(run: Run, source: Mapping[str, Any] | None) -> list[str]:
    """About ten lines of Python."""
    if source is not None:
        file = source["file"]
        first = ["import runpy", "import sys", ""]
        made = [f"sys.path.insert(0, {os.path.dirname(file)!r})  # for modules beside the file"]
        made.append(f'model = runpy.run_path({file!r})["model"]()')
    else:
        first = []
        module = run.model.model if isinstance(run.model, Standardized) else run.model
        code = code_of(module)
        about = "  # put in the module that was given to train: " + type(module).__name__
        made = ["model = ..." + about if code is None else f"model = {code}"]
    if isinstance(run.model, Standardized):
        return [*first, *STANDARDIZED[0], *made, *STANDARDIZED[1], *outputs(run)]
    return [
        *first,
        "import torch",
        "from safetensors.torch import load_model",
        "",
        *made,
        'load_model(model, "model.safetensors")',
        "model.eval()",
        "with torch.no_grad():",
        f"    outputs = model({batch_of(run.inputs)})",
    ]


STANDARDIZED = (
    ["import torch", "from safetensors.torch import load_file", ""],
    [
        'saved = load_file("model.safetensors")',
        'mean, std = saved.pop("mean"), saved.pop("std")',
        'saved = {name.removeprefix("model."): x for name, x in saved.items()}',
        "model.load_state_dict(saved, strict=False)  # weights that are tied are there once",
    ],
)


def outputs(run: Run) -> list[str]:
    """The last lines, of a model whose inputs were standardised."""
    return [
        "model.eval()",
        f"x = {batch_of(run.inputs)}",
        "with torch.no_grad():",
        "    outputs = model(((x.flatten(1) - mean) / std).view_as(x))",
    ]


def batch_of(description: Any) -> str:
    """One sample of zeros as code; a name where its shape is not known."""
    if not inputs.known(description):
        return "inputs"
    if inputs.is_leaf(description):
        sizes = ", ".join(map(str, [1, *description["shape"]]))
        return f"torch.zeros({sizes}, dtype=torch.{description['dtype']})"
    if isinstance(description, list):
        return ", ".join(map(batch_of, description))
    return ", ".join(f"{name}={batch_of(x)}" for name, x in description.items())


def code_of(module: nn.Module) -> str | None:
    """A call that makes such a module, where it is of torch's own layers alone."""
    code = _call(module)
    if code is None:
        return None
    try:
        with torch.random.fork_rng(devices=()):
            made = eval(code, {"torch": torch})
    except Exception:  # what torch prints of a layer need not be what it takes
        return None
    return code if _shapes(made) == _shapes(module) else None


def _call(module: nn.Module) -> str | None:
    kind = type(module)
    if not kind.__module__.startswith("torch.nn.modules.") or not hasattr(nn, kind.__name__):
        return None
    inner = dict(module.named_children())
    if kind is not nn.Sequential:
        return None if inner else f"torch.nn.{kind.__name__}({module.extra_repr()})"
    calls = [_call(one) for one in inner.values()]
    if None in calls or list(inner) != [str(i) for i in range(len(inner))]:
        return None
    return "\n".join(["torch.nn.Sequential(", *(f"    {code}," for code in calls), ")"])


def _shapes(module: nn.Module) -> dict[str, Sequence[int]]:
    return {name: tuple(x.shape) for name, x in module.state_dict().items()}

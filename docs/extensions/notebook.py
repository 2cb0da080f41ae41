"""Notebooks as pages: their text, their code, and the outputs that are stored in them."""

from __future__ import annotations

from typing import Any

import nbformat
from myst_parser.parsers.sphinx_ import MystParser


def markdown(notebook: nbformat.NotebookNode) -> str:
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        printed = "".join(map(text_of, cell.outputs)).rstrip()
        if printed:
            parts.append(f"```text\n{printed}\n```")
    return "\n\n".join(parts)


def text_of(output: nbformat.NotebookNode) -> str:
    """What an output says in words."""
    if output.output_type == "stream":
        return output.text
    return output.get("data", {}).get("text/plain", "") + "\n"


class Notebook(MystParser):
    """Reads .ipynb."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: Any) -> None:
        super().parse(markdown(nbformat.reads(inputstring, as_version=4)), document)


def setup(app: Any) -> dict[str, bool]:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(Notebook)
    return {"parallel_read_safe": True}

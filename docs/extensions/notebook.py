"""Notebooks as pages: their text, their code, and the outputs that are stored in them.

`python docs/extensions/notebook.py docs/tour.ipynb` runs one and stores its outputs anew.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
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


# ---------------------------------------------------------------- outputs anew


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs that it has now, as words, and nothing that says when."""
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, resources=place).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            printed = "".join(map(text_of, cell.outputs))
            cell.execution_count = None
            cell.outputs = [nbformat.v4.new_output("stream", text=printed)] if printed else []
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    return notebook


if __name__ == "__main__":
    nbformat.write(executed(Path(sys.argv[1])), sys.argv[1])

"""The documentation site: it builds without a warning, and the notebook says what it prints."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.test_docs import ROOT, compare_output, recipe_of

pytest.importorskip("sphinx", reason="needs aspire-ease[docs]")
nbformat = pytest.importorskip("nbformat", reason="needs aspire-ease[docs]")

DOCS = ROOT / "docs"
TOUR = DOCS / "tour.ipynb"
SECONDS = r"in\s\d+\.\d\ss"  # how long a run took


def extension(name: str) -> ModuleType:
    """A module of docs/extensions, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "extensions" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(target: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What `make docs` calls, into `target`."""
    words = shlex.split(recipe_of("docs")[0].replace("$(ARGS)", ""))
    assert words[0] == "$(BIN)/python"
    command = [sys.executable, *words[1:-1], str(target), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_make_docs_builds_every_page_without_a_warning(tmp_path: Path) -> None:
    """Links between pages, and to headings in them, are warnings where they lead nowhere."""
    done = built(tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    sources = [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    pages = [(tmp_path / "site" / x.relative_to(DOCS)).with_suffix(".html") for x in sources]
    assert len(pages) > 20
    front = (tmp_path / "site" / "index.html").read_text()
    for page in pages:
        assert page.exists()
        assert str(page.relative_to(tmp_path / "site")) in front  # in the menu, or itself
    api = (tmp_path / "site" / "api.html").read_text()
    for name in ("aspire.train", "aspire.sets.CDNorm", "aspire.methods.direct", "aspire.Run"):
        assert f'id="{name}"' in api


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[b](#nothing) [c](none.md)\n")
    conf = f"import sys\nsys.path.insert(0, {str(DOCS)!r})\nfrom conf import *\n"
    (tmp_path / "docs" / "conf.py").write_text(conf)
    words = ["-W", "--keep-going", "-q", str(tmp_path / "docs"), str(tmp_path / "site")]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("myst.xref_missing") == 2


def test_the_tour_prints_what_it_shows() -> None:
    """python docs/extensions/notebook.py docs/tour.ipynb stores its outputs anew."""
    notebook = extension("notebook")
    shown, made = nbformat.read(TOUR, as_version=4), notebook.executed(TOUR)
    assert sum(bool(cell.get("outputs")) for cell in shown.cells) >= 7
    for number, (ours, theirs) in enumerate(zip(shown.cells, made.cells, strict=True)):
        texts = ["".join(map(notebook.text_of, cell.get("outputs", []))) for cell in (ours, theirs)]
        compare_output(*texts, {"varies": SECONDS, "within": "20"}, f"tour.ipynb, cell {number}")


DOCSTRING = """\
A sum over *sites* of w_j, and `more`: see docs/sets.md.

name      what it is, in
          two lines
other, x  another

    p_j = q_j + r_j

Args:
    model: Any module.
"""
SHOWN = r"""
A sum over \*sites\* of w_j, and ``more``: see :doc:`sets`.

``name``
    what it is, in
    two lines
``other, x``
    another

.. code-block:: text

        p_j = q_j + r_j

**Args**

``model``
    Any module.
"""


def test_docstrings_are_shown_as_they_are() -> None:
    shown = extension("docstrings").shown(DOCSTRING.splitlines())
    assert list(shown) == [*SHOWN.strip().splitlines(), ""]

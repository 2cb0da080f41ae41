"""The documentation site: `make docs` builds it into build/docs, with every warning an error."""

import re
import sys
from pathlib import Path

import aspire

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "ASPIRE"
author = "The ASPIRE maintainers"
release = aspire.__version__
extensions = [
    *("myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"),
    *("docstrings", "notebook"),
]
smartquotes = False  # arguments are quoted in docstrings
html_theme = "furo"
html_title = f"ASPIRE {release}"
html_show_copyright = False
html_show_sphinx = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "none"
copybutton_exclude = ".gp, .go"  # prompts and outputs


def add_the_rest(app, name: str, source: list[str]) -> None:
    """Pages that index.md does not name go where it says REST, so that none is left out."""
    if name == "index":
        named = {"index", *re.findall(r"^[\w/]+$", source[0], flags=re.MULTILINE)}
        rest = sorted(app.env.found_docs - named)
        source[0] = source[0].replace("REST\n", "".join(f"{page}\n" for page in rest))


def setup(app) -> None:
    app.connect("source-read", add_the_rest)

"""The documentation site: `make docs` builds it into build/docs, with every warning an error."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE / "extensions")]

import aspire

project = "ASPIRE"
author = "The ASPIRE maintainers"
release = aspire.__version__
extensions = [
    *("myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"),
    *("docstrings", "notebook"),
]
html_theme = "furo"
html_title = f"ASPIRE {release}"
html_show_copyright = False
html_show_sphinx = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "none"
copybutton_exclude = ".gp, .go"  # prompts and outputs

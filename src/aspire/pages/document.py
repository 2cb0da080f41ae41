"""A page as one HTML document: texts as HTML, charts as data, and the script that draws them."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from aspire.pages.blocks import Block, Chart, Page, html_of
from aspire.runs.files import whole


def write(path: Path, page: Page) -> Path:
    """Write the page, whole or not at all. Returns `path`."""
    text = document(page)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path, sync=False) as beside:
        beside.write_text(text, encoding="utf-8")
    return path


def document(page: Page, *, live: str = "") -> str:
    """The whole document. `live`: the address at which the page asks for what is new."""
    script = _part("page.js")
    return TEMPLATE.format(
        live=f' data-live="{escape(live)}"' if live else "",
        policy=policy(plotly(), script),
        title=escape(page.title),
        css=_part("page.css"),
        body="".join(map(_place, page.blocks)),
        data=embedded({"blocks": [figure_of(block) for block in page.blocks]}),
        plotly=plotly(),
        script=script,
    )


def figure_of(block: Block) -> dict[str, Any]:
    """What the script draws of a block; of all but charts nothing."""
    if not isinstance(block, Chart):
        return {}
    return {"figure": block.figure, "other": block.other_x}


def embedded(value: Any) -> str:
    """JSON that cannot end the element that it stands in."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def policy(*scripts: str) -> str:
    """What the browser may do for this page: run these scripts, and ask only who served it."""
    hashes = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)
    rest = "style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; base-uri 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}; form-action 'none'"


@cache
def plotly() -> str:
    """plotly.js, which the Python package brings along."""
    try:
        found = resources.files("plotly") / "package_data" / "plotly.min.js"
    except ImportError:
        raise ImportError("pages need plotly: pip install 'aspire-ease[report]'") from None
    return found.read_text(encoding="utf-8")


def _part(name: str) -> str:
    return (resources.files("aspire.pages") / name).read_text(encoding="utf-8")


def _place(block: Block) -> str:
    kind = ' class="chart"' if isinstance(block, Chart) else ""
    return f"<div{kind}>{html_of(block)}</div>"


TEMPLATE = """<!doctype html>
<html lang="en"{live}><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>{title}</title><style>{css}</style></head>
<body><h1>{title}</h1><p id="state"></p>
<fieldset id="over">
<label><input type="radio" name="over" value="steps" checked>over iterations</label>
<label><input type="radio" name="over" value="time">over <span id="time"></span></label>
</fieldset>
<main>{body}</main>
<noscript><p>The charts of this page need JavaScript.</p></noscript>
<script type="application/json" id="page">{data}</script>
<script>{plotly}</script><script>{script}</script></body></html>
"""

"""Interactive pages: one HTML file with everything in it, no network.

A page is a title and a sequence of blocks, in order:

    from aspire.pages import Heading, Page, Series, Table, Text, curves, dots, write

    page = Page("A title", [
        Text("The verdict in two sentences."),
        Table(["site", "accuracy (%)"], [["north", "81.0"], ["south", "64.5"]], worst=[1]),
        Heading("While it trained"),
        curves("Loss of every site", x="iteration (steps)", y="loss (per sample)",
               series=[Series("north", [0, 10], [0.7, 0.5])], worst="high"),
        dots("Test accuracy", x="accuracy (%)", names=["north", "south"],
             groups={"run": [(81.0, 75.0, 86.0), (64.5, 60.0, 70.0)]}, limits=(0, 100)),
    ])
    write(Path("page.html"), page)

Texts may come from anywhere: they are shown as they are, never as HTML.
"""

from aspire.pages.blocks import Block, Chart, Heading, Page, Table, Text
from aspire.pages.charts import bars, curves, dots, spans
from aspire.pages.document import write
from aspire.pages.figures import Interval, Series

__all__ = [
    "Block",
    "Chart",
    "Heading",
    "Interval",
    "Page",
    "Series",
    "Table",
    "Text",
    "bars",
    "curves",
    "dots",
    "spans",
    "write",
]

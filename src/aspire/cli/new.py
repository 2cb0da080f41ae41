"""`aspire new NAME`: a folder that trains at once, to put one's own model and data into."""

from __future__ import annotations

import shutil
from importlib.resources import as_file, files
from pathlib import Path

import click

TEMPLATES = {  # what each is started with
    "tabular": ["aspire train {0}/task.py --iterations 1000 --out {0}/run"],
    "images": ["aspire train {0}/task.py --iterations 600 --batch-size 32 --out {0}/run"],
    "text": ["aspire train {0}/task.py --iterations 600 --batch-size 32 --out {0}/run"],
    "federation": [
        "cd {0}",
        "aspire federation init kits --sites north,south,west --server localhost,127.0.0.1",
        "python together.py",
    ],
}


@click.command("new")
@click.argument("name", type=click.Path(path_type=Path))
@click.option(
    "--template", type=click.Choice(list(TEMPLATES)), default="tabular", show_default=True
)
def new_command(name: Path, template: str) -> None:
    """Make the folder NAME with a task.py that trains on data it makes, and a README.md.

    Comments in task.py say where to put a model and data of one's own.
    """
    if name.exists():
        raise ValueError(f"NAME={str(name)!r}: expected a folder that is not there yet")
    with as_file(files("aspire") / "templates" / template) as source:
        shutil.copytree(source, name, ignore=shutil.ignore_patterns("__pycache__"))
    click.echo(f"{name} holds {', '.join(sorted(path.name for path in name.iterdir()))}. Next:")
    for command in TEMPLATES[template]:
        click.echo(f"  {command.format(name)}")

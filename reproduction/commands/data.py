"""`aspire data list`, `aspire data fetch NAME`, `aspire data verify NAME`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from aspire.cli.shared import Sentence, interruptible
from reproduction.data import READERS, Missing, files_of, reader
from reproduction.data.files import data_folder

where = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder with one folder per data set (default: ASPIRE_DATA, or one in the cache folder).",
)


@click.group("data")
def data_command() -> None:
    """The data sets of the experiments: which are here, download, check."""


@data_command.command("list")
@where
def list_command(data: Path | None) -> None:
    """Which data sets there are, and which of them are here."""
    from reproduction.data.sources import SOURCES

    root = data_folder(data)
    click.echo(f"{'name':<16} {'here':<5} {'download':>9}  data set, licence and home")
    for chosen in READERS.values():
        source = SOURCES[chosen.name]
        here = "yes" if _here(chosen.name, data) else "no"
        size = f"{source.megabytes:.0f} MB"
        click.echo(f"{chosen.name:<16} {here:<5} {size:>9}  {source.title} ({source.licence})")
        click.echo(f"{'':<33} {source.home}")
    click.echo(f"The folder is {root}.")


def _here(name: str, data: Path | None) -> bool:
    try:
        return bool(files_of(name, data))
    except Missing:
        return False


@data_command.command("fetch")
@click.argument("name")
@where
def fetch_command(name: str, data: Path | None) -> None:
    """Download NAME from its official home; an interrupted download continues."""
    from reproduction.data.fetch import fetch

    chosen = reader(name)
    root = data_folder(data)
    line = DownloadBar()
    with interruptible(root):
        try:
            new = fetch(chosen, root, progress=line)
        finally:
            line.end()
    state = "is here now, whole and right" if new else "was here already, whole and right"
    click.echo(f"{name} {state}: {root / chosen.folder}")


@data_command.command("verify")
@click.argument("name")
@where
def verify_command(name: str, data: Path | None) -> None:
    """Check the files of NAME, by checksum where one is known."""
    from reproduction.data.verify import verify

    chosen = reader(name)
    root = data_folder(data)
    files_of(name, data)
    checks = verify(chosen, root / chosen.folder)
    for check in checks:
        click.echo(f"{'right' if check.right else 'WRONG':<6} {check.what}: {check.text}")
    wrong = sum(not check.right for check in checks)
    if wrong:
        raise Sentence(
            f"{wrong} of {len(checks)} files of {name} are wrong. "
            f"Get them again with: aspire data fetch {name}"
        )
    click.echo(f"{name}: {len(checks)} of {len(checks)} are right.")


class DownloadBar:
    """How far a download is, on standard error: a bar with the time left on a terminal, else a
    line every tenth (every 10 MB where the size is not known)."""

    def __init__(self) -> None:
        self.file = ""
        self.shown = -1
        self.unfinished = False
        self.start = 0.0
        self.first = 0
        self.bar = sys.stderr.isatty()

    def __call__(self, file: str, done: int, total: int | None) -> None:
        if file != self.file:
            self.file, self.shown, self.start, self.first = file, -1, time.monotonic(), done
        step = int((50 if self.bar else 10) * done / total) if total else done // 10_000_000
        if step == self.shown and done != total:
            return
        self.shown = step
        text = f"{file}: {self.amount(done, total)}"
        last = done == total or not self.bar
        self.unfinished = not last
        click.echo(f"\r{text}\x1b[K" if self.bar else text, err=True, nl=last)

    def end(self) -> None:
        if self.unfinished:
            click.echo(err=True)

    def amount(self, done: int, total: int | None) -> str:
        if not total:
            return f"{done / 1e6:.1f} MB"
        spent = time.monotonic() - self.start
        new = done - self.first
        left = f", {spent * (total - done) / new:.0f} s left" if new and done < total else ""
        filled = 20 * done // total
        bar = f"[{'#' * filled}{'.' * (20 - filled)}] " if self.bar else ""
        return f"{bar}{done / 1e6:.1f} of {total / 1e6:.1f} MB{left}"

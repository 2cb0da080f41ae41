"""A data set from its official home to the data folder.

All work is done in .FOLDER.part beside the data set's folder: what is downloaded and unpacked moves
to its place only when it is whole and right, so that a reader never meets half a file.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from reproduction.data.download import Progress, download, extract
from reproduction.data.files import Missing
from reproduction.data.reader import Reader
from reproduction.data.sources import SOURCES, Remote, Source
from reproduction.data.verify import check_file, verify


def fetch(reader: Reader, root: Path, *, progress: Progress = lambda *_: None) -> bool:
    """Put the data set in its folder under `root`; False: it was there and right already."""
    source = SOURCES[reader.name]
    folder = root / reader.folder
    stage = root / f".{reader.folder}.part"
    if complete(reader, folder):
        return False
    try:
        for remote in source.remotes:
            _reuse(remote, folder, stage)
            download(remote, stage / remote.name, progress)
        _unpack(reader, source, stage)
        _move(stage / "files", folder)
        shutil.rmtree(stage)
    except OSError as error:
        raise ValueError(f"{root}: expected a folder that can be written to: {error}") from error
    finally:
        if stage.is_dir() and not any(stage.iterdir()):
            stage.rmdir()
    return True


def complete(reader: Reader, folder: Path) -> bool:
    try:
        return all(check.right for check in verify(reader, folder))
    except Missing:
        return False


def _reuse(remote: Remote, folder: Path, stage: Path) -> None:
    """A plain file that is in its place already, and right, is not downloaded again."""
    path = folder / remote.name
    if remote.wanted is not None or remote.check is None or not path.is_file():
        return
    if check_file(path, remote.check, unpack=False).right:
        stage.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, stage / remote.name)


def _unpack(reader: Reader, source: Source, stage: Path) -> None:
    """Archives and plain files to stage/files; they must be right as a whole."""
    files = stage / "files"
    shutil.rmtree(files, ignore_errors=True)  # of an earlier try that was cut short
    files.mkdir(parents=True)
    for remote in source.remotes:
        if remote.wanted is None:
            shutil.copyfile(stage / remote.name, files / remote.name)
        else:
            extract(stage / remote.name, remote.wanted, files)
    try:
        wrong = [f"{c.what}: {c.text}" for c in verify(reader, files) if not c.right]
    except Missing as error:
        wrong = [str(error)]
    if wrong:
        shutil.rmtree(stage)
        raise ValueError(f"{source.home}: the download is wrong and is deleted: {wrong[0]}")


def _move(files: Path, folder: Path) -> None:
    for path in sorted(files.rglob("*")):
        if path.is_file():
            target = folder / path.relative_to(files)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)

"""One file over HTTP: into NAME.part, continued where it stopped, renamed only when it is right."""

from __future__ import annotations

import http.client
import re
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from reproduction.data.sources import Remote
from reproduction.data.verify import check_file

Progress = Callable[[str, int, int | None], None]  # file, bytes that are here, bytes in all

CHUNK = 1 << 18
TRIES = 3  # attempts at one address before the command gives up; the bytes so far are kept
TIMEOUT = 60.0  # seconds without a byte


class Elsewhere(Exception):
    """The address does not have the file: the next one is tried."""


def download(remote: Remote, target: Path, progress: Progress) -> None:
    """Make `target` the file that `remote` describes. What comes first is kept in target.part."""
    if target.is_file():
        return
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    for url in remote.urls:
        try:
            _try(url, part, remote, progress)
            break
        except Elsewhere:
            part.unlink(missing_ok=True)
    else:
        raise ValueError(f"{remote.name} is not found at {' or '.join(remote.urls)}")
    if remote.check is not None:
        checked = check_file(part, remote.check, unpack=False)
        if not checked.right:
            part.unlink()
            raise ValueError(f"{url} gave the wrong file, which is deleted: {checked.text}")
    part.rename(target)


def _try(url: str, part: Path, remote: Remote, progress: Progress) -> None:
    size = remote.check.size if remote.check is not None else None
    for left in reversed(range(TRIES)):
        if size is not None and part.is_file() and part.stat().st_size == size:
            return
        try:
            return _transfer(url, part, lambda done, total: progress(remote.name, done, total))
        except (OSError, http.client.HTTPException) as error:
            if left == 0:
                kept = f"{part.stat().st_size} bytes are" if part.is_file() else "Nothing is"
                raise ValueError(
                    f"{url}: {error or type(error).__name__}. {kept} here; the same command goes on"
                ) from error


def _transfer(url: str, part: Path, progress: Callable[[int, int | None], None]) -> None:
    """Ask for what is not there yet, and append it; an answer from the start replaces all."""
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "aspire", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (404, 410):
            raise Elsewhere from error
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return  # nothing is left to send
        part.unlink()
        raise
    with response:
        start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range") or "")
        appended = response.status == 206 and start is not None and int(start[1]) == have
        have = have if appended else 0
        length = response.headers.get("Content-Length")
        _write(response, part, have, None if length is None else have + int(length), progress)


def _write(
    response: IO[bytes],
    part: Path,
    have: int,
    total: int | None,
    progress: Callable[[int, int | None], None],
) -> None:
    with part.open("ab" if have else "wb") as file:
        progress(have, total)
        while chunk := response.read(CHUNK):
            file.write(chunk)
            have += len(chunk)
            progress(have, total)
    if total is not None and have != total:
        raise ConnectionError(f"the connection ended after {have} of {total} bytes")


def extract(archive: Path, wanted: str, folder: Path) -> None:
    """The members of a zip file that match `wanted`, each to group 1 of the match in `folder`.

    An archive with a member that points out of its folder is refused as a whole. Archives inside
    the archive are looked into as well.
    """
    pattern = re.compile(wanted)
    try:
        with zipfile.ZipFile(archive) as opened:
            _extract(opened, pattern, folder, deeper=True)
    except (zipfile.BadZipFile, EOFError) as error:
        archive.unlink()
        raise ValueError(f"{archive.name} is broken and is deleted: {error}") from error


def _extract(archive: zipfile.ZipFile, wanted: re.Pattern[str], folder: Path, deeper: bool) -> None:
    members = [member for member in archive.infolist() if not member.is_dir()]
    for member in members:
        path = PurePosixPath(member.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
            raise ValueError(f"{archive.filename}: refused, for its member {member.filename!r}")
    chosen = [(member, match[1]) for member in members if (match := wanted.search(member.filename))]
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(m.file_size for m, _ in chosen)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(f"{folder}: {needed} bytes are needed and {free} are free")
    for member, name in chosen:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with archive.open(member) as source, (folder / name).open("wb") as target:
            shutil.copyfileobj(source, target, CHUNK)
    for member in members if deeper else []:
        if member.filename.endswith(".zip"):
            with archive.open(member) as inner, zipfile.ZipFile(inner) as opened:
                _extract(opened, wanted, folder, deeper=False)

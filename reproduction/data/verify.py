"""Are the files of a data set the ones that are meant? By checksum where one is known."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import IO

from reproduction.data import daily_sports, shl
from reproduction.data.files import DAMAGE, numbers, opened, plain_name
from reproduction.data.reader import Reader
from reproduction.data.sources import SOURCES, Sum

CHUNK = 1 << 20


@dataclass(frozen=True)
class Check:
    """What was looked at, whether it is right, and how that is known or what is wrong."""

    what: str
    right: bool
    text: str


def verify(reader: Reader, folder: Path) -> list[Check]:
    """Every file that the reader would read from `folder`; Missing if some are not there."""
    paths = reader.find(folder)
    if reader.name == daily_sports.READER.name:
        return list(_segments(paths))
    if reader.name == shl.READER.name:
        return [_format(path) for path in paths]
    sums = SOURCES[reader.name].contents
    return [check_file(path, sums[plain_name(path)]) for path in paths]


def check_file(path: Path, expected: Sum, unpack: bool = True) -> Check:
    """One file against its checksum, decompressed unless told otherwise."""
    try:
        with opened(path) if unpack else path.open("rb") as file:
            return check(path.name, _chunks(file), expected)
    except DAMAGE as error:
        return Check(path.name, False, f"cannot be read: {error}")


def check(what: str, chunks: Iterable[bytes], expected: Sum) -> Check:
    digest = hashlib.new(expected.kind, usedforsecurity=False)
    size = 0
    for chunk in chunks:
        size += len(chunk)
        digest.update(chunk.replace(b"\r", b"") if expected.text else chunk)
    if expected.size is not None and size != expected.size:
        return Check(what, False, f"{size} bytes: expected {expected.size}")
    if digest.hexdigest() != expected.hex:
        return Check(what, False, f"{expected.kind} {digest.hexdigest()}: expected {expected.hex}")
    return Check(what, True, f"{expected.kind} is right")


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


def _segments(paths: Sequence[Path]) -> Iterator[Check]:
    """Daily and Sports Activities: the segments of one activity together."""
    sums = SOURCES[daily_sports.READER.name].contents
    try:
        for activity, group in groupby(daily_sports.contents(paths), key=lambda part: part[0][:3]):
            yield check(activity, (content for _, content in group), sums[activity])
    except (*DAMAGE, ValueError) as error:
        yield Check(paths[0].parent.name, False, f"cannot be read: {error}")


def _format(path: Path) -> Check:
    """SHL: no checksum is known, so the first rows must read as numbers, in enough columns."""
    columns = 2 if plain_name(path) == "Label.txt" else 1 + len(shl.CHANNELS)
    what = "/".join(path.parts[-3:])
    try:
        with opened(path) as file:
            numbers(islice(file, 5), path, usecols=range(columns))
    except (*DAMAGE, ValueError) as error:
        return Check(what, False, str(error))
    return Check(what, True, "the format is right (no checksum is known)")

"""Data sets as sites with train and test parts: `load("fashion-mnist")`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reproduction.data import daily_sports, fashion_mnist, person_activity, sc_ma, shl
from reproduction.data.cache import cached
from reproduction.data.federation import Federation, Standard
from reproduction.data.files import DAMAGE, Missing, data_folder
from reproduction.data.reader import Reader, federation

__all__ = ["READERS", "Federation", "Missing", "Standard", "files_of", "load", "reader"]

READERS: dict[str, Reader] = {
    module.READER.name: module.READER
    for module in (fashion_mnist, person_activity, sc_ma, daily_sports, shl)
}


def load(
    name: str,
    data: str | Path | None = None,
    *,
    protocol: str = "paper",
    seed: int = 0,
    raw: bool = False,
) -> Federation:
    """The data set `name` as sites with train and test parts.

    data       folder with one folder per data set; None: ASPIRE_DATA, or where fetch puts them
    protocol   paper: random test parts; by-sequence: split by time or recording, where time matters
    seed       of the random split, and of who gets what where sites mix groups
    raw        inputs as they were measured; `standard` of the result transforms them
    """
    chosen = reader(name)
    paths = files_of(name, data)
    try:
        arrays = cached(name, paths, lambda: chosen.read(paths))
    except DAMAGE as error:
        raise ValueError(
            f"{name}: a file is damaged ({error}). To see which: aspire data verify {name}"
        ) from error
    return federation(chosen, arrays, protocol=protocol, seed=seed, raw=raw)


def files_of(name: str, data: str | Path | None = None) -> Sequence[Path]:
    """The files that `load` reads; Missing says which command gets them."""
    chosen = reader(name)
    try:
        return chosen.find(data_folder(data) / chosen.folder)
    except Missing as error:
        given = "" if data is None else f" --data {data}"
        raise Missing(f"{name}: {error}. Get it with: aspire data fetch {name}{given}") from None


def reader(name: str) -> Reader:
    if name not in READERS:
        raise ValueError(f"name={name!r}: expected one of {', '.join(READERS)}")
    return READERS[name]

"""The sites of each network: seeded generators, the same sites for the same arguments.

A site is {"train": (inputs, targets), "test": (inputs, targets)}. `small` gives the CPU size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reproduction.data import reader
from reproduction.data.federation import Federation, Part, standard, sums
from reproduction.data.partitions import dirichlet, shuffled
from reproduction.data.reader import federation
from reproduction.networks import store

Sites = dict[str, dict[str, Part]]
IMAGES, NOISE = 51, 52  # purposes: streams that share no numbers
ALPHA = 0.3  # Dirichlet over the classes
LEAST, DRAWS = 10, 1000  # images in a part: with fewer all is dealt again, so many times at most
PIXEL_MEAN = 0.286
PIXEL_STD = 0.353
PIXEL_NOISE = 0.5  # in units of PIXEL_STD
SMALL_IMAGES = (6_000, 1_000)  # for training and for testing
WINDOW = 25  # rows of Daily and Sports: one second
READINGS, STRIDE = 16, 8  # of Person Activity in a sequence, and between two of them


def pair(inputs: NDArray[Any], targets: NDArray[Any]) -> Part:
    made = torch.from_numpy(np.ascontiguousarray(inputs, dtype=np.float32))
    return made, torch.from_numpy(np.asarray(targets, dtype=np.int64))


# ---------------------------------------------------------------- Fashion-MNIST


def fashion(seed: int, *, small: bool, sites: int = 10) -> Sites:
    """All ten classes dealt out by Dirichlet(0.3); the published test images stay test images.

    Of every ten sites the ninth turns its images by 90 degrees, and the tenth flips them and adds
    noise. The small size has the mean of 2 x 2 pixels, and for ten sites a tenth of the images.
    """
    images, labels, late = pictures(seed, small=small, few=sites <= 10)
    made: Sites = {}
    for j, mine in enumerate(dealt(labels, late, sites, seed)):
        x = seen_at(images[mine], j % 10, np.random.default_rng([NOISE, seed, j]))
        kept = ~late[mine]
        made[f"site {j}"] = {
            "train": pair(x[kept], labels[mine[kept]]),
            "test": pair(x[~kept], labels[mine[~kept]]),
        }
    return made


def fashion_rows(seed: int, *, small: bool, sites: int) -> Sites:
    """The same with images as rows of pixels."""
    return {
        name: {part: (x.flatten(1), y) for part, (x, y) in site.items()}
        for name, site in fashion(seed, small=small, sites=sites).items()
    }


def pictures(
    seed: int, *, small: bool, few: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Images (n, 1, side, side), their labels, and which of them are test images."""
    found = store.arrays("fashion-mnist")
    images, labels, late = (np.asarray(found[name]) for name in ("x", "y", "late"))
    if small and few:
        chosen = np.concatenate(
            [
                rows[shuffled(len(rows), IMAGES, seed)[:most]]
                for rows, most in zip(
                    (np.flatnonzero(~late), np.flatnonzero(late)), SMALL_IMAGES, strict=True
                )
            ]
        )
        images = images[chosen]
        labels = labels[chosen]
        late = late[chosen]
    if small:
        side = images.shape[1] // 2
        images = images.reshape(-1, side, 2, side, 2).mean(axis=(2, 4))
    x = (images.astype(np.float32) / 255.0 - PIXEL_MEAN) / PIXEL_STD
    return x[:, None], labels, late


def dealt(
    labels: NDArray[Any], late: NDArray[np.bool_], sites: int, seed: int
) -> list[NDArray[np.int64]]:
    for draw in range(DRAWS):
        parts = dirichlet(labels, sites, ALPHA, seed=DRAWS * seed + draw)
        if all(min(late[part].sum(), (~late[part]).sum()) >= LEAST for part in parts):
            return parts
    raise ValueError(f"seed={seed}: one of {sites} sites has fewer than {LEAST} images each time")


def seen_at(x: NDArray[Any], kind: int, rng: np.random.Generator) -> NDArray[Any]:
    if kind == 8:
        return np.rot90(x, axes=(2, 3))
    if kind == 9:
        noise = rng.standard_normal(x.shape, dtype=np.float32)
        return x[..., ::-1] + PIXEL_NOISE * noise
    return x


# ---------------------------------------------------------------- sensors


def rows(name: str, seed: int, *, protocol: str) -> Federation:
    """One row, one sample, as `reproduction.data.load` cuts them."""
    return federation(reader(name), store.arrays(name), protocol=protocol, seed=seed, raw=False)


def persons(seed: int, *, small: bool) -> Sites:
    """Person Activity: single readings by person; each one's last recording is the test part."""
    fed = rows("person-activity", seed, protocol="by-sequence")
    every = 4 if small else 1
    return {
        name: {part: (x[::every], y[::every]) for part, (x, y) in site.items()}
        for name, site in fed.sites.items()
    }


def sequences(seed: int, *, small: bool) -> Sites:
    """Person Activity: 16 readings in a row by person, with the activity of the last of them.

    A sequence that reaches from one person, or from the training into the test part, to the next
    is left out; one that reaches from one recording into the next is not.
    """
    found = store.arrays("person-activity")
    fed = rows("person-activity", seed, protocol="by-sequence")
    x = fed.standard.apply(torch.from_numpy(np.array(found["x"])))
    starts = np.arange(0, len(x) - READINGS + 1, STRIDE * (4 if small else 1))
    where = starts[:, None] + np.arange(READINGS)
    site = found["site"][where]
    late = found["late"][where]
    whole = (site == site[:, :1]).all(axis=1) & (late == late[:, :1]).all(axis=1)
    made: Sites = {}
    for j, name in enumerate(fed.sites):
        made[name] = {}
        for part, wanted in (("train", False), ("test", True)):
            chosen = where[whole & (site[:, 0] == j) & (late[:, 0] == wanted)]
            labels = torch.from_numpy(found["y"][chosen[:, -1]].astype(np.int64))
            made[name][part] = (x[torch.from_numpy(chosen)], labels)
    return made


def seconds(seed: int, *, small: bool) -> Sites:
    """Daily and Sports by subject: one second of one sensor unit, (9 channels, 25 instants).

    The last fifth of each five minutes is the test part. The small size has every second segment.
    """
    found = store.arrays("daily-sports")
    x = found["x"]
    y = found["y"]
    late = found["late"]
    people = 8
    placements = 5
    channels = x.shape[1]
    activities = int(y.max()) + 1
    shape = (activities, people, -1, store.SEGMENT // WINDOW, WINDOW, placements)
    x = x.reshape(*shape, channels).transpose(1, 0, 2, 3, 5, 6, 4)
    kinds = np.broadcast_to(np.arange(activities)[:, None, None, None], x.shape[1:5])
    is_late = late.reshape(*shape)[0, 0, :, 0, 0, 0]
    segments = slice(None, None, 2 if small else 1)
    scale = standard(
        [
            sums(x[p][:, ~is_late].transpose(0, 1, 2, 3, 5, 4).reshape(-1, channels))
            for p in range(people)
        ]
    )
    made: Sites = {}
    for p in range(people):
        made[f"subject {p + 1}"] = {
            part: pair(
                (flat(x[p][:, keep][:, segments]) - scale.mean.numpy()[:, None])
                / scale.std.numpy()[:, None],
                kinds[:, keep][:, segments].reshape(-1),
            )
            for part, keep in (("train", ~is_late), ("test", is_late))
        }
    return made


def flat(x: NDArray[Any]) -> NDArray[Any]:
    return x.reshape(-1, *x.shape[-2:])


# ---------------------------------------------------------------- drawn shapes

SHAPES = ("background", "disc", "square", "triangle")
DRAWINGS = 8  # sites
DRAWN = (600, 150)  # images of a site, for training and for testing


def drawings(seed: int, *, small: bool) -> Sites:
    """Two to four shapes in an image, a class for every pixel. Sites differ in noise and contrast.

    Site 6 draws dark shapes on light ground, site 7 small shapes under strong noise.
    """
    side, share = (16, 4) if small else (32, 1)
    made: Sites = {}
    for j in range(DRAWINGS):
        rng = np.random.default_rng([53, seed, j])
        made[f"site {j}"] = {
            part: pair(*drawn(rng, count // share, side, j))
            for part, count in zip(("train", "test"), DRAWN, strict=True)
        }
    return made


def drawn(
    rng: np.random.Generator, count: int, side: int, site: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    classes = np.zeros((count, side, side), dtype=np.int64)
    x = np.zeros((count, side, side), dtype=np.float32)
    small = site == DRAWINGS - 1
    dark = site == DRAWINGS - 2
    for picture, mask in zip(x, classes, strict=True):
        for _ in range(rng.integers(2, 5)):
            kind = int(rng.integers(1, len(SHAPES)))
            radius = side * (rng.uniform(0.06, 0.12) if small else rng.uniform(0.1, 0.25))
            inside = outline(kind, radius, rng.uniform(0.1, 0.9, 2) * side, side)
            mask[inside] = kind
            picture[inside] = rng.uniform(0.5, 1.0)
    noise = 0.6 if small else 0.1 + 0.05 * site
    seen = (1.0 - x if dark else x) + noise * rng.standard_normal(x.shape)
    return seen[:, None] - 0.3, classes


def outline(kind: int, radius: float, centre: NDArray[Any], side: int) -> NDArray[np.bool_]:
    across, down = np.meshgrid(np.arange(side) - centre[0], np.arange(side) - centre[1])
    if kind == 1:
        return across**2 + down**2 <= radius**2
    if kind == 2:
        return np.maximum(np.abs(across), np.abs(down)) <= 0.9 * radius
    return (down <= 0.8 * radius) & (2.0 * np.abs(across) <= down + 1.2 * radius)

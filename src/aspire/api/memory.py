"""How much memory a run will take, said before it starts; too much is refused."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

import torch

ROWS = 4  # (N, p) each: w_j and phi_j of the master, v_j and w_j in the workers' hands
LOOSE = 2.5  # (N, p) more: holes between vectors that come and go, up to this with glibc
OBJECTS = 7500  # bytes a site: its samples' views, its task, its report, its entries in tables
PLANES = 2 * 8  # bytes an entry: the planes, and their copy while one is added
STATE = 4  # p each, the direct form: z, the step that is gathered, two moments of the optimiser
PRECISE = 2 * 8  # bytes a parameter: the average, and z as float64 when it is averaged
CALL, TASKS = 3, 16  # p each: the model, a gradient and a copy for each task of one call
UNREAD = 8  # p each, on an engine: reports that come in, and what is made of one
KEPT = 8  # (N, p) while a checkpoint is written: the four above copied, and then as bytes
LINE = 32  # bytes a number of a site in one line of history
SHARE = 0.9  # of the memory that is free may be asked for
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
GROUPS = (  # version 2, version 1
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


@dataclass(frozen=True)
class Memory:
    """Bytes that a run takes on top of the model, the samples and Python with torch."""

    rows: int  # vectors as long as the model
    flight: int  # the same of tasks in flight: gradients that are known ahead, unread reports
    loose: int  # what the allocator loses between them
    objects: int
    planes: int
    history: int
    checkpoint: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name} {size / 2**30:.2f}" for name, size in named.items() if size)


def predict(
    sites: int,
    parameters: int,
    *,
    bytes_each: int = 4,
    planes: int | None = 50,
    lines: int = 21,
    kept: bool = False,
    tested: bool = False,
    validated: bool = False,
    form: str = "consensus",
    quorum: int | None = None,
    simulated: bool = True,
) -> Memory:
    """Return what `aspire` takes once all sites have reported.

    sites, parameters   N and p
    bytes_each  of a parameter: 4 is float32
    planes      M; None, which has no limit, counts as 50
    lines       of history that will be kept
    kept        the run has a folder, and so checkpoints
    tested      sites have test parts: a line of history holds a loss more of each
    validated   sites have validation parts: it holds two numbers more of each, and the best model
                is kept
    form        'consensus' or 'direct'
    quorum      S of the direct form; None: half of the sites
    simulated   False: the sites of the direct form are on an engine, and this is its master
    """
    figures = 3 + tested + 2 * validated
    vector = parameters * bytes_each
    if form == "direct":
        rows, flight, loose, checkpoint = _direct(sites, vector, parameters, quorum, simulated)
    else:
        rows = ROWS * sites * vector
        flight = 0  # a worker's row is its report
        loose = int(LOOSE * sites * vector)
        checkpoint = KEPT * sites * vector
    return Memory(
        rows=rows + (vector if validated else 0),
        flight=flight,
        loose=loose,
        objects=OBJECTS * sites,
        planes=PLANES * sites * (planes or 50),
        history=LINE * figures * sites * lines,
        checkpoint=checkpoint if kept else 0,
    )


def _direct(
    sites: int, vector: int, parameters: int, quorum: int | None, simulated: bool
) -> tuple[int, int, int, int]:
    """No vector of any site, but for the gradients that the simulator computes ahead."""
    versions = -(-sites // min(sites, quorum or max(1, sites // 2))) + 1  # of z, in flight
    rows = (STATE + versions) * vector + PRECISE * parameters
    if not simulated:
        return rows, UNREAD * vector, 0, rows
    flight = (sites + CALL * min(TASKS, sites)) * vector
    return rows, flight, flight // 5, rows + sites * vector


def free(device: torch.device | None = None) -> int:
    """Bytes that can still be had here: of the card, or of the machine and our share of it."""
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    known = [amount for amount in (_of_machine(), _of_group()) if amount is not None]
    return min(known) if known else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def refuse_too_large(sites: int, parameters: int, needed: Memory, available: int) -> None:
    if needed.total > SHARE * available:
        raise ValueError(
            f"{sites} sites with {parameters} parameters need {needed.total / 2**30:.1f} GiB "
            f"({needed}): expected at most 90 % of the {available / 2**30:.1f} GiB that are free"
        )


def _of_machine() -> int | None:
    """What Linux says can be had without swapping; elsewhere not known."""
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * found[0] if found else None


def _of_group() -> int | None:
    """What is left of a container's limit; file pages that can go do not count."""
    for limit, current, stat in GROUPS:
        try:
            most, used, lines = ((CGROUP / name).read_text() for name in (limit, current, stat))
            pages = dict(line.split() for line in lines.splitlines())
            return max(0, int(most) - int(used) + int(pages["inactive_file"]))
        except (OSError, ValueError, KeyError):
            continue  # not this version, or no limit ("max")
    return None

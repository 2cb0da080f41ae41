"""Settings of a process that is ours alone: the command line, an actor of Ray.

They hold for the whole process, so nothing that a user's own program calls may change them.
"""

from __future__ import annotations

import ctypes
import os

M_TRIM_THRESHOLD = -1  # of malloc.h
M_MMAP_THRESHOLD = -3


def keep_memory() -> None:
    """Keep up to 256 MB of freed memory, where the C library (glibc) has a call for that.

    The system zeroes a fresh page at its first touch. That costs more than the arithmetic on a
    vector that lies on it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 2**25)  # the most that glibc took before 2.35
        mallopt(M_TRIM_THRESHOLD, 2**28)

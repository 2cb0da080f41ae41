"""How often something may happen."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

MINUTE = 60.0


@dataclass
class Meter:
    """At most so many in any minute."""

    most: int
    clock: Callable[[], float] = time.monotonic
    times: deque[float] = field(default_factory=deque)

    def take(self) -> bool:
        """Whether one more is allowed; it is counted then."""
        now = self.clock()
        if len(self.times) == self.most:
            if now - self.times[0] < MINUTE:
                return False
            self.times.popleft()
        self.times.append(now)
        return True

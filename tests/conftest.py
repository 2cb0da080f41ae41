"""Settings that every test shares."""

import contextlib
import os

from hypothesis import HealthCheck, settings

import hatch_build
from tests.browser import chromium  # noqa: F401

# No test depends on the wall clock: hypothesis's deadline and its too_slow check do.
_no_clock = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# The same examples on every run. To look for new ones: make test ARGS=--hypothesis-profile=explore
settings.register_profile("aspire", derandomize=True, **_no_clock)
settings.register_profile("explore", derandomize=False, max_examples=1000, **_no_clock)
settings.load_profile("aspire")

os.environ.setdefault("MPLBACKEND", "Agg")

# The tests are of the C that is there, not of what an install once compiled. C that a
# compiler refuses ends them here.
with contextlib.suppress(FileNotFoundError):
    hatch_build.build()

"""Compiles the package's C for wheels and editable installs; pure without a C compiler.

`python hatch_build.py` compiles it in this folder. CC and CFLAGS in the environment count.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

ROOT = Path(__file__).parent
FOLDER = "src/aspire/compiled"
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC")
# Whether products and sums are joined to one rounding is said, so that compilers agree about it.
LIBRARIES = {
    "rows32": ("native.c", "-ffp-contract=fast", "-DREAL=float", "-DSINGLE"),
    "rows64": ("native.c", "-ffp-contract=fast", "-DREAL=double"),
    "passes": ("passes.c", "-ffp-contract=off"),
}
# What torch asks of a processor before it calls it AVX2 or AVX512; `native` chooses as torch does.
VECTORS = {
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma"),
}


def build(root: Path = ROOT) -> list[str]:
    """The libraries, relative to root, made where they are older than what they are made of."""
    folder = root / FOLDER
    vectors = VECTORS if platform.machine() in ("x86_64", "AMD64") else {"any": ()}
    changed = max(x.stat().st_mtime for x in (Path(__file__), *folder.glob("*.c")))
    made = {
        folder / f"{name}-{vector}.so": (*flags, *more)
        for name, more in LIBRARIES.items()
        for vector, flags in vectors.items()
    }
    compiling = [
        (path, _compiler(flags, folder, path))
        for path, flags in made.items()
        if not path.is_file() or path.stat().st_mtime < changed
    ]
    for path, process in compiling:
        said = process.communicate()[1]
        if process.returncode:
            raise OSError(f"{path.name}: {said.strip()}")
        os.replace(_unfinished(path), path)
    return [str(path.relative_to(root)) for path in made]


def _compiler(flags: tuple[str, ...], folder: Path, path: Path) -> subprocess.Popen[str]:
    """It runs, so that all libraries are made at the same time."""
    found = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if found is None:
        raise FileNotFoundError("there is no C compiler")
    more = shlex.split(os.environ.get("CFLAGS", ""))
    order = [*shlex.split(found), *FLAGS, *flags, *more, "-o", str(_unfinished(path)), "-lm"]
    return subprocess.Popen(order, cwd=folder, stderr=subprocess.PIPE, text=True)


def _unfinished(path: Path) -> Path:
    """Of this process, so that two can build at once."""
    return path.with_suffix(f".{os.getpid()}.so")


class CustomBuildHook(BuildHookInterface[Any]):
    """What hatchling calls before it makes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        try:
            build_data["artifacts"] += build(Path(self.root))
        except OSError as error:
            self.app.display_warning(f"without compiled code, so slower on the CPU: {error}")
            return
        others = ("manylinux", "musllinux")  # what auditwheel finds out
        tag = next(x for x in platform_tags() if not x.startswith(others))
        build_data["tag"] = f"py3-none-{tag}"  # Python's own interface is not used
        build_data["pure_python"] = False


if __name__ == "__main__":
    build()

"""A wheel builds, installs in a clean environment and runs the README's first example."""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NO_INDEX = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError"
    r"|Temporary failure in name resolution|Network is unreachable|Connection refused"
)


def command(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that sees nothing of this checkout or this environment's packages."""
    env = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return subprocess.run([str(w) for w in words], cwd=cwd, env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def workspace() -> Iterator[Path]:
    # Not tmp_path: pytest keeps those for three runs, and torch is large.
    with tempfile.TemporaryDirectory(prefix="aspire-wheel-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def wheel(workspace: Path) -> Path:
    """The wheel, built with the pinned backend of this environment."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", workspace]
    done = command(sys.executable, "-m", "pip", "wheel", *options, ROOT, cwd=workspace)
    assert done.returncode == 0, done.stderr
    (path,) = workspace.glob("aspire_ease-*.whl")
    return path


@pytest.fixture(scope="module")
def clean(wheel: Path, workspace: Path) -> Path:
    """The bin directory of a fresh environment that holds the wheel and its dependencies."""
    venv = workspace / "venv"
    done = command(sys.executable, "-m", "venv", venv, cwd=workspace)
    assert done.returncode == 0, done.stderr
    options = ["--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    done = command(venv / "bin/python", "-m", "pip", "install", *options, wheel, cwd=workspace)
    if done.returncode != 0 and NO_INDEX.search(done.stderr):
        pytest.skip("the package index cannot be reached, so torch cannot be installed afresh")
    assert done.returncode == 0, done.stderr
    return venv / "bin"


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(n).decode() for n in names if n.endswith("/METADATA"))
    sources = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*.py")}
    assert sources | {"aspire/py.typed"} <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"aspire"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert "License-Expression: Apache-2.0" in metadata


@pytest.mark.slow
def test_readme_example_runs_in_a_clean_environment(clean: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```$", readme, flags=re.MULTILINE | re.DOTALL)
    assert example, "README.md shows no python example"
    (tmp_path / "example.py").write_text(example[1], encoding="utf-8")
    done = command(clean / "python", "example.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "the example says nothing"


@pytest.mark.slow
def test_installed_command_line_knows_its_version(clean: Path, tmp_path: Path) -> None:
    init = (ROOT / "src/aspire/__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', init, flags=re.MULTILINE)
    assert version
    done = command(clean / "aspire", "--version", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert version[1] in done.stdout

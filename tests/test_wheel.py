"""A wheel builds, installs in a clean environment, and is compiled where no compiler is."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aspire.cli.new import TEMPLATES

ROOT = Path(__file__).parent.parent
COMPILER = shutil.which("cc") is not None
NO_INDEX = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError"
    r"|Temporary failure in name resolution|Network is unreachable|Connection refused"
)


# A stack of linear layers, which `execution="auto"` takes compiled where that can be.
TRAINING = """
import torch
from aspire import train
from aspire.methods.aspire_ease import passes

compiled = passes.load("passes", passes._Step) is not None
torch.manual_seed(0)
sites = {name: (torch.randn(40, 3), torch.randint(0, 2, (40,))) for name in "ab"}
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
run = train(model, sites, iterations=20, form="direct", out="run")
print(compiled)
"""


def command(*words: object, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command that sees nothing of this checkout or this environment's packages."""
    env = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    env |= more
    return subprocess.run([str(w) for w in words], cwd=cwd, env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def workspace() -> Iterator[Path]:
    # Not tmp_path: pytest keeps those for three runs, and torch is large.
    with tempfile.TemporaryDirectory(prefix="aspire-wheel-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def sdist(workspace: Path) -> Path:
    done = command(
        sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", workspace, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    (path,) = workspace.glob("aspire_ease-*.tar.gz")
    return path


def built(sdist: Path, into: Path, **more: str) -> Path:
    """The wheel of the sdist, built with the pinned backend of this environment."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", into]
    done = command(sys.executable, "-m", "pip", "wheel", *options, sdist, cwd=into.parent, **more)
    assert done.returncode == 0, done.stderr
    (path,) = into.glob("aspire_ease-*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path, workspace: Path) -> Path:
    return built(sdist, workspace / "wheel")


@pytest.fixture(scope="module")
def pure(sdist: Path, workspace: Path) -> Path:
    """The wheel that is made where no program is on the path, a compiler least of all."""
    return built(sdist, workspace / "pure", PATH="", CC="")


@pytest.fixture(scope="module")
def clean(wheel: Path, workspace: Path) -> Path:
    """The bin directory of a fresh environment that holds the wheel and its dependencies."""
    venv = workspace / "venv"
    done = command(sys.executable, "-m", "venv", venv, cwd=workspace)
    assert done.returncode == 0, done.stderr
    options = ["--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    done = command(
        venv / "bin/python", "-m", "pip", "install", *options, f"{wheel}[report]", cwd=workspace
    )
    if done.returncode != 0 and NO_INDEX.search(done.stderr):
        pytest.skip("the package index cannot be reached, so torch cannot be installed afresh")
    assert done.returncode == 0, done.stderr
    return venv / "bin"


@pytest.fixture(scope="module")
def beside(wheel: Path, workspace: Path) -> Path:
    """The bin directory of an environment with the wheel, and this one's packages beside it."""
    venv = workspace / "beside"
    done = command(sys.executable, "-m", "venv", "--without-pip", venv, cwd=workspace)
    assert done.returncode == 0, done.stderr
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin/python", "install", "--quiet"]
    done = command(*pip, "--no-deps", "--no-index", wheel, cwd=workspace)
    assert done.returncode == 0, done.stderr
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "beside.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return venv / "bin"


@pytest.mark.parametrize("kind", ["wheel", "pure"])
def test_wheel_holds_the_package_and_nothing_else(
    kind: str, request: pytest.FixtureRequest
) -> None:
    with zipfile.ZipFile(request.getfixturevalue(kind)) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(n).decode() for n in names if n.endswith("/METADATA"))
    sources = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*.py")}
    readmes = {f"aspire/templates/{name}/README.md" for name in TEMPLATES}
    assert sources | readmes | {"aspire/py.typed"} <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"aspire"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert "License-Expression: Apache-2.0" in metadata
    compiled = any(name.endswith(".so") for name in names)
    assert compiled == (kind == "wheel" and COMPILER)
    assert not any(name.endswith(".c") for name in names)


def test_the_tag_says_for_what_machines_it_is(wheel: Path, pure: Path) -> None:
    assert pure.name.endswith("-py3-none-any.whl")
    if COMPILER:
        assert re.search(r"-py3-none-(linux|macosx)_\w+\.whl$", wheel.name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "pure"])
def test_compiled_code_needs_no_compiler(
    kind: str, clean: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with zipfile.ZipFile(request.getfixturevalue(kind)) as archive:
        archive.extractall(tmp_path / "package")
    nothing = {"PATH": "", "CC": "", "PYTHONPATH": str(tmp_path / "package")}
    done = command(clean / "python", "-c", TRAINING, cwd=tmp_path, **nothing)
    assert done.returncode == 0, done.stderr
    compiled = kind == "wheel" and COMPILER
    execution = json.loads((tmp_path / "run/run.json").read_text())["execution"]
    assert execution == ("compiled" if compiled else "rows")
    assert done.stdout.split() == [str(compiled)]
    assert done.stderr.count("without its compiled code") == (not compiled)


@pytest.mark.slow
def test_readme_example_runs_in_a_clean_environment(clean: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```$", readme, flags=re.MULTILINE | re.DOTALL)
    assert example, "README.md shows no python example"
    (tmp_path / "example.py").write_text(example[1], encoding="utf-8")
    done = command(clean / "python", "example.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "the example says nothing"


@pytest.mark.parametrize("where", ["beside", pytest.param("clean", marks=pytest.mark.slow)])
def test_a_newcomer_has_a_report_after_the_commands_of_the_readme(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    programs = request.getfixturevalue(where)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(
        r"^```console\n([^`]*\$ aspire new [^`]*)```$", readme, flags=re.MULTILINE
    )
    install, *commands = [line.removeprefix("$ ") for line in block.splitlines()]
    assert install == "pip install '.[report]'"  # which the fixture has done
    assert 3 <= len(commands) <= 5
    for line in commands:
        program, *words = shlex.split(line)
        done = command(programs / program, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    (page,) = tmp_path.rglob("report.html")
    result = json.loads((page.parent / "result.json").read_text())
    text = page.read_text(encoding="utf-8")
    for site, accuracy in zip(result["sites"], result["accuracies"], strict=True):
        (row,) = re.findall(rf'<tr[^>]*><th scope="row">{site}\b.*?</tr>', text)
        assert f"{100 * accuracy:.1f}" in row


@pytest.mark.slow
def test_installed_command_line_knows_its_version(clean: Path, tmp_path: Path) -> None:
    init = (ROOT / "src/aspire/__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', init, flags=re.MULTILINE)
    assert version
    done = command(clean / "aspire", "--version", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert version[1] in done.stdout

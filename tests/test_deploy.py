"""deploy/: the files are what their tools accept, and their commands make a federation."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")
from aspire.engines.grpc import kits
from tests.federation.processes import Command
from tests.federation.test_run import ended, free_port, until

DEPLOY = Path(__file__).parent.parent / "deploy"
BIN = Path(sys.executable).parent
SITES = ("north", "south", "west")
FILE = """
import torch

def model():
    return torch.nn.Linear(4, 2)

def site(name):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(len(name)))
    return x, (x[:, 0] > 0).long()
"""


def services() -> dict:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which comes with aspire-ease[ray]")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


def unit_command(unit: str) -> list[str]:
    """ExecStart of a unit."""
    found = re.search("^ExecStart=(.*)$", (DEPLOY / unit).read_text(), flags=re.MULTILINE)
    assert found is not None
    return shlex.split(found[1])


def here(words: list[str], places: dict[str, str]) -> list[str]:
    """A container's or a unit's command, with the places of this machine."""
    return [places.get(word, word) for word in words]


def test_the_container_file_is_linted() -> None:
    hadolint = shutil.which("hadolint", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not here: make install has it, on Linux")
    done = subprocess.run([hadolint, DEPLOY / "Containerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_wheel_builds_from_what_the_container_file_copies(tmp_path: Path) -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY ")]
    copied = [name for names in copies for name in names if "--from=build" not in names]
    assert {"src", "constraints.txt", "deploy/serve.sh"} < set(copied)
    for name in copied:
        source = DEPLOY.parent / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("*.so"))
        else:
            shutil.copy(source, tmp_path)
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*words, "--no-index", "--wheel-dir", "wheels", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "wheels").glob("aspire_ease-*.whl"))) == 1


def test_compose_accepts_its_file() -> None:
    compose = shutil.which("docker-compose")
    if compose is None:
        pytest.skip("docker-compose is not here")
    words = [compose, "-f", DEPLOY / "compose.yaml", "config", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=DEPLOY)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("unit", sorted(path.name for path in DEPLOY.glob("*.service")))
def test_systemd_accepts_the_units(unit: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here")
    program = unit_command(unit)[0]
    text = (DEPLOY / unit).read_text().replace(program, sys.executable)
    (tmp_path / unit).write_text(text)
    done = subprocess.run([analyze, "verify", tmp_path / unit], capture_output=True, text=True)
    assert done.returncode == 0
    assert str(tmp_path) not in done.stderr, done.stderr


def test_the_commands_make_a_federation(tmp_path: Path) -> None:
    """The server's of compose.yaml begins a run, goes on after a stop, and lets an ended one be;
    south's is the unit's, the others' are those of compose.yaml."""
    kits.init(tmp_path / "kits", list(SITES), ["127.0.0.1"], 20)
    (tmp_path / "file.py").write_text(FILE)
    address = f"127.0.0.1:{free_port()}"
    common = {"/app/file.py": "file.py", "file.py": "file.py", "server:8443": address}
    common |= {"${SERVER}": address, "0.0.0.0:8443": address, "/runs/run": "run"}
    command = here(services()["server"]["command"], common | {"/kit": "kits/server"})
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}

    def serve() -> subprocess.Popen[str]:
        words = [DEPLOY / "serve.sh", *command, "--iterations", "400"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(words, cwd=tmp_path, env=environment, text=True, **pipes)

    def site(name: str) -> Command:
        kit = f"kits/sites/{name}"
        words = services()[name]["command"]
        if name == "south":
            words = unit_command("aspire-site.service")[1:]
        return Command(name, here(words, common | {"/kit": kit, "kit": kit}), tmp_path)

    server = serve()
    sites = [site(name) for name in SITES[:2]]
    until(lambda: all("connected to" in one.said for one in sites))
    server.send_signal(signal.SIGTERM)  # west is not here yet, so nothing has been trained
    assert "continue with: aspire resume run" in ended(server, 130)
    server = serve()
    sites.append(site("west"))
    assert "400 iterations" in ended(server)
    assert [one.wait() for one in sites] == [0, 0, 0]
    assert ended(serve()) == "The run in run has ended.\n"

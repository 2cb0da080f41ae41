"""Processes of the command line that start at once: forked from one that has torch loaded."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch", "aspire.cli", "aspire.api", "aspire.engines.grpc.engine", "aspire.engines.grpc.site"]
)


def command(arguments: list[str], folder: str, log: str) -> None:
    """`aspire ARGUMENTS` in this process: all that it prints goes to the file `log`."""
    os.chdir(folder)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    import torch

    from aspire.cli import main

    torch.set_num_threads(1)
    sys.argv = ["aspire", *arguments]
    main()


class Command:
    """A process in `folder`; what it prints is in `folder`/NAME.log."""

    def __init__(
        self, name: str, arguments: list[str], folder: Path, run: Callable[..., None] = command
    ) -> None:
        self.log = folder / f"{name}.log"
        given = (arguments, str(folder), str(self.log))
        self.process: BaseProcess = CONTEXT.Process(target=run, args=given, daemon=True)
        self.process.start()

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit code; it is killed when that takes too long."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.kill()
            raise AssertionError(f"{self.log.stem} did not end:\n{self.said}")
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join(10)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def memory(self, what: str = "VmHWM") -> int:
        """Bytes, at the most so far; 0 where the process has ended."""
        try:
            text = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0
        found = [line for line in text.splitlines() if line.startswith(what)]
        return int(found[0].split()[1]) * 1024 if found else 0


@contextmanager
def federation(
    file: Path, kits: Path, folder: Path, options: Sequence[str]
) -> Iterator[list[Command]]:
    """A server and all sites of `kits`, which end with the block.

    Args:
        file: FILE.py of all of them.
        kits: What `aspire federation init` made.
        folder: Where each gets a folder of its own; the run is in folder/server/run.
        options: Of `aspire server`.

    Yields:
        The server and then the sites, in the order of their names.
    """
    names = sorted(path.name for path in (kits / "sites").iterdir())
    for name in ("server", *names):
        (folder / name).mkdir()
    own = ["--kit", str(kits / "server"), "--listen", "127.0.0.1:0", "--out", "run"]
    parties = [Command("server", ["server", str(file), *own, *options], folder / "server")]
    try:
        address = listening(parties[0])
        for name in names:
            own = ["--kit", str(kits / "sites" / name), "--connect", address]
            parties.append(Command("site", ["site", str(file), *own], folder / name))
        yield parties
    finally:
        for party in parties:
            party.kill()


def listening(server: Command) -> str:
    """HOST:PORT of a server, as soon as it listens."""
    while "Listening on " not in server.said:
        server.process.join(0.05)
        assert server.process.exitcode is None, server.said
    return server.said.split("Listening on ")[1].split()[0]

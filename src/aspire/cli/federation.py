"""`aspire federation`, `aspire server`, `aspire site`."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from pathlib import Path
from typing import Any

import click
import torch

from aspire.cli.run import table, train_command
from aspire.cli.shared import interruptible, progress_bar, stoppable
from aspire.train.engines import PATIENCE, train_on
from aspire.train.file import Source, call, job_of, load, read

# What `aspire server` takes as `aspire train` does.
SHARED = (
    *("iterations", "quorum", "staleness", "local_steps", "batch_size", "preset", "weight_decay"),
    *("seed", "evaluate_every", "log", "checkpoint_seconds", "tensorboard"),
)
LATER = 10  # of 20 levels by which a process can let others go first


@click.group("federation")
def federation_command() -> None:
    """Make keys and certificates for a server and its sites."""


@federation_command.command("init")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--sites", required=True, help="Names of the sites: a,b,c")
@click.option("--server", "hosts", default="localhost,127.0.0.1", show_default=True,
              help="Names or addresses under which sites reach the server.")  # fmt: skip
@click.option("--days", type=int, default=365, show_default=True, help="How long they are valid.")
def init_command(folder: Path, sites: str, hosts: str, days: int) -> None:
    """A CA, the server's kit and one kit per site, in the new folder DIR."""
    from aspire.federation import kits

    names, addresses = _split(sites), _split(hosts)
    kits.init(folder, names, addresses, days)
    first = names[0]
    click.echo(
        f"Keys of the CA, the server and {len(names)} sites are in {folder}; nobody else may read "
        f"them.\nGive each site its folder in {folder / 'sites'} by a safe way. Then run\n\n"
        f"  on the server:  aspire server FILE.py --kit {folder / 'server'} "
        "--listen 0.0.0.0:8443 --out RUN\n"
        f"  at each site:   aspire site FILE.py --kit {_quoted(folder / 'sites' / first)} "
        f"--connect {addresses[0]}:8443"
    )


@federation_command.command("add")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("name")
@click.option("--days", type=int, default=365, show_default=True, help="How long it is valid.")
def add_command(folder: Path, name: str, days: int) -> None:
    """A kit for one more site, for the next run; its name goes on the list of sites."""
    from aspire.federation import kits

    kits.add(folder, name, days)
    click.echo(f"The kit of {name} is in {folder / 'sites' / name}.")


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _quoted(path: Path) -> str:
    return f"'{path}'" if " " in str(path) else str(path)


# ---------------------------------------------------------------- the server


@click.command("server")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kit", type=click.Path(path_type=Path), required=True, help="The server's kit.")
@click.option("--listen", required=True, help="HOST:PORT; port 0: any free one.")
@click.option("--out", type=click.Path(path_type=Path), required=True,
              help="A new folder for the run.")  # fmt: skip
@click.option("--patience", type=float, default=PATIENCE, show_default=True,
              help="Seconds without a word after which a site is away.")  # fmt: skip
@click.option("--max-message", type=float, help="MB of one message; none: four vectors.")
@click.option("--pull-bound", type=float, default=10.0, show_default=True,
              help="Limit on one site's pull, in medians; 0: none.")  # fmt: skip
def server_command(
    file: Path, kit: Path, listen: str, out: Path, patience: float, max_message: float | None,
    log: str, checkpoint_seconds: float, tensorboard: bool, **options: Any,
) -> None:  # fmt: skip
    """Train what FILE.py defines over sites that dial in; their data stays with them.

    Of FILE.py only model(), uncertainty(), loss() and the names that sites() gives are used.
    """
    # a handshake that is refused is logged by gRPC alone
    os.environ.pop("GRPC_VERBOSITY", None)
    from aspire.federation import kits
    from aspire.federation.engine import federation

    source, listen = read(file), _with_port(listen)
    kits.read(kit)
    names = site_names(source, kits.allowed(kit))
    options |= {"pull_bound": options["pull_bound"] or None, "device": "cpu"}
    job = job_of(source, options, only=[], names=names)
    engine = federation(
        job.problem.flat.start, job.settings, preset=options["preset"], kit=kit, listen=listen,
        file=source.sha256, megabytes=max_message,
    )  # fmt: skip
    about = {"file": source.path, "sha256": source.sha256, "options": options}
    click.echo(f"Listening on {listen} for {', '.join(names)}.", err=True)
    with progress_bar(options["iterations"]) as progress, stoppable() as stop:
        run = train_on(
            engine, job, None, out=out, log=log, source=about, patience=patience,
            checkpoint_seconds=checkpoint_seconds, tensorboard=tensorboard, progress=progress,
            stop=stop,
        )  # fmt: skip
    click.echo(table(run))
    click.echo(f"The run is in {out}.")


server_command.params += [p for p in train_command.params if p.name in SHARED]


def site_names(source: Source, allowed: list[str]) -> list[str]:
    """The names that sites() gives, if they are names, else those on the list."""
    module = load(source)
    if not hasattr(module, "site"):
        raise ValueError(f"{source.path} has no function site(): expected one, site(name)")
    names = list(call(module, "sites")) if hasattr(module, "sites") else allowed
    if not all(isinstance(name, str) for name in names):
        return allowed
    for name in names:
        if name not in allowed:
            raise ValueError(f"sites() of {source.path} names {name!r}, which is not on the list")
    return names


def _with_port(listen: str) -> str:
    """A free port in the place of port 0, so that a resumed server is found where it was."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"listen={listen!r}: expected HOST:PORT")
    if int(port):
        return listen
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host.strip("[]"), 0))
        return f"{host}:{probe.getsockname()[1]}"


# ---------------------------------------------------------------- a site


@click.command("site")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kit", type=click.Path(path_type=Path), required=True, help="This site's kit.")
@click.option("--connect", required=True, help="HOST:PORT of the server.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--give-up", type=float, default=3600.0, show_default=True,
              help="Seconds without the server after which the site ends.")  # fmt: skip
@click.option("--threads", type=int, default=1, show_default=True, help="Threads of torch.")
def site_command(
    file: Path, kit: Path, connect: str, device: str, give_up: float, threads: int
) -> None:
    """Work for the server on this site's data, which site(NAME) of FILE.py loads.

    NAME is the name in the kit's certificate.
    """
    from aspire.federation import kits
    from aspire.federation.messages import LONG, shape_of
    from aspire.federation.site import Dialler
    from aspire.problem import Flat

    torch.set_num_threads(threads)
    mine, source = kits.read(kit), read(file)
    shape = shape_of(Flat(call(load(source), "model")).start)
    if shape.parameters > LONG and is_here(connect):
        stand_back()

    def make(settings: Any) -> Any:
        return one_site(source, mine.name, device, settings)

    sha256 = bytes.fromhex(source.sha256)
    with interruptible(None):
        asyncio.run(Dialler(mine, connect, shape, sha256, make, give_up=give_up).run())
    click.echo("The run is over.")


def is_here(address: str) -> bool:
    """Whether HOST:PORT is on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def stand_back() -> None:
    """Let a server on this machine go first: its step is what all sites wait for."""
    if hasattr(os, "nice"):
        os.nice(LATER)


def one_site(source: Source, name: str, device: str, settings: Any) -> Any:
    """The method and this site's data, in the place that the server gave it."""
    options = {
        "iterations": 1,
        "local_steps": settings.local_steps,
        "batch_size": settings.batch_size,
        "preset": settings.preset,
        "pull_bound": settings.pull_bound or None,
        "weight_decay": settings.weight_decay,
        "device": device,
        "seed": settings.seed,
    }
    names = [f"#{number}" for number in range(settings.sites)]  # no site can have such a name
    names[settings.number] = name
    job = job_of(source, options, only=[name], names=names)
    return job.method, job.problem.sites[settings.number]

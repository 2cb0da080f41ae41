"""`aspire server`, `aspire site`."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import torch

from aspire.api.engines import PATIENCE, train_on
from aspire.api.preparing import prepare
from aspire.api.summary import summary
from aspire.api.user_file import (
    OF_METHODS,
    call,
    callbacks_of,
    collate_of,
    has_own_method,
    job_of,
    load,
    own_method,
    read,
    sites_of,
    with_usual,
)
from aspire.cli.run import start_from, train_command
from aspire.cli.shared import interruptible, stoppable
from aspire.engines.process import keep_memory
from aspire.engines.serve import say_conversions
from aspire.methods import by_name
from aspire.methods.aspire_ease.forms import form_of
from aspire.problem.problem import BATCH, is_linear
from aspire.problem.samples import once
from aspire.problem.sites import Site
from aspire.problem.standardization import WHEN_ASKED, Standardization
from aspire.sets import Simplex
from aspire.types import Method, RunFacts

# What `aspire server` takes as `aspire train` does.
SHARED = (
    *("iterations", "method", "form", "quorum", "staleness", "local_steps", "batch_size", "preset"),
    *("learning_rate", "accumulate", "reference"),
    *("weight_decay", "seed", "evaluate_every", "log", "checkpoint_seconds", "tensorboard"),
    *("min_sites", "deadline", "select", "patience_evaluations", "max_seconds", "loss_bound"),
)
BOUND = 10.0  # on one site's pull, in medians, where the method has such a bound
CLIP = 1.0  # on a report's length, in the second largest of the sites' norms, likewise
MASTERS = ("optimizer", "schedule", "reference")  # functions of FILE.py for the direct form
ALONE = Simplex()  # a site knows of no other, so a method's set has no meaning there
LATER = 10  # of 20 levels by which a process can let others go first


# ---------------------------------------------------------------- the server


@click.command("server")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kit", type=click.Path(path_type=Path), required=True, help="The server's kit.")
@click.option("--listen", required=True, help="HOST:PORT; port 0: any free one.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="A new folder for the run."
)
@click.option(
    "--start",
    type=click.Path(path_type=Path),
    help="The folder of a run that was stopped or has ended: begin with its model.",
)
@click.option(
    "--patience",
    type=float,
    default=PATIENCE,
    show_default=True,
    help="Seconds without a word after which a site is away.",
)
@click.option("--max-message", type=float, help="MB of one message; none: four vectors.")
@click.option(
    "--pull-bound",
    type=float,
    help="Consensus form: limit on one site's pull, in medians; 0: none [10].",
)
@click.option(
    "--clip",
    type=float,
    help="Direct form: limit on a report's length, in the sites' norms; 0: none [1].",
)
def server_command(
    file: Path,
    kit: Path,
    listen: str,
    out: Path,
    start: Path | None,
    patience: float,
    max_message: float | None,
    log: str,
    checkpoint_seconds: float,
    tensorboard: bool,
    min_sites: int | None,
    deadline: float | None,
    **options: Any,
) -> None:
    """Train what FILE.py defines over sites that dial in; their data stays with them.

    Of FILE.py only model(), uncertainty(), loss(), method(), optimizer(groups),
    schedule(optimizer), reference(), metrics(), standardize() and the names that sites() gives are
    used.
    """
    # a handshake that is refused is logged by gRPC alone
    os.environ.pop("GRPC_VERBOSITY", None)
    from aspire.engines.grpc import kits
    from aspire.engines.grpc.engine import federation

    source = read(file)
    listen = _with_port(listen)
    kits.read(kit)
    module = load(source)
    keep_memory()
    names = site_names(module, kits.allowed(kit))
    if has_own_method(module, options):
        settled(module)
    options = with_usual(module, options, usual_bound(module, options))
    for name in ("pull_bound", "clip"):
        options[name] = options[name] or None
    options["device"] = "cpu"
    if options["batch_size"] is None:
        options["batch_size"] = BATCH
    job = job_of(source, options, only=[], names=names)
    if start is not None:
        start_from(job, start)
    engine = federation(
        job.problem.flat.start,
        job.settings,
        job.method,
        kit=kit,
        listen=listen,
        file=source.sha256,
        megabytes=max_message,
        own=has_own_method(module, options),
    )
    about = {"file": source.path, "sha256": source.sha256, "options": options}
    click.echo(f"Listening on {listen} for {', '.join(names)}.", err=True)
    with stoppable() as stop:
        run = train_on(
            engine,
            job,
            None,
            out=out,
            log=log,
            source=about,
            patience=patience,
            min_sites=min_sites,
            deadline=deadline,
            checkpoint_seconds=checkpoint_seconds,
            tensorboard=tensorboard,
            callbacks=callbacks_of(source),
            progress=True,
            stop=stop,
        )
    click.echo(summary(run))
    click.echo(f"The run is in {out}.")


def usual_bound(module: ModuleType, options: dict[str, Any]) -> dict[str, float]:
    """The bound on what one site can do, by the form of `aspire` that will train."""
    given = {name: options[name] for name in OF_METHODS if options.get(name) is not None}
    name, arguments = by_name.parse(options["method"] or "aspire")
    if name != "aspire" or has_own_method(module, options):
        return {"pull_bound": BOUND}  # where the method has one
    given |= arguments | {name: True for name in MASTERS if hasattr(module, name)}
    form = form_of(given.pop("form", None), given, linear=is_linear(call(module, "model")))
    return {"clip": CLIP} if form == "direct" else {"pull_bound": BOUND}


server_command.params += [p for p in train_command.params if p.name in SHARED]


def site_names(module: ModuleType, allowed: list[str]) -> list[str]:
    """The names that sites() gives, if they are names, else those on the list."""
    path = module.__file__
    if not hasattr(module, "site"):
        raise ValueError(f"{path} has no function site(): expected one, site(name)")
    names = list(sites_of(module)) if hasattr(module, "sites") else allowed
    if not all(isinstance(name, str) for name in names):
        return allowed
    once(names, f"{path}: sites()")
    for name in names:
        if name not in allowed:
            raise ValueError(f"sites() of {path} names {name!r}, which is not on the list")
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
@click.option(
    "--give-up",
    type=float,
    default=3600.0,
    show_default=True,
    help="Seconds without the server after which the site ends.",
)
@click.option("--threads", type=int, default=1, show_default=True, help="Threads of torch.")
@click.option("--precision", default="float32", show_default=True, help="float32 or bf16.")
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(path_type=Path),
    help="A TOML file with the limits below; an option counts more.",
)
@click.option("--min-batch", type=int, help="Samples in the smallest batch [8].")
@click.option("--max-batch", type=int, help="Samples in the largest batch [65536].")
@click.option("--max-local-steps", type=int, help="Steps in one task [100].")
@click.option("--max-parameters", type=int, help="Of the model [10^9].")
@click.option("--max-tasks-per-minute", type=int, help="Tasks that train [100000].")
@click.option("--max-evaluations-per-minute", type=int, help="Evaluations [600].")
@click.option(
    "--allow-other-file",
    is_flag=True,
    default=None,
    help="Work for a server that announces another FILE.py.",
)
def site_command(
    file: Path,
    kit: Path,
    connect: str,
    device: str,
    give_up: float,
    threads: int,
    precision: str,
    policy_file: Path | None,
    **limits: Any,
) -> None:
    """Work for the server on this site's data, which site(NAME) of FILE.py loads.

    NAME is the name in the kit's certificate. What the server may ask for is this site's decision.
    """
    from aspire.engines.grpc import kits
    from aspire.engines.grpc.messages import LONG, shape_of
    from aspire.engines.grpc.policy import check_model, check_rows, read_policy
    from aspire.engines.grpc.proxies import accept_upper_case
    from aspire.engines.grpc.site import Dialler
    from aspire.engines.grpc.standards import standardization_in
    from aspire.problem.problem import Flat

    torch.set_num_threads(threads)
    keep_memory()
    policy = read_policy(policy_file, limits)
    mine = kits.read(kit)
    source = read(file)
    module = load(source)
    key = kits.batch_key(kit)
    shape = shape_of(Flat(call(module, "model"), **buffers_of(module)).start)
    check_model(policy, shape)
    data = call(module, "site", mine.name)
    here = first_look(module, mine.name, data, {"device": device, "precision": precision})
    check_rows(policy, rows_of(here))
    say_conversions(here.notes)
    if shape.parameters > LONG and is_here(connect):
        stand_back()

    def make(settings: Any) -> Any:
        options = work_options(settings, module) | {"device": device, "precision": precision}
        options |= standardize_of(module, standardization_in(settings, shape.dtype))
        method, site = one_site(module, mine.name, data, options)
        return method, site.keyed(key)

    sha256 = bytes.fromhex(source.sha256)
    accept_upper_case()
    dialler = Dialler(mine, connect, shape, sha256, make, give_up=give_up, policy=policy)
    with interruptible(None):
        asyncio.run(dialler.run())
    click.echo("The run is over.")


def buffers_of(module: ModuleType) -> dict[str, Any]:
    """What FILE.py says of batch-norm statistics, if anything."""
    return {"buffers": call(module, "buffers")} if hasattr(module, "buffers") else {}


def standardize_of(module: ModuleType, by: Standardization | None) -> dict[str, Any]:
    """How inputs are standardised; without standardize() of FILE.py nobody has a say in it."""
    wanted = hasattr(module, "standardize") and call(module, "standardize")
    if by is not None and not wanted:
        raise ValueError("mean and std of the inputs: our FILE.py has no standardize()")
    return {"standardize": by or WHEN_ASKED} if wanted else {}


def first_look(module: ModuleType, name: str, data: Any, options: dict[str, Any]) -> Site:
    """The site as it is here: what is wrong with it is said before anybody is called."""
    options = {"iterations": 1, **options}
    if hasattr(module, "method"):
        options |= {"method": settled(module), "uncertainty": ALONE}
    return one_site(module, name, data, options)[1]


def settled(module: ModuleType) -> Method:
    """What method() makes, if sites can make the same: they do not know how long the run is."""
    method = own_method(module)
    if method.fit is None:
        return method
    try:
        made = method.fit(RunFacts(linear=is_linear(call(module, "model")), sites=1))
    except ValueError as error:
        raise ValueError(f"{module.__file__}: method() has {error}") from None
    return replace(made, fit=None)  # a prior over all sites is none of ours


def rows_of(site: Site) -> dict[str, int]:
    """The size of its parts."""
    parts = {"train": site.train, "val": site.val, "test": site.test}
    return {part: samples.size for part, samples in parts.items() if samples is not None}


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


def work_options(settings: Any, module: ModuleType | None = None) -> dict[str, Any]:
    """What a site's work depends on, as the server says it; `module`: the site's own FILE.py."""
    from aspire.engines.grpc.method import received

    own = partial(settled, module) if module and hasattr(module, "method") else None
    return {
        "iterations": 1,
        "batch_size": settings.batch_size or None,
        "weight_decay": settings.weight_decay,
        "method": received(settings, own),
        "uncertainty": ALONE,
    }


def one_site(
    module: ModuleType, name: str, data: Any, options: dict[str, Any]
) -> tuple[Method, Site]:
    """The method, and this site with its data; nothing is known of the others."""
    given = {x: call(module, x) for x in ("loss", "metrics") if hasattr(module, x)}
    own = given | buffers_of(module) | collate_of(module) | standardize_of(module, None)
    job = prepare(call(module, "model"), {name: data}, **{**own, **options})
    return job.method, job.problem.sites[0]

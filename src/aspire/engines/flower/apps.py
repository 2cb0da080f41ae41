"""A ServerApp and a ClientApp that train what FILE.py defines, with any method.

FILE.py is the file of `aspire train`, unchanged. The keys of [tool.flwr.app.config] are the options
of `aspire train`: `method` has a method's name and its arguments, for both apps. A node says which
site it is with `site`, or with `partition-id` (its number), in its --node-config. Flower starts a
process for each message, which loads that one site.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from aspire.api import Run, resume
from aspire.api.engines import train_on
from aspire.api.summary import summary
from aspire.api.user_file import (
    OF_METHODS,
    Source,
    callbacks_of,
    job_of,
    load,
    member,
    read,
    with_usual,
)
from aspire.engines.flower.carrier import GridCarrier
from aspire.engines.flower.messages import (
    PROTOCOL,
    from_report,
    standardization_in,
    to_task,
)
from aspire.engines.serve import objection, serve
from aspire.problem.standardization import WHEN_ASKED
from aspire.types import Kind

logger = logging.getLogger("flwr")  # what it says is shown by `flwr run --stream`

# The keys of the run's config, and their values where it has none.
DEFAULTS: dict[str, Any] = {
    "iterations": 200,
    "method": "",  # NAME or NAME(key=value, ...); "": method() of FILE.py, or the default one
    "local-steps": 50,  # a message costs seconds, so it should carry much work
    "form": "",  # "": what suits the model
    "quorum": 0,  # 0: the method's own
    "staleness": 0,  # 0: no bound
    "batch-size": 64,  # 0: the whole site
    "preset": "",
    "learning-rate": 0.0,
    "accumulate": 0,
    "clip": 0.0,
    "reference": "",  # own-best: what each site reaches alone
    "precision": "float32",
    "weight-decay": 0.0,
    "seed": 0,
    "device": "cpu",
    "evaluate-every": 0,  # 0: only at the end, since an evaluation is a message to every site
    "select": "",  # "": worst_loss where every site has a validation part, else last
    "patience-evaluations": 0,  # 0: none
    "max-seconds": 0.0,  # 0: none
}
# Used where a method has such an argument and nothing else is said.
USUAL: dict[str, Any] = {"local_steps": DEFAULTS["local-steps"]}
# The same for what only the ServerApp needs.
MASTER: dict[str, Any] = {
    "out": "",  # a new folder for the run, where the ServerApp runs; "": none
    "resume": "",  # the folder of a run that was stopped, with the same options
    "extend": 0,  # a new total of iterations for the run in `resume`, which may have ended; 0: none
    "log": "vectors",  # the ServerApp has no data, so a replay needs the vectors
    "patience": 300.0,
    "min-sites": 0,  # that must have answered before the training starts; 0: all
    "checkpoint-seconds": 60.0,
}


@dataclass
class FlowerEngine:
    """The nodes of a Flower run, as the engine of a driver."""

    grid: InitVar[Grid]
    kinds: InitVar[Mapping[str, Kind]]
    name: ClassVar[str] = "flower"

    def __post_init__(self, grid: Grid, kinds: Mapping[str, Kind]) -> None:
        self._grid = grid
        self._kinds = kinds

    def open(self, crew: Any, names: Sequence[str], run: str) -> GridCarrier:
        """The ClientApps know what to do, so no `crew` is sent."""
        return GridCarrier(self._grid, list(names), self._kinds)


def server_app(file: str | Path) -> ServerApp:
    """What [tool.flwr.app.components] names as `serverapp`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        train_over(grid, Path(file), context.run_config)

    return app


def train_over(grid: Grid, file: Path, config: Mapping[str, Any]) -> Run:
    """The whole run: no data is loaded here, each site is asked by message."""
    source = read(file)
    options, given = options_of(config, source)
    job = job_of(source, options, only=[])
    engine = FlowerEngine(grid, job.method.kinds)
    about = {"file": source.path, "sha256": source.sha256, "options": options}

    def progress(t: int) -> None:
        logger.info("aspire: %d of %d iterations", t, options["iterations"])

    if given["resume"]:
        job.settings["log"] = given["log"]
        run = resume(
            given["resume"],
            job,
            engine=engine,
            callbacks=callbacks_of(source),
            progress=progress,
            iterations=given["extend"] or None,
        )
    else:
        run = train_on(
            engine,
            job,
            None,
            out=given["out"] or None,
            log=given["log"],
            source=about,
            patience=given["patience"],
            min_sites=given["min-sites"] or None,
            callbacks=callbacks_of(source),
            progress=progress,
            checkpoint_seconds=given["checkpoint-seconds"],
        )
    for line in summary(run).splitlines():
        logger.info("aspire: %s", line)
    return run


def client_app(file: str | Path) -> ClientApp:
    """What [tool.flwr.app.components] names as `clientapp`."""
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        about = ConfigRecord({"protocol": PROTOCOL, "site": site_of(Path(file), context)})
        return Message(RecordDict({"about": about}), reply_to=message)

    def work(message: Message, context: Context) -> Message:
        task = to_task(message.content)
        name = site_of(Path(file), context)
        source = read(Path(file))
        options = options_of(context.run_config, source)[0]
        by = standardization_in(message.content) or WHEN_ASKED
        method, local = member(source, options, name, standardize=by)
        if task.worker != local.number:
            raise ValueError(
                f"task {task.id} is for site number {task.worker}: expected {local.number}, {name}"
            )
        start = local.objective.flat.start
        reason = objection(task, method.kinds, parameters=len(start), dtype=start.dtype)
        if reason is not None:
            raise ValueError(f"the ServerApp sent task {task.id} with {reason}")
        _, report = serve(method, local, None, task)
        return Message(from_report(report), reply_to=message)

    app.train()(work)
    app.evaluate()(work)
    return app


def options_of(config: Mapping[str, Any], source: Source) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of `aspire train`, and those of the master, from the run's config."""
    for name, value in config.items():
        like = (DEFAULTS | MASTER).get(name)
        if like is None:
            known = ", ".join([*DEFAULTS, *MASTER])
            raise ValueError(f"config {name}={value!r}: expected one of {known}")
        kinds = (int, float) if isinstance(like, float) else type(like)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"config {name}={value!r}: expected a {type(like).__name__}")
    options = {k.replace("-", "_"): config.get(k, v) for k, v in DEFAULTS.items()}
    for name in ("select", "patience_evaluations", "max_seconds"):
        options[name] = options[name] or None
    options |= {k: config.get(k.replace("_", "-")) or None for k in ("method", *OF_METHODS)}
    options = with_usual(load(source), options, USUAL)
    return options, {k: config.get(k, v) for k, v in MASTER.items()}


def site_of(file: Path, context: Context) -> str:
    """The name of this node's site, from its --node-config."""
    config = context.node_config
    if "site" in config:
        return str(config["site"])
    if "partition-id" not in config:
        raise ValueError(
            f"--node-config has {sorted(config)}: expected site, or partition-id, a number"
        )
    source = read(file)
    names = job_of(source, options_of(context.run_config, source)[0], only=[]).problem.names
    number = int(config["partition-id"])
    if not 0 <= number < len(names):
        raise ValueError(f"partition-id={number}: expected 0 to {len(names) - 1}")
    return names[number]

"""The command line. It reads files and arguments, calls the library, and prints; nothing else."""

from __future__ import annotations

import logging

import click

from aspire import __version__
from aspire.cli.certificates import federation_command
from aspire.cli.federation import server_command, site_command
from aspire.cli.frontier import frontier_command
from aspire.cli.new import new_command
from aspire.cli.report import report_command
from aspire.cli.reproduction import WithReproduction
from aspire.cli.run import replay_command, resume_command, train_command
from aspire.cli.status import status_command
from aspire.cli.watch import watch_command


@click.group(cls=WithReproduction, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aspire")
@click.option("-v", "--verbose", is_flag=True, help="Log decisions; whole tracebacks.")
def main(verbose: bool) -> None:
    """Train one model over many sites so that the worst of them is served well."""
    logging.basicConfig(
        format="%(message)s", level=logging.INFO if verbose else logging.WARNING, force=True
    )


RUNS = (train_command, resume_command, replay_command)
LOOKS = (status_command, report_command, watch_command)
FEDERATION = (federation_command, server_command, site_command)
for command in (new_command, *RUNS, frontier_command, *LOOKS, *FEDERATION):
    main.add_command(command)

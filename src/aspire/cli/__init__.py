"""The command line. It reads files and arguments, calls the library, and prints; nothing else."""

from __future__ import annotations

import logging

import click

from aspire import __version__
from aspire.cli.data import data_command
from aspire.cli.federation import federation_command, server_command, site_command
from aspire.cli.report import report_command
from aspire.cli.reproduce import reproduce_command
from aspire.cli.run import demo_command, replay_command, resume_command, train_command
from aspire.cli.shared import Group
from aspire.cli.status import status_command


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aspire")
@click.option("-v", "--verbose", is_flag=True, help="Log decisions; whole tracebacks.")
def main(verbose: bool) -> None:
    """Train one model over many sites so that the worst of them is served well."""
    logging.basicConfig(
        format="%(message)s", level=logging.INFO if verbose else logging.WARNING, force=True
    )


COMMANDS = (demo_command, train_command, resume_command, replay_command, data_command)
FEDERATION = (federation_command, server_command, site_command)
for command in (*COMMANDS, status_command, *FEDERATION, reproduce_command, report_command):
    main.add_command(command)

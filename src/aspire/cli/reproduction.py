"""Commands that need the folder `reproduction`, which a checkout has and a wheel does not."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from aspire.cli.shared import Group, Sentence

NAMES = ("data", "demo", "reproduce")


class WithReproduction(Group):
    """The command line, with what `reproduction.commands` adds to it where that is there."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        try:
            commands()
        except ImportError:
            return super().list_commands(ctx)
        return sorted([*super().list_commands(ctx), *NAMES])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NAMES:
            return super().get_command(ctx, cmd_name)
        try:
            found: click.Command = getattr(commands(), f"{cmd_name}_command")
        except ImportError as error:
            raise Sentence(str(error)) from error
        return found


def commands() -> Any:
    """The module with these commands, or an ImportError that says how to get it."""
    try:
        return import_module("reproduction.commands")
    except ModuleNotFoundError as error:
        if error.name != "reproduction":
            raise
        raise ImportError(
            f"aspire {', '.join(NAMES[:-1])} and {NAMES[-1]} are part of the repository and not of "
            "the installed package: clone it and call `make install` or `pip install -e .` there"
        ) from error

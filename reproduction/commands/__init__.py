"""The commands that `aspire` has in a checkout only: data, demo, reproduce and report."""

from reproduction.commands.data import data_command
from reproduction.commands.demo import demo_command
from reproduction.commands.report import report_command
from reproduction.commands.reproduce import reproduce_command

__all__ = ["data_command", "demo_command", "report_command", "reproduce_command"]

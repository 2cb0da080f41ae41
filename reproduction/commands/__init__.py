"""The commands that `aspire` has in a checkout only, and what `report` does there."""

from reproduction.commands.data import data_command
from reproduction.commands.demo import demo_command
from reproduction.commands.report import report_experiments
from reproduction.commands.reproduce import reproduce_command

__all__ = ["data_command", "demo_command", "report_experiments", "reproduce_command"]

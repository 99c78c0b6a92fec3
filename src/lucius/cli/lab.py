"""`lucius lab` and `lucius bench`: commands of the distribution `lucius-lab`, loaded when they are called.

Without the lab they stay in the list of commands and say in one line what to install.
"""

from typing import Any, Final

import typer
from typer.core import TyperGroup

from lucius.cli.context import Output
from lucius.cli.helptext import set_help
from lucius.cli.http import EXIT_USAGE

GROUP: Final = "lucius.lab"


class LabMissing(Exception):
    """The lab is not installed. The text says how to install it."""


def lab_offers(name: str) -> Any:
    """What the lab registered under this name. Raises `LabMissing`."""
    from importlib.metadata import entry_points  # loading it takes longer than most commands

    for point in entry_points(group=GROUP, name=name):
        return point.load()
    raise LabMissing(f"{name} comes with the lab, which is not installed: pip install 'lucius[lab]'")


class LabCommands(TyperGroup):
    """Stands for a command of the lab until that is called."""

    def loaded(self) -> Any:
        """The command itself; ends the process with a usage error if the lab is not installed."""
        try:
            offered = lab_offers(self.name or "")
        except LabMissing as missing:
            Output(as_json=False).say(f"error: {missing}")
            raise typer.Exit(EXIT_USAGE) from None
        command = typer.main.get_command(offered)
        command.name = self.name
        set_help(command, at_root=False)
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.loaded().make_context(info_name, args, parent=parent, **extra)


def _placeholder(text: str) -> typer.Typer:
    placeholder = typer.Typer(cls=LabCommands, help=text, rich_markup_mode=None)
    placeholder.callback()(lambda: None)
    return placeholder


lab = _placeholder("Simulate jobs under faults: crashes, lost messages, wrong clocks.")
bench = _placeholder("Measure how many jobs a second this machine moves.")

"""The commands as one tree, and what holds for the whole of it: `--profile` and completion.

In: the Typer app. Out: its command tree, in which every command that talks to a server takes `--profile`
too, so that `lucius --profile prod jobs list` and `lucius jobs list --profile prod` are the same.
"""

import os
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from lucius.cli.context import PROFILE_ASKED, own_config_path
from lucius.cli.helptext import set_help
from lucius.cli.profiles import profile_names

# These talk to no server.
LOCAL: Final = frozenset(
    {"dev", "api", "reconciler", "bench", "lab", "lane", "version", "completion", "doctor", "config"}
    | {"orchestrator", "invoker", "worker", "provision", "lifebook"}
)
PROFILE_FLAG: Final = "--profile"
COMPLETE_VARIABLE: Final = "_LUCIUS_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")


def _remember(value: str | None) -> str | None:
    if value is not None:
        PROFILE_ASKED.set(value)
    return value


def _offered(incomplete: str) -> list[str]:
    return [name for name in profile_names(own_config_path()) if name.startswith(incomplete)]


ProfileOption = Annotated[
    str | None,
    typer.Option(
        PROFILE_FLAG,
        metavar="NAME",
        help="Talk to the server of this profile; see the config file.",
        callback=_remember,
        autocompletion=_offered,
        expose_value=False,
    ),
]


def command_tree(app: typer.Typer) -> Any:
    root: Any = typer.main.get_command(app)
    option = next(param for param in root.params if PROFILE_FLAG in param.opts)
    for name, command in root.commands.items():
        if name in LOCAL:
            continue
        for leaf in _leaves(command):
            if not any(PROFILE_FLAG in param.opts for param in leaf.params):
                leaf.params.append(option)
    set_help(root)
    return root


def _leaves(command: Any) -> Iterator[Any]:
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            yield from _leaves(below)
    else:
        yield command


def completion_script(app: typer.Typer, shell: str) -> None:
    """Prints the script that makes a shell complete `lucius …`."""
    from typer.completion import shell_complete

    ready_to_complete()
    code = shell_complete(command_tree(app), {}, "lucius", COMPLETE_VARIABLE, f"source_{shell}")
    raise typer.Exit(code)


def completing() -> bool:
    """Whether a shell is asking what could come next, rather than a user for something to be done."""
    return bool(os.environ.get(COMPLETE_VARIABLE))


def ready_to_complete() -> None:
    """Typer makes its shells known along with the options it would offer for them."""
    from typer.completion import get_completion_inspect_parameters

    get_completion_inspect_parameters()

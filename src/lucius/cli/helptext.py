"""How `--help` reads: commands in sections, whole sentences, words of the user instead of names of types.

In: the command tree as Typer makes it. Out: the same tree, whose help is set so. Commands that no section
names come last, under "More".
"""

import inspect
import re
from functools import partial
from typing import Any, Final

from typer.core import TyperArgument, TyperGroup

_DATA: Final = ("backup", "restore", "export", "verify", "import")
SECTIONS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("Run it", ("dev", "open", "status", "api", "reconciler", "orchestrator", "invoker", "worker")),
    ("Jobs", ("run", "submit", "plan", "jobs", "why", "dlq", "schedules", "protocols", "mcp")),
    ("Services", ("services", "service", "certify", "lane")),
    (
        "Operate",
        ("login", "config", "keys", "pause", "resume", "usage", "outbox", "doctor", *_DATA, "provision"),
    ),
)
REST: Final = "More"
MORE_HELP: Final = "\b\n`lucius COMMAND -h` says more of each. `lucius open` shows the console."

_first_sentence = re.compile(r".*?[.](?=\s|$)", re.DOTALL).match


def set_help(command: Any, *, at_root: bool = True) -> None:
    """Sets the help of a command and of all below it."""
    for param in command.params:
        _set_param(param)
    if isinstance(command, TyperGroup):
        command.format_commands = partial(_write_commands, command, SECTIONS if at_root else ())  # type: ignore[method-assign]
        for below in command.commands.values():
            set_help(below, at_root=False)


def _set_param(param: Any) -> None:
    if isinstance(param, TyperArgument):
        param.display_type_rich = _no_type  # type: ignore[method-assign]
        param._usage_display_name = partial(_argument_in_usage, param)  # type: ignore[method-assign]
    elif param.metavar is None and not getattr(param, "is_flag", False):
        param.metavar = _value_word(param)
    param._get_number_range_help_str = partial(_range_words, param)


def _no_type(ctx: Any) -> None:
    """An argument is named once: by what it is."""


def _argument_in_usage(param: Any) -> str:
    word = (param.metavar or param.name).upper()
    if param.nargs != 1:
        word += "..."
    return word if param.required else f"[{word}]"


def _value_word(param: Any) -> str:
    """What an option takes: the last word of its name, or the kind of place."""
    if param.type_descriptor.is_path:
        return "FOLDER" if param.type_descriptor.path_type == "dir" else "FILE"
    longest = str(max(param.opts, key=len))
    return longest.rpartition("-")[2].upper()


def _range_words(param: Any) -> str | None:
    least, most = getattr(param, "min", None), getattr(param, "max", None)
    if least is None and most is None:
        return None
    if most is None:
        return f"{least} or more"
    return f"at most {most}" if least is None else f"{least} to {most}"


def _write_commands(
    group: Any, sections: tuple[tuple[str, tuple[str, ...]], ...], ctx: Any, formatter: Any
) -> None:
    shown = {
        name: _summary(command)
        for name in group.list_commands(ctx)
        if (command := group.get_command(ctx, name)) is not None and not command.hidden
    }
    named = {name for _, names in sections for name in names}
    rest = tuple(name for name in shown if name not in named)
    for title, names in (*sections, (REST if sections else "Commands", rest)):
        rows = [(name, shown[name]) for name in names if name in shown]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _summary(command: Any) -> str:
    """The first sentence, whole."""
    text = inspect.cleandoc(command.short_help or command.help or "").partition("\n\n")[0]
    found = _first_sentence(text)
    return " ".join((found.group() if found else text).split())

"""The manual of the command line, `docs/reference/cli.md`, written from the commands themselves.

In: the command tree. Out: Markdown. `python -m lucius.cli.manual` prints it; a test keeps the file current.
"""

import sys
from collections.abc import Iterator
from typing import Any, Final

from typer.core import TyperGroup

from lucius.cli.exits import EXIT_CODES
from lucius.cli.lab import LabCommands

INTRODUCTION: Final = """\
# The command line

*Written from the commands themselves by `python -m lucius.cli.manual > docs/reference/cli.md`.*

Data goes to stdout and everything said about it to stderr, so output pipes well: ids and places are printed
bare, tables are neither folded nor coloured when stdout is not a terminal, and `--json` prints what the API
said, one document a line. Every command has `--help`, or `-h`. A job id may be cut to a beginning of four
characters or more that no other job has. Times are given as how long ago (`90s`, `15m`, `1h`, `7d`) or as
RFC 3339 instants.

## Which server

First match:

1. `--profile NAME`, before or after the command
2. `LUCIUS_URL`
3. `LUCIUS_PROFILE`
4. the profile called `default`, where there is one
5. `http://127.0.0.1:8420`, where `lucius dev` listens

Profiles are in `~/.config/lucius/config.toml`, or in the file that `LUCIUS_CONFIG` names:

```toml
[profiles.default]
url = "http://127.0.0.1:8420"

[profiles.prod]
url = "https://lucius.example.com"
api_key_command = ["pass", "show", "lucius/prod"]   # or api_key = "..." in a file with mode 600
```

`api_key_command` is run without a shell and prints the key. A profile without a key, and `LUCIUS_URL`, take
`LUCIUS_API_KEY`. The key of a profile is never sent to another address.

These variables are on the [settings page](settings.md#clients). Where `NO_COLOR` is set, there are
no colours on a terminal either.

## Patience

A refusal for now (429, 503) whose `Retry-After` is a few seconds is waited for, and said on stderr; a longer
one ends the command with exit code 1 and the time to wait. A server that is not there ends it at once with
exit code 4. `run` and `jobs watch` outlive a restart of the server of up to a minute. Sending the same
command twice without `--key` is harmless: the same content finds the same job.

## Completion

<!-- journey: completion -->
```sh
source <(lucius completion bash)                                        # in ~/.bashrc
source <(lucius completion zsh)                                         # in ~/.zshrc, after compinit
lucius completion fish > ~/.config/fish/completions/lucius.fish
```
"""


def manual(root: Any) -> str:
    """The whole manual."""
    context = root.context_class(root, info_name="lucius")
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES)
    parts = [
        INTRODUCTION,
        f"## Exit codes\n\n| code | meaning |\n|---|---|\n{codes}\n",
        "## Options of `lucius` itself\n\n" + _parameters(root, context),
        *_sections(root, context),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _sections(group: Any, context: Any) -> Iterator[str]:
    for name, listed in group.commands.items():
        command = listed.loaded() if isinstance(listed, LabCommands) else listed
        if command.hidden:
            continue
        below = command.context_class(command, info_name=name, parent=context)
        if isinstance(command, TyperGroup):
            yield f"## `{below.command_path}`\n\n{_prose(command.help)}\n"
            yield from _sections(command, below)
        else:
            level = "##" if context.parent is None else "###"
            usage = " ".join([below.command_path, *command.collect_usage_pieces(below)])
            yield (
                f"{level} `{below.command_path}`\n\n{_prose(command.help)}\n\n"
                f"```\n{usage}\n```\n\n{_parameters(command, below)}"
            )


def _parameters(command: Any, context: Any) -> str:
    # That every command has --help is said once.
    shown = [param for param in command.get_params(context) if context.parent is None or param.name != "help"]
    records = [record for param in shown if (record := param.get_help_record(context))]
    rows = "\n".join(f"| `{_cell(name)}` | {_cell(text)} |" for name, text in records)
    return f"| | |\n|---|---|\n{rows}\n"


def _prose(text: str | None) -> str:
    return (text or "").replace("\b\n", "").strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    from lucius.cli.main import app
    from lucius.cli.tree import command_tree

    sys.stdout.write(manual(command_tree(app)))


if __name__ == "__main__":
    main()

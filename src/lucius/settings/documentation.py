"""The page of all settings, docs/reference/settings.md, written from the table.

In: the table. Out: Markdown. `python -m lucius.settings` prints it; a test keeps the file current.
"""

from collections.abc import Iterator
from typing import Any, Final

from lucius.core.durations import SPANS
from lucius.registry.app_configuration.values import LEADING_HERE
from lucius.settings import table
from lucius.settings.declaration import Process, Section, Setting

PAGES: Final = {
    "app-configuration": "../guides/app-configuration.md",
    "console-api": "console-api.md",
    "azure": "../guides/azure.md",
    "cli": "cli.md",
    "lifecycle": "lifecycle.md",
    "move-to-the-bus": "../guides/move-to-the-bus.md",
    "nats": "../guides/nats.md",
    "observability": "observability.md",
    "platform-services": "../guides/platform-services.md",
    "postgresql": "../guides/postgresql.md",
    "reference-services": "../guides/reference-services.md",
    "security": "../guides/security.md",
    "servicebus": "../guides/servicebus.md",
    "temporal": "../guides/temporal.md",
    "tls": "../guides/tls.md",
    "webhooks": "../guides/webhooks.md",
}
"""Where the pages that sections name are, seen from the page of settings."""

INTRODUCTION: Final = f"""\
# Settings

*Written from the declarations in `src/lucius/settings/table.py` by `python -m lucius.settings > \
docs/reference/settings.md`.*

Every setting is an environment variable, read once at start. A value that cannot be used stops the start and
is named, for example:

```
LUCIUS_JOB_SLA must be a time {SPANS}, such as 500ms, 30s, 15m or 2h
```

A name that no process reads, but that looks like one of these misspelt, is warned of at start, without its
value. `lucius doctor` names every variable that nothing reads, and settings that work against each other.

- A *time* is a number of seconds or `500ms`, `30s`, `15m`, `2h`, `7d`, {SPANS} (ten years).
- A *number* is a whole one. Lists have commas. A blank value counts as not set.
- A *secret* is never logged, shown or repeated in an error.
- *Read by* names the processes that act on a variable. A process checks the others too, but for those of the
  reference services and of clients. `lucius dev` is all servers and services in one process group.
  *Administration* is `lucius keys --data`, `doctor` and `provision`.
- A number such as *001, 21.1* is the paragraph of the specification that names the variable.

OpenTelemetry's own variables say whether spans leave a process: see
[observability.md]({PAGES["observability"]}).
"""

_GROUPS: Final = (
    (table.RUNNING, ("all servers", Process.SERVICE.value)),
    (table.LEDGER, ("all servers but the worker",)),
)


def settings_page() -> str:
    return "\n".join([INTRODUCTION, *(line for section in table.SECTIONS for line in _section(section))])


def _section(section: type[Section]) -> Iterator[str]:
    yield f"## {section.title}\n"
    link = f"See [{section.page}.md]({PAGES[section.page]})." if section.page else ""
    if section.about or link:
        yield " ".join(filter(None, (section.about, link))) + "\n"
    yield "| variable | value | default | read by | meaning |"
    yield "|---|---|---|---|---|"
    for declared in section.settings():
        yield f"| {' | '.join(_cells(declared))} |"
    yield ""


def _cells(declared: Setting[Any]) -> tuple[str, ...]:
    notes = [
        *(["secret"] if declared.is_secret else []),
        *(["environment"] if declared.name.startswith(LEADING_HERE) else []),
        *([declared.spec] if declared.spec else []),
    ]
    meaning = " ".join([declared.help, *(f"*{note}*" for note in notes)])
    default = f"`{declared.unset_text}`" if declared.unset_is_text else declared.unset_text
    return f"`{declared.name}`", declared.kind.form, default, _read_by(declared.read_by), meaning


def _read_by(processes: tuple[Process, ...]) -> str:
    for members, words in _GROUPS:
        if set(members) <= set(processes):
            rest = (process.value for process in processes if process not in members)
            return ", ".join((*words, *rest))
    return ", ".join(process.value for process in processes)

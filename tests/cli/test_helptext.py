"""How help reads: sections, whole lines, no names of types; `-h` everywhere."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.played_api import Done
from typer.core import TyperGroup

from lucius.cli.helptext import SECTIONS
from lucius.cli.lab import LabCommands
from lucius.cli.main import app
from lucius.cli.tree import command_tree


def _paths(command: Any, *above: str) -> Iterator[tuple[str, ...]]:
    yield above
    if isinstance(command, LabCommands):
        command = command.loaded()
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            yield from _paths(below, *above, name)


PATHS = sorted(_paths(command_tree(app)))


@pytest.mark.parametrize("columns", [80, 120])
def test_help_is_never_cut_nor_speaks_of_types(
    command_line: "Callable[..., Done]", monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert len(PATHS) > 60
    for path in PATHS:
        shown, short = command_line(*path, "--help"), command_line(*path, "-h")
        assert (shown.code, shown.out) == (0, short.out), path
        for line in shown.out.splitlines():
            assert len(line) <= columns, (path, line)
            assert line.startswith("Usage:") or not line.endswith("..."), (path, line)
            for jargon in ("<str", "<int", "<float", "<dir", "<path", "<file", "list[", "<=x"):
                assert jargon not in line, (path, line)


def test_the_commands_are_listed_in_sections_each_once(command_line: "Callable[..., Done]") -> None:
    shown = command_line("--help").out
    titles = [title for title, _ in SECTIONS]
    places = [shown.index(f"\n{title}:\n") for title in (*titles, "More")]
    assert places == sorted(places)
    listed = [line.split()[0] for line in shown.splitlines() if line.startswith("  ") and line[2:3].isalpha()]
    for name, command in command_tree(app).commands.items():
        assert listed.count(name) == 1 or command.hidden, name
    section = shown[places[1] : places[2]]
    assert {"run", "submit", "plan", "jobs"} <= {line.split()[0] for line in section.splitlines() if line}

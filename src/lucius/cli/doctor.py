"""`lucius doctor`: what a worried operator runs.

In: the environment, a data folder. Out: what was looked at and what is wrong with it, each with the command
that mends it; with `--repair`, what was put right. Beside a running server it only reads, until it is told to
repair.
"""

import asyncio
import os
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from lucius.cli.context import Output, colour_wanted
from lucius.cli.http import EXIT_FAILED, EXIT_UNREACHABLE
from lucius.cli.options import DATA, STORAGE_VARIABLE, STORAGES, one_of
from lucius.cli.render import plain

if TYPE_CHECKING:
    from lucius.assembly.doctor import Examination, Finding, Installation
    from lucius.ledger.index_audit import IndexFault, IndexKind

    Repaired = Counter[tuple[IndexKind, IndexFault]]

COLUMNS_MAX: Final = 100
PROGRESS_EVERY_SECONDS: Final = 0.2
_COLOURS: Final = {"ok": "32", "warning": "33", "error": "31"}
_UNASKED: Final = "--repair asks before it writes, and there is no terminal to ask at: add --yes."


def doctor(
    data: Annotated[Path, typer.Option(file_okay=False, help="The data folder to look at.")] = DATA,
    storage: Annotated[
        str | None,
        typer.Option(help="Layout of the ledger, ledger or table, where the folder does not say it."),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Put right what can be: shows it first, and asks.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Repair without asking.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON document.")] = False,
) -> None:
    """Examine an installation: its ledger, indexes, files, clock, disk and settings.

    Reads only, unless --repair is given, and may be run while a server is at work. The ledger is that of the
    folder, or what LUCIUS_STORE or LUCIUS_TABLE_CONNECTION names. Exit code 0: nothing found, or all of it
    repaired; 1: findings are left; 2: usage; 4: the ledger cannot be opened.
    """
    if yes and not repair:
        raise typer.BadParameter("--yes goes with --repair.")
    if repair and not yes and (as_json or not sys.stdin.isatty()):
        raise typer.BadParameter(_UNASKED)
    chosen = storage or os.environ.get(STORAGE_VARIABLE, "").strip()
    layout = one_of("--storage", chosen, STORAGES) if storage else _known(chosen)
    raise typer.Exit(asyncio.run(_run(Output(as_json=as_json), data, layout, repair=repair, yes=yes)))


def _known(storage: str) -> str:
    """What the environment says may contradict the folder: that is a finding, and the folder counts."""
    return storage if storage == "memory" else ""


async def _run(out: Output, data: Path, storage: str, *, repair: bool, yes: bool) -> int:
    from lucius.assembly.doctor import CannotOpen, examine, open_installation
    from lucius.assembly.doctor import repair as repair_patient
    from lucius.ledger.store import StoreError
    from lucius.telemetry import configure_logging

    configure_logging("error", plain=True)
    report = _Progress(out)
    try:
        installation = await open_installation(os.environ, data, storage, now_ms=_now_ms, report=report)
    except CannotOpen as fault:
        out.say(f"error: {plain(fault)}")
        return EXIT_UNREACHABLE
    try:
        examination = await examine(installation)
        out.passing("")
        if not out.as_json:
            _show(out, installation, examination)
        repaired: Repaired | None = None
        left = len(examination.findings)
        if repair and examination.repairable and (yes or _confirmed(out, examination)):
            repaired, moved_on = await repair_patient(installation, examination)
            out.passing("")
            left = sum(not finding.repairable for finding in examination.findings) + bool(moved_on)
            if not out.as_json:
                _show_repaired(out, repaired, moved_on)
        if out.as_json:
            out.json(_document(installation, examination, repaired))
    except StoreError as fault:
        out.passing("")
        out.say(f"error: {plain(fault)}")
        return EXIT_UNREACHABLE
    finally:
        await installation.store.close()
    return EXIT_FAILED if left else 0


class _Progress:
    """How far it is, a few times a second, on a terminal only."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._next_at = 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + PROGRESS_EVERY_SECONDS
            self._out.passing(text)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _show(out: Output, installation: "Installation", examination: "Examination") -> None:
    layout = out.layout()
    columns = None if layout.columns is None else min(layout.columns, COLUMNS_MAX)
    server = "" if installation.server.value == "unknown" else f", server {installation.server.value}"
    out.data(
        _wrapped(f"{plain(installation.place)}, layout {installation.layout.value}{server}", columns, "")
    )
    out.data("")
    worst = _worst(examination)
    width = max(len(checked.check) for checked in examination.checked)
    for checked in examination.checked:
        state = worst.get(checked.check, "ok")
        head = f"  {_coloured(state, state.ljust(7))}  {checked.check.ljust(width)}  "
        bare = len(f"  {state.ljust(7)}  ") + width + 2
        text = _wrapped(plain(checked.looked), columns and columns - bare, "")
        out.data(head + text.replace("\n", "\n" + " " * bare))
    for number, finding in enumerate(examination.findings, start=1):
        out.data("")
        _show_finding(out, number, finding, columns)
    out.data("")
    out.data(_summary(examination))


def _show_finding(out: Output, number: int, finding: "Finding", columns: int | None) -> None:
    head = f"{number}. "
    indent = " " * len(head)
    severity = finding.severity.value
    text = _wrapped(f"{head}{severity}: {plain(finding.text)}", columns, indent)
    out.data(text.replace(severity, _coloured(severity, severity), 1))
    for example in finding.examples:
        out.data(_wrapped(f"{indent}  {plain(example)}", columns, indent + "    "))
    if finding.count > len(finding.examples) > 0:
        out.data(f"{indent}  and {finding.count - len(finding.examples):,} more")
    out.data(_wrapped(f"{indent}mend: {plain(finding.mend)}", columns, indent + "      "))


def _worst(examination: "Examination") -> dict[str, str]:
    """By check; of two severities the word of the worse one comes first in the alphabet."""
    worst: dict[str, str] = {}
    for finding in examination.findings:
        worst[finding.check] = min(worst.get(finding.check, "warning"), finding.severity.value)
    return worst


def _summary(examination: "Examination") -> str:
    count = len(examination.findings)
    if not count:
        return "Nothing found."
    errors = sum(finding.severity.value == "error" for finding in examination.findings)
    kinds = [f"{errors} error{'s' if errors != 1 else ''}"] if errors else []
    if warnings := count - errors:
        kinds.append(f"{warnings} warning{'s' if warnings != 1 else ''}")
    repairable = sum(finding.repairable for finding in examination.findings)
    tail = f"; --repair mends {repairable}" if repairable else ""
    return f"{' and '.join(kinds)}{tail}."


def _confirmed(out: Output, examination: "Examination") -> bool:
    out.say("")
    out.say("A repair would")
    for (kind, fault), count in sorted(examination.damage.counts.items()):
        rows = f"{count:,} row{'s' if count != 1 else ''}"
        deed = {"lost": "put back", "wrong": "write anew", "orphan": "remove"}[fault.value]
        out.say(f"  {deed} {rows} ({kind.value})")
    out.say("No job changes its state, and a server that runs may go on.")
    return typer.confirm("Repair now?", default=False, err=True)


def _show_repaired(out: Output, repaired: "Repaired", moved_on: int) -> None:
    out.data("")
    total = repaired.total()
    out.data(f"Repaired {total:,} row{'s' if total != 1 else ''}.")
    for (kind, fault), count in sorted(repaired.items()):
        out.data(f"  {count:,} {kind.value} ({fault.value})")
    if moved_on:
        jobs = f"{moved_on:,} job{'s' if moved_on != 1 else ''}"
        out.data(f"{jobs} moved on meanwhile: run `lucius doctor` once more.")


def _document(installation: "Installation", examination: "Examination", repaired: "Repaired | None") -> bytes:
    from lucius.assembly.doctor.configuration import versions

    said: dict[str, Any] = {
        "place": installation.place,
        "layout": installation.layout.value,
        "server": installation.server.value,
        "versions": versions(),
        "checks": examination.checked,
        "findings": examination.findings,
        "repaired": None,
    }
    if repaired is not None:
        said["repaired"] = [
            {"index": kind.value, "fault": fault.value, "count": count}
            for (kind, fault), count in sorted(repaired.items())
        ]
    return msgspec.json.encode(said)


def _wrapped(text: str, columns: int | None, indent: str) -> str:
    """Folded for a terminal; a pipe gets long lines. Commands and ids are never cut."""
    if columns is None:
        return text
    return textwrap.fill(
        text, max(columns, 20), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _coloured(state: str, text: str) -> str:
    return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m" if colour_wanted(sys.stdout) else text

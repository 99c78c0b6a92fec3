"""`lucius export`, `lucius verify` and `lucius import`: a ledger as a file, and into another ledger.

In: options. Out: what was done, on stdout, and an exit code. They work on the ledger itself, whichever store
it is in, and ask no server.
"""

import asyncio
import datetime
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from lucius.cli.backup import FolderOption, JsonFlag
from lucius.cli.context import Output
from lucius.cli.http import EXIT_FAILED, EXIT_UNREACHABLE
from lucius.cli.options import DATA, STORAGE_VARIABLE, file_to_write, one_of
from lucius.cli.render import plain

if TYPE_CHECKING:
    from lucius.assembly.transfer import ExportSummary, ImportSummary, Report
    from lucius.settings import Settings

T = TypeVar("T")

LAYOUTS = ("ledger", "table")


def _a_file(path: Path) -> Path:
    """An export is made beside its place and put there when whole, and read twice: no stream can do that."""
    if str(path) == "-":
        raise typer.BadParameter("- is no file, and an export goes through no pipe: name a file.")
    return path


def _an_export(path: Path) -> Path:
    if not _a_file(path).exists():
        raise typer.BadParameter(f"file {str(path)!r} does not exist.")
    return path


StoreOption = Annotated[
    str | None, typer.Option(metavar="URL", help="Where the ledger is; LUCIUS_STORE unless given.")
]
ExportArgument = Annotated[
    Path,
    typer.Argument(metavar="FILE", dir_okay=False, callback=_an_export, help="What `lucius export` wrote."),
]


def export(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", dir_okay=False, callback=_a_file, help="The export; must not be there yet."
        ),
    ],
    data: FolderOption = DATA,
    store: StoreOption = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's jobs and schedules.")] = None,
    api_keys: Annotated[
        bool,
        typer.Option("--api-keys", help="API keys as well: ids, rights and hashes; of a tenant, its own."),
    ] = False,
    running: Annotated[
        bool,
        typer.Option("--running", help="Even while processes work on the ledger: a copy, not a move."),
    ] = False,
    accept_damage: Annotated[
        bool, typer.Option("--accept-damage", help="Leave out jobs that cannot be read.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write a ledger, or one tenant of it, into a file, from any store.

    One line of JSON for each job, open or ended, with its steps, attempts, events and idempotency key, then
    schedules. Each line vouches for all before it (`lucius verify`). `lucius import` puts the file into
    another ledger, on any store, where open jobs go on. For a move, stop all processes first: an export
    beside running ones is refused without --running. Callback and webhook secrets are not in it; commands,
    payloads and webhook addresses are, so it is readable by you only.
    """
    if target.exists():
        raise typer.BadParameter(f"FILE {target}: is there already; an export never replaces another file.")
    if not target.parent.is_dir():
        raise typer.BadParameter(f"FILE {target}: there is no folder {target.parent}.")
    if tenant is not None and not tenant.strip():
        raise typer.BadParameter("--tenant must not be blank.")
    file_to_write("FILE", target)
    out = Output(as_json=as_json)

    async def work(report: "Report") -> "ExportSummary":
        return await _export(
            target,
            data,
            store or "",
            tenant=tenant,
            api_keys=api_keys,
            running=running,
            accept_damage=accept_damage,
            report=report,
        )

    summary = _done(out, work)
    if as_json:
        out.json(_report(summary, export=str(target), export_bytes=target.stat().st_size))
        return
    out.data(str(target))
    out.say(f"{_words(summary)}. The sum of it all: {summary.last_sum}")
    for place in summary.end.left_out:
        out.say(f"Left out: {plain(place)}")


def verify(source: ExportArgument, as_json: JsonFlag = False) -> None:
    """Look at every byte and every job of an export.

    Exit code 1 where a line is not what was written, with its number; nothing is asked of any ledger.
    """

    async def work(report: "Report") -> "ExportSummary":
        from lucius.assembly.transfer import verify_export

        report("Looking at every line.")
        return await asyncio.to_thread(verify_export, source)

    out = Output(as_json=as_json)
    summary = _done(out, work)
    if as_json:
        out.json(_report(summary, export=str(source), sound=True))
        return
    out.data(f"{source} is sound: {_words(summary)}.")
    out.say(f"The sum of it all: {summary.last_sum}")


def import_(
    source: ExportArgument,
    data: FolderOption = DATA,
    store: StoreOption = None,
    storage: Annotated[
        str | None,
        typer.Option(
            envvar=STORAGE_VARIABLE, help="Layout of a new ledger: ledger or table.", show_default="ledger"
        ),
    ] = None,
    accept_running: Annotated[
        bool, typer.Option("--accept-running", help="Also an export that was made with --running.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Put an export into a ledger, on any store; open jobs go on there from where they were.

    All of the file is looked at before anything is written. A whole ledger goes into one without jobs, a
    tenant into one without jobs of that tenant. Indexes are made anew. An import that was cut off is gone on
    with by the same command; one that was done is refused. A ledger in a file must not be in use; processes
    on a ledger in PostgreSQL or Azure Tables may run, and take the jobs as they come.
    """
    layout = "" if storage is None else one_of("--storage", storage, LAYOUTS)
    out = Output(as_json=as_json)

    async def work(report: "Report") -> "ImportSummary":
        return await _import(source, data, store or "", layout, accept_running=accept_running, report=report)

    done = _done(out, work)
    if as_json:
        more = {name: getattr(done, name) for name in done.__struct_fields__ if name != "export"}
        out.json(_report(done.export, imported=str(source), **more))
        return
    there = f", {done.jobs_there:,} were there from before" if done.jobs_there else ""
    out.data(f"{done.jobs_written:,} jobs written{there}")
    out.say(f"{done.schedules_written:,} schedules, {done.api_keys_written:,} API keys.")


async def _export(
    target: Path,
    data: Path,
    store: str,
    *,
    tenant: str | None,
    api_keys: bool,
    running: bool,
    accept_damage: bool,
    report: "Report",
) -> "ExportSummary":
    from lucius.assembly.doctor.installation import RunningServer, open_installation
    from lucius.assembly.transfer import TransferFault, export_ledger, processes_at_work
    from lucius.core.routing import normalise

    _settings(store)  # says what is wrong with them
    env = {**os.environ, **({"LUCIUS_STORE": store} if store else {})}
    source = await open_installation(env, data, "", now_ms=_now_ms, report=report)
    try:
        at_work = await processes_at_work(source.ledger, _now_ms())
        if source.server is RunningServer.RUNNING:
            at_work = at_work or [f"a process that holds {source.ledger_folder}"]
        if source.server is RunningServer.STOPPED:
            at_work = []
        if at_work and not running:
            raise TransferFault(
                f"processes are at work on the ledger: {', '.join(at_work[:3])}. Stop them, and wait 20 "
                "seconds where it is in PostgreSQL or Azure Tables; --running exports a copy all the same"
            )
        return await export_ledger(
            source.ledger,
            source.layout,
            target,
            tenant=None if tenant is None else normalise(tenant),
            api_keys=api_keys,
            running=bool(at_work),
            accept_damage=accept_damage,
            made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            report=report,
        )
    finally:
        await source.store.close()


async def _import(
    source: Path, data: Path, store: str, storage: str, *, accept_running: bool, report: "Report"
) -> "ImportSummary":
    from lucius.assembly.stores import is_elsewhere
    from lucius.assembly.transfer import LedgerImport, TransferFault, open_target, verify_export
    from lucius.cli.folder import claim_folders

    settings = _settings(store)
    report("Looking at every line.")
    await asyncio.to_thread(verify_export, source)  # before there is a folder, or a table
    with ExitStack() as held:
        if not is_elsewhere(settings):
            claim = claim_folders(settings, data, storage or "memory")
            if isinstance(claim, str):
                raise TransferFault(claim.rstrip("."))
            held.enter_context(claim)
        ledger = await open_target(settings, storage, data)
        try:
            work = LedgerImport(ledger, now_ms=_now_ms, report=report)
            return await work.run(source, accept_running=accept_running)
        finally:
            await ledger.store.close()


def _settings(store: str) -> "Settings":
    from lucius.assembly.choices import with_store
    from lucius.settings import read_settings

    return with_store(read_settings(os.environ), store)


def _done(out: Output, work: "Callable[[Report], Awaitable[T]]") -> T:
    from lucius.assembly.doctor.installation import CannotOpen
    from lucius.assembly.transfer import TransferFault
    from lucius.ledger.chained_lines import BadLine
    from lucius.ledger.store import StoreError
    from lucius.settings import BadSetting
    from lucius.telemetry import configure_logging

    configure_logging("error", plain=True)

    async def run() -> T:
        return await work(out.passing)

    try:
        return asyncio.run(run())
    except BadSetting as fault:
        raise typer.BadParameter(str(fault)) from None
    except (BadLine, TransferFault, OSError) as fault:
        code, text = EXIT_FAILED, str(fault)
    except (CannotOpen, StoreError) as fault:
        code, text = EXIT_UNREACHABLE, str(fault)
    finally:
        out.passing("")
    out.say(f"error: {plain(text).rstrip('.')}.")
    raise typer.Exit(code)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _words(summary: "ExportSummary") -> str:
    end, whose = summary.end, "" if summary.head.tenant is None else f" of {plain(summary.head.tenant)}"
    words = f"{end.jobs:,} jobs{whose}, {end.open_jobs:,} of them open, {end.schedules:,} schedules"
    return f"{words}, {end.api_keys:,} API keys, as of {summary.head.made_at}"


def _report(summary: "ExportSummary", **more: object) -> bytes:
    return msgspec.json.encode({**more, "summary": summary})

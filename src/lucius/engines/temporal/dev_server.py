"""A Temporal server of one's own, for development and tests: the `temporal` program, kept in a file.

It is not meant for production: there users bring their own.
"""

import asyncio
import os
import shutil
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from lucius.engines.temporal.client import ATTRIBUTES, TemporalLink, TemporalTarget
from lucius.guard import guarded
from lucius.jobs.workflows import WorkflowsUnavailable

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10.0
PROBE_SECONDS = 0.1

# Stock limits let a lone job wait 50 ms for each of its tasks; the journal saves three fsyncs in four.
_POLLS = 2_000
TUNING = (
    *("--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=2"),
    *("--dynamic-config-value", f"history.transferProcessorMaxPollRPS={_POLLS}"),
    *("--dynamic-config-value", f"history.timerProcessorMaxPollRPS={_POLLS}"),
    *("--dynamic-config-value", f"history.visibilityProcessorMaxPollRPS={_POLLS}"),
    *("--dynamic-config-value", 'history.timerProcessorMaxTimeShift="10ms"'),
)


class NoTemporalProgram(Exception):
    pass


def find_program() -> str:
    """Beside this interpreter, or on the path."""
    beside = Path(sys.executable).with_name("temporal")
    found = str(beside) if beside.is_file() else shutil.which("temporal")
    if found is None:
        raise NoTemporalProgram("the program `temporal` is not installed: see https://docs.temporal.io/cli")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def dev_server(
    database: Path,
    *,
    port: int | None = None,
    ui_port: int | None = None,
    program: str | None = None,
    log_file: Path | None = None,
    labelled: bool = True,
) -> AsyncIterator[TemporalTarget]:
    """Runs for as long as the block does; with the same file it remembers its workflows. `labelled`: whether
    it knows our search attributes from the beginning."""
    served = serving(
        database, port=port, ui_port=ui_port, program=program, log_file=log_file, labelled=labelled
    )
    async with served as (target, _):
        yield target


@asynccontextmanager
async def serving(
    database: Path,
    *,
    port: int | None = None,
    ui_port: int | None = None,
    program: str | None = None,
    log_file: Path | None = None,
    labelled: bool = True,
) -> AsyncIterator[tuple[TemporalTarget, Process]]:
    """As `dev_server`, for a caller that wants to know when the server ends by itself."""
    port = port or free_port()
    target = TemporalTarget(address=f"127.0.0.1:{port}")
    shown = ["--headless"] if ui_port is None else ["--ui-port", str(ui_port)]
    labels = ATTRIBUTES if labelled else ()
    attributes = [word for key in labels for word in ("--search-attribute", f"{key.name}=Keyword")]
    output = DEVNULL if log_file is None else log_file.open("ab")
    try:
        process = await asyncio.create_subprocess_exec(
            *guarded(
                *(program or find_program(), "server", "start-dev", "--log-level", "warn"),
                *("--ip", "127.0.0.1", "--port", str(port), "--db-filename", str(database)),
                *shown,
                *TUNING,
                *attributes,
            ),
            stdin=PIPE,  # it ends with us, however we end
            stdout=output,
            stderr=output,
            start_new_session=True,  # an interrupt at the keyboard is for us: the server goes last
        )
    finally:
        if not isinstance(output, int):
            output.close()
    try:
        await _until_it_serves(process, target)
        yield target, process
    finally:
        await _stop(process)


async def _until_it_serves(process: Process, target: TemporalTarget) -> None:
    link = TemporalLink(target)
    async with asyncio.timeout(START_SECONDS_MAX):
        while True:
            if process.returncode is not None:
                raise WorkflowsUnavailable(f"the Temporal server ended with {process.returncode}")
            try:
                return await link.ping()
            except WorkflowsUnavailable:
                await asyncio.sleep(PROBE_SECONDS)


async def _stop(process: Process) -> None:
    assert process.stdin is not None
    with suppress(ProcessLookupError):
        process.terminate()  # its guard passes it on
    with suppress(ProcessLookupError):
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    process.stdin.close()

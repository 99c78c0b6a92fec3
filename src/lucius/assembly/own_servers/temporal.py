"""The Temporal server that `lucius dev` brings along where none was named; its data lies in the data folder.

In: the data folder, which the caller has to itself. Out: settings that lead to a running server, which is
started again should it end, on the same port, and stopped in the end.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import structlog

from lucius.engines.temporal.dev_server import NoTemporalProgram, find_program, free_port, serving
from lucius.jobs.workflows import WorkflowsUnavailable
from lucius.settings import Settings

FOLDER_NAME = "temporal"
DATABASE_NAME = "temporal.db"
PORTS_NAME = "ports.json"
LOG_NAME = "server.log"
LOG_BYTES_MAX = 10_000_000  # beyond that it is begun anew at the next start
AGAIN_SECONDS = 0.5
PORT_SECONDS_MAX = 10.0
LOOK_SECONDS = 0.1

log = structlog.get_logger("lucius.assembly")


class NoTemporal(Exception):
    """There is no Temporal server to be had. The text says why."""


class _Ports(msgspec.Struct, frozen=True):
    server: int
    ui: int


@asynccontextmanager
async def own_temporal(settings: Settings, data: Path) -> AsyncIterator[tuple[Settings, str]]:
    """With the address of its pages. Raises `NoTemporal`."""
    folder = _folder(data)
    try:
        program = find_program()
    except NoTemporalProgram as fault:
        raise NoTemporal(str(fault)) from None
    ports = await _ports(folder)
    up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    keeping = asyncio.create_task(_keep(folder, program, ports, up))
    try:
        await up
        temporal = msgspec.structs.replace(
            settings.temporal, address=f"127.0.0.1:{ports.server}", namespace="default", tls=False
        )
        yield msgspec.structs.replace(settings, temporal=temporal), f"http://127.0.0.1:{ports.ui}"
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


def _folder(data: Path) -> Path:
    folder = data.absolute() / FOLDER_NAME
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


async def _keep(folder: Path, program: str, ports: _Ports, up: asyncio.Future[None]) -> None:
    log_file = folder / LOG_NAME
    while True:
        if log_file.exists() and log_file.stat().st_size > LOG_BYTES_MAX:
            log_file.unlink()
        served = serving(
            folder / DATABASE_NAME, port=ports.server, ui_port=ports.ui, program=program, log_file=log_file
        )
        try:
            async with served as (_, process):
                if not up.done():
                    up.set_result(None)
                await process.wait()
            log.warning("temporal_server_ended", code=process.returncode)
        except (WorkflowsUnavailable, TimeoutError, OSError) as fault:
            if not up.done():
                up.set_exception(NoTemporal(f"Cannot start a Temporal server: {fault}; see {log_file}"))
                return
            log.error("temporal_server_not_started", error=str(fault))  # noqa: TRY400 - no fault of ours
            await asyncio.sleep(AGAIN_SECONDS)


async def _ports(folder: Path) -> _Ports:
    """Those it had the last time: bookmarks and tools find it again. One that a killed process left behind
    lets go of them within seconds, and must, since two on one database would be in each other's way."""
    file = folder / PORTS_NAME
    try:
        ports = msgspec.json.decode(file.read_bytes(), type=_Ports)
    except (OSError, msgspec.MsgspecError):
        ports = None
    until = asyncio.get_running_loop().time() + PORT_SECONDS_MAX
    while ports is not None and not (_is_free(ports.server) and _is_free(ports.ui)):
        if asyncio.get_running_loop().time() > until:
            ports = None
            break
        await asyncio.sleep(LOOK_SECONDS)
    if ports is None:
        ports = _Ports(server=free_port(), ui=free_port())
        file.write_bytes(msgspec.json.encode(ports))
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

"""The NATS server that a process brings along where none was named: its data lies in the data folder.

In: the data folder, which the caller has to itself. Out: settings that lead to a running server, which is
started again should it end, and stopped in the end. One that a killed process left behind is known by its
pid file and its command line, and stopped first.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import structlog

from lucius.assembly.broker import NoBus
from lucius.assembly.processes import arguments_of
from lucius.bus.nats_server import CONFIG_NAME, HOST, PID_NAME, NatsServer, ServerFailed, free_port
from lucius.settings import Settings

FOLDER_NAME = "nats"
LOOK_SECONDS = 0.25
LEFT_OVER_SECONDS_MAX = 10.0

_LISTEN = re.compile(rf"^listen: {re.escape(HOST)}:(\d+)$", re.MULTILINE)

log = structlog.get_logger("lucius.assembly")


@asynccontextmanager
async def own_nats(settings: Settings, data: Path) -> AsyncIterator[Settings]:
    """Raises `NoBus`."""
    folder = _folder(data)
    try:
        await asyncio.to_thread(stop_left_over, folder)
        server = await _started(folder)
    except ServerFailed as fault:
        raise NoBus(f"Cannot start a NATS server: {fault}") from None
    keeping = asyncio.create_task(_keep(server))
    nats = msgspec.structs.replace(
        settings.nats, servers=(server.url,), user=None, password=None, credentials_file=None, replicas=1
    )
    try:
        yield msgspec.structs.replace(settings, nats=nats)
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await server.stop()


def _folder(data: Path) -> Path:
    """By its full name: a server that was left over is known by it."""
    return data.absolute() / FOLDER_NAME


def stop_left_over(folder: Path) -> None:
    try:
        pid = int((folder / PID_NAME).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return
    config = str(folder / CONFIG_NAME)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if config not in arguments_of(pid):  # the number may be somebody else's by now
            return
        log.warning("nats_server_left_over", pid=pid)
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        until = time.monotonic() + LEFT_OVER_SECONDS_MAX
        while config in arguments_of(pid) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
    if config in arguments_of(pid):
        raise ServerFailed(f"one that was left over does not end (process {pid})")


async def _started(folder: Path) -> NatsServer:
    """On the port it had the last time, if it is free: services elsewhere find it again."""
    try:
        return await _started_on(folder, port_before(folder) or free_port())
    except ServerFailed:
        return await _started_on(folder, free_port())


async def _started_on(folder: Path, port: int) -> NatsServer:
    server = NatsServer(folder, port=port)
    server.start()
    try:
        await server.ready()
    except BaseException:
        server.kill()
        raise
    return server


async def _keep(server: NatsServer) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if server.running:
            continue
        log.warning("nats_server_ended")
        try:
            server.start()
            await server.ready()
        except ServerFailed as fault:
            log.error("nats_server_not_started", error=str(fault))  # noqa: TRY400 - no fault of ours


def port_before(folder: Path) -> int | None:
    try:
        found = _LISTEN.search((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return int(found[1]) if found else None

"""The NATS server that a process brings along where none was named: its data lies in the data folder.

In: the data folder, which the caller has to itself. Out: settings that lead to a running server, which is
started again should it end, and stopped in the end. One that a killed process left behind is known by its
pid file and its command line, and stopped first.

The server lets in one user, whose password lies in a file of the data folder: another user of this machine
could else read every directive and answer it.
"""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import structlog

from lucius.assembly.bus import NoBus
from lucius.assembly.secrets import kept_server_secret, renewed_server_secret
from lucius.bus.nats.server import (
    CONFIG_NAME,
    HOST,
    PID_NAME,
    NatsServer,
    NatsUser,
    ServerFailed,
    free_port,
)
from lucius.settings import Settings

FOLDER_NAME = "nats"
USER_NAME = "lucius"
PASSWORD_NAME = "password"  # noqa: S105 - of a file
# Those that speak of a server which is not ours.
OTHERS_NATS = ("LUCIUS_NATS_USER", "LUCIUS_NATS_PASSWORD", "LUCIUS_NATS_CREDENTIALS", "LUCIUS_NATS_REPLICAS")
LOOK_SECONDS = 0.25
LEFT_OVER_SECONDS_MAX = 10.0
PS_SECONDS_MAX = 10.0

_LISTEN = re.compile(rf"^listen: {re.escape(HOST)}:(\d+)$", re.MULTILINE)

log = structlog.get_logger("lucius.assembly")


@asynccontextmanager
async def own_nats(settings: Settings, data: Path) -> AsyncIterator[Settings]:
    """Raises `NoBus`."""
    folder = _folder(data)
    try:
        await asyncio.to_thread(stop_left_over, folder)
        server, user = await _started(folder)
    except (ServerFailed, OSError) as fault:
        raise NoBus(f"Cannot start a NATS server: {fault}") from None
    keeping = asyncio.create_task(_keep(server))
    nats = msgspec.structs.replace(
        settings.nats,
        servers=(server.url,),
        user=user.name,
        password=user.password,
        credentials_file=None,
        replicas=1,
        own=True,
    )
    try:
        yield msgspec.structs.replace(settings, nats=nats)
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await server.stop()


def nats_env(settings: Settings, env: Mapping[str, str]) -> dict[str, str]:
    """The same environment for a process that shall find this server: no command line shows it, and only
    our own user can read it."""
    kept = {name: value for name, value in env.items() if name not in OTHERS_NATS}
    nats = settings.nats
    user, password = nats.user or "", nats.password or ""
    named = {"LUCIUS_NATS_URL": ",".join(nats.servers), "LUCIUS_NATS_USER": user}
    return {**kept, **named, "LUCIUS_NATS_PASSWORD": password}


def own_worker_line(settings: Settings, data: Path) -> str:
    """How a worker of one's own is let in, for people: where the password lies, and not what it is."""
    return (
        f"workers of your own: LUCIUS_NATS_URL={','.join(settings.nats.servers)} "
        f"LUCIUS_NATS_USER={settings.nats.user} "
        f'LUCIUS_NATS_PASSWORD="$(cat {shlex.quote(str(_folder(data) / PASSWORD_NAME))})" '
        "lucius service run MODULE:HANDLER --bus nats"
    )


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
        if config not in arguments_of(pid):  # the number may be another process's by now
            return
        log.warning("nats_server_left_over", pid=pid)
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        until = time.monotonic() + LEFT_OVER_SECONDS_MAX
        while config in arguments_of(pid) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
    if config in arguments_of(pid):
        raise ServerFailed(f"one that was left over does not end (process {pid})")


async def _started(folder: Path) -> tuple[NatsServer, NatsUser]:
    """On the port it had the last time, if it is free: services elsewhere find it again. Where another
    process listens there now, they may have told it the password: it is a new one then."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
    password, port = folder / PASSWORD_NAME, port_before(folder)
    if port is not None:
        with suppress(ServerFailed):
            return await _started_on(folder, port, _user(kept_server_secret(password)))
    return await _started_on(folder, free_port(), _user(renewed_server_secret(password)))


def _user(password: str) -> NatsUser:
    return NatsUser(name=USER_NAME, password=password)


async def _started_on(folder: Path, port: int, user: NatsUser) -> tuple[NatsServer, NatsUser]:
    server = NatsServer(folder, port=port, user=user)
    server.start()
    try:
        await server.ready()
    except BaseException:
        server.kill()
        raise
    return server, user


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


def arguments_of(pid: int) -> str:
    """The command line of a process; empty if there is none, or if it has ended and was not waited for."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    line = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
    done = subprocess.run(line, capture_output=True, timeout=PS_SECONDS_MAX, check=False)  # noqa: S603
    return done.stdout.decode(errors="replace")

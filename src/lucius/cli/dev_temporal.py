"""`lucius dev --engine temporal`: the temporal engine on this machine, behind one port.

This process is the orchestrator and runs the reference services; the invoker and the worker are processes of
their own, and so are the Temporal server and the NATS server, unless others are named. What ends is started
again; all of it ends with this process.
"""

import asyncio
import fcntl
import os
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack

import msgspec
import uvloop

from lucius import __version__
from lucius.api.dependencies import ApiDependencies
from lucius.assembly import (
    MEMORY,
    NATS,
    SERVICE_BUS,
    SERVICE_BUS_EMULATOR,
    NoBus,
    Part,
    bus_place,
    own_nats,
    unbrought_fault,
)
from lucius.assembly.choices import RunsOn
from lucius.assembly.own_servers.nats import nats_env, own_worker_line
from lucius.assembly.own_servers.temporal import NoTemporal, own_temporal
from lucius.assembly.secrets import new_server_secret
from lucius.assembly.stores import MEMORY_STORAGE
from lucius.bus.nats.server import free_port
from lucius.cli.children import ChildFailed, ChildProcess
from lucius.cli.dev import DEV_PROCESSES, cloud_lines, open_if_asked, run_sample, sample_wanted
from lucius.cli.folder import claim_folders
from lucius.cli.lab import lab_offers
from lucius.cli.options import AZURE_LOCAL, DevOptions, PartOptions
from lucius.cli.serving import (
    announce,
    begin_logging,
    bind,
    fail,
    gate_lines,
    make_server,
    refuse,
    say,
    serve_until,
    stop_signals,
    url_of,
)
from lucius.cli.starting import Start, env_of, report_start
from lucius.cli.temporal_common import where_lines
from lucius.cli.temporal_parts import open_temporal_part, orchestrator_app
from lucius.cli.tls_ports import Port, port_tls
from lucius.ledger.api_keys import ApiKeyStore
from lucius.ledger.store import StoreUnavailable
from lucius.services import reference_services
from lucius.settings import Settings
from lucius.settings.declaration import Process
from lucius.settings.names import misspelt
from lucius.settings.services import read_service_settings
from lucius.settings.table import Carriers, Storage, Tls

LOCK_NAME = "dev.lock"
LOOPBACK = "127.0.0.1"
OPEN_TEMPORAL = (
    "LUCIUS_AUTH=required, and the Temporal server that `lucius dev` brings along has no way to ask who "
    "calls: any user of this machine could steer its workflows. Name a server of your own with "
    "LUCIUS_TEMPORAL_ADDRESS, or take --engine outbox."
)
# Those that speak of a server which is not ours.
OTHERS_TEMPORAL = ("LUCIUS_TEMPORAL_TLS", "LUCIUS_TEMPORAL_API_KEY", "LUCIUS_TEMPORAL_NAMESPACE")


class _Servers(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of the servers, and the variables that give them to the parts."""

    settings: Settings
    env: dict[str, str]
    ui_url: str | None


def run_dev_temporal(options: DevOptions, start: Start, runs_on: RunsOn) -> int:
    settings = start.settings
    if options.bus == MEMORY:
        return refuse("--engine temporal needs a bus that several processes share, such as --bus nats.")
    if options.storage == MEMORY_STORAGE:
        return refuse("--engine temporal needs a ledger that several processes share: --storage ledger.")
    if settings.auth_required and settings.temporal.address is None:
        return refuse(OPEN_TEMPORAL)
    if (text := unbrought_fault(options.bus, settings)) is not None:
        return refuse(text)
    begin_logging(settings, options.log_level, quiet_terminal=True)
    unused = report_start(start, DEV_PROCESSES, runs_on)
    return uvloop.run(_dev(options, settings, frozenset(unused)))


async def _dev(options: DevOptions, settings: Settings, unused: frozenset[str]) -> int:
    stop = stop_signals()
    async with AsyncExitStack() as stack:
        try:
            listener = stack.enter_context(bind(options.host, options.port))
        except OSError as fault:
            where = f"{options.host}, port {options.port}"
            return fail(f"Cannot listen on {where}: {fault.strerror}. Try another --port.")
        try:
            claim = _claim(options, settings)
        except OSError as fault:
            return fail(f"Cannot open the ledger in {options.data}: {fault}")
        if isinstance(claim, str):
            return fail(claim)
        stack.enter_context(claim)
        url = settings.public_url or url_of(options.host, listener, tls=settings.tls.served)
        try:
            servers = await _servers(stack, options, settings, url, unused)
        except (NoBus, NoTemporal, StoreUnavailable) as fault:
            return fail(str(fault))
        return await _run(stack, stop, options, servers, listener, url)


def _claim(options: DevOptions, settings: Settings) -> AbstractContextManager[object] | str:
    """Parts may share the folder, but there is one `dev`: it ends servers that a killed one left there."""
    shared = claim_folders(settings, options.data, options.storage, shared=True)
    if isinstance(shared, str):
        return shared
    with ExitStack() as held:
        held.enter_context(shared)
        own = held.enter_context((options.data / LOCK_NAME).open("a", encoding="ascii"))
        try:
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return (
                f"Another `lucius dev` is using {options.data}. Stop it, or take another folder with --data."
            )
        return held.pop_all()


async def _servers(
    stack: AsyncExitStack, options: DevOptions, settings: Settings, url: str, unused: frozenset[str]
) -> _Servers:
    # What this process has warned of, the parts need not warn of again.
    unread = {*misspelt(os.environ), *unused, Carriers.bus.name}
    # The parts listen on loopback, for this process alone: they need no certificates.
    unread |= {declared.name for declared in Tls.settings()}
    env = {name: value for name, value in os.environ.items() if name not in unread}
    ui_url = None
    if options.store:
        env[Storage.store.name] = options.store
    if options.profile == AZURE_LOCAL:
        settings = await stack.enter_async_context(lab_offers("azure-local")(settings, options.data))
        env |= _cloud_env(settings)
    if options.bus == SERVICE_BUS_EMULATOR:
        settings = await stack.enter_async_context(lab_offers("servicebus-emulator")(settings))
        env["LUCIUS_SERVICEBUS_CONNECTION"] = settings.service_bus.connection_string or ""
    if options.bus == NATS and not settings.nats.servers:
        settings = await stack.enter_async_context(own_nats(settings, options.data))
        env = nats_env(settings, env)
    if settings.temporal.address is None:
        settings, ui_url = await stack.enter_async_context(own_temporal(settings, options.data))
        env = {name: value for name, value in env.items() if name not in OTHERS_TEMPORAL}
        env["LUCIUS_TEMPORAL_ADDRESS"] = settings.temporal.address or ""
    secrets = settings.temporal.secrets or (new_server_secret(),)
    temporal = msgspec.structs.replace(
        settings.temporal, secrets=secrets, invoker_url=f"http://{LOOPBACK}:{free_port()}", enabled=True
    )
    env |= {
        "LUCIUS_INTERNAL_SECRET": ",".join(secrets),
        "LUCIUS_INVOKER_URL": temporal.invoker_url,
        "LUCIUS_PUBLIC_URL": url,
    }
    return _Servers(settings=msgspec.structs.replace(settings, temporal=temporal), env=env, ui_url=ui_url)


async def _run(
    stack: AsyncExitStack,
    stop: asyncio.Event,
    options: DevOptions,
    servers: _Servers,
    listener: socket.socket,
    url: str,
) -> int:
    settings = servers.settings
    part = PartOptions(
        host=options.host,
        port=options.port,
        data=options.data,
        bus=_parts_bus(options),
        storage=options.storage,
        protocols=options.protocols,
    )
    worker = ChildProcess("worker", *_worker_line(options), env=env_of(Process.WORKER, servers.env))
    invoker_env = env_of(Process.INVOKER, servers.env)
    invoker = ChildProcess("invoker", *_invoker_line(options, settings), env=invoker_env)
    for child in (invoker, worker):  # ends after all that is opened below
        stack.push_async_callback(child.stop)
    starting = asyncio.gather(invoker.start(), worker.start())
    offered = reference_services(read_service_settings(os.environ))
    lucius = await open_temporal_part(
        stack,
        Part.ORCHESTRATOR,
        part,
        settings,
        base_url=url,
        services={name: offered[name] for name in options.services},
    )
    try:
        await starting
    except ChildFailed as fault:
        return fail(str(fault))
    if isinstance(lucius, int):
        return lucius
    checks = {**lucius.deployment.checks, "invoker": invoker.check, "worker": worker.check}
    deployment = msgspec.structs.replace(lucius.deployment, checks=checks)
    return await _serve(stack, stop, options, servers, deployment, lucius.let_go, listener, url)


async def _serve(
    stack: AsyncExitStack,
    stop: asyncio.Event,
    options: DevOptions,
    servers: _Servers,
    deployment: ApiDependencies,
    release: Callable[[], None],
    listener: socket.socket,
    url: str,
) -> int:
    sample: list[asyncio.Task[None]] = []

    async def on_up() -> None:
        await _introduce(options, servers, deployment.keys, url)
        await open_if_asked(options, url)
        if sample_wanted(options, servers.settings):
            sample.append(asyncio.create_task(run_sample(options, url)))

    def let_go() -> None:
        for running in sample:
            running.cancel()
        release()

    app = await orchestrator_app(stack, servers.settings, deployment)
    tls = port_tls(servers.settings.tls, Port.PUBLIC)
    server = make_server(app, servers.settings, deployment.watching.metrics, tls=tls)
    return await serve_until(stop, server, listener, on_up=on_up, let_go=let_go)


async def _introduce(options: DevOptions, servers: _Servers, keys: ApiKeyStore, url: str) -> None:
    settings = servers.settings
    services = ", ".join(options.services) or "none"
    say(f"Lucius {__version__} is up: {url} (console, and API docs at {url}/docs)")
    say(f"  data {options.data}, storage {options.storage}, services {services}")
    say(f"  engine temporal, bus {bus_place(options.bus, settings)}")
    if settings.nats.own:
        say(f"  {own_worker_line(settings, options.data)}")
    for line in cloud_lines(settings):
        say(f"  {line}")
    say(f"  {where_lines(settings)}")
    if servers.ui_url is not None:
        say("  its Temporal server lets in all users of this machine: it has no way to ask who they are")
        say(f"  its workflows are shown at {servers.ui_url}")
    say(f"  figures of commands at {url}/metrics, of all else at {settings.temporal.invoker_url}/metrics")
    for line in await gate_lines(options.data, options.host, settings, keys):
        say(f"  {line}")
    if options.as_json:
        announce("dev", url)


def _cloud_env(settings: Settings) -> dict[str, str]:
    """The variables that give the parts the addresses of the cloud; what a setting names, they read
    themselves."""
    variables = {
        "LUCIUS_TABLE_CONNECTION": settings.table_account.connection_string,
        "LUCIUS_APP_CONFIGURATION_CONNECTION_STRING": settings.app_configuration.connection_string,
    }
    return {name: value for name, value in variables.items() if value is not None}


def _parts_bus(options: DevOptions) -> str:
    """The bus by the name that parts know: to them the emulator is a Service Bus like any other."""
    return SERVICE_BUS if options.bus == SERVICE_BUS_EMULATOR else options.bus


def _invoker_line(options: DevOptions, settings: Settings) -> list[str]:
    port = settings.temporal.invoker_url.rpartition(":")[2]
    line = ["invoker", "--host", LOOPBACK, "--port", port, "--data", str(options.data)]
    line += ["--storage", options.storage, "--bus", _parts_bus(options)]
    if options.protocols is not None:
        line += ["--protocols", str(options.protocols)]
    return [*line, *_level(options)]


def _worker_line(options: DevOptions) -> list[str]:
    return ["worker", "--health-port", "0", *_level(options)]


def _level(options: DevOptions) -> list[str]:
    """As loud as this process, and no louder at a terminal: see `begin_logging`."""
    if options.log_level is None and not os.environ.get("LUCIUS_LOG_LEVEL") and sys.stderr.isatty():
        return ["--log-level", "warning"]
    return [] if options.log_level is None else ["--log-level", options.log_level]

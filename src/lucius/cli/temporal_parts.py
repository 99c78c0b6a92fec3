"""`lucius orchestrator` and `lucius invoker`: the parts of the temporal engine that know the ledger."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import uvloop
from starlette.types import ASGIApp

from lucius import __version__
from lucius.api.app import make_app
from lucius.api.callback_forwarder import CallbackForwarder, callback_client
from lucius.api.connection_limits import open_files_fault
from lucius.api.dependencies import ApiDependencies
from lucius.api.internal import CallbackServices, InvokerApp, make_callback_app, make_internal_app
from lucius.assembly import (
    Embedded,
    NoBus,
    NotShareable,
    Part,
    bus_place,
    open_bus,
    open_part,
)
from lucius.assembly.choices import BY_COMMAND, Choice, RunsOn, registry_choice, store_choice
from lucius.assembly.stores import not_opened, store_place
from lucius.assembly.temporal import InvokerEngine, invoker_engine, orchestrator_engine
from lucius.cli.folder import claim_folders
from lucius.cli.options import InvokerOptions, PartOptions
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
    serving_fault,
    stop_signals,
    url_of,
)
from lucius.cli.starting import Start, report_start, with_storage
from lucius.cli.temporal_common import not_bound, shared_bus, temporal_start, where_lines
from lucius.cli.tls_ports import Port, calls_tls, port_tls
from lucius.console import ConsoleApp
from lucius.core.states import Engine
from lucius.ledger.store import StoreError
from lucius.sdk import Handler
from lucius.settings import Settings
from lucius.settings.declaration import Process
from lucius.settings.table import Temporal
from lucius.telemetry.health import make_health_app


def run_orchestrator(options: PartOptions) -> int:
    begun = _begun(options)
    if isinstance(begun, int):
        return begun
    start, options, runs_on = begun
    settings = start.settings
    if (text := serving_fault(settings, options.host)) is not None:
        return refuse(text)
    begin_logging(settings, options.log_level)
    report_start(start, {Process.ORCHESTRATOR}, runs_on)
    return uvloop.run(_orchestrator(options, settings))


def run_invoker(options: InvokerOptions) -> int:
    begun = _begun(options.part)
    if isinstance(begun, int):
        return begun
    start, part, runs_on = begun
    settings = start.settings
    options = msgspec.structs.replace(options, part=part)
    if (text := open_files_fault()) is not None:
        return refuse(text)
    begin_logging(settings, options.part.log_level)
    report_start(start, {Process.INVOKER}, runs_on)
    return uvloop.run(_invoker(options, settings))


def _begun(options: PartOptions) -> tuple[Start, PartOptions, RunsOn] | int:
    """What a part is to run on; or the exit code, once the reason was printed."""
    start = temporal_start(options.data, options.store)
    if isinstance(start, int):
        return start
    bus = shared_bus(options.bus, start)
    if isinstance(bus, int):
        return bus
    settings, sources = start.settings, start.sources
    options = with_storage(msgspec.structs.replace(options, bus=bus.name), settings)
    engine = Choice(name=Engine.TEMPORAL.value, origin=BY_COMMAND)
    if settings.temporal.enabled is False:
        engine = Choice(name="temporal, outbox for new jobs", origin=sources.origin(Temporal.enabled))
    runs_on = RunsOn(
        store=store_choice(options.store, sources, settings, options.data),
        bus=bus,
        engine=engine,
        registry=registry_choice(options.protocols, sources, settings),
    )
    return start, options, runs_on


# -- orchestrator ------------------------------------------------------------------------------------------


async def _orchestrator(options: PartOptions, settings: Settings) -> int:
    stop = stop_signals()
    async with AsyncExitStack() as stack:
        try:
            listener = stack.enter_context(bind(options.host, options.port or 0))
        except OSError as fault:
            return fail(not_bound(options.host, options.port, fault))
        url = url_of(options.host, listener, tls=settings.tls.served)
        lucius = await open_temporal_part(
            stack, Part.ORCHESTRATOR, options, settings, base_url=settings.public_url or url
        )
        if isinstance(lucius, int):
            return lucius
        deployment, let_go = lucius.deployment, lucius.let_go

        async def on_up() -> None:
            if options.as_json:
                announce(Part.ORCHESTRATOR.value, url)
                return
            say(f"Lucius {__version__} orchestrator is up: {url}")
            say(f"  data {options.data}, storage {options.storage}, bus {bus_place(options.bus, settings)}")
            say(f"  {where_lines(settings)}, invoker at {settings.temporal.invoker_url}")
            for line in await gate_lines(options.data, options.host, settings, deployment.keys):
                say(f"  {line}")

        server = make_server(
            await orchestrator_app(stack, settings, deployment),
            settings,
            deployment.watching.metrics,
            tls=port_tls(settings.tls, Port.PUBLIC),
        )
        return await serve_until(stop, server, listener, on_up=on_up, let_go=let_go)


async def orchestrator_app(stack: AsyncExitStack, settings: Settings, deployment: ApiDependencies) -> ASGIApp:
    """The public API, whose callbacks are the invoker's."""
    invoker = callback_client(settings.temporal.invoker_url, calls_tls(settings.tls))
    client = await stack.enter_async_context(invoker)
    app = make_app(deployment, lambda routes: CallbackForwarder(routes, client))
    return ConsoleApp(app, deployment.installation.login_issuer)


# -- invoker -----------------------------------------------------------------------------------------------


async def _invoker(options: InvokerOptions, settings: Settings) -> int:
    part, stop = options.part, stop_signals()
    async with AsyncExitStack() as stack:
        outside: socket.socket | None = None
        try:
            listener = stack.enter_context(bind(part.host, part.port or 0))
            if options.callback_port is not None:
                outside = stack.enter_context(bind(options.callback_host, options.callback_port))
        except OSError as fault:
            ports = f"{part.port} or {options.callback_port}"
            return fail(f"Cannot listen on {part.host} or {options.callback_host}, port {ports}: {fault}.")
        url = url_of(part.host, listener, tls=settings.tls.served)
        callbacks_at = url
        if outside is not None:
            callbacks_at = url_of(options.callback_host, outside, tls=settings.tls.served)
        room = invoker_engine(settings.temporal)
        lucius = await open_temporal_part(
            stack, Part.INVOKER, part, settings, base_url=settings.public_url or callbacks_at, room=room
        )
        if isinstance(lucius, int):
            return lucius
        app = invoker_app(settings, lucius, room)
        if outside is not None:
            await stack.enter_async_context(_beside(make_callback_app(_context(lucius)), settings, outside))

        async def on_up() -> None:
            if part.as_json:
                announce(Part.INVOKER.value, url)
                return
            say(f"Lucius {__version__} invoker is up: {url}")
            say(f"  data {part.data}, storage {part.storage}, bus {bus_place(part.bus, settings)}")
            say(f"  {where_lines(settings)}, callbacks at {settings.public_url or callbacks_at}")

        tls = port_tls(settings.tls, Port.INTERNAL)
        server = make_server(app, settings, lucius.metrics, tls=tls)
        return await serve_until(stop, server, listener, on_up=on_up, let_go=lucius.let_go)


def invoker_app(settings: Settings, lucius: Embedded, room: InvokerEngine) -> ASGIApp:
    checks = lucius.deployment.checks
    return InvokerApp(
        make_internal_app(room.invoker, settings.temporal.secrets, checks),
        make_callback_app(_context(lucius)),
        make_health_app(checks, lucius.metrics),
    )


def _context(lucius: Embedded) -> CallbackServices:
    deployment = lucius.deployment
    return CallbackServices(tokens=deployment.tokens, inputs=deployment.inputs, ledger=deployment.ledger)


@asynccontextmanager
async def _beside(app: ASGIApp, settings: Settings, listener: socket.socket) -> AsyncIterator[None]:
    """A second port, served for as long as the block lasts."""
    server = make_server(app, settings, tls=port_tls(settings.tls, Port.PUBLIC))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.up.wait()
    try:
        yield
    finally:
        server.should_exit = True
        await serving


# -- both --------------------------------------------------------------------------------------------------


async def open_temporal_part(
    stack: AsyncExitStack,
    part: Part,
    options: PartOptions,
    settings: Settings,
    *,
    base_url: str,
    room: InvokerEngine | None = None,
    services: Mapping[str, Handler] | None = None,
) -> Embedded | int:
    """The process, started, and stopped with the stack; or the exit code, once the reason was printed."""
    try:
        claim = claim_folders(settings, options.data, options.storage, shared=True)
    except OSError as fault:
        return fail(f"Cannot open the ledger in {options.data}: {fault}")
    if isinstance(claim, str):
        return fail(claim)
    stack.enter_context(claim)
    try:
        bus = await open_bus(options.bus, settings)
    except NoBus as fault:
        return fail(str(fault))
    try:
        lucius = await open_part(
            part,
            settings,
            storage=options.storage,
            data=options.data,
            base_url=base_url,
            protocols=options.protocols,
            bus=bus,
            engine=room or orchestrator_engine(settings.temporal, calls_tls(settings.tls)),
        )
    except (StoreError, OSError, NotShareable) as fault:
        if bus is not None:
            await bus.close()
        return fail(not_opened(settings, options.data, fault))
    stack.push_async_callback(lucius.stop)
    try:
        await lucius.start(services or {})
    except StoreError as fault:
        return fail(f"Cannot use the ledger in {store_place(settings, options.data)}: {fault}")
    return lucius

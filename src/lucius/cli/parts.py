"""`lucius api` and `lucius reconciler`: the parts of `lucius dev` as processes of their own.

In: options, the environment. Out: an exit code. Several of each may run at once on one data folder.
"""

import socket
from contextlib import ExitStack

import msgspec
import uvloop
from starlette.types import ASGIApp

from lucius import __version__
from lucius.assembly import (
    Embedded,
    NoBus,
    NotShareable,
    Part,
    address_fault,
    bus_place,
    open_bus,
    open_part,
)
from lucius.assembly.choices import (
    BY_COMMAND,
    Choice,
    RunsOn,
    choose_bus,
    registry_choice,
    store_choice,
)
from lucius.assembly.stores import not_opened, store_place
from lucius.cli.folder import claim_folders
from lucius.cli.options import BUSES, PartOptions
from lucius.cli.serving import (
    announce,
    begin_logging,
    bind,
    fail,
    gate_lines,
    refuse,
    run_until,
    say,
    serving_fault,
    stop_signals,
    url_of,
)
from lucius.cli.starting import read_start, report_start, with_storage
from lucius.cli.tls_ports import Port, port_tls
from lucius.core.states import Engine
from lucius.ledger.store import StoreError
from lucius.settings import BadSetting, Settings
from lucius.settings.declaration import Process
from lucius.telemetry.health import make_health_app


def run_part(part: Part, options: PartOptions) -> int:
    try:
        start = read_start(options.data, options.store)
        bus = choose_bus(options.bus, start.sources, start.settings, offered=BUSES)
    except BadSetting as fault:
        return refuse(str(fault))
    settings = start.settings
    options = with_storage(msgspec.structs.replace(options, bus=bus.name), settings)
    if (text := address_fault(options.bus, settings)) is not None:
        return refuse(text)
    if options.port is not None and (text := serving_fault(settings, options.host)) is not None:
        return refuse(text)
    if part is Part.API and settings.temporal.enabled:
        return refuse("LUCIUS_TEMPORAL_ENABLED is true: the API of that engine is `lucius orchestrator`.")
    begin_logging(settings, options.log_level)
    runs_on = RunsOn(
        store=store_choice(options.store, start.sources, settings, options.data),
        bus=bus,
        engine=Choice(name=Engine.OUTBOX.value, origin=BY_COMMAND),
        registry=registry_choice(options.protocols, start.sources, settings),
    )
    report_start(start, {Process.API if part is Part.API else Process.RECONCILER}, runs_on)
    return uvloop.run(_run(part, options, settings))


async def _run(part: Part, options: PartOptions, settings: Settings) -> int:
    with ExitStack() as stack:
        listener = None
        if options.port is not None:
            try:
                listener = stack.enter_context(bind(options.host, options.port))
            except OSError as fault:
                return fail(f"Cannot listen on {options.host}, port {options.port}: {fault.strerror}.")
        try:
            claim = claim_folders(settings, options.data, options.storage, shared=True)
        except OSError as fault:
            return fail(f"Cannot open the ledger in {options.data}: {fault}")
        if isinstance(claim, str):
            return fail(claim)
        stack.enter_context(claim)
        return await _open_and_run(part, options, settings, listener)


async def _open_and_run(
    part: Part, options: PartOptions, settings: Settings, listener: socket.socket | None
) -> int:
    url = None if listener is None else url_of(options.host, listener, tls=settings.tls.served)
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
            base_url=settings.public_url or (url if part is Part.API else None) or "",
            protocols=options.protocols,
            bus=bus,
        )
    except (StoreError, OSError, NotShareable) as fault:
        if bus is not None:
            await bus.close()
        return fail(not_opened(settings, options.data, fault))
    stop = stop_signals()
    try:
        await lucius.start({})
    except StoreError as fault:
        await lucius.stop()
        return fail(f"Cannot use the ledger in {store_place(settings, options.data)}: {fault}")

    async def on_up() -> None:
        await _introduce(part, options, settings, lucius, url)

    code = await run_until(
        stop,
        _app(part, lucius),
        settings,
        listener,
        on_up=on_up,
        let_go=lucius.let_go,
        metrics=lucius.metrics,
        tls=port_tls(settings.tls, Port.PUBLIC if part is Part.API else Port.HEALTH),
    )
    await lucius.stop()
    return code


def _app(part: Part, lucius: Embedded) -> ASGIApp:
    if part is not Part.API:
        return make_health_app(lucius.deployment.checks, lucius.metrics)
    from lucius.api.app import make_app  # with a web framework that no other part has to load
    from lucius.console import ConsoleApp

    deps = lucius.deployment
    return ConsoleApp(make_app(deps), deps.installation.login_issuer)


async def _introduce(
    part: Part, options: PartOptions, settings: Settings, lucius: Embedded, url: str | None
) -> None:
    where = "" if url is None else f": {url}"
    say(f"Lucius {__version__} {part.value} is up{where}")
    say(f"  data {options.data}, storage {options.storage}")
    if (place := bus_place(options.bus, settings)) is not None:
        say(f"  bus {place}")
        if settings.public_url is None and part is Part.RECONCILER:
            say("  directives name no address for callbacks: set LUCIUS_PUBLIC_URL")
    if part is Part.API:
        for line in await gate_lines(options.data, options.host, settings, lucius.deployment.keys):
            say(f"  {line}")
    if options.as_json:
        announce(part.value, url)

"""`lucius service run`: a platform service as a process of its own, with leases over HTTP or from a bus.

In: the name of a reference service, or where a handler is found; the orchestrator's address and key, or where
the bus is. Out: an exit code. It keeps asking while the orchestrator is away, so it may be started before it;
only a bus must be there at the start.
"""

import asyncio
import importlib
import inspect
import os
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import structlog
import uvloop

from lucius import __version__
from lucius.assembly import NoBus, address_fault, bus_place, open_bus
from lucius.assembly.choices import NOT_USED, Choice, RunsOn, choose_bus
from lucius.assembly.clock_and_ids import now_ms, wall_ms
from lucius.assembly.services import TABLES, NoResultStore, open_memory, results_fault
from lucius.assembly.wiring import SpanExport, make_workspace, open_spans, watch_of, workspace_root
from lucius.cli.context import PROFILE_ASKED, own_config_path
from lucius.cli.options import BUSES, ServiceOptions
from lucius.cli.profiles import chosen_target
from lucius.cli.serving import (
    EXIT_FAILED,
    announce,
    begin_logging,
    bind,
    fail,
    refuse,
    run_until,
    say,
    serving_fault,
    stop_signals,
    url_of,
)
from lucius.cli.starting import read_start, report_start
from lucius.cli.tls_ports import Port, calls_tls, port_tls
from lucius.client.target import ApiTarget
from lucius.contracts.schemas import SERVICE_PATTERN, is_service_name
from lucius.sdk import HttpTransport, Runner, Service, Transport
from lucius.sdk.bus_transport import BusTransport
from lucius.sdk.chaos import ChaosTransport
from lucius.sdk.health import service_checks
from lucius.sdk.http_transport import HttpAttemptCheck
from lucius.services import BadServiceSetting, reference_services
from lucius.settings import BadSetting, Settings, StoreKind
from lucius.settings.declaration import Process
from lucius.settings.services import read_service_settings
from lucius.telemetry import AttemptMetrics, Span
from lucius.telemetry.health import HealthApp, make_health_app

THREADS_SECONDS_MAX = 2.0

log = structlog.get_logger("lucius.service")


class NoService(Exception):
    """The name leads to nothing that could be run. The text says why."""


def run_service(options: ServiceOptions) -> int:
    try:
        start = read_start(options.data)
        settings = start.settings
        bus = choose_bus(options.bus, start.sources, settings, offered=BUSES)
        served = find_service(options.name, options.served)
        check_name(served)
    except (BadSetting, BadServiceSetting, NoService) as fault:
        return refuse(str(fault))
    options = msgspec.structs.replace(options, bus=bus.name)
    if looks_blocking(served):
        say(f"warning: {options.name} is not `async def`: it must return what can be awaited.")
    target = chosen_target(os.environ, PROFILE_ASKED.get(), path=own_config_path(), warn=say)
    if isinstance(target, str):
        return refuse(target)
    text = address_fault(options.bus, settings) or results_fault(options.results, settings)
    if text is not None:
        return refuse(text)
    if options.health_port is not None:
        text = serving_fault(settings, options.health_host)
        if text is not None:
            return refuse(text)
    begin_logging(settings, options.log_level)
    store = NOT_USED
    if options.results == TABLES:
        store = Choice(
            name=StoreKind.AZURE_TABLES.value, place=settings.table_account.place, origin="--results"
        )
    report_start(start, {Process.SERVICE}, RunsOn(store=store, bus=bus))
    return uvloop.run(_run_and_end(served, target, options, settings))


def find_service(name: str, served: str | None) -> Service:
    """A reference service by its name, or whatever `module:attribute` names: a `Service`, or a handler."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        offered = reference_services(read_service_settings(os.environ))
        if name not in offered:
            known = ", ".join(offered)
            raise NoService(f"There is no service {name}. There are {known}; or name a module:handler.")
        return Service(name if served is None else served, offered[name])
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as fault:  # a module may raise whatever it likes
        raise NoService(f"Cannot load {name}: {type(fault).__name__}: {fault}") from fault
    if isinstance(found, Service):
        return found if served is None else msgspec.structs.replace(found, name=served)
    if not callable(found):
        raise NoService(f"{name} is neither a handler nor a Service of the sdk.")
    return Service(attribute if served is None else served, found)


def check_name(served: Service) -> None:
    """No job can name a service of another form: it would wait for work for ever."""
    if not is_service_name(served.name):
        rule = f"must be text of the form {SERVICE_PATTERN}; --as gives another"
        raise NoService(f"No service can be called {served.name!r}: a name {rule}.")


def looks_blocking(served: Service) -> bool:
    """Whether the handler is a plain function; what a decorator made of one may be anything."""
    handler = served.handler
    plain = inspect.isfunction(handler) and not inspect.iscoroutinefunction(handler)
    return plain and not hasattr(handler, "__wrapped__")


async def _run_and_end(
    served: Service, target: ApiTarget, options: ServiceOptions, settings: Settings
) -> int:
    return await end_with(await _run(served, target, options, settings))


async def end_with(code: int) -> int:
    """The end, though a thread may still be busy with what was given up: it cannot be stopped, and the
    interpreter would wait for it for ever."""
    ending = asyncio.ensure_future(asyncio.get_running_loop().shutdown_default_executor())
    await asyncio.wait({ending}, timeout=THREADS_SECONDS_MAX)
    if not ending.done():
        log.warning("work_left_in_a_thread")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    return code


async def _run(served: Service, target: ApiTarget, options: ServiceOptions, settings: Settings) -> int:
    async with AsyncExitStack() as stack:
        listener = None
        if options.health_port is not None:
            try:
                listener = stack.enter_context(bind(options.health_host, options.health_port))
            except OSError as fault:
                where = f"{options.health_host}, port {options.health_port}"
                return fail(f"Cannot listen on {where}: {fault.strerror}.")
        try:
            transport, source = await _open_transport(stack, served.name, target, options, settings)
            try:
                workspace = make_workspace(settings, options.data)
            except OSError as fault:
                where = f"{options.data} (--data), or one of LUCIUS_REF_FILE_ROOTS"
                return fail(f"Cannot use the data folder {where}: {fault}.")
            dedupe = await open_memory(stack, options.results, served.name, settings, options.data, workspace)
        except (NoBus, NoResultStore) as fault:
            return fail(str(fault))
        if settings.chaos.any:
            log.warning("chaos_on", **msgspec.structs.asdict(settings.chaos))
            transport = ChaosTransport(transport, settings.chaos)
        spans = open_spans(settings, served.name)
        if spans is not None:
            stack.push_async_callback(spans.close)
        watch = _watch(served, spans)
        runner = Runner(
            served,
            transport,
            workspace,
            now_ms=now_ms,
            concurrency=options.concurrency,
            drain_seconds=options.drain_seconds,
            idle_seconds_max=options.idle_seconds_max,
            dedupe=dedupe,
            log=structlog.get_logger(f"lucius.service.{served.name}"),
            watch=watch,
        )
        checks = service_checks(served, runner, workspace, workspace_root(settings, options.data))
        app = make_health_app(checks, watch)
        return await _work(served, source, options, settings, runner, listener, app)


def _watch(served: Service, spans: SpanExport | None) -> AttemptMetrics:
    lines = structlog.get_logger("lucius.spans")

    def take(span: Span) -> None:
        if spans is not None:
            spans.take(span)
        lines.info(
            "attempt_ended",
            service=served.name,
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent_id,
            duration_ms=span.duration_ms,
            **span.attributes,
        )

    return watch_of(served.name, take)


async def _open_transport(
    stack: AsyncExitStack, service: str, target: ApiTarget, options: ServiceOptions, settings: Settings
) -> tuple[Transport, str]:
    """How it gets its work, and from where. Raises `NoBus`."""
    bus = await open_bus(options.bus, settings)
    if bus is None:
        http = HttpTransport(target.url, service, target.api_key, tls=calls_tls(settings.tls))
        return await stack.enter_async_context(http), f"leases from {target.url}"
    stack.push_async_callback(bus.close)
    ask = await stack.enter_async_context(HttpAttemptCheck(tls=calls_tls(settings.tls)))
    transport = BusTransport(bus, service, now_ms=wall_ms, ask=ask, prefetch=options.prefetch)
    place = bus_place(options.bus, settings)
    return await stack.enter_async_context(transport), f"takes its work from {place}"


async def _work(
    served: Service,
    source: str,
    options: ServiceOptions,
    settings: Settings,
    runner: Runner,
    listener: socket.socket | None,
    app: HealthApp,
) -> int:
    stop = stop_signals()
    working = asyncio.create_task(runner.run())
    working.add_done_callback(lambda _: stop.set())  # it does not end by itself unless something is broken

    async def on_up() -> None:
        say(f"Lucius {__version__} service {served.name} is up, and {source}")
        if options.as_json:
            url = None if listener is None else url_of(options.health_host, listener, tls=settings.tls.served)
            announce(f"service {served.name}", url)

    tls = port_tls(settings.tls, Port.HEALTH)
    code = await run_until(stop, app, settings, listener, on_up=on_up, let_go=runner.stop, tls=tls)
    try:
        await working
    except Exception:
        log.exception("service_ended", service=served.name)
        return EXIT_FAILED
    return code

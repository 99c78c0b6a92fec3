"""`lucius worker`: the process that runs the workflows of the temporal engine. It needs no data folder."""

from contextlib import AsyncExitStack

import uvloop

from lucius import __version__
from lucius.assembly.choices import BY_COMMAND, Choice, RunsOn
from lucius.assembly.temporal_worker import WorkerProcess
from lucius.assembly.wiring import open_spans
from lucius.cli.options import WorkerOptions
from lucius.cli.serving import (
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
from lucius.cli.starting import report_start
from lucius.cli.temporal_common import not_bound, temporal_start, where_lines
from lucius.cli.tls_ports import Port, calls_tls, port_tls
from lucius.core.states import Engine
from lucius.settings import Settings
from lucius.settings.declaration import Process
from lucius.telemetry.health import make_health_app


def run_worker(options: WorkerOptions) -> int:
    start = temporal_start(None)
    if isinstance(start, int):
        return start
    settings = start.settings
    if options.health_port is not None:
        text = serving_fault(settings, options.health_host)
        if text is not None:
            return refuse(text)
    begin_logging(settings, options.log_level)
    engine = Choice(name=Engine.TEMPORAL.value, origin=BY_COMMAND)
    report_start(start, {Process.WORKER}, RunsOn(engine=engine))
    return uvloop.run(_worker(options, settings))


async def _worker(options: WorkerOptions, settings: Settings) -> int:
    async with AsyncExitStack() as stack:
        listener = None
        if options.health_port is not None:
            try:
                listener = stack.enter_context(bind(options.health_host, options.health_port))
            except OSError as fault:
                return fail(not_bound(options.health_host, options.health_port, fault))
        spans = open_spans(settings, "lucius-worker")
        deployment = WorkerProcess(settings.temporal, calls_tls(settings.tls), spans)
        stack.push_async_callback(deployment.stop)
        stop = stop_signals()
        deployment.start().add_done_callback(lambda _: stop.set())  # it ends by itself only if it is broken

        async def on_up() -> None:
            url = None if listener is None else url_of(options.health_host, listener, tls=settings.tls.served)
            if options.as_json:
                announce("worker", url)
                return
            say(f"Lucius {__version__} worker is up{'' if url is None else f': {url}'}")
            say(f"  {where_lines(settings)}, invoker at {settings.temporal.invoker_url}")

        app = make_health_app(deployment.checks(), deployment.metrics)
        let_go, tls = deployment.worker.stop, port_tls(settings.tls, Port.HEALTH)
        return await run_until(stop, app, settings, listener, on_up=on_up, let_go=let_go, tls=tls)

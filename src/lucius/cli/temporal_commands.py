"""The command lines of the temporal engine's parts: `lucius orchestrator`, `lucius invoker`, `lucius worker`.

In: arguments. Out: checked options, given to the module that runs the part and that is imported only then.
"""

from collections.abc import Callable
from typing import Annotated, Final

import typer

from lucius.cli.options import (
    DATA,
    LOG_LEVELS,
    SHARED_BUSES,
    InvokerOptions,
    PartOptions,
    WorkerOptions,
    bus_of,
    one_of,
    storage_of,
)
from lucius.cli.part_commands import (
    LOOPBACK,
    PORT_MAX,
    DataOption,
    HealthHostOption,
    HealthPortOption,
    LogLevelOption,
    ProtocolsOption,
    StorageOption,
    StoreOption,
    UpFlag,
)

EXIT_FAILED: Final = 1

BusOption = Annotated[
    str | None,
    typer.Option(
        help="What carries directives: nats at LUCIUS_NATS_URL, or servicebus at "
        "LUCIUS_SERVICEBUS_CONNECTION; LUCIUS_BUS unless given, else what these addresses say."
    ),
]


def orchestrator(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=PORT_MAX, help="Port; 0 takes a free one.")] = 8420,
    data: DataOption = DATA,
    bus: BusOption = None,
    store: StoreOption = None,
    storage: StorageOption = None,
    protocol_folder: ProtocolsOption = None,
    as_json: UpFlag = False,
    log_level: LogLevelOption = None,
) -> None:
    """Run the HTTP API of the temporal engine: it creates jobs and starts their workflows.

    What happens to a job after that is the invoker's: run at least one, and at least one worker.
    """
    options = PartOptions(
        host=host,
        port=port,
        data=data,
        bus=bus_of(bus, SHARED_BUSES),
        store=store or "",
        storage=storage_of(storage),
        protocols=protocol_folder,
        as_json=as_json,
        log_level=_level(log_level),
    )

    def run() -> int:
        from lucius.cli.temporal_parts import run_orchestrator

        return run_orchestrator(options)

    raise typer.Exit(_run(run))


def invoker(
    host: Annotated[str, typer.Option(help="Address of the internal API.")] = LOOPBACK,
    port: Annotated[
        int, typer.Option(min=0, max=PORT_MAX, help="Port of the internal API; 0 takes a free one.")
    ] = 8421,
    callback_host: Annotated[
        str, typer.Option(help="Address for the callbacks of services elsewhere.")
    ] = LOOPBACK,
    callback_port: Annotated[
        int | None,
        typer.Option(min=0, max=PORT_MAX, help="Serve callbacks on this port too; 0 takes a free one."),
    ] = None,
    data: DataOption = DATA,
    bus: BusOption = None,
    store: StoreOption = None,
    storage: StorageOption = None,
    protocol_folder: ProtocolsOption = None,
    as_json: UpFlag = False,
    log_level: LogLevelOption = None,
) -> None:
    """Run the invoker: it answers workflows, takes replies, and sees to deadlines, webhooks and retention.

    Several on one folder share the work; if one dies, the others take its part over within seconds.
    """
    part = PartOptions(
        host=host,
        port=port,
        data=data,
        bus=bus_of(bus, SHARED_BUSES),
        store=store or "",
        storage=storage_of(storage),
        protocols=protocol_folder,
        as_json=as_json,
        log_level=_level(log_level),
    )
    options = InvokerOptions(part=part, callback_host=callback_host, callback_port=callback_port)

    def run() -> int:
        from lucius.cli.temporal_parts import run_invoker

        return run_invoker(options)

    raise typer.Exit(_run(run))


def worker(
    health_host: HealthHostOption = LOOPBACK,
    health_port: HealthPortOption = None,
    as_json: UpFlag = False,
    log_level: LogLevelOption = None,
) -> None:
    """Run the worker: the workflows of the temporal engine, which ask the invoker at LUCIUS_INVOKER_URL.

    It waits for Temporal and for the invoker, and finishes what it has begun when it is told to stop.
    """
    options = WorkerOptions(
        health_host=health_host, health_port=health_port, as_json=as_json, log_level=_level(log_level)
    )

    def run() -> int:
        from lucius.cli.temporal_worker import run_worker

        return run_worker(options)

    raise typer.Exit(_run(run))


def _run(run: Callable[[], int]) -> int:
    try:
        return run()
    except ModuleNotFoundError as fault:
        if (fault.name or "").partition(".")[0] != "temporalio":
            raise
    typer.echo("The temporal engine needs the package temporalio: install lucius[temporal].", err=True)
    return EXIT_FAILED


def _level(log_level: str | None) -> str | None:
    return None if log_level is None else one_of("--log-level", log_level, LOG_LEVELS)

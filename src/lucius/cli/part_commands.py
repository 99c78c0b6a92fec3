"""The command lines of the parts: `lucius api`, `lucius reconciler`, `lucius service run`.

In: arguments. Out: checked options, given to the module that runs the part and that is imported only then.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from lucius.cli.options import (
    BUSES,
    DATA,
    LOG_LEVELS,
    STORAGE_VARIABLE,
    STORAGES,
    PartOptions,
    ServiceOptions,
    bus_of,
    one_of,
    storage_of,
)
from lucius.cli.service_new import service_new

PORT_MAX: Final = 65_535
CONCURRENCY_MAX: Final = 1_000
DRAIN_SECONDS_MAX: Final = 86_400

service = typer.Typer(
    help="Platform services as processes of their own.", no_args_is_help=True, rich_markup_mode=None
)

DataOption = Annotated[
    Path, typer.Option(file_okay=False, help="Folder for everything kept; all parts name the same one.")
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        envvar=STORAGE_VARIABLE,
        show_default=STORAGES[0],
        help="Layout of the ledger: ledger or table.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where the ledger is: sqlite:///FOLDER/lucius.db, postgresql://HOST/DATABASE, or azure-tables: "
        "at LUCIUS_TABLE_CONNECTION; LUCIUS_STORE unless given, the place for a URL with a password.",
    ),
]
BusOption = Annotated[
    str | None,
    typer.Option(
        help="What carries directives: memory, nats at LUCIUS_NATS_URL, or servicebus at "
        "LUCIUS_SERVICEBUS_CONNECTION; LUCIUS_BUS unless given, else what these addresses say."
    ),
]
ProtocolsOption = Annotated[
    Path | None,
    typer.Option("--protocols", exists=True, file_okay=False, help="Folder of protocol documents."),
]
LogLevelOption = Annotated[
    str | None, typer.Option(help="debug, info, warning or error; LUCIUS_LOG_LEVEL unless given.")
]
HealthHostOption = Annotated[str, typer.Option(help="Address of the health port.")]
HealthPortOption = Annotated[
    int | None,
    typer.Option(
        min=0, max=PORT_MAX, help="Serve /livez, /readyz and /metrics on this port; 0 takes a free one."
    ),
]
DrainOption = Annotated[
    float,
    typer.Option(
        min=0,
        max=DRAIN_SECONDS_MAX,
        help="How long to finish what was begun when it is told to stop; the rest is answered as a failure "
        "that is retried.",
    ),
]
IdleOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", min=1, help="End once there was nothing to do for so long; without it, never."
    ),
]
UpFlag = Annotated[bool, typer.Option("--json", help="Once up, print a line of JSON: part, pid and url.")]
LOOPBACK: Final = "127.0.0.1"


def api(
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
    """Run the HTTP API: commands, jobs, leases and callbacks.

    Deadlines and retries are the reconciler's: run at least one beside it.
    """
    from lucius.assembly import Part
    from lucius.cli.parts import run_part

    options = PartOptions(
        host=host,
        port=port,
        data=data,
        bus=bus_of(bus, BUSES),
        store=store or "",
        storage=storage_of(storage),
        protocols=protocol_folder,
        as_json=as_json,
        log_level=_level(log_level),
    )
    raise typer.Exit(run_part(Part.API, options))


def reconciler(
    data: DataOption = DATA,
    bus: BusOption = None,
    store: StoreOption = None,
    storage: StorageOption = None,
    protocol_folder: ProtocolsOption = None,
    health_host: HealthHostOption = LOOPBACK,
    health_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=PORT_MAX,
            help="Serve /livez, /readyz and /metrics on this port; 0 takes a free one.",
        ),
    ] = None,
    as_json: UpFlag = False,
    log_level: LogLevelOption = None,
) -> None:
    """Run the reconciler: deadlines, retries, webhooks, retention.

    Several on one folder share the work; if one dies, the others take its part over within seconds.
    """
    from lucius.assembly import Part
    from lucius.cli.parts import run_part

    options = PartOptions(
        host=health_host,
        port=health_port,
        data=data,
        bus=bus_of(bus, BUSES),
        store=store or "",
        storage=storage_of(storage),
        protocols=protocol_folder,
        as_json=as_json,
        log_level=_level(log_level),
    )
    raise typer.Exit(run_part(Part.RECONCILER, options))


@service.callback()
def service_root() -> None:
    """Keeps `run` a command below `service`."""


@service.command("run")
def service_run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="ocr, embedding, sis, or module:handler.")],
    served: Annotated[
        str | None, typer.Option("--as", metavar="SERVICE", help="Lease directives of this service.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=CONCURRENCY_MAX, help="How many directives at a time.")
    ] = 8,
    prefetch: Annotated[
        int,
        typer.Option(
            min=0,
            max=CONCURRENCY_MAX,
            help="How many more to take from a bus in advance; their ACKs wait until a place is free.",
        ),
    ] = 0,
    drain_seconds: DrainOption = 30.0,
    until_idle: IdleOption = None,
    data: Annotated[
        Path, typer.Option(file_okay=False, help="Folder below which file: references may lie.")
    ] = DATA,
    bus: Annotated[
        str | None,
        typer.Option(
            help="Where its work comes from: memory (over HTTP), nats at LUCIUS_NATS_URL, or servicebus at "
            "LUCIUS_SERVICEBUS_CONNECTION; LUCIUS_BUS unless given, else what these addresses say."
        ),
    ] = None,
    results: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Where RESULTs are kept, so that a restart neither loses nor repeats one: file (in --data), "
            "memory, tables at LUCIUS_TABLE_CONNECTION, or the URI of a folder. A file unless given, and "
            "memory where none can be written.",
        ),
    ] = None,
    health_host: HealthHostOption = LOOPBACK,
    health_port: HealthPortOption = None,
    as_json: UpFlag = False,
    log_level: LogLevelOption = None,
) -> None:
    """Run one platform service, which leases its work from LUCIUS_URL, or takes it from a bus.

    It keeps asking while the server is away, and finishes what it has begun when it is told to stop.
    """
    from lucius.cli.service import run_service

    options = ServiceOptions(
        name=name,
        served=served,
        bus=bus_of(bus, BUSES),
        concurrency=concurrency,
        prefetch=prefetch,
        drain_seconds=drain_seconds,
        idle_seconds_max=until_idle,
        data=data,
        results=results,
        health_host=health_host,
        health_port=health_port,
        as_json=as_json,
        log_level=_level(log_level),
    )
    raise typer.Exit(run_service(options))


service.command("new")(service_new)


def _level(log_level: str | None) -> str | None:
    return None if log_level is None else one_of("--log-level", log_level, LOG_LEVELS)

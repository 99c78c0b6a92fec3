"""`lucius provision`: what Lucius needs in Azure or in PostgreSQL, and whether it is there.

In: the settings of the installation and its services. Out: a table of what is missing or differs, and with
`--apply` what was done about it. Nothing is ever deleted.
"""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lucius.cli.context import Output
from lucius.cli.http import EXIT_FAILED, EXIT_UNREACHABLE
from lucius.cli.render import plain
from lucius.provision.plan import (
    DUPLICATE_WINDOW_SECONDS,
    DUPLICATE_WINDOW_SECONDS_MAX,
    DUPLICATE_WINDOW_SECONDS_MIN,
    LOCK_SECONDS,
    LOCK_SECONDS_MAX,
    LOCK_SECONDS_MIN,
)

if TYPE_CHECKING:
    from lucius.assembly.provision.azure import WantedResources
    from lucius.provision.apply import ProvisionReport
    from lucius.provision.plan import Drift
    from lucius.settings import Settings

app = typer.Typer(
    help="What has to be there before Lucius runs.", no_args_is_help=True, rich_markup_mode=None
)

NOTHING_NAMED: Final = (
    "Name what to look at: LUCIUS_TABLE_CONNECTION for tables, LUCIUS_SERVICEBUS_CONNECTION or "
    "LUCIUS_SERVICEBUS_NAMESPACE for topics and subscriptions."
)
BY_HAND: Final = "cannot be changed in place: delete it once it is empty, and apply again"
RULES_BY_HAND: Final = "several rules: delete all but one, and apply again"


@app.callback()
def _group() -> None:
    """What has to be there before Lucius runs."""


@app.command()
def azure(
    check: Annotated[bool, typer.Option("--check", help="Only say what is missing or differs.")] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Create and change what can be. Nothing is ever deleted.")
    ] = False,
    services: Annotated[
        list[str] | None,
        typer.Option("--service", help="A service that needs subscriptions; several times for several."),
    ] = None,
    protocol_folder: Annotated[
        Path | None,
        typer.Option(
            "--protocols",
            exists=True,
            file_okay=False,
            help="Folder of protocol documents: their services count beside those of the built-in set.",
        ),
    ] = None,
    lock_seconds: Annotated[
        int,
        typer.Option(min=LOCK_SECONDS_MIN, max=LOCK_SECONDS_MAX, help="How long a message stays locked."),
    ] = LOCK_SECONDS,
    duplicate_window_seconds: Annotated[
        int,
        typer.Option(
            min=DUPLICATE_WINDOW_SECONDS_MIN,
            max=DUPLICATE_WINDOW_SECONDS_MAX,
            help="How long a topic remembers the ids of messages.",
        ),
    ] = DUPLICATE_WINDOW_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check, or set up, the tables, topics and subscriptions of Lucius in Azure.

    Looks at the account and the namespace that the settings name, or at the one that is named. Exit code 0:
    all fits; 1: something is missing or differs; 4: not reachable, or not allowed.
    """
    if check == apply:
        raise typer.BadParameter("Say either --check or --apply.")
    settings = _settings()
    wishes = _wishes(settings, tuple(services or ()), protocol_folder, lock_seconds, duplicate_window_seconds)
    out = Output(as_json=as_json)
    from lucius.assembly.provision.azure import provision
    from lucius.provision.apply import AccessFailed

    try:
        report = asyncio.run(provision(settings, wishes, change=apply))
    except AccessFailed as fault:
        out.say(f"error: {plain(fault)}")
        raise typer.Exit(EXIT_UNREACHABLE) from None
    _show(out, settings, wishes, report)
    if report.findings or report.notes:
        raise typer.Exit(EXIT_UNREACHABLE if report.closed else EXIT_FAILED)


@app.command()
def postgres(
    check: Annotated[bool, typer.Option("--check", help="Only say what is missing or differs.")] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Create and change what can be. Nothing is ever deleted.")
    ] = False,
    store: Annotated[
        str,
        typer.Option("--store", metavar="URL", help="postgresql://HOST/DATABASE; LUCIUS_STORE unless given."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check, or set up, the schema, the views and the roles of Lucius in a PostgreSQL database.

    The role that applies owns what it makes. Grant lucius_app to the role of Lucius's processes, and
    lucius_reader to people who read the views. Exit code 0: all fits; 1: something is missing or differs; 4:
    not reachable, or not allowed.
    """
    if check == apply:
        raise typer.BadParameter("Say either --check or --apply.")
    from lucius.assembly.choices import with_store
    from lucius.assembly.provision.postgres import provision_postgres
    from lucius.cli.serving import begin_logging
    from lucius.ledger.store import StoreError
    from lucius.settings import BadSetting, StoreKind, read_settings

    try:
        settings = with_store(read_settings(os.environ), store)
    except BadSetting as fault:
        raise typer.BadParameter(str(fault)) from None
    begin_logging(settings, "error")
    if settings.store is not StoreKind.POSTGRESQL:
        raise typer.BadParameter("Name the database: LUCIUS_STORE=postgresql://USER@HOST/DATABASE.")
    out = Output(as_json=as_json)
    try:
        report = asyncio.run(provision_postgres(settings, change=apply))
    except StoreError as fault:
        out.say(f"error: {plain(fault)}")
        raise typer.Exit(EXIT_UNREACHABLE) from None
    if as_json:
        out.json(msgspec.json.encode(report))
    else:
        version = "no schema" if report.version is None else f"schema version {report.version}"
        out.say(f"{report.place}: {version}")
        for line in (*report.done, *report.findings):
            out.say(f"  {line}")
    if report.findings:
        raise typer.Exit(EXIT_FAILED)


def _settings() -> "Settings":
    from lucius.cli.serving import begin_logging
    from lucius.settings import BadSetting, read_settings

    try:
        settings = read_settings(os.environ)
    except BadSetting as fault:
        raise typer.BadParameter(str(fault)) from None
    begin_logging(settings, "error")
    if not settings.table_account.wanted and not settings.service_bus.wanted:
        raise typer.BadParameter(NOTHING_NAMED)
    return settings


def _wishes(
    settings: "Settings",
    services: tuple[str, ...],
    protocols: Path | None,
    lock_seconds: int,
    duplicate_window_seconds: int,
) -> "WantedResources":
    from lucius.assembly.provision.azure import WantedResources
    from lucius.bus.port import check_service
    from lucius.provision.plan import BusPlan, wanted_bus, wanted_tables

    bus = BusPlan(
        services=services or _services_of(settings, protocols),
        reply_subscription=settings.service_bus.reply_subscription,
        lock_seconds=lock_seconds,
        deliveries_max=settings.service_bus.deliveries_max,
        duplicate_window_seconds=duplicate_window_seconds,
        sessions=settings.service_bus.sessions,
    )
    try:
        for service in bus.services:
            check_service(service)
        tables = tuple(wanted_tables(settings.table_account.prefix, settings.tables))
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from None
    return WantedResources(
        tables=tables if settings.table_account.wanted else None,
        bus=tuple(wanted_bus(bus)) if settings.service_bus.wanted else None,
    )


def _services_of(settings: "Settings", protocols: Path | None) -> tuple[str, ...]:
    from lucius.assembly.wiring import make_registry

    registry = make_registry(settings, protocols)
    if problems := registry.problems():
        raise typer.BadParameter(f"--protocols {protocols}: {plain(problems[0])}")
    return tuple(sorted({step.service for protocol in registry.all() for step in protocol.steps}))


def _show(out: Output, settings: "Settings", wishes: "WantedResources", report: "ProvisionReport") -> None:
    tables = None if wishes.tables is None else settings.table_account.place
    bus = None if wishes.bus is None else settings.service_bus.place
    if out.as_json:
        said = {"fits": not report.findings, "tables": tables, "service_bus": bus}
        shown = {"done": report.done, "findings": report.findings, "notes": report.notes}
        out.json(msgspec.json.encode({**said, **shown}))
        return
    for deed in report.done:
        out.say(f"{deed.kind} {plain(deed.name)}: {deed.deed}")
    if report.findings:
        out.table(("KIND", "NAME", "SETTING", "HAS", "WANTS", "REMEDY"), list(map(_row, report.findings)))
    for note in report.notes:
        out.say(f"look after {plain(note)}")
    for named, place in (("tables", tables), ("topics and subscriptions", bus)):
        if place is None:
            out.say(f"The {named} were not looked at: the settings name none.")
    looked = len(wishes.tables or ()) + len(wishes.bus or ())
    out.say(f"{looked} looked at, {len({(each.kind, each.name) for each in report.findings})} do not fit.")


def _row(finding: "Drift") -> tuple[object, ...]:
    missing = finding.setting is None
    return (
        finding.kind.value,
        finding.name,
        "" if missing else finding.setting,
        "missing" if missing else _shown(finding.has),
        "" if missing else _shown(finding.wants),
        finding.why_not or _remedy(finding),
    )


def _remedy(finding: "Drift") -> str:
    if finding.changeable:
        return "--apply"
    return RULES_BY_HAND if finding.setting == "takes" else BY_HAND


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else plain(value)

"""Opens what is to be provisioned in Azure, as the settings name it, and has it checked or put right."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from lucius.provision.apply import AccessFailed, ProvisionReport, ProvisionTarget, apply, check
from lucius.provision.plan import Resource
from lucius.settings import Settings

if TYPE_CHECKING:  # what is not there where lucius[azure] was not installed
    from lucius.assembly.azure.identity import AzureIdentity

EMULATOR_MARK: Final = "usedevelopmentemulator=true"


class WantedResources(msgspec.Struct, frozen=True, kw_only=True):
    """What each place shall hold; None: the place is not ours to look at."""

    tables: tuple[Resource, ...] | None
    bus: tuple[Resource, ...] | None


async def provision(settings: Settings, wishes: WantedResources, *, change: bool) -> ProvisionReport:
    """Raises `AccessFailed`, whose text names the place."""
    reports: list[ProvisionReport] = []
    if wishes.tables is not None:
        named = f"The tables at {settings.table_account.place}"
        async with _named(named), _tables(settings) as place:
            reports.append(await _done(place, wishes.tables, change=change))
    if wishes.bus is not None:
        named = f"Service Bus at {settings.service_bus.place}"
        async with _named(named), _service_bus(settings) as place:
            reports.append(await _done(place, wishes.bus, change=change))
    return ProvisionReport(
        done=tuple(deed for report in reports for deed in report.done),
        findings=tuple(finding for report in reports for finding in report.findings),
        notes=tuple(note for report in reports for note in report.notes),
        closed=any(report.closed for report in reports),
    )


async def _done(place: ProvisionTarget, wanted: Sequence[Resource], *, change: bool) -> ProvisionReport:
    return await (apply if change else check)(place, wanted)


@asynccontextmanager
async def _named(place: str) -> AsyncIterator[None]:
    try:
        yield
    except AccessFailed as fault:
        raise AccessFailed(f"{place}: {fault}.") from None
    except ModuleNotFoundError as fault:
        if (fault.name or "").partition(".")[0] not in ("azure", "aiohttp"):
            raise
        raise AccessFailed(f"{place}: this needs Microsoft's packages, install lucius[azure].") from None


@asynccontextmanager
async def _tables(settings: Settings) -> AsyncIterator[ProvisionTarget]:
    from lucius.ledger.azure_tables.wire import TableWire
    from lucius.provision.tables import TablesTarget

    asked = settings.table_account
    async with _identity(settings, wanted=asked.account_url is not None) as identity:
        try:
            if asked.account_url is not None and identity is not None:
                wire = await TableWire.to_account(asked.account_url, identity)
            else:
                wire = await TableWire.to_connection_string(asked.connection_string or "")
        except ValueError:
            raise AccessFailed("the connection string cannot be read") from None
        try:
            yield TablesTarget(wire)
        finally:
            await wire.close()


@asynccontextmanager
async def _service_bus(settings: Settings) -> AsyncIterator[ProvisionTarget]:
    from lucius.bus.service_bus.connection import NamespaceAccess
    from lucius.provision.service_bus import ServiceBusTarget

    asked = settings.service_bus
    if EMULATOR_MARK in (asked.connection_string or "").replace(" ", "").lower():
        raise AccessFailed("an emulator has its topics from its own configuration")
    async with _identity(settings, wanted=asked.connection_string is None) as identity:
        access = NamespaceAccess(
            connection_string=asked.connection_string, namespace=asked.namespace, credential=identity
        )
        try:
            place = ServiceBusTarget.open(access)
        except ValueError as fault:
            raise AccessFailed(str(fault)) from None
        try:
            yield place
        finally:
            await place.close()


@asynccontextmanager
async def _identity(settings: Settings, *, wanted: bool) -> AsyncIterator["AzureIdentity | None"]:
    if not wanted:
        yield None
        return
    from lucius.assembly.azure.identity import NoIdentity, make_identity

    try:
        identity = make_identity(settings.identity)
    except NoIdentity as fault:
        raise AccessFailed(str(fault)) from None
    async with identity:
        yield identity

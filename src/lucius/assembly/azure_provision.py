"""Opens what is to be provisioned in Azure, as the settings name it, and has it checked or put right."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from lucius.provision.carry_out import NoWayIn, Place, Report, apply, check
from lucius.provision.plan import Thing
from lucius.settings import Settings

if TYPE_CHECKING:  # what is not there where lucius[azure] was not installed
    from lucius.assembly.azure_identity import AzureIdentity

EMULATOR_MARK: Final = "usedevelopmentemulator=true"


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What each place shall hold; None: the place is not ours to look at."""

    tables: tuple[Thing, ...] | None
    bus: tuple[Thing, ...] | None


async def provision(settings: Settings, wishes: Wishes, *, change: bool) -> Report:
    """Raises `NoWayIn`, whose text names the place."""
    reports: list[Report] = []
    if wishes.tables is not None:
        named = f"The tables at {settings.table_account.place}"
        async with _named(named), _tables(settings) as place:
            reports.append(await _done(place, wishes.tables, change=change))
    if wishes.bus is not None:
        named = f"Service Bus at {settings.service_bus.place}"
        async with _named(named), _service_bus(settings) as place:
            reports.append(await _done(place, wishes.bus, change=change))
    return Report(
        done=tuple(deed for report in reports for deed in report.done),
        findings=tuple(finding for report in reports for finding in report.findings),
        notes=tuple(note for report in reports for note in report.notes),
        closed=any(report.closed for report in reports),
    )


async def _done(place: Place, wanted: Sequence[Thing], *, change: bool) -> Report:
    return await (apply if change else check)(place, wanted)


@asynccontextmanager
async def _named(place: str) -> AsyncIterator[None]:
    try:
        yield
    except NoWayIn as fault:
        raise NoWayIn(f"{place}: {fault}.") from None
    except ModuleNotFoundError as fault:
        if (fault.name or "").partition(".")[0] not in ("azure", "aiohttp"):
            raise
        raise NoWayIn(f"{place}: this needs Microsoft's packages, install lucius[azure].") from None


@asynccontextmanager
async def _tables(settings: Settings) -> AsyncIterator[Place]:
    from lucius.ledger.azure_tables_wire import Wire
    from lucius.provision.tables import TablesPlace

    asked = settings.table_account
    async with _identity(settings, wanted=asked.account_url is not None) as identity:
        try:
            if asked.account_url is not None and identity is not None:
                wire = await Wire.to_account(asked.account_url, identity)
            else:
                wire = await Wire.to_connection_string(asked.connection_string or "")
        except ValueError:
            raise NoWayIn("the connection string cannot be read") from None
        try:
            yield TablesPlace(wire)
        finally:
            await wire.close()


@asynccontextmanager
async def _service_bus(settings: Settings) -> AsyncIterator[Place]:
    from lucius.bus.service_bus_link import Access
    from lucius.provision.service_bus import ServiceBusPlace

    asked = settings.service_bus
    if EMULATOR_MARK in (asked.connection_string or "").replace(" ", "").lower():
        raise NoWayIn("an emulator has its topics from its own configuration")
    async with _identity(settings, wanted=asked.connection_string is None) as identity:
        access = Access(
            connection_string=asked.connection_string, namespace=asked.namespace, credential=identity
        )
        try:
            place = ServiceBusPlace.open(access)
        except ValueError as fault:
            raise NoWayIn(str(fault)) from None
        try:
            yield place
        finally:
            await place.close()


@asynccontextmanager
async def _identity(settings: Settings, *, wanted: bool) -> AsyncIterator["AzureIdentity | None"]:
    if not wanted:
        yield None
        return
    from lucius.assembly.azure_identity import NoIdentity, make_identity

    try:
        identity = make_identity(settings.identity)
    except NoIdentity as fault:
        raise NoWayIn(str(fault)) from None
    async with identity:
        yield identity

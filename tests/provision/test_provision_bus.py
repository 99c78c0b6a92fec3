"""Topics and subscriptions, provisioned through Microsoft's administration client as it is."""

import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest
from azure.core.pipeline.transport import AioHttpTransport
from tests.support.service_bus_setup import SECRET, AdminApi, served

from lucius.bus.service_bus.connection import NamespaceAccess
from lucius.bus.service_bus.names import subscription_name
from lucius.provision.apply import AccessFailed, ProvisionReport, apply, check
from lucius.provision.plan import BusPlan, Resource, wanted_bus
from lucius.provision.service_bus import ServiceBusTarget

PLAN = BusPlan(services=("ocr", "My Service"), reply_subscription="Lucius-Invoker", deliveries_max=7)
WANTED = wanted_bus(PLAN)
# One lane is as good as sixteen where only one thing is looked at.
FEW = [
    thing for thing in WANTED if thing.name.partition("/")[0] in ("global-bus-p3", "global-bus-replies-p3")
]
OCR = "global-bus-p3/subscriptions/ocr"
TO_OCR = "global-bus-p3/ocr"


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[tuple[AdminApi, ServiceBusTarget]]:
    async with served(tmp_path) as (admin, certificates):
        # Told of a file, the SDK would read it for every call.
        trusted = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=certificates))
        transport = AioHttpTransport(session=aiohttp.ClientSession(connector=trusted, auto_decompress=False))
        place = ServiceBusTarget.open(
            NamespaceAccess(connection_string=admin.connection_string), transport=transport
        )
        yield admin, place
        await place.close()


@pytest.fixture
def admin(setup: tuple[AdminApi, ServiceBusTarget]) -> AdminApi:
    return setup[0]


@pytest.fixture
def place(setup: tuple[AdminApi, ServiceBusTarget]) -> ServiceBusTarget:
    return setup[1]


def shown(report: ProvisionReport) -> list[tuple[str, str | None, object, object, bool]]:
    return [(each.name, each.setting, each.has, each.wants, each.changeable) for each in report.findings]


async def fresh(place: ServiceBusTarget, wanted: Sequence[Resource] = FEW) -> None:
    report = await apply(place, wanted)
    assert report.findings == ()


async def test_everything_is_missing_then_made_then_fits(admin: AdminApi, place: ServiceBusTarget) -> None:
    report = await check(place, WANTED)
    assert len(report.findings) == len(WANTED) == 32 + 16 * 2 + 16
    assert all(each.setting is None for each in report.findings)
    assert admin.things == {}

    report = await apply(place, WANTED)
    assert (report.findings, report.closed) == ((), False)
    assert {(deed.kind, deed.name) for deed in report.done} == {(each.kind, each.name) for each in WANTED}
    assert {deed.deed for deed in report.done} == {"created"}
    assert admin.setting("global-bus-p0", "RequiresDuplicateDetection") == "true"
    assert admin.setting("global-bus-replies-p15/subscriptions/lucius-invoker", "MaxDeliveryCount") == "7"
    assert admin.setting(OCR, "LockDuration") == "PT30S"

    asked = len(admin.asked)
    assert await check(place, WANTED) == ProvisionReport()
    assert await apply(place, WANTED) == ProvisionReport()
    assert {method for method, _ in admin.asked[asked:]} == {"GET"}
    assert "DELETE" not in {method for method, _ in admin.asked}


async def test_a_service_gets_what_is_for_it_alone(admin: AdminApi, place: ServiceBusTarget) -> None:
    await fresh(place)
    name = subscription_name("My Service")
    (found,) = [thing for thing in await place.look(FEW) if thing.name == f"global-bus-p3/{name}"]
    assert found.settings["takes"] == f"service = {name}"
    (replies,) = [thing for thing in await place.look(FEW) if thing.name.endswith("lucius-invoker")]
    assert replies.settings["takes"] == "everything"


@pytest.mark.parametrize(
    ("path", "element", "value", "finding"),
    [
        (OCR, "LockDuration", "PT5M", (TO_OCR, "lock_seconds", 300, 30)),
        (OCR, "MaxDeliveryCount", "3", (TO_OCR, "deliveries_max", 3, 7)),
        (OCR, "DeadLetteringOnMessageExpiration", "false", (TO_OCR, "dead_letter_expired", False, True)),
        (OCR, "Status", "ReceiveDisabled", (TO_OCR, "status", "ReceiveDisabled", "Active")),
        (OCR, "AutoDeleteOnIdle", "PT1H", (TO_OCR, "deleted_when_idle", "after 3600 s", "never")),
        (OCR, "ForwardTo", "https://n/elsewhere", (TO_OCR, "forwards_to", "elsewhere", "nowhere")),
        (
            "global-bus-p3",
            "DuplicateDetectionHistoryTimeWindow",
            "PT1M",
            ("global-bus-p3", "duplicate_window_seconds", 60, 600),
        ),
        ("global-bus-p3", "Status", "SendDisabled", ("global-bus-p3", "status", "SendDisabled", "Active")),
        (
            "global-bus-p3",
            "AutoDeleteOnIdle",
            "PT5M",
            ("global-bus-p3", "deleted_when_idle", "after 300 s", "never"),
        ),
    ],
)
async def test_a_setting_that_differs_is_told_and_put_right(
    admin: AdminApi,
    place: ServiceBusTarget,
    path: str,
    element: str,
    value: str,
    finding: tuple[str, str, object, object],
) -> None:
    await fresh(place)
    admin.set(path, element, value)
    assert shown(await check(place, FEW)) == [(*finding, True)]
    report = await apply(place, FEW)
    assert report.findings == ()
    assert [(deed.name, deed.deed) for deed in report.done] == [(finding[0], f"changed {finding[1]}")]


async def test_sessions_are_made_where_they_are_wanted(admin: AdminApi, place: ServiceBusTarget) -> None:
    plan = BusPlan(services=("ocr",), reply_subscription="lucius-invoker", sessions=True)
    wanted = [thing for thing in wanted_bus(plan) if thing.name.partition("/")[0] == "global-bus-p3"]
    await fresh(place, wanted)
    assert admin.setting(OCR, "RequiresSession") == "true"
    admin.set(OCR, "RequiresSession", "false")
    assert shown(await check(place, wanted)) == [(TO_OCR, "sessions", False, True, False)]


async def test_what_is_decided_at_birth_is_told_and_left(admin: AdminApi, place: ServiceBusTarget) -> None:
    await fresh(place)
    admin.set("global-bus-p3", "RequiresDuplicateDetection", "false")
    admin.set("global-bus-p3", "DuplicateDetectionHistoryTimeWindow", "PT1M")
    admin.set(OCR, "RequiresSession", "true")
    admin.set(OCR, "LockDuration", "PT1M")
    duplicates = ("global-bus-p3", "duplicate_detection", False, True, False)
    sessions = (TO_OCR, "sessions", True, False, False)
    lock = (TO_OCR, "lock_seconds", 60, 30, True)
    assert shown(await check(place, FEW)) == [duplicates, lock, sessions]
    report = await apply(place, FEW)
    assert shown(report) == [duplicates, sessions]
    assert [deed.deed for deed in report.done] == ["changed lock_seconds"]
    assert not report.closed


@pytest.mark.parametrize(
    ("kind", "text", "takes"),
    [
        ("TrueFilter", "1=1", "everything"),
        ("SqlFilter", "1 = 1", "everything"),
        ("FalseFilter", "1=0", "nothing"),
        ("SqlFilter", "service = 'sis'", "service = sis"),
        ("SqlFilter", "mode = 'BURST'", "what the rule $Default says"),
    ],
)
async def test_a_filter_that_takes_something_else_is_put_right(
    admin: AdminApi, place: ServiceBusTarget, kind: str, text: str, takes: str
) -> None:
    await fresh(place)
    admin.add_rule(OCR, "$Default", kind, text)
    assert shown(await check(place, FEW)) == [(TO_OCR, "takes", takes, "service = ocr", True)]
    assert (await apply(place, FEW)).findings == ()


@pytest.mark.parametrize("text", ["service='ocr'", "user.service = 'ocr'", " [service] = 'ocr' "])
async def test_a_filter_in_sql_is_as_good(admin: AdminApi, place: ServiceBusTarget, text: str) -> None:
    await fresh(place)
    admin.add_rule(OCR, "$Default", "SqlFilter", text)
    assert await check(place, FEW) == ProvisionReport()


async def test_of_several_rules_none_is_deleted(admin: AdminApi, place: ServiceBusTarget) -> None:
    await fresh(place)
    admin.add_rule(OCR, "more", "TrueFilter", "1=1")
    finding = (TO_OCR, "takes", "everything or service = ocr", "service = ocr", False)
    assert shown(await check(place, FEW)) == [finding]
    assert shown(await apply(place, FEW)) == [finding]
    del admin.things[f"{OCR}/rules/more"], admin.things[f"{OCR}/rules/$default"]
    assert shown(await check(place, FEW)) == [(TO_OCR, "takes", "nothing", "service = ocr", True)]
    assert (await apply(place, FEW)).findings == ()


async def test_what_a_new_subscription_took_of_others_is_told(
    admin: AdminApi, place: ServiceBusTarget
) -> None:
    admin.strays = 3
    report = await apply(place, FEW)
    assert (report.findings, report.closed) == ((), False)
    assert [note.partition(": it took 3 messages")[0] for note in report.notes] == [
        thing.name for thing in FEW if "/" in thing.name and "replies" not in thing.name
    ]


@pytest.mark.parametrize("shut", ["$resources/topics", "/subscriptions", "/rules"])
async def test_without_the_right_to_look_there_is_no_report(
    admin: AdminApi, place: ServiceBusTarget, shut: str
) -> None:
    await fresh(place)
    admin.shut = shut
    with pytest.raises(AccessFailed, match=r"not allowed .401.: it takes the role") as fault:
        await check(place, FEW)
    assert SECRET not in str(fault.value)


async def test_without_the_right_to_change_everything_else_is_told(
    admin: AdminApi, place: ServiceBusTarget
) -> None:
    await fresh(place)
    admin.set(OCR, "LockDuration", "PT1M")
    del admin.things["global-bus-replies-p3/subscriptions/lucius-invoker"]
    admin.may_write = False
    report = await apply(place, FEW)
    assert report.closed
    assert [each.name for each in report.findings] == [TO_OCR, "global-bus-replies-p3/Lucius-Invoker"]
    assert all("not allowed (403)" in (each.why_not or "") for each in report.findings)
    assert SECRET not in repr(report)


async def test_a_namespace_that_is_not_there() -> None:
    text = f"Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=root;SharedAccessKey={SECRET}"
    place = ServiceBusTarget.open(NamespaceAccess(connection_string=text))
    try:
        with pytest.raises(AccessFailed, match="cannot be reached") as fault:
            await check(place, FEW)
        assert SECRET not in str(fault.value)
    finally:
        await place.close()


def test_a_string_that_cannot_be_read_is_not_repeated() -> None:
    for text in (f"Endpoint={SECRET}", f"Endpoint=sb://a/;x={SECRET}"):
        with pytest.raises(ValueError, match="cannot be read") as fault:
            ServiceBusTarget.open(NamespaceAccess(connection_string=text))
        assert SECRET not in str(fault.value)
    with pytest.raises(ValueError, match="identity"):
        ServiceBusTarget.open(NamespaceAccess(namespace="a.b"))

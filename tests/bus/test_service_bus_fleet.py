"""Service Bus in a deployment: settings, errors where it cannot be used, the emulator of `lucius dev`."""

from pathlib import Path
from typing import Any

import pytest
from tests.assembly.test_assembly import embedded, submitted

from lucius.assembly import (
    NATS,
    SERVICE_BUS,
    SERVICE_BUS_EMULATOR,
    NoBus,
    address_fault,
    bus_place,
    open_bus,
)
from lucius.bus.service_bus.bus import ServiceBusBus
from lucius.core.model import JobRecord
from lucius.ledger.sqlite.store import SqliteStore
from lucius.sdk import Task
from lucius.settings import BadSetting, read_settings
from lucius_lab.emulators.own_service_bus import own_service_bus

pytestmark = pytest.mark.xdist_group("servicebus-faults")

KEYED = "SharedAccessKeyName=name;SharedAccessKey=hush"
STRING = f"Endpoint=sb://place.servicebus.windows.net/;{KEYED}"


def test_a_connection_string_is_read_and_never_shown() -> None:
    read = read_settings({"LUCIUS_SERVICEBUS_CONNECTION": STRING}).service_bus
    assert (read.connection_string, read.place) == (STRING, "place.servicebus.windows.net")
    assert read.reply_subscription == "lucius-invoker"
    assert "hush" not in repr(read)


def test_a_namespace_will_do() -> None:
    settings = read_settings({"LUCIUS_SERVICEBUS_NAMESPACE": "sb://place.servicebus.windows.net/"})
    assert settings.service_bus.namespace == "place.servicebus.windows.net"
    assert bus_place(SERVICE_BUS, settings) == "servicebus at place.servicebus.windows.net"
    assert bus_place(None, settings) is None
    assert bus_place(NATS, read_settings({"LUCIUS_NATS_URL": "one:4222"})) == "nats at one:4222"


@pytest.mark.parametrize(
    "env",
    [
        {"LUCIUS_SERVICEBUS_CONNECTION": "Endpoint=sb://hush"},
        {"LUCIUS_SERVICEBUS_CONNECTION": "hush"},
        {"LUCIUS_SERVICEBUS_NAMESPACE": "hush"},
        {"LUCIUS_SERVICEBUS_CONNECTION": STRING, "LUCIUS_SERVICEBUS_NAMESPACE": "a.servicebus.windows.net"},
        {"LUCIUS_SERVICEBUS_LANES": "32"},
        {"LUCIUS_SERVICEBUS_REPLY_PREFIX": "mine-"},
        {"LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION": "-hush"},
        {"LUCIUS_SERVICEBUS_MAX_DELIVERIES": "0"},
        {"LUCIUS_SERVICEBUS_MAX_MESSAGE_BYTES": "1000"},
        {"LUCIUS_SERVICEBUS_PARTITION_KEYS": "perhaps"},
        {"LUCIUS_SERVICEBUS_SESSIONS": "perhaps"},
    ],
)
def test_what_cannot_be_used_is_refused_by_name(env: dict[str, str]) -> None:
    with pytest.raises(BadSetting, match="LUCIUS_SERVICEBUS_") as caught:
        read_settings(env)
    assert "hush" not in str(caught.value)


def test_values_of_the_first_blueprint_are_taken() -> None:
    env = {
        "LUCIUS_SERVICEBUS_CONNECTION": STRING,
        "LUCIUS_SERVICEBUS_REPLY_PREFIX": "global-bus-replies-p",
        "LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION": "lucius-invoker",
        "LUCIUS_SERVICEBUS_LANES": "16",
    }
    assert read_settings(env).service_bus.wanted


async def test_without_an_address_there_is_no_bus() -> None:
    settings = read_settings({})
    assert address_fault(SERVICE_BUS, settings) is not None
    with pytest.raises(NoBus, match="LUCIUS_SERVICEBUS_CONNECTION"):
        await open_bus(SERVICE_BUS, settings)


async def test_a_namespace_out_of_reach_is_named_without_its_key() -> None:
    string = f"Endpoint=sb://127.0.0.1:1;{KEYED};UseDevelopmentEmulator=true"
    settings = read_settings({"LUCIUS_SERVICEBUS_CONNECTION": string})
    with pytest.raises(NoBus, match=r"Cannot use Service Bus at 127\.0\.0\.1:1: Service Bus") as caught:
        await open_bus(SERVICE_BUS, settings)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("sessions", ["false", "true"])
async def test_a_job_runs_over_an_emulator_of_its_own(tmp_path: Path, sessions: str) -> None:
    store = await SqliteStore.open(tmp_path / "lucius.db")
    async with own_service_bus(read_settings({"LUCIUS_SERVICEBUS_SESSIONS": sessions})) as settings:
        bus = await open_bus(SERVICE_BUS_EMULATOR, settings)
        assert isinstance(bus, ServiceBusBus)
        lucius = embedded(store, tmp_path, bus=bus)
        await lucius.start({"ocr": read_nothing})
        try:
            assert await lucius.deployment.checks["bus"]() is None
            record = await lucius.waiting.job(await submitted(lucius), 60_000)
            assert isinstance(record, JobRecord) and record.job.state == "SUCCEEDED"
        finally:
            await lucius.stop()


async def read_nothing(task: Task) -> dict[str, Any]:
    return {"uri": f"s3://results/{task.directive.step_id}"}

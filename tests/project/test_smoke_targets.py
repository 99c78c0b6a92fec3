"""What `make smoke-azure` runs on: it says what it lacks, and its deployments work on emulators."""

import asyncio
import os
import ssl
import sys
from pathlib import Path

import aiohttp
import pytest
from azure.core.pipeline.transport import AioHttpTransport
from azure.data.tables.aio import TableServiceClient
from tests.conformance.azurite_setup import azurite
from tests.conformance.bus_setups import DELIVERIES_MAX, GROUPS, wall_clock_ms
from tests.smoke.real_bus import opened_on, real_bus
from tests.support.service_bus_setup import served

from lucius.bus.port import DirectiveOut, ReplyOut
from lucius.bus.service_bus.connection import NamespaceAccess
from lucius.provision.service_bus import ServiceBusTarget
from lucius_lab.emulators.service_bus.server import serve
from lucius_lab.emulators.service_bus.topology import SubscriptionRules, TopicRules, lucius_topology

ROOT = Path(__file__).parents[2]
TABLES = "LUCIUS_SMOKE_TABLE_CONNECTION"
BUS = "LUCIUS_SMOKE_SERVICEBUS_CONNECTION"
pytestmark = pytest.mark.xdist_group("azurite")


async def smoke(*arguments: str, **env: str) -> tuple[int, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("LUCIUS_", "PYTEST_"))
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
        env={**inherited, **env},
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def test_without_credentials_nothing_is_tried_and_that_is_said() -> None:
    code, out = await smoke("tests/smoke")
    assert code == 3
    assert "Nothing was tried. Not set:" in out
    assert TABLES in out
    assert BUS in out
    assert "passed" not in out
    code, out = await smoke("tests/smoke", **{TABLES: "UseDevelopmentStorage=true"})
    assert code == 3
    assert TABLES not in out


async def test_the_suite_of_stores_runs_on_an_account_and_leaves_nothing_behind() -> None:
    place = azurite().connection_string
    code, out = await smoke("tests/smoke/test_smoke_tables.py", "-k", "ping", **{TABLES: place})
    assert (code, "1 passed" in out) == (0, True)
    async with TableServiceClient.from_connection_string(place) as service:
        left = [table.name async for table in service.list_tables() if table.name.startswith("s1")]
    assert left == []


async def test_topics_of_the_bus_are_made_as_they_come(tmp_path: Path) -> None:
    topology = lucius_topology(
        reply_groups=GROUPS,
        subscription=SubscriptionRules(lock_ms=5_000, deliveries_max=DELIVERIES_MAX),
        topic_rules=TopicRules(),
    )
    async with (
        served(tmp_path) as (admin, certificates),
        serve(now_ms=wall_clock_ms, topology=topology) as bus,
    ):
        trusted = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=certificates))
        transport = AioHttpTransport(session=aiohttp.ClientSession(connector=trusted, auto_decompress=False))
        place = ServiceBusTarget.open(
            NamespaceAccess(connection_string=admin.connection_string), transport=transport
        )
        async with opened_on(NamespaceAccess(connection_string=bus.connection_string), place) as deployment:
            out = DirectiveOut(service="Ö", lane=3, message_key="k", message_id="m", body=b"{}")
            await deployment.bus.publish_directive(out)
            receiver = await deployment.bus.directives("Ö", 3)
            (got,) = await receiver.receive(messages_max=1, wait_ms=5_000)
            assert got.message_id == "m"
            await deployment.bus.publish_reply(ReplyOut(lane=4, message_key="k", message_id="r", body=b"{}"))
            for group in GROUPS:
                await deployment.bus.replies(4, group=group)
        await place.close()
    made = [path for path in admin.things if "/rules/" not in path]
    assert len(made) == 3 + 2 + 2 + 1 == len([method for method, path in admin.asked if method == "PUT"]) - 1
    assert admin.setting("global-bus-replies-p4/subscriptions/auditors", "LockDuration") == "PT5S"


async def test_a_namespace_that_may_be_somebodys_own_is_left_alone() -> None:
    key = "SharedAccessKeyName=k;SharedAccessKey=x"
    with pytest.raises(AssertionError, match="smoke"):
        async with real_bus(f"Endpoint=sb://production.example/;{key}"):
            pytest.fail("it was opened")

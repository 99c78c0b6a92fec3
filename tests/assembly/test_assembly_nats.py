"""The deployment over a real NATS server: opening the bus, nudges between processes, sizes, an own server."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.assembly.test_assembly import COMMAND, embedded, submitted

from lucius.api import job_waits as waiting
from lucius.assembly import MEMORY, NATS, Embedded, NoBus, Part, open_bus, own_nats
from lucius.assembly.clock_and_ids import now_ms
from lucius.bus.memory import MemoryBus, MemoryLimits
from lucius.bus.nats.server import CONFIG_NAME, PID_NAME, NatsServer, free_port
from lucius.bus.port import BusError
from lucius.contracts.envelope import parse_envelope
from lucius.core.inputs import Cancel
from lucius.core.model import JobRecord
from lucius.core.refusal import Code, Refused
from lucius.ledger.memory import MemoryStore
from lucius.ledger.sqlite.store import SqliteStore
from lucius.settings import BadSetting, Settings, read_settings

pytestmark = pytest.mark.xdist_group("nats")

KIB = 1_024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"), port=free_port())
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def settings(server: NatsServer) -> AsyncIterator[Settings]:
    await server.ready()
    yield read_settings({"LUCIUS_NATS_URL": server.url})


# -- settings ----------------------------------------------------------------------------------------------


def test_servers_are_read_in_order_and_shown_without_their_passwords() -> None:
    read = read_settings({"LUCIUS_NATS_URL": "nats://u:hush@one:4222, two:4333,tls://[::1]:4222"}).nats
    assert read.servers == ("nats://u:hush@one:4222", "nats://two:4333", "tls://[::1]:4222")
    assert read.places == "one:4222, two:4333, [::1]:4222"
    assert "hush" not in repr(read)


@pytest.mark.parametrize(
    "env",
    [
        {"LUCIUS_NATS_URL": "http://hush:4222"},
        {"LUCIUS_NATS_URL": "nats://host:hush"},
        {"LUCIUS_NATS_URL": "nats://"},
        {"LUCIUS_NATS_USER": "hush"},
        {"LUCIUS_NATS_PASSWORD": "hush"},
        {"LUCIUS_NATS_REPLICAS": "0"},
    ],
)
def test_what_cannot_lead_to_a_server_is_refused_by_name(env: dict[str, str]) -> None:
    with pytest.raises(BadSetting) as refused:
        read_settings(env)
    assert next(iter(env)) in str(refused.value)
    assert "hush" not in str(refused.value)


# -- opening -----------------------------------------------------------------------------------------------


async def test_memory_is_no_bus_at_all() -> None:
    assert await open_bus(MEMORY, read_settings({})) is None


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "LUCIUS_NATS_URL"),
        ({"LUCIUS_NATS_URL": "nats://u:hush@127.0.0.1:1"}, "Cannot use NATS at 127.0.0.1:1"),
        (
            {"LUCIUS_NATS_URL": "nats://h:1", "LUCIUS_NATS_CREDENTIALS": "/no/file"},
            "names no file that can be read",
        ),
    ],
)
async def test_a_bus_that_cannot_be_had_is_told_in_plain_words(env: dict[str, str], words: str) -> None:
    with pytest.raises(NoBus) as refused:
        await open_bus(NATS, read_settings(env))
    assert words in str(refused.value)
    assert "hush" not in str(refused.value)


async def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "nats"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("lucius.bus.nats.bus", "lucius.bus.nats.connection", "lucius.bus.nats.receiver"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(NoBus, match=r"install lucius\[nats\]"):
        await open_bus(NATS, read_settings({"LUCIUS_NATS_URL": "nats://127.0.0.1:1"}))


async def test_a_user_and_a_password_are_shown_to_the_server(tmp_path: Path) -> None:
    port = free_port()
    guarded = NatsServer(tmp_path, port=port)
    plain = guarded._config
    login = "authorization { user: lucius, password: 'p@ss/word' }\n"
    guarded._config = lambda: plain() + login  # type: ignore[method-assign]
    guarded.start()
    try:
        await guarded.ready()
        url = {"LUCIUS_NATS_URL": guarded.url}
        with pytest.raises(NoBus, match="Cannot use NATS"):
            await open_bus(NATS, read_settings(url))
        known = {"LUCIUS_NATS_USER": "lucius", "LUCIUS_NATS_PASSWORD": "p@ss/word"}
        bus = await open_bus(NATS, read_settings(url | known))
        assert bus is not None
        await bus.ping()
        await bus.close()
    finally:
        guarded.kill()


# -- nudges ------------------------------------------------------------------------------------------------


async def test_a_commit_in_one_process_sets_the_publisher_of_another_going(
    tmp_path: Path, settings: Settings
) -> None:
    """The regular look is far away: only a nudge can bring the directive out."""
    rare = {"look_every_ms": 600_000, "nats": msgspec.structs.replace(settings.nats, prefix="nudged")}
    api = await _part(tmp_path, msgspec.structs.replace(settings, **rare), Part.API)
    reconciler = await _part(tmp_path, msgspec.structs.replace(settings, **rare), Part.RECONCILER)
    try:
        await api.start({})
        await submitted(api)  # so that the service is known
        await reconciler.start({})
        async with asyncio.timeout(20):
            assert len(await _leased(api)) == 1
        began = time.monotonic()
        job_id = await submitted(api)
        async with asyncio.timeout(20):
            (directive,) = await _leased(api)
        assert directive["jobId"] == job_id
        assert time.monotonic() - began < 20
    finally:
        await api.stop()
        await reconciler.stop()


async def test_an_end_in_one_process_is_heard_by_who_waits_in_another(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LOOK_FIRST_SECONDS", 600.0)
    monkeypatch.setattr(waiting, "LOOK_EVERY_SECONDS", 600.0)
    named = {"nats": msgspec.structs.replace(settings.nats, prefix="ended")}
    api = await _part(tmp_path, msgspec.structs.replace(settings, **named), Part.API)
    reconciler = await _part(tmp_path, msgspec.structs.replace(settings, **named), Part.RECONCILER)
    try:
        await api.start({})
        await reconciler.start({})
        job_id = await submitted(api)
        waiter = asyncio.create_task(api.deployment.waiting.job(job_id, 60_000))
        await asyncio.sleep(0.05)
        await reconciler.deployment.inputs.apply(job_id, Cancel())
        async with asyncio.timeout(20):
            record = await waiter
        assert isinstance(record, JobRecord)
        assert record.job.terminal
    finally:
        await api.stop()
        await reconciler.stop()


async def _part(data: Path, settings: Settings, part: Part) -> Embedded:
    store = await SqliteStore.open(data / "lucius.db")
    bus = await open_bus(NATS, settings)
    return embedded(store, data, shared=True, part=part, bus=bus, settings=settings)


async def _leased(api: Embedded) -> list[dict[str, Any]]:
    found: Any = []
    while not found:
        found = await api.deployment.dispatcher.lease("ocr", directives_max=5, wait_ms=1_000)
    assert isinstance(found, list), found
    return found


# -- sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("payload_bytes", "fits"), [(40 * KIB, True), (49 * KIB, False)])
async def test_a_command_whose_directive_the_bus_cannot_carry_is_refused(
    tmp_path: Path, payload_bytes: int, fits: bool
) -> None:
    bus = MemoryBus(now_ms=now_ms, limits=MemoryLimits(largest_message_bytes=64 * KIB))
    lucius = embedded(MemoryStore(), tmp_path, bus=bus)
    prompts = ["x" * 1_000] * (payload_bytes // 1_000)
    document = {**COMMAND, "request_type": "SIS", "payload": {"prompt_set": prompts}}
    parsed = parse_envelope(document)
    assert not isinstance(parsed, Refused)
    answer = await lucius.deployment.submitter.submit(parsed)
    plan = await lucius.deployment.planning.plan(document)
    assert isinstance(answer, Refused) is not fits
    assert plan.accepted is fits
    if isinstance(answer, Refused):
        assert answer.code is Code.BODY_TOO_LARGE
        assert [problem.code for problem in plan.problems] == [Code.BODY_TOO_LARGE]
    await lucius.stop()


async def test_room_is_kept_for_all_that_the_steps_before_may_have_made(tmp_path: Path) -> None:
    bus = MemoryBus(now_ms=now_ms, limits=MemoryLimits(largest_message_bytes=64 * KIB))
    lucius = embedded(MemoryStore(), tmp_path, bus=bus)
    parsed = parse_envelope(COMMAND)
    assert not isinstance(parsed, Refused)
    payload = {"text": "x" * 40 * KIB}
    assert lucius.deployment.submitter.size_refusal(parsed, [payload] * 4) is None
    for steps in (6, 32):
        refused = lucius.deployment.submitter.size_refusal(parsed, [{}] * (steps - 1) + [payload])
        assert refused is not None and refused.code is Code.BODY_TOO_LARGE
    await lucius.stop()


# -- a server of one's own ---------------------------------------------------------------------------------


async def test_an_own_server_keeps_its_port_and_is_gone_afterwards(tmp_path: Path) -> None:
    places = []
    for _ in range(2):
        async with own_nats(read_settings({}), tmp_path) as settings:
            places.append(settings.nats.places)
            bus = await open_bus(NATS, settings)
            assert bus is not None
            await bus.close()
            pid = _pid(tmp_path)
        assert not _alive(pid)
    assert places[0] == places[1]


async def test_an_own_server_that_ends_is_started_again(tmp_path: Path) -> None:
    async with own_nats(read_settings({}), tmp_path) as settings:
        bus = await open_bus(NATS, settings)
        assert bus is not None
        first = _pid(tmp_path)
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(20):
            while _pid(tmp_path) == first or not await _answers(bus):
                await asyncio.sleep(0.05)
        await bus.close()


async def test_a_server_that_was_left_over_is_stopped_first(tmp_path: Path) -> None:
    left_over = NatsServer(tmp_path / "nats", port=free_port())
    left_over.start()
    await left_over.ready()
    before = _pid(tmp_path)
    async with own_nats(read_settings({}), tmp_path) as settings:
        assert settings.nats.places == left_over.url.removeprefix("nats://")
        assert not left_over.running
        assert _pid(tmp_path) != before
    left_over.kill()


async def test_the_number_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / PID_NAME).write_text(str(os.getpid()))
    async with own_nats(read_settings({}), tmp_path):
        assert _pid(tmp_path) != os.getpid()


async def test_without_a_server_program_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lucius.bus.nats.server.sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoBus, match="nats-server was not found"):
        async with own_nats(read_settings({}), tmp_path):
            raise AssertionError
    assert not (tmp_path / "nats" / CONFIG_NAME).exists()


async def _answers(bus: Any) -> bool:
    try:
        await bus.ping()
    except BusError:
        return False
    return True


def _pid(data: Path) -> int:
    return int((data / "nats" / PID_NAME).read_text() or 0)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

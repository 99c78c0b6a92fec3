"""A reconciler beside API processes: while none of them is there, deadlines wait, and not for ever."""

import asyncio

import pytest
from tests.support.publisher_setup import Deployment, MovingWorld, Worker
from tests.support.virtual_time import virtual

from lucius.core.model import JobRecord
from lucius.engines.api_heartbeats import (
    EVERY_SECONDS,
    KEPT_MS,
    OPEN_MS,
    PARTITION,
    ApiHeartbeat,
    ApiHeartbeats,
)
from lucius.jobs.reply_backlog import OPENING_MS, SHUT_MS_MAX, StartupGrace
from lucius.ledger.store import StoreUnavailable

OVERDUE_SECONDS = 60


class Beside:
    """A reconciler's patience, and the API processes that it sees."""

    def __init__(self) -> None:
        self.deployment = Deployment(MovingWorld(), hints=False)
        now_ms = self.deployment.world.now_ms
        self.patience = StartupGrace(now_ms=now_ms)
        self.doors = ApiHeartbeats(self.deployment.ledger, self.patience, now_ms=now_ms)
        self._running: dict[str, asyncio.Task[None]] = {"doors": asyncio.create_task(self.doors.run())}

    async def overdue(self) -> JobRecord:
        """A job whose ACK should have come."""
        job_id = await self.deployment.submit()
        await self.deployment.look()
        await Worker(self.deployment.world).take_one()
        await asyncio.sleep(OVERDUE_SECONDS)
        return await self.deployment.record(job_id)

    def waits(self, record: JobRecord) -> bool:
        return self.patience.puts_off(record, self.deployment.world.now_ms())

    async def open(self, name: str) -> None:
        self._running[name] = asyncio.create_task(ApiHeartbeat(self.deployment.ledger, name).run())
        await asyncio.sleep(2 * EVERY_SECONDS)

    async def shut(self, name: str) -> None:
        self._running.pop(name).cancel()
        await asyncio.sleep(OPEN_MS / 1000 + 2 * EVERY_SECONDS)

    async def rows(self) -> list[str]:
        ledger = self.deployment.ledger
        return [row.key for row in await ledger.store.query(ledger.tables.meta, PARTITION, limit=10)]

    def end(self) -> None:
        for running in self._running.values():
            running.cancel()


@virtual
async def test_while_no_api_process_is_there_a_deadline_waits() -> None:
    beside = Beside()
    await beside.open("api-1")
    record = await beside.overdue()
    assert not beside.waits(record), "one is there"
    await beside.shut("api-1")
    assert beside.waits(record)
    await asyncio.sleep(60)
    await beside.open("api-2")
    assert beside.waits(record), "answers that found no door come again"
    await asyncio.sleep(OPENING_MS / 1000)
    assert not beside.waits(record)
    beside.end()


@virtual
async def test_one_of_several_is_enough() -> None:
    beside = Beside()
    await beside.open("api-1")
    await beside.open("api-2")
    record = await beside.overdue()
    await beside.shut("api-1")
    assert not beside.waits(record)
    beside.end()


@virtual
async def test_api_processes_that_stay_away_do_not_stop_the_clock() -> None:
    beside = Beside()
    await beside.open("api-1")
    record = await beside.overdue()
    await beside.shut("api-1")
    await asyncio.sleep(SHUT_MS_MAX / 1000)
    assert not beside.waits(record)
    await asyncio.sleep(KEPT_MS / 1000)
    assert await beside.rows() == []
    beside.end()


@virtual
async def test_where_there_never_was_one_nothing_waits() -> None:
    beside = Beside()
    assert not beside.waits(await beside.overdue())
    beside.end()


@virtual
async def test_a_ledger_that_is_away_shuts_no_door(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Beside()
    await beside.open("api-1")
    record = await beside.overdue()
    store = beside.deployment.ledger.store

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "query", away)
        patch.setattr(store, "commit", away)
        await asyncio.sleep(30)
        assert not beside.waits(record)
    beside.end()

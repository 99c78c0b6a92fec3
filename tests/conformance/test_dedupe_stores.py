"""Every result store of a service behaves alike; those on disk outlive the process, and are bounded."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.stores import opened
from tests.sdk.test_sdk_runner import MemoryTransport, NoWorkspace, directive

from lucius.assembly.services import TableResultStore
from lucius.sdk import (
    Dedupe,
    Directive,
    DirectiveSeen,
    DurableDedupe,
    MemoryDedupe,
    ResultStore,
    Runner,
    Service,
    SqliteResultStore,
    Task,
    parse_directive,
)
from lucius.sdk.dedupe import UNDELIVERED_AFTER_SECONDS
from lucius.sdk.result_stores.objects import DAY_MS, ObjectResultStore
from lucius.sdk.runner import UNDELIVERED_PAUSE_SECONDS
from lucius.workspace import ObjectWorkspace

STORES = ("sqlite", "table-sqlite", "table-memory-no-spans", "table-azurite", "objects")
NOW_MS = 1_769_508_120_000
REPLIES = "global-bus-replies-p3"
TOKEN = "a-token-to-keep-secret"


class Place:
    """A store that can be opened again, as a new process would, and a clock."""

    def __init__(self, kind: str, folder: Path, stack: AsyncExitStack) -> None:
        self.kind = kind
        self.now_ms = NOW_MS
        self._folder = folder
        self._stack = stack
        self._store: Any = None

    async def result_store(self) -> ResultStore:
        if self.kind == "sqlite":
            result_store: ResultStore = await SqliteResultStore.open(self._folder / "results.db")
            self._stack.push_async_callback(result_store.close)
            return result_store
        if self.kind == "objects":
            root = (self._folder / "results").as_uri()
            return ObjectResultStore(ObjectWorkspace([self._folder]), root, now_ms=lambda: self.now_ms)
        if self._store is None:
            store = opened(self.kind.partition("-")[2], self._folder)
            self._store = await self._stack.enter_async_context(store)
        return TableResultStore(self._store, "lucius_meta", "ocr")

    async def dedupe(self) -> Dedupe:
        if self.kind == "memory":
            return MemoryDedupe()
        return DurableDedupe(
            await self.result_store(), now_ms=lambda: self.now_ms, undelivered_after_seconds=0
        )


@pytest.fixture
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        yield Place(request.param, tmp_path, stack)


every_memory = pytest.mark.parametrize("place", ("memory", *STORES), indirect=True)
every_store = pytest.mark.parametrize("place", STORES, indirect=True)


def a_directive(number: int = 1, **more: Any) -> Directive:
    found = parse_directive(
        directive(number, callback_token=TOKEN, reply_topic="global-bus-replies-p3", **more)
    )
    assert found is not None
    return found


def ended(number: int = 1) -> dict[str, Any]:
    return {"type": "RESULT", "status": "SUCCEEDED", "jobId": f"job_{number}"}


async def owed_jobs(dedupe: Dedupe, undelivered_max: int = 10) -> list[str]:
    return [undelivered.directive.job_id for undelivered in await dedupe.undelivered(undelivered_max)]


@every_memory
async def test_what_runs_what_ended_and_what_is_owed(place: Place) -> None:
    dedupe, one = await place.dedupe(), a_directive()
    assert await dedupe.begin(one.key) is DirectiveSeen.NEW
    assert await dedupe.begin(one.key) is DirectiveSeen.RUNNING
    await dedupe.forget(one.key)
    assert await dedupe.begin(one.key) is DirectiveSeen.NEW
    assert await dedupe.finish(one, ended()) == ended()
    assert await dedupe.begin(one.key) == ended()
    (undelivered,) = await dedupe.undelivered(10)
    assert (undelivered.directive.key, undelivered.result) == (one.key, ended())
    assert (undelivered.directive.callback_token, undelivered.directive.reply_topic) == (TOKEN, REPLIES)
    assert undelivered.directive.payload is None
    await dedupe.delivered(one.key)
    two = a_directive(attempt_no=2)
    assert await dedupe.begin(two.key) is DirectiveSeen.NEW
    await dedupe.finish(two, ended())
    await dedupe.delivered(two.key)
    await dedupe.delivered(two.key)
    assert await dedupe.begin(one.key) == ended()


@every_store
async def test_a_new_process_knows_what_ended_and_not_what_ran(place: Place) -> None:
    before = await place.dedupe()
    for number in (1, 2, 3):
        assert await before.begin(a_directive(number).key) is DirectiveSeen.NEW
    for number in (1, 2):
        await before.finish(a_directive(number), ended(number))
    await before.delivered(a_directive(1).key)
    after = await place.dedupe()
    async with asyncio.timeout(5):
        while await owed_jobs(after) != ["job_2"]:
            await asyncio.sleep(0.002)
    assert await after.begin(a_directive(1).key) == ended(1)
    assert await after.begin(a_directive(2).key) == ended(2)
    assert await after.begin(a_directive(3).key) is DirectiveSeen.NEW


def test_what_a_runner_owes_has_lain_long_enough_when_it_looks_again() -> None:
    assert UNDELIVERED_AFTER_SECONDS < UNDELIVERED_PAUSE_SECONDS


async def test_what_another_process_is_about_to_send_is_not_owed_yet(tmp_path: Path) -> None:
    result_store, clock = await SqliteResultStore.open(tmp_path / "results.db"), [NOW_MS]
    one, other = (DurableDedupe(result_store, now_ms=lambda: clock[0]) for _ in range(2))
    await one.finish(a_directive(), ended())
    assert await owed_jobs(other) == []
    clock[0] += round(UNDELIVERED_AFTER_SECONDS * 1000)
    assert await owed_jobs(other) == ["job_1"]
    await result_store.close()


@every_store
async def test_of_two_results_the_first_is_the_one(place: Place) -> None:
    one, other = await place.dedupe(), await place.dedupe()
    assert await one.begin(a_directive().key) is DirectiveSeen.NEW
    assert await other.begin(a_directive().key) is DirectiveSeen.NEW
    assert await one.finish(a_directive(), ended()) == ended()
    assert await other.finish(a_directive(), {"status": "FAILED_RETRY"}) == ended()
    assert [undelivered.result for undelivered in await other.undelivered(10)] == [ended()], (
        "nobody has delivered it"
    )
    assert await other.begin(a_directive().key) == ended()


@every_store
async def test_what_is_old_is_removed_and_owed_no_more(place: Place) -> None:
    result_store = await place.result_store()
    for number in range(5):
        key = a_directive(number).key
        await result_store.keep(key, b'{"n":1}', msgspec.json.encode(a_directive(number)), at_ms=NOW_MS)
    assert len(await result_store.undelivered(3)) == 3
    await result_store.sweep(before_ms=NOW_MS, entries_max=10)
    assert len(await result_store.undelivered(10)) == 5
    place.now_ms += 2 * DAY_MS
    await result_store.sweep(before_ms=place.now_ms - DAY_MS, entries_max=3)
    assert len(await result_store.undelivered(10)) == 2
    await result_store.sweep(before_ms=place.now_ms - DAY_MS, entries_max=3)
    assert await result_store.undelivered(10) == []
    assert await result_store.find(a_directive(0).key) is None


@every_store
async def test_finishing_sweeps(place: Place) -> None:
    result_store, dedupe = await place.result_store(), await place.dedupe()
    await result_store.keep(
        a_directive(0).key, b"{}", msgspec.json.encode(a_directive(0)), at_ms=NOW_MS - 4 * DAY_MS
    )
    await dedupe.finish(a_directive(1), ended(1))
    assert await owed_jobs(dedupe) == ["job_1"]


async def test_many_results_at_once_are_kept_each(tmp_path: Path) -> None:
    result_store = await SqliteResultStore.open(tmp_path / "results.db")
    dedupe = DurableDedupe(result_store, now_ms=lambda: NOW_MS, undelivered_after_seconds=0)
    await asyncio.gather(*(dedupe.finish(a_directive(number), ended(number)) for number in range(300)))
    await asyncio.gather(*(dedupe.delivered(a_directive(number).key) for number in range(299)))
    await result_store.close()
    again = await SqliteResultStore.open(tmp_path / "results.db")
    after = DurableDedupe(again, now_ms=lambda: NOW_MS, undelivered_after_seconds=0)
    assert await owed_jobs(after, 1_000) == ["job_299"]
    assert [await after.begin(a_directive(number).key) for number in range(300)] == [
        ended(number) for number in range(300)
    ]
    assert b"a-token" not in msgspec.json.encode([await again.find(a_directive(1).key)])
    assert (tmp_path / "results.db").stat().st_mode & 0o077 == 0
    await again.close()


# A process that dies

CHILD = """
import asyncio, sys
from pathlib import Path
from lucius.sdk import DurableDedupe, ReplyAnswer, Runner, Service, SqliteResultStore
from tests.sdk.test_sdk_runner import MemoryTransport, NoWorkspace, directive, made

class Unreached(MemoryTransport):
    async def reply(self, to, message):
        if message["type"] == "RESULT":
            print("kept", flush=True)
            await asyncio.Event().wait()
        return ReplyAnswer("applied")

async def main():
    results = await SqliteResultStore.open(Path(sys.argv[1]))
    dedupe = DurableDedupe(results, now_ms=lambda: 1_769_508_120_000)
    await Runner(
        Service("ocr", made), Unreached(directive()), NoWorkspace(), now_ms=lambda: 1, dedupe=dedupe
    ).run()

asyncio.run(main())
"""


async def test_a_result_survives_the_death_of_its_process(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert await asyncio.wait_for(child.stdout.readline(), 30) == b"kept\n"
    child.send_signal(signal.SIGKILL)
    await child.wait()

    async def never(task: Task) -> None:
        raise AssertionError("must not run again")

    result_store = await SqliteResultStore.open(path)
    transport = MemoryTransport()
    runner = Runner(
        Service("ocr", never),
        transport,
        NoWorkspace(),
        now_ms=lambda: NOW_MS,
        dedupe=DurableDedupe(result_store, now_ms=lambda: NOW_MS, undelivered_after_seconds=0),
        wait_seconds=0.5,
    )
    run = asyncio.create_task(runner.run())
    (sent,) = await transport.results(1)
    assert (sent["jobId"], sent["status"], sent["output_ref"]) == (
        "job_1",
        "SUCCEEDED",
        {"uri": "mem://made"},
    )
    transport.give(directive())
    first, second = await transport.results(2)
    assert first == second
    runner.stop()
    await run
    await result_store.close()
    reopened = await SqliteResultStore.open(path)
    assert await reopened.undelivered(10) == []
    await reopened.close()

"""Ticks of schedules become jobs, each once: whatever crashes, whatever the clock does."""

import os
import random
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count

import msgspec
import pytest

from lucius.assembly.kernel import Kernel, KernelOptions
from lucius.contracts.schedules import ScheduleSpec, next_tick_ms, parse_schedule
from lucius.core.inputs import Cancel
from lucius.core.model import Json
from lucius.core.refusal import Refused
from lucius.core.states import JobState
from lucius.engines.outbox.retention import Retention
from lucius.jobs.admission import InFlightLimits
from lucius.jobs.new_job import NewIds
from lucius.jobs.scheduler import Scheduler, at_next, tick_after
from lucius.ledger.job_deletion import JobDeletion
from lucius.ledger.memory import MemoryStore
from lucius.ledger.schedules import Schedule, Schedules
from lucius.ledger.store import Op, StoreUnavailable
from lucius.registry.builtin import BuiltinRegistry

# `make schedule-month`: so many schedules for so many days.
SCHEDULES = int(os.environ.get("LUCIUS_TEST_SCHEDULES", "0"))
DAYS = float(os.environ.get("LUCIUS_TEST_SCHEDULE_DAYS", "2"))
KEPT_MS = 6 * 3_600_000
START = datetime(2026, 3, 27, 12, tzinfo=UTC)  # two days before the clocks of Europe are put forward
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
_is_new = re.compile(rb'"version":1[,}]').search
_key_in = re.compile(rb'"idempotency_key":"(schedule:[^"]+)"').search
COMMAND: dict[str, Json] = {
    "tenant_id": "acme",
    "request_type": "OCR",
    "input_ref": {"uri": "s3://in/1"},
    "output_ref": {"uri": "s3://out/1"},
    "payload": {},
    "schema_version": "1",
}


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


class Ticks:
    """Which ticks brought a job, as its commit says; jobs themselves may be forgotten."""

    def __init__(self) -> None:
        self._minutes: dict[str, bytearray] = {}
        self.twice: list[str] = []
        self.jobs = 0

    def committed(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if op.key != "JOB" or not _is_new(op.body):
                continue
            found = _key_in(op.body)
            if found is None:
                continue
            name, _, at = found[1].decode().removeprefix("schedule:").partition(":")
            minute = round(datetime.fromisoformat(at).timestamp() - START.timestamp()) // 60
            minutes = self._minutes.setdefault(name, bytearray(round(DAYS * 1_440) + 1_440))
            if minutes[minute]:
                self.twice.append(found[1].decode())
            minutes[minute] = 1
            self.jobs += 1

    def of(self, name: str) -> set[int]:
        """The minutes since the beginning that had one."""
        return {minute for minute, there in enumerate(self._minutes.get(name, b"")) if there}


class World:
    """A ledger in memory, and processes that look after schedules, any of whose commits may be their last."""

    def __init__(self, *, spans: bool = True, limits: InFlightLimits | None = None) -> None:
        self.clock_ms = ms(START)
        self.crash_at = 0  # the number of commits after which nothing works until the next process
        self.lose_answer = False
        self._numbers = count(1)
        self.jobs: list[tuple[int, str]] = []
        self.ticks = Ticks()
        self.store = MemoryStore(
            spans=spans, before_commit=self._before, after_commit=lambda ops: self.ticks.committed(ops)
        )
        self._limits = limits or InFlightLimits(tenant_max=10**6, total_max=10**6)
        self.restart()

    def restart(self) -> None:
        self.crash_at = 0
        options = KernelOptions(
            registry=BuiltinRegistry(), sla_ms=10**9, workspace_root="s3://space", limits=self._limits
        )
        self.kernel = Kernel(self.store, options, now_ms=lambda: self.clock_ms, ids=self)
        ledger = self.kernel.ledger
        self.schedules = Schedules(self.store, ledger.tables.meta, ledger.quarantine)
        self.scheduler = self.new_scheduler()

    def new_scheduler(self) -> Scheduler:
        return Scheduler(
            self.schedules,
            self.kernel.submitter,
            self.kernel.writer,
            self.kernel.ledger,
            now_ms=lambda: self.clock_ms,
            look_every_ms=SECOND,
        )

    def _before(self, ops: Sequence[Op]) -> None:
        if self.crash_at:
            self.crash_at -= 1
            if self.crash_at == 0:
                self.crash_at = 1
                raise StoreUnavailable("the process is gone")

    def new_ids(self) -> NewIds:
        number = next(self._numbers)
        return NewIds(job_id=f"job_{number:026d}", correlation_id="c", traceparent="00-1-1-01")

    def new_lease_id(self) -> str:
        return f"lease-{next(self._numbers)}"

    async def write(self, **document: Json) -> Schedule:
        spec = parse_schedule({"schedule_id": "one", "command": COMMAND, **document})
        assert isinstance(spec, ScheduleSpec), spec
        now_ms = self.clock_ms
        made = at_next(Schedule(spec=spec, created_at_ms=now_ms, updated_at_ms=now_ms), now_ms, now_ms)
        assert await self.schedules.create(made)
        return made

    async def pass_time(self, span_ms: int, step_ms: int = SECOND) -> None:
        until_ms = self.clock_ms + span_ms
        while self.clock_ms < until_ms:
            self.clock_ms += step_ms
            await self.scheduler.look()

    async def schedule(self, schedule_id: str = "one") -> Schedule:
        stored = await self.schedules.get(schedule_id)
        assert stored is not None
        return stored.schedule

    async def job_state(self, job_id: str | None) -> JobState:
        assert job_id is not None
        loaded = await self.kernel.ledger.load(job_id, fresh=True)
        assert loaded is not None
        return loaded.record.job.state

    async def end(self, job_id: str | None) -> None:
        assert job_id is not None
        assert not isinstance(await self.kernel.writer.apply(job_id, Cancel()), Refused)

    async def forget(self) -> None:
        """Removes jobs that ended long ago, as retention does: a month of them would fill the memory."""
        retention = Retention(JobDeletion(self.kernel.ledger), now_ms=lambda: self.clock_ms, keep_ms=KEPT_MS)
        while await retention.look():
            pass

    async def ticks_with_a_job(self) -> list[str]:
        """The idempotency keys of all jobs that there are."""
        rows = await self.store.scan(self.kernel.ledger.tables.ledger, limit=10**6)
        commands = [row.body for row in rows if b'"request_type"' in row.body]
        return [found[1].decode() for body in commands if (found := _key_in(body))]


@pytest.mark.parametrize("spans", [True, False])
async def test_an_interval_brings_a_job_each_time(spans: bool) -> None:
    world = World(spans=spans)
    await world.write(every="60s")
    await world.pass_time(5 * MINUTE + SECOND)
    shown = await world.schedule()
    assert (shown.runs, shown.skipped) == (1, 4)  # the first job is never worked off
    await world.end(shown.last_job_id)
    await world.pass_time(MINUTE)
    assert (await world.schedule()).runs == 2


async def test_once_is_once() -> None:
    world = World()
    await world.write(at=(START + timedelta(minutes=2)).isoformat())
    await world.pass_time(10 * MINUTE)
    shown = await world.schedule()
    assert (shown.runs, shown.next_ms, shown.look_ms) == (1, None, None)
    assert await world.schedules.due(world.clock_ms + 10 * HOUR, 10) == []


async def test_a_queue_waits_for_the_job_before() -> None:
    world = World()
    await world.write(every="60s", overlap="queue")
    await world.pass_time(3 * MINUTE + SECOND)
    shown = await world.schedule()
    assert (shown.runs, shown.next_ms) == (1, world.clock_ms - SECOND - MINUTE)
    await world.end(shown.last_job_id)
    await world.pass_time(3 * SECOND)
    assert (await world.schedule()).runs == 2


async def test_the_job_before_is_cancelled_where_that_is_asked_for() -> None:
    world = World()
    await world.write(every="60s", overlap="cancel_previous")
    await world.pass_time(MINUTE)
    first = (await world.schedule()).last_job_id
    await world.pass_time(MINUTE)
    assert (await world.schedule()).runs == 2
    assert await world.job_state(first) is JobState.CANCELLED


async def test_after_a_standstill_only_so_much_is_made_up_for() -> None:
    world = World()
    await world.write(every="60s", catch_up="5m", overlap="cancel_previous")
    world.clock_ms += HOUR
    await world.scheduler.look()
    shown = await world.schedule()
    assert (shown.runs, shown.missed) == (5, 1)
    assert shown.next_ms == world.clock_ms + MINUTE


async def test_paused_there_are_no_ticks() -> None:
    world = World()
    await world.write(every="60s")
    stored = await world.schedules.get("one")
    assert stored is not None
    assert await world.schedules.change(stored, msgspec.structs.replace(stored.schedule, paused=True))
    await world.pass_time(5 * MINUTE)
    shown = await world.schedule()
    assert (shown.runs, shown.look_ms) == (0, None)


async def test_a_command_that_finds_no_place_is_given_again() -> None:
    world = World(limits=InFlightLimits(tenant_max=1, total_max=10))
    other = await world.scheduler.submit((await world.write(every="60s", overlap="queue")).spec, "other")
    assert not isinstance(other, Refused)
    await world.pass_time(70 * SECOND)
    shown = await world.schedule()
    assert shown.runs == 0 and shown.problem
    await world.end(other.job_id)
    await world.pass_time(10 * SECOND)
    shown = await world.schedule()
    assert (shown.runs, shown.problem) == (1, None)


async def test_jitter_moves_a_tick_by_the_same_amount_for_all() -> None:
    world = World()
    await world.write(every="60s", jitter="30s")
    tick_ms = (await world.schedule()).next_ms
    look_ms = (await world.schedule()).look_ms
    assert tick_ms is not None and look_ms is not None
    assert tick_ms < look_ms <= tick_ms + 30 * SECOND
    await world.pass_time(look_ms - world.clock_ms)
    assert (await world.schedule()).last_tick_ms == tick_ms


async def test_a_backfill_runs_each_tick_of_its_range_once() -> None:
    world = World()
    schedule = await world.write(every="60s")
    world.clock_ms += 10 * MINUTE
    done = await world.scheduler.backfill(schedule, ms(START), ms(START) + 5 * MINUTE)
    assert (len(done.job_ids), done.duplicates, done.more_from_ms) == (5, 0, None)
    done = await world.scheduler.backfill(schedule, ms(START), ms(START) + 7 * MINUTE)
    assert (len(done.job_ids), done.duplicates) == (2, 5)


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        # On 29 March 2026 02:00 to 03:00 is left out in Zurich, on 25 October it comes twice.
        ("30 2 * * *", ["2026-03-28T01:30:00", "2026-03-29T01:00:00", "2026-03-30T00:30:00"]),
        ("0 4 * * *", ["2026-03-28T03:00:00", "2026-03-29T02:00:00", "2026-03-30T02:00:00"]),
    ],
)
def test_a_time_that_is_left_out_is_made_up_for(cron: str, expected: list[str]) -> None:
    spec = parse_schedule(
        {"schedule_id": "one", "command": COMMAND, "cron": cron, "timezone": "Europe/Zurich"}
    )
    assert isinstance(spec, ScheduleSpec)
    found, at_ms = [], ms(START)
    for _ in expected:
        next_ms = next_tick_ms(spec, at_ms, from_ms=0)
        assert next_ms is not None
        found.append(datetime.fromtimestamp(next_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
        at_ms = next_ms
    assert found == expected


def test_a_time_that_comes_twice_is_run_once() -> None:
    spec = parse_schedule(
        {"schedule_id": "one", "command": COMMAND, "cron": "30 2 * * *", "timezone": "Europe/Zurich"}
    )
    assert isinstance(spec, ScheduleSpec)
    at_ms = ms(datetime(2026, 10, 24, 12, tzinfo=UTC))
    ticks = []
    for _ in range(2):
        next_ms = next_tick_ms(spec, at_ms, from_ms=0)
        assert next_ms is not None
        ticks.append(datetime.fromtimestamp(next_ms / 1000, UTC).day)
        at_ms = next_ms
    assert ticks == [25, 26]


MANY = SCHEDULES or 4
CRONS = ("*/7 * * * *", "5 * * * *", "30 2 * * *", "* * * * *", "15 */2 * * MON-FRI")


@pytest.mark.timeout(200_000 if SCHEDULES else 120)
@pytest.mark.parametrize("seed", range(2 if SCHEDULES else 3))
async def test_every_tick_once_over_crashes_changes_of_clocks_and_clocks_that_jump(seed: int) -> None:
    """Each schedule cancels the job before, so no tick is left out. Jumps are shorter than `catch_up`."""
    chance, world = random.Random(seed), World(spans=seed % 2 == 0)
    specs: list[Schedule] = []
    for number in range(MANY):
        when: dict[str, Json] = {"every": "60s"}
        if number % 2:
            when = {"cron": chance.choice(CRONS), "timezone": "Europe/Zurich"}
        specs.append(
            await world.write(schedule_id=f"s-{number}", overlap="cancel_previous", catch_up="2h", **when)
        )
    until_ms, highest_ms = world.clock_ms + round(DAYS * 24 * HOUR), world.clock_ms
    forget_at_ms = world.clock_ms + KEPT_MS
    while world.clock_ms < until_ms:
        event = chance.random()
        if event < 0.03:
            world.crash_at = chance.randint(1, 12)
        elif event < 0.05:
            world.clock_ms += chance.choice((-1, 1)) * chance.randint(1, 60) * MINUTE
        world.clock_ms += chance.randint(20 * SECOND, 10 * MINUTE)
        highest_ms = max(highest_ms, world.clock_ms)
        try:
            await world.scheduler.look()
            if world.clock_ms >= forget_at_ms:
                forget_at_ms = world.clock_ms + HOUR
                await world.forget()
        except StoreUnavailable:
            world.restart()
    world.restart()
    world.clock_ms = highest_ms
    await world.scheduler.look()
    assert world.ticks.twice == []
    expected_jobs = 0
    for schedule in specs:
        expected, tick_ms = set[int](), schedule.next_ms
        while tick_ms is not None and tick_ms <= highest_ms:
            expected.add((tick_ms - ms(START)) // MINUTE)
            tick_ms = tick_after(schedule, tick_ms)
        assert world.ticks.of(schedule.spec.schedule_id) == expected
        expected_jobs += len(expected)
    assert world.ticks.jobs == expected_jobs > 0
    sys.stderr.write(f"{expected_jobs:,} ticks of {MANY:,} schedules in {DAYS:g} days, each once\n")


async def test_two_processes_bring_one_job_a_tick() -> None:
    world = World()
    other = world.new_scheduler()
    await world.write(every="60s", overlap="cancel_previous")
    for _ in range(10 * 60):
        world.clock_ms += SECOND
        await world.scheduler.look()
        await other.look()
    assert (await world.schedule()).runs == 10
    assert len(await world.ticks_with_a_job()) == 10

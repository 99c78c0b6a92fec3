"""Schedules of crashes in virtual time, and bugs planted to see that they would be found.

`make lifebook-schedules` runs 10,000 of them.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import structlog
from tests.lifebook import simulation
from tests.sizes import size

from lucius.lifebook import analytics, machine
from lucius.lifebook.credits import MemoryBalances
from lucius.lifebook.job import AnalyticsEvent, Guard, LifebookJob
from lucius.lifebook.memory import MemoryTable
from lucius.lifebook.refusals import RunRefused
from lucius.lifebook.sweeper import LifebookSweeper
from lucius.lifebook.writer import LifebookWriter

SCHEDULES = size(2_000, 10_000)
SEEDS_UNTIL_FOUND = 400


@pytest.fixture(autouse=True)
def no_logs() -> Iterator[None]:
    before = structlog.get_config()
    simulation.quiet_logs()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("part", range(4))
def test_schedules_keep_every_promise(part: int) -> None:
    found = {}
    for seed in range(part * SCHEDULES // 4, (part + 1) * SCHEDULES // 4):
        if faults := simulation.faults_of(seed):
            found[seed] = faults
    assert found == {}


def test_a_crash_at_every_call_does_no_harm() -> None:
    """Before and after each call that a worker makes for a job, one after the other."""
    at, crashed = 1, True
    while crashed:
        crashed = False
        for after in (False, True):
            faults, crashes = simulation.faults_of_crash(at, after=after)
            assert faults == [], f"crash at call {at}, {'after' if after else 'before'} it"
            crashed |= crashes > 0
        at += 1
        if at > 60:
            break
    assert at > 20  # a job of three steps takes more calls than this


def _found() -> list[str]:
    for seed in range(SEEDS_UNTIL_FOUND):
        if faults := simulation.faults_of(seed):
            return faults
    return []


def test_a_write_without_its_condition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    replace = MemoryTable.replace

    async def careless(
        self: MemoryTable, before: LifebookJob, after: LifebookJob, *, event: AnalyticsEvent | None = None
    ) -> bool:
        return await replace(self, self.jobs[before.job_id], after, event=event)

    monkeypatch.setattr(MemoryTable, "replace", careless)
    assert _found()


def test_a_creation_without_its_guard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def careless(self: MemoryTable, job: LifebookJob, guard: Guard, *, now_ms: int) -> Guard | None:
        self.jobs[job.job_id] = job
        return None

    monkeypatch.setattr(MemoryTable, "create", careless)
    assert any("one key" in fault for fault in _found())


def test_an_end_without_its_event_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def careless(self: LifebookWriter, before: LifebookJob, after: LifebookJob) -> bool:
        held = await self.table.replace(before, after)
        if held and after.terminal and not before.terminal:
            await self.table.note_sent(
                analytics.event_of_end(after, self.policy), now_ms=self.now_ms(), ttl_at=0
            )
        return held

    monkeypatch.setattr(LifebookWriter, "write", careless)
    assert any("events for" in fault for fault in _found())


def test_credits_released_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = MemoryBalances.settle

    async def careless(
        self: MemoryBalances, workspace_id: str, hold_id: str, unspent: Any, *, ttl_at: int | None = None
    ) -> None:
        await settle(self, workspace_id, hold_id, unspent)
        account = self._accounts[workspace_id]
        self._accounts[workspace_id] = msgspec.structs.replace(account, available=account.available + unspent)

    monkeypatch.setattr(MemoryBalances, "settle", careless)
    assert any("credits" in fault for fault in _found())


def test_an_attempt_that_begins_at_the_first_step_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    over = machine._attempt_over

    def careless(*args: Any, **named: Any) -> LifebookJob | RunRefused:
        after = over(*args, **named)
        return after if isinstance(after, RunRefused) else msgspec.structs.replace(after, step_cursor=0)

    monkeypatch.setattr(machine, "_attempt_over", careless)
    assert any("cursor went back" in fault for fault in _found())


def test_a_lease_that_is_taken_away_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    early = msgspec.structs.replace(simulation.POLICY, skew_ms=-25_000)
    monkeypatch.setattr(simulation, "POLICY", early)
    assert any("lease was taken away" in fault for fault in _found())


def test_a_sweeper_that_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def idle(self: LifebookSweeper, item_id: str, swept: Any) -> None:
        return None

    monkeypatch.setattr(LifebookSweeper, "_take_further", idle)
    monkeypatch.setattr(simulation, "LONGEST_MS", 600_000)
    assert any("never ended" in fault or "events for" in fault for fault in _found())


def test_a_dead_letter_queue_that_is_not_looked_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that were received too often for another reason than failures."""
    monkeypatch.setattr(
        simulation,
        "POLICY",
        msgspec.structs.replace(simulation.POLICY, receives_max=99, queued_grace_ms=10**9),
    )
    monkeypatch.setattr(simulation, "LONGEST_MS", 300_000)

    async def idle(self: LifebookSweeper, swept: Any) -> None:
        return None

    monkeypatch.setattr(LifebookSweeper, "sweep_dead", idle)
    assert any("never ended" in fault for fault in _found())

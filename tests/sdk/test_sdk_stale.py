"""Directives of attempts that are over are dropped: settled on the bus, and not run."""

import asyncio
from typing import Any

import pytest
from tests.sdk.test_sdk_runner import Log, MemoryTransport, directive, running, until
from tests.support.sdk_bus_setup import (
    Clock,
    a_bus,
    a_runner,
    a_transport,
    ack,
    done,
    give,
    leased,
    replies,
)

from lucius.bus.memory import MemoryBus
from lucius.contracts.times import rfc3339
from lucius.sdk import DeliveryFailed, Directive, ReplyAnswer, Task
from lucius.sdk.dedupe import NewestAttempts

MINUTE_MS = 60_000


async def test_an_attempt_older_than_one_seen_is_not_begun() -> None:
    ran: list[int] = []

    async def handler(task: Task) -> None:
        ran.append(task.directive.attempt_no)

    log = Log()
    transport = MemoryTransport(
        directive(attempt_no=2, lease_id="new"), directive(attempt_no=1, lease_id="old"), directive(2)
    )
    async with running(transport, handler, log=log):
        await transport.results(2)
    assert sorted(ran) == [1, 2]
    assert {(result["jobId"], result["attempt_no"]) for result in transport.of("RESULT")} == {
        ("job_1", 2),
        ("job_2", 1),
    }
    ((event, fields),) = log.lines
    assert (event, fields["attempt_no"], fields["latest_attempt_no"]) == ("directive_overtaken", 1, 2)


async def test_a_new_attempt_stops_the_one_that_is_still_at_work() -> None:
    async def handler(task: Task) -> None:
        while task.directive.job_id == "job_1" and task.directive.attempt_no == 1:
            task.raise_if_stopped()
            await asyncio.sleep(0.002)

    transport = MemoryTransport(directive(1), directive(2))
    async with running(transport, handler) as runner:
        await until(lambda: len(transport.of("ACK")) == 2 and runner.status().under_way == 1)
        transport.give(directive(1, attempt_no=2, lease_id="new"))
        results = await transport.results(3)
    said = {(it["jobId"], it["attempt_no"]): it.get("error", {}).get("code") for it in results}
    assert said == {("job_1", 1): "STOPPED", ("job_1", 2): None, ("job_2", 1): None}


def test_what_is_remembered_of_attempts_is_bounded() -> None:
    latest = NewestAttempts(steps_max=2)
    noted = [latest.note(_directive(number)) for number in (1, 2, 1, 3, 2, 1)]
    assert noted == [0, 0, 1, 0, 1, 0]


def _directive(number: int) -> Directive:
    return Directive(
        job_id=f"job_{number}", step_id="s", tenant_id="t", step_type="OCR", attempt_no=1, lease_id="l"
    )


# On a bus


async def left_on(bus: MemoryBus, clock: Clock) -> list[Directive]:
    """What another process would be given once every lock ran out."""
    clock.at_ms += 10 * MINUTE_MS
    return await leased(a_transport(bus, clock), 10)


async def test_an_overtaken_attempt_is_settled_on_the_bus() -> None:
    clock = Clock()
    bus = a_bus(clock)
    transport = a_transport(bus, clock)
    await give(bus, attempt_no=2, lease_id="new")
    (new,) = await leased(transport)
    await transport.reply(new, ack(new))
    await give(bus, attempt_no=1, lease_id="old")
    assert await leased(transport) == []
    await transport.reply(new, done(new))
    await transport.aclose()
    assert await left_on(bus, clock) == []


class Asked:
    def __init__(self, answer: ReplyAnswer | Exception) -> None:
        self.answer = answer
        self.times = 0

    async def __call__(self, directive: Directive) -> ReplyAnswer:
        self.times += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("overdue_ms", "ask", "runs", "times"),
    [
        (-1_000, Asked(ReplyAnswer("stale", stop=True)), True, 0),
        (1_000, Asked(ReplyAnswer("stale", stop=True)), False, 1),
        (5 * MINUTE_MS, Asked(ReplyAnswer("sent")), True, 1),
        (1_000, Asked(DeliveryFailed("away")), True, 1),
        (5 * MINUTE_MS, Asked(DeliveryFailed("away")), False, 1),
        (1_000, None, True, 0),
        (5 * MINUTE_MS, None, False, 0),
    ],
)
async def test_a_directive_whose_ack_is_overdue_is_doubted(
    overdue_ms: int, ask: Asked | None, runs: bool, times: int
) -> None:
    ran: list[str] = []

    async def handler(task: Task) -> None:
        ran.append(task.directive.job_id)

    clock = Clock()
    bus = a_bus(clock)
    more: dict[str, Any] = {} if ask is None else {"ask": ask}
    transport = a_transport(bus, clock, **more)
    await give(bus, lease_expires_at=rfc3339(clock() - overdue_ms))
    await give(bus, 2, lease_expires_at="no time at all")
    runner = a_runner(transport, clock, handler)
    run = asyncio.create_task(runner.run())
    await until(lambda: "job_2" in ran and (not runs or "job_1" in ran) and runner.status().under_way == 0)
    runner.stop()
    await run
    await transport.aclose()
    assert sorted(ran) == (["job_1", "job_2"] if runs else ["job_2"])
    assert (0 if ask is None else ask.times) == times
    assert len(await replies(bus)) == (4 if runs else 2)
    assert await left_on(bus, clock) == []

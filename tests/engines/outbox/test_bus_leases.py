"""Leases over HTTP where a broker carries the directives: settled as they are handed out, none lost."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.publisher_setup import (
    LANE,
    SHORT_MS,
    TENANT,
    TOKENS,
    Deployment,
    Worker,
    World,
    ack,
    message_of,
)
from tests.support.virtual_time import virtual

from lucius.bus.port import BusUnavailable, Delivery, DirectiveOut
from lucius.core.inputs import Cancel, Published
from lucius.core.refusal import Code, Refused
from lucius.core.routing import lane_of
from lucius.engines.outbox.bus_leases import BusLeases
from lucius.engines.outbox.dispatcher import LedgerDispatcher
from lucius.ledger.name_index import NameIndex

LONG_MS = 20_000
Leased = list[dict[str, Any]]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def deployment(world: World) -> Deployment:
    return Deployment(world)


def leases_of(deployment: Deployment, **more: Any) -> BusLeases:
    world, kernel = deployment.world, deployment.kernel
    messages = LedgerDispatcher(
        kernel.fair_share,
        kernel.writer,
        kernel.due_handler,
        TOKENS,
        callback_base="http://this-process",
        now_ms=world.now_ms,
        look_every_ms=SHORT_MS,
    )
    services = NameIndex(deployment.ledger, "services")
    return BusLeases(
        world.bus, deployment.ledger, services, messages, now_ms=world.now_ms, look_every_ms=SHORT_MS, **more
    )


async def leased(leases: BusLeases, directives_max: int = 1, wait_ms: int = LONG_MS, **more: Any) -> Leased:
    async with asyncio.timeout(10):
        found = await leases.lease("ocr", directives_max=directives_max, wait_ms=wait_ms, **more)
    assert not isinstance(found, Refused), found
    return found


async def published(deployment: Deployment, *, tenant_id: str = TENANT) -> str:
    job_id = await deployment.submit(tenant_id=tenant_id)
    await deployment.look()
    return job_id


async def test_a_lease_settles_what_it_hands_out(deployment: Deployment) -> None:
    job_id = await published(deployment)
    leases = leases_of(deployment)
    (directive,) = await leased(leases)
    assert (directive["jobId"], directive["attempt_no"]) == (job_id, 1)
    # Answers come to the process that handed it out, with a token that opens this attempt.
    assert directive["callback_urls"]["ack"] == "http://this-process/v1/callbacks/ack"
    attempt = TOKENS.read(directive["callback_token"])
    assert attempt is not None and attempt.lease_id == directive["lease_id"]
    deployment.world.clock_ms += 60_000  # every lock has run out
    assert await Worker(deployment.world).take() == []
    await leases.end()


async def test_a_directive_is_handed_out_once_it_is_noted_that_it_left(deployment: Deployment) -> None:
    job_id = await deployment.submit()
    deployment.world.writes_lost = 1  # it leaves, and the note of it comes later
    await deployment.look()
    assert (await deployment.states(job_id))[1] == "DISPATCHING"
    leases = leases_of(deployment)
    waiting = asyncio.create_task(leased(leases))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    (step,) = (await deployment.record(job_id)).steps
    note = Published(step_id=step.step_id, attempt_no=step.attempt_no, lease_id=step.lease_id or "")
    await deployment.apply(job_id, note)
    assert [one["jobId"] for one in await waiting] == [job_id]
    assert (await deployment.apply(job_id, Cancel())).record.job.state == "CANCELLING"
    await leases.end()


async def test_a_directive_whose_note_was_lost_is_handed_out_all_the_same(deployment: Deployment) -> None:
    job_id = await deployment.submit()
    deployment.world.writes_lost = 1
    await deployment.look()
    leases = leases_of(deployment)
    assert [one["jobId"] for one in await leased(leases)] == [job_id]
    assert (await deployment.states(job_id))[1] == "DISPATCHING"
    await leases.end()


async def test_a_poll_waits_for_the_first_directive(deployment: Deployment) -> None:
    await published(deployment)
    leases = leases_of(deployment)
    await leased(leases)
    waiting = asyncio.create_task(leased(leases))
    await asyncio.sleep(0.05)
    job_id = await published(deployment)
    assert [one["jobId"] for one in await waiting] == [job_id]
    assert await leased(leases, wait_ms=0) == []
    await leases.end()


async def test_a_poller_that_goes_away_takes_nothing_with_it(deployment: Deployment) -> None:
    await published(deployment)
    leases = leases_of(deployment)
    await leased(leases)
    gone = asyncio.create_task(leased(leases))
    await asyncio.sleep(0.05)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    job_id = await published(deployment)
    assert [one["jobId"] for one in await leased(leases)] == [job_id]
    await leases.end()


@pytest.mark.parametrize("turns", range(12))
async def test_a_poller_that_goes_away_as_a_directive_comes_does_not_lose_it(
    deployment: Deployment, turns: int
) -> None:
    """Whenever it is cancelled: it is handed out, or it is there for the next one."""
    await published(deployment)
    leases = leases_of(deployment)
    await leased(leases)
    going = asyncio.create_task(leased(leases))
    await asyncio.sleep(0.05)
    job_id = await published(deployment)
    for _ in range(turns):
        await asyncio.sleep(0)
    going.cancel()
    await asyncio.wait({going})
    found = [] if going.cancelled() else going.result()
    if not found:
        found = await leased(leases)
    assert [one["jobId"] for one in found] == [job_id]
    await leases.end()


@virtual
async def test_what_was_not_settled_yet_goes_back_when_its_poller_goes() -> None:
    deployment = Deployment(World())
    job_id = await deployment.submit()
    deployment.world.writes_lost = 1  # so that it is looked at for a while before it is settled
    await deployment.look()
    leases = leases_of(deployment)
    going = asyncio.create_task(leased(leases))
    await asyncio.sleep(0.05)
    going.cancel()
    await asyncio.wait({going})
    assert going.cancelled()
    (delivery,) = await Worker(deployment.world).take()
    assert message_of(delivery)["jobId"] == job_id
    await leases.end()


@virtual
async def test_what_was_settled_for_a_poller_that_is_gone_is_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deployment = Deployment(World())
    job_id = await published(deployment)
    leases = leases_of(deployment)
    receiver_type = type(await deployment.world.bus.directives("ocr", LANE))
    complete = receiver_type.complete
    answered = asyncio.Event()

    async def slow(self: Any, delivery: Delivery) -> None:
        await complete(self, delivery)
        await answered.wait()

    monkeypatch.setattr(receiver_type, "complete", slow)
    going = asyncio.create_task(leased(leases))
    await asyncio.sleep(0.05)
    going.cancel()
    await asyncio.sleep(0.05)
    assert not going.done()
    answered.set()
    await asyncio.wait({going})
    assert going.cancelled()
    (directive,) = await leased(leases)
    assert (directive["jobId"], directive["attempt_no"]) == (job_id, 1)
    assert await leased(leases, wait_ms=0) == []
    await leases.end()


async def test_pollers_take_turns_and_never_get_the_same(deployment: Deployment) -> None:
    jobs = {await deployment.submit(tenant_id=f"tenant {number}") for number in range(12)}
    await deployment.look()
    leases = leases_of(deployment)
    found = await asyncio.gather(*(leased(leases, 2) for _ in range(6)))
    handed = [one["jobId"] for each in found for one in each]
    assert len(handed) == len(set(handed))
    left: Leased = []
    while len(handed) + len(left) < len(jobs):
        left += await leased(leases, 2)
    assert {*handed, *(one["jobId"] for one in left)} == jobs
    assert max(map(len, found)) <= 2
    await leases.end()


async def test_a_busy_lane_does_not_hide_another(deployment: Deployment) -> None:
    for _ in range(50):
        await deployment.submit()
    other = await deployment.submit(tenant_id="somebody else")
    await deployment.look()
    leases = leases_of(deployment)
    first = await leased(leases, 4)
    second = await leased(leases, 4)
    assert other in [one["jobId"] for one in first + second]
    await leases.end()


async def test_only_the_lanes_that_are_asked_for(deployment: Deployment) -> None:
    job_id = await published(deployment)
    leases = leases_of(deployment)
    assert await leased(leases, wait_ms=0, lanes=[(LANE + 1) % 16]) == []
    assert [one["jobId"] for one in await leased(leases, lanes=[LANE])] == [job_id]
    await leases.end()


async def test_what_nobody_waits_for_any_more_is_settled_and_not_handed_out(deployment: Deployment) -> None:
    acked = await published(deployment)
    directive = await _peeked(deployment.world)
    await deployment.apply(acked, ack(directive))
    wanted = await published(deployment, tenant_id="somebody else")
    leases = leases_of(deployment)
    assert [one["jobId"] for one in await leased(leases, 10)] == [wanted]
    deployment.world.clock_ms += 60_000
    assert await Worker(deployment.world).take() == []
    await leases.end()


async def test_poison_is_put_aside(deployment: Deployment) -> None:
    job_id = await published(deployment)
    out = DirectiveOut(service="ocr", lane=3, message_key="k", message_id="bad", body=b"{}")
    await deployment.world.bus.publish_directive(out)
    leases = leases_of(deployment)
    found: Leased = []
    while not found:
        found = await leased(leases)
    assert [one["jobId"] for one in found] == [job_id]
    await leased(leases, wait_ms=0)
    receiver = await deployment.world.bus.directives("ocr", 3)
    (letter,) = await receiver.dead_letters(messages_max=10)
    assert letter.reason.startswith("POISON")
    await leases.end()


async def test_while_the_bus_is_down_a_poll_is_told_so(deployment: Deployment) -> None:
    job_id = await published(deployment)
    leases = leases_of(deployment)
    deployment.world.bus.down = True
    refused = await leases.lease("ocr", directives_max=1, wait_ms=0)
    assert isinstance(refused, Refused)
    assert (refused.code, refused.retry_after_seconds) == (Code.SYSTEM_SATURATED, 1)
    deployment.world.bus.down = False
    async with asyncio.timeout(10):
        while not (found := await leases.lease("ocr", directives_max=1, wait_ms=100)) or isinstance(
            found, Refused
        ):
            await asyncio.sleep(0.02)
    assert [one["jobId"] for one in found] == [job_id]
    await leases.end()


async def test_a_directive_that_cannot_be_settled_is_not_handed_out(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await published(deployment)
    leases = leases_of(deployment)
    receiver_type = type(await deployment.world.bus.directives("ocr", LANE))

    async def unanswered(self: Any, delivery: Delivery) -> None:
        raise BusUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(receiver_type, "complete", unanswered)
        assert await leased(leases, wait_ms=0) == []
    deployment.world.clock_ms += 31_000  # the lock runs out
    assert [one["jobId"] for one in await leased(leases)] == [job_id]
    await leases.end()


async def test_a_name_that_no_job_used_gets_no_queue(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = leases_of(deployment)
    with monkeypatch.context() as patch:
        patch.setattr(deployment.world.bus, "directives", _not_to_be_called)
        assert await leased(leases, wait_ms=0) == []
        waiting = asyncio.create_task(leased(leases))
        await asyncio.sleep(SHORT_MS * 3 / 1000)
        assert not waiting.done()
    job_id = await published(deployment)  # now it has one
    assert [one["jobId"] for one in await waiting] == [job_id]
    await leases.end()


async def test_readers_are_bounded_and_idle_ones_make_room(deployment: Deployment) -> None:
    job_id = await published(deployment)
    leases = leases_of(deployment, readers_max=2)
    lanes = [lane for lane in range(16) if lane != lane_of(TENANT)]
    polls = [asyncio.create_task(leased(leases, lanes=[lane])) for lane in lanes[:2]]
    await asyncio.sleep(0.05)
    refused = await leases.lease("ocr", directives_max=1, wait_ms=0, lanes=[LANE])
    assert isinstance(refused, Refused) and refused.code is Code.SYSTEM_SATURATED
    polls[0].cancel()
    await asyncio.wait({polls[0]})
    assert [one["jobId"] for one in await leased(leases, lanes=[LANE])] == [job_id]
    leases.close()
    assert await polls[1] == []
    await leases.end()


async def test_closing_sends_everybody_home_and_says_who_asked(deployment: Deployment) -> None:
    leases = leases_of(deployment)
    assert leases.last_asked_ms("ocr") is None
    unknown = asyncio.create_task(leased(leases))
    await asyncio.sleep(0)
    await published(deployment)
    assert len(await unknown) == 1
    waiting = [asyncio.create_task(leased(leases)) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert leases.last_asked_ms("ocr") == deployment.world.now_ms()
    leases.close()
    assert await asyncio.gather(*waiting) == [[], [], []]
    deployment.world.clock_ms += 5
    assert leases.last_asked_ms("ocr") == deployment.world.now_ms() - 5
    await leases.end()


def _not_to_be_called(service: str, lane: int) -> Any:
    raise AssertionError(f"asked for {service} on lane {lane}")


async def _peeked(world: World) -> dict[str, Any]:
    receiver = await world.bus.directives("ocr", LANE)
    (delivery,) = await receiver.receive(messages_max=1, wait_ms=0)
    await receiver.give_back(delivery, delay_ms=0)
    found: dict[str, Any] = msgspec.json.decode(delivery.body)
    return found

"""RESULTs that were not delivered, and a memory that fails."""

import asyncio
from typing import Any

from tests.sdk.test_sdk_runner import Log, MemoryTransport, directive, made, running, until

from lucius.sdk import DeliveryFailed, Directive, MemoryDedupe, ReplyAnswer, messages, parse_directive

Message = dict[str, Any]


async def test_a_result_that_was_not_delivered_is_sent_again_until_it_is() -> None:
    dedupe = MemoryDedupe()
    transport = MemoryTransport(directive())
    transport.answers["RESULT"] = DeliveryFailed("down")
    async with running(transport, made, dedupe=dedupe, undelivered_pause_seconds=0.01):
        await transport.results(3)
        assert len(await dedupe.undelivered(9)) == 1
        transport.answers["RESULT"] = ReplyAnswer("applied")
        async with asyncio.timeout(5):
            while await dedupe.undelivered(9):
                await asyncio.sleep(0.002)
    tried = transport.of("RESULT")
    assert all(result == tried[0] for result in tried)
    assert len(transport.of("ACK")) == 1


async def test_one_that_cannot_be_delivered_does_not_hold_up_the_others() -> None:
    class Picky(MemoryTransport):
        async def reply(self, to: Directive, message: Message) -> ReplyAnswer:
            answer = await super().reply(to, message)
            if message["type"] == "RESULT" and to.job_id == "job_1":
                raise DeliveryFailed("not this one")
            return answer

    dedupe = MemoryDedupe()
    for number in (1, 2, 3):
        one = parse_directive(directive(number))
        assert one is not None
        await dedupe.finish(one, messages.succeeded(one, 1, None))
    transport = Picky()
    async with running(transport, made, dedupe=dedupe, undelivered_pause_seconds=0.01):
        await until(lambda: {it["jobId"] for it in transport.of("RESULT")} == {"job_1", "job_2", "job_3"})
    assert [undelivered.directive.job_id for undelivered in await dedupe.undelivered(9)] == ["job_1"]


async def test_work_goes_on_without_a_memory() -> None:
    class Broken:
        async def begin(self, key: Any) -> Any:
            raise OSError("disk")

        async def finish(self, directive: Any, result: Any) -> Any:
            raise OSError("disk")

        delivered = undelivered = begin

        async def forget(self, key: Any) -> None: ...

    log = Log()
    transport = MemoryTransport(directive())
    async with running(transport, made, dedupe=Broken(), log=log) as runner:
        assert (await transport.results())[0]["status"] == "SUCCEEDED"
        await until(lambda: runner.status().under_way == 0)
    told = {event for event, _ in log.lines}
    assert told == {"owed_unknown", "dedupe_failed", "result_not_kept"}


async def test_one_that_is_owed_after_a_quiet_time_is_sent_again() -> None:
    """Whoever sends again what is owed has gone to sleep by then."""
    transport = MemoryTransport()
    async with running(transport, made, undelivered_pause_seconds=0.01):
        await until(lambda: bool(transport.leases))
        await asyncio.sleep(0.1)
        transport.answers["RESULT"] = DeliveryFailed("down")
        transport.give(directive())
        await transport.results(1)
        transport.answers["RESULT"] = ReplyAnswer("applied")
        await transport.results(2)

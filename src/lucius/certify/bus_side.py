"""The bus as a service sees it: directives on their lanes, replies from theirs.

In: a bus. Out: directives published as the orchestrator publishes them, and every reply in the transcript.
Replies are taken from the orchestrator's own group, so the bus (or its prefix) must be one that no
orchestrator uses.
"""

import asyncio
from contextlib import suppress

import msgspec

from lucius.bus.port import Bus, BusError, Delivery, DirectiveOut, Receiver, directive_id
from lucius.certify.transcript import ObservedAttempt, Transcript
from lucius.certify.values import Json
from lucius.core.attempt import AttemptRef
from lucius.core.routing import LANES, lane_of

GROUP = "lucius"
MESSAGES_MAX = 100
WAIT_MS = 1_000
REST_SECONDS = 0.5


class BusSide:
    """Between `open` and `close` it listens on all lanes."""

    def __init__(self, bus: Bus, transcript: Transcript, service: str) -> None:
        self._bus = bus
        self._transcript = transcript
        self._service = service
        self._poisons = 0
        self._listening: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        # At once: on some buses each lane takes a connection of its own.
        receivers = await asyncio.gather(*(self._bus.replies(lane, group=GROUP) for lane in range(LANES)))
        self._listening = [asyncio.create_task(self._listen(receiver)) for receiver in receivers]

    async def close(self) -> None:
        for task in self._listening:
            task.cancel()
        if self._listening:
            await asyncio.wait(self._listening)

    async def send(self, attempt: ObservedAttempt) -> None:
        directive = attempt.directive
        attempt.sent += 1
        message_id = directive_id(
            AttemptRef(
                job_id=directive["jobId"],
                step_id=directive["stepId"],
                attempt_no=directive["attempt_no"],
                lease_id=directive["lease_id"],
            )
        )
        if attempt.sent > 1:
            # The broker would drop what it takes for its own repeat; the service is to see it.
            message_id = f"{message_id}.{attempt.sent}"
        await self._publish(directive["lane"], directive["routing_key_used"], message_id, directive)
        await self._transcript.handed(attempt)

    async def send_poison(self, message: Json) -> None:
        self._poisons += 1
        key = "certify-poison"
        await self._publish(lane_of(key), key, f"certify-poison-{self._poisons}-{id(message)}", message)

    async def _publish(self, lane: int, key: str, message_id: str, message: Json) -> None:
        body = message if isinstance(message, bytes) else msgspec.json.encode(message)
        await self._bus.publish_directive(
            DirectiveOut(service=self._service, lane=lane, message_key=key, message_id=message_id, body=body)
        )

    async def _listen(self, receiver: Receiver) -> None:
        try:
            while True:
                try:
                    for delivery in await receiver.receive(messages_max=MESSAGES_MAX, wait_ms=WAIT_MS):
                        await self._record_reply(delivery)
                        await receiver.complete(delivery)
                except BusError:
                    await asyncio.sleep(REST_SECONDS)
        finally:
            with suppress(BusError):
                await receiver.close()

    async def _record_reply(self, delivery: Delivery) -> None:
        try:
            message = msgspec.json.decode(delivery.body)
        except msgspec.DecodeError:
            self._transcript.stray("a reply that is not JSON")
            return
        attempt = self._transcript.of_message(message) if isinstance(message, dict) else None
        if attempt is None:
            # A service may owe RESULTs from before, and sends them when it starts.
            if not isinstance(message, dict) or message.get("type") != "RESULT":
                self._transcript.stray("a reply for a job that the certificate does not know")
            return
        if attempt.directive["lane"] != delivery.lane:
            self._transcript.stray(f"a reply on lane {delivery.lane} instead of its reply_topic's")
        await self._transcript.record_reply(attempt, message, side=None)

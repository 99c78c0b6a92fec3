"""The bus over NATS JetStream.

In: messages, settlements. Out: locked messages, dead letters, or the port's own faults. What was published
and confirmed is on the server's disk, as safe as its `sync_interval` makes it; a repeat within the server's
window of duplicates is dropped by its id. Streams and the reply groups' consumers are set up when the bus is
opened, a service's consumers when it first asks; both by several processes at once if it so happens. A
call that finds later that a stream is gone, with the server's disk perhaps, sets them up again.

A late acknowledgement is accepted, so this bus does not fence.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import msgspec

from lucius.bus.nats.connection import (
    ANSWER_SECONDS_MAX,
    CONNECT_SECONDS_MAX,
    PING_EVERY_SECONDS,
    NatsConnection,
    NoResponder,
)
from lucius.bus.nats.names import LaneConsumer, NatsLimits, NatsNames, consumer_settings, in_header
from lucius.bus.nats.receiver import DEDUPE_HEADER, ID_HEADER, KEY_HEADER, TOKEN_HEADER, NatsReceiver
from lucius.bus.port import (
    BusError,
    BusUnavailable,
    DirectiveOut,
    ReplyOut,
    check_lane,
    check_out,
    check_service,
)
from lucius.core.routing import LANES

# Room for the headers of the longest key, id and reason, each character as up to 12.
HEADERS_BYTES_MAX: Final = 32_768
PAYLOAD_BYTES_MIN: Final = 131_072
AGAIN_SECONDS: Final = 0.1

_FULL: Final = frozenset({10077, 10055, 10047, 10023})  # of messages, bytes or storage
_STREAM_DIFFERS: Final = 10058
_CONSUMER_DIFFERS: Final = frozenset({10148, 10105, 10012})
_NO_STREAM: Final = 10059

__all__ = ["NatsBus", "NatsLimits", "TopologyConflict"]


class TopologyConflict(BusError):
    """A stream or consumer of that name has other settings. The operator has to decide which are right."""


class NatsBus:
    """Made by `NatsBus.open`."""

    def __init__(
        self,
        link: NatsConnection,
        names: NatsNames,
        limits: NatsLimits,
        groups: Sequence[str],
        now_ms: Callable[[], int],
    ) -> None:
        self._link = link
        self._names = names
        self._limits = limits
        self._groups = tuple(groups)
        self._now_ms = now_ms
        self._setting_up = asyncio.Lock()
        self._set_ups = 0

    @classmethod
    async def open(
        cls,
        servers: Sequence[str],
        *,
        now_ms: Callable[[], int],
        limits: NatsLimits | None = None,
        reply_groups: Sequence[str] = ("lucius",),
        prefix: str = "lucius",
        name: str = "lucius",
        credentials_file: str | None = None,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        answer_seconds_max: float = ANSWER_SECONDS_MAX,
        connect_seconds_max: float = CONNECT_SECONDS_MAX,
        ping_every_seconds: float = PING_EVERY_SECONDS,
    ) -> Self:
        """Connects and sets up what is missing. Raises `BusUnavailable`, or `TopologyConflict`."""
        link = NatsConnection(answer_seconds_max=answer_seconds_max, ping_every_seconds=ping_every_seconds)
        await link.connect(
            servers,
            name=name,
            credentials_file=credentials_file,
            user=user,
            password=password,
            tls=tls,
            seconds_max=connect_seconds_max,
        )
        bus = cls(link, NatsNames(prefix), limits or NatsLimits(), reply_groups, now_ms)
        try:
            await bus._set_up_patiently(connect_seconds_max)
        except BaseException:
            await link.close()
            raise
        return bus

    @property
    def largest_message_bytes(self) -> int:
        return self._link.largest_payload_bytes - HEADERS_BYTES_MAX

    @property
    def knows_empty_at_once(self) -> bool:
        return True

    @property
    def fences(self) -> bool:
        return False

    @property
    def shared(self) -> bool:
        return True

    async def publish_directive(self, directive: DirectiveOut) -> None:
        check_out(directive, largest_message_bytes=self.largest_message_bytes)
        await self._put(self._names.directive_subject(directive.service, directive.lane), directive)

    async def publish_reply(self, reply: ReplyOut) -> None:
        check_out(reply, largest_message_bytes=self.largest_message_bytes)
        await self._put(self._names.reply_subject(reply.lane), reply)

    async def directives(self, service: str, lane: int) -> NatsReceiver:
        check_service(service)
        check_lane(lane)
        return await self._receiver(self._names.directive_queue(service, lane))

    async def replies(self, lane: int, *, group: str) -> NatsReceiver:
        check_lane(lane)
        if group not in self._groups:
            raise ValueError(f"this bus has no consumer group {group!r}")
        return await self._receiver(self._names.reply_queue(lane, group))

    async def ping(self) -> None:
        """Also sets up again what was deleted."""
        answers = await asyncio.gather(
            *(
                self._link.ask_json(f"$JS.API.STREAM.INFO.{settings['name']}", {})
                for settings in self._names.streams(self._limits)
            )
        )
        codes = [_code(answer) for answer in answers if "error" in answer]
        if _NO_STREAM in codes:
            await self._set_up_again(self._set_ups)
        elif codes:
            raise BusUnavailable(f"NATS cannot use a stream ({codes[0]})")

    @property
    def note_bytes_max(self) -> int:
        return self._link.largest_payload_bytes

    async def nudge(self, note: bytes) -> None:
        """Reaches the processes that listen now, and none later: for notes that may be lost. Raises
        `BusUnavailable`."""
        await self._link.publish(self._names.nudge_subject, note)

    async def on_nudge(self, listener: Callable[[bytes], None]) -> None:
        """`listener` is called with every note, those of this process included, until the bus is closed."""
        await self._link.listen(self._names.nudge_subject, listener)

    async def close(self) -> None:
        """Ends every open `receive` with `BusUnavailable`."""
        await self._link.close()

    async def _put(self, subject: str, out: DirectiveOut | ReplyOut) -> None:
        message_id = in_header(out.message_id)
        headers = {
            # Of one stream, so it names the queue as well: another queue may use the same id.
            DEDUPE_HEADER: f"{subject}/{message_id}",
            ID_HEADER: message_id,
            KEY_HEADER: in_header(out.message_key),
        }
        if isinstance(out, ReplyOut) and out.token:
            headers[TOKEN_HEADER] = in_header(out.token)
        await self._publish(subject, out.body, headers)

    async def _publish(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        set_ups = self._set_ups
        try:
            message = await self._link.ask(subject, body, headers)
        except NoResponder:
            await self._set_up_again(set_ups)
            message = await self._link.ask(subject, body, headers)
        try:
            answer = msgspec.json.decode(message.data, type=dict[str, Any])
        except msgspec.DecodeError:
            raise BusUnavailable("NATS gave an answer that is not understood") from None
        if "error" in answer:
            code = _code(answer)
            if code in _FULL:
                raise BusUnavailable("the queue is full")
            raise BusUnavailable(f"NATS refused the message ({code})")

    async def _receiver(self, queue: LaneConsumer) -> NatsReceiver:
        await self._set_up_consumer(queue)
        return NatsReceiver(
            self._link,
            queue,
            self._limits,
            dead_stream=self._names.dead_stream,
            publish=self._publish,
            set_up=self._set_up_consumer,
            now_ms=self._now_ms,
        )

    async def _set_up(self) -> None:
        if self._link.largest_payload_bytes < PAYLOAD_BYTES_MIN:
            raise TopologyConflict(f"NATS must carry messages of {PAYLOAD_BYTES_MIN} bytes (max_payload)")
        streams = self._names.streams(self._limits)
        await asyncio.gather(*(self._set_up_stream(settings) for settings in streams))
        queues = [self._names.reply_queue(lane, group) for group in self._groups for lane in range(LANES)]
        for code, queue in zip(await asyncio.gather(*map(self._make, queues)), queues, strict=True):
            _check_made(queue, code)
        self._set_ups += 1

    async def _set_up_patiently(self, seconds_max: float) -> None:
        """A server that goes away meanwhile has as long to come back as one that was not there at first."""
        until = asyncio.get_running_loop().time() + seconds_max
        while True:
            try:
                return await self._set_up()
            except BusUnavailable:
                if not self._link.breaks or asyncio.get_running_loop().time() >= until:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)

    async def _set_up_again(self, set_ups: int) -> None:
        """Once for all who found out together: `set_ups` is how often it was done when they looked."""
        async with self._setting_up:
            if self._set_ups == set_ups:
                await self._set_up()

    async def _set_up_stream(self, settings: dict[str, Any]) -> None:
        name = settings["name"]
        answer = await self._link.ask_json(f"$JS.API.STREAM.CREATE.{name}", settings)
        if "error" in answer:
            raise _refused(f"the stream {name}", _code(answer), _code(answer) == _STREAM_DIFFERS)

    async def _set_up_consumer(self, queue: LaneConsumer) -> None:
        set_ups = self._set_ups
        code = await self._make(queue)
        if code == _NO_STREAM:
            await self._set_up_again(set_ups)
            code = await self._make(queue)
        _check_made(queue, code)

    async def _make(self, queue: LaneConsumer) -> int | None:
        """Makes the consumer of a queue, if it is not there. The code of a refusal, or None."""
        subject = f"$JS.API.CONSUMER.CREATE.{queue.stream}.{queue.consumer}.{queue.subject}"
        settings = consumer_settings(queue, self._limits)
        question = {"stream_name": queue.stream, "config": settings, "action": "create"}
        answer = await self._link.ask_json(subject, question)
        return _code(answer) if "error" in answer else None


def _check_made(queue: LaneConsumer, code: int | None) -> None:
    if code is not None:
        raise _refused(f"the consumer {queue.consumer}", code, code in _CONSUMER_DIFFERS)


def _code(answer: dict[str, Any]) -> int:
    error = answer["error"]
    return int(error.get("err_code") or error.get("code") or 0)


def _refused(what: str, code: int, differs: bool) -> BusError:
    if differs:
        return TopologyConflict(
            f"{what} exists with other settings: change it with the tools of NATS, or use another prefix"
        )
    return BusUnavailable(f"NATS refused {what} ({code})")

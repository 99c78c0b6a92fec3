"""One connection of a client: the greeting, then sessions, until one side closes it.

In: a stream. Out: answers on it. What is not AMQP, or breaks its rules, ends the connection with a reason.
"""

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from lucius_lab.emulators.service_bus import frames
from lucius_lab.emulators.service_bus.access import EmulatorAccess
from lucius_lab.emulators.service_bus.codec import Array, Malformed, Symbol, UByte, UInt, UShort
from lucius_lab.emulators.service_bus.links import LinkHub
from lucius_lab.emulators.service_bus.sessions import Session

CONTAINER: Final = "lucius-servicebus-emulator"
SESSIONS_MAX: Final = 256
GREETING_SECONDS_MAX: Final = 10.0
IDLE_MS: Final = 120_000
HEARTBEAT_SECONDS: Final = 10.0

log = structlog.get_logger("lucius.lab.servicebus")


class Connection:
    """`changed` is called whenever the broker may have a message for a client."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        hub: LinkHub,
        changed: Callable[[], None],
        access: EmulatorAccess,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._hub = hub
        self._changed = changed
        self._access = access
        self._sessions: dict[int, Session] = {}
        self._frame_bytes_max = frames.FRAME_BYTES_MAX
        self._opened = False
        self._closed = False

    async def run(self) -> None:
        try:
            async with asyncio.timeout(GREETING_SECONDS_MAX):
                await self._greet()
            while not self._closed:
                frame = await self._read_frame()
                if frame is not None:
                    self._handle(frame)
                    self._changed()
                await self._writer.drain()
        except Malformed as fault:
            log.warning("emulator_protocol_broken", error=str(fault))
            self._close("amqp:decode-error", str(fault))
        except (OSError, EOFError, TimeoutError):
            pass  # the client is gone
        finally:
            self.abandon()
            self._changed()  # sessions that it held are free
            with suppress(OSError):
                self._writer.close()

    def heartbeat(self) -> None:
        """An empty frame, which a client that still greets would not understand."""
        if self._opened:
            self._send(frames.EMPTY_FRAME)

    def drop(self) -> None:
        """As a network may do it: without a word."""
        self.abandon()
        transport = self._writer.transport
        transport.abort()

    def abandon(self) -> None:
        self._closed = True
        for session in self._sessions.values():
            session.end()
        self._sessions.clear()

    # -- inside --------------------------------------------------------------------------------------------

    async def _greet(self) -> None:
        """The SDK asks for SASL first; a client may as well leave it out."""
        header = await self._reader.readexactly(frames.HEADER_BYTES)
        if header == frames.SASL_HEADER:
            mechanisms = Array([Symbol("ANONYMOUS")])
            self._send(frames.SASL_HEADER + frames.make_frame(0, frames.SASL_MECHANISMS, [mechanisms]))
            await self._read_frame()
            self._send(frames.make_frame(0, frames.SASL_OUTCOME, [UByte(0), None]))
            header = await self._reader.readexactly(frames.HEADER_BYTES)
        if header != frames.AMQP_HEADER:
            self._send(frames.AMQP_HEADER)
            raise Malformed("this is not AMQP 1.0")
        self._send(frames.AMQP_HEADER)

    async def _read_frame(self) -> frames.Frame | None:
        (size,) = struct.unpack(">I", await self._reader.readexactly(4))
        if not frames.FRAME_HEAD_BYTES <= size <= frames.FRAME_BYTES_MAX:
            raise Malformed(f"a frame of {size} bytes")
        return frames.parse_frame(await self._reader.readexactly(size - 4))

    def _handle(self, frame: frames.Frame) -> None:
        fields = frame.fields
        if frame.performative == frames.OPEN:
            self._open(fields)
        elif frame.performative == frames.BEGIN:
            self._begin(frame.channel)
        elif frame.performative == frames.CLOSE:
            self._say(frames.CLOSE, [None])
            self._closed = True
        elif frame.performative == frames.END:
            session = self._sessions.pop(frame.channel, None)
            if session is not None:
                session.end()
                self._send(frames.make_frame(frame.channel, frames.END, [None]))
        else:
            self._in_session(frame)

    def _in_session(self, frame: frames.Frame) -> None:
        session = self._sessions.get(frame.channel)
        if session is None:
            return  # the SDK may detach links after it ended their session
        try:
            if frame.performative == frames.TRANSFER:
                session.transfer(frame.fields, frame.payload)
            elif frame.performative == frames.FLOW:
                session.flow(frame.fields)
            elif frame.performative == frames.DISPOSITION:
                session.disposition(frame.fields)
            elif frame.performative == frames.ATTACH:
                session.attach(frame.fields)
            elif frame.performative == frames.DETACH:
                session.detach(frame.fields)
        except (TypeError, ValueError) as fault:
            raise Malformed(f"a field of the wrong type ({fault})") from None

    def _open(self, fields: list[Any]) -> None:
        if isinstance(fields[2], int):
            self._frame_bytes_max = max(512, min(frames.FRAME_BYTES_MAX, fields[2]))
        said = [CONTAINER, None, UInt(frames.FRAME_BYTES_MAX), UShort(SESSIONS_MAX - 1), UInt(IDLE_MS)]
        self._say(frames.OPEN, said)
        self._opened = True

    def _begin(self, channel: int) -> None:
        if len(self._sessions) >= SESSIONS_MAX:
            raise Malformed(f"more than {SESSIONS_MAX} sessions")
        session = Session(channel, self._hub, self._send, self._access, frame_bytes_max=self._frame_bytes_max)
        self._sessions[channel] = session
        session.begin()

    def _close(self, condition: str, description: str) -> None:
        self._say(frames.CLOSE, [frames.error(condition, description)])

    def _say(self, performative: int, fields: list[Any]) -> None:
        self._send(frames.make_frame(0, performative, fields))

    def _send(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

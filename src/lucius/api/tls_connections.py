"""TLS between the transport of a socket and the protocol of a server.

In: connections of a socket. Out: the same to a protocol, once the handshake is done. The event loop could do
this, but its layer takes all that is written and does not say how much of it the client has not taken yet,
and nothing would count connections whose handshake never ends. Here what waits is in the socket's transport
alone, which reports it as it does without TLS.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
import structlog

log = structlog.get_logger("lucius.api")

HANDSHAKES_MIN: Final = 16
CONNECTIONS_PER_HANDSHAKE: Final = 16
READ_BYTES: Final = 256 * 1024

MakeProtocol = Callable[[], asyncio.Protocol]


class HandshakeLimits(msgspec.Struct, frozen=True, kw_only=True):
    seconds_max: float = 10.0
    at_once_max: int = HANDSHAKES_MIN

    @classmethod
    def beside(cls, connections_max: int, seconds_max: float) -> "HandshakeLimits":
        at_once_max = max(HANDSHAKES_MIN, connections_max // CONNECTIONS_PER_HANDSHAKE)
        return cls(seconds_max=seconds_max, at_once_max=at_once_max)


class TlsPort:
    """Makes the protocol of each connection that a listener takes."""

    def __init__(self, tls: ssl.SSLContext, limits: HandshakeLimits, make_protocol: MakeProtocol) -> None:
        self.tls = tls
        self.limits = limits
        self.make_protocol = make_protocol
        # The oldest first: it gives way to a newer one where there are too many.
        self._handshakes: dict[_TlsConnection, None] = {}

    def __call__(self) -> asyncio.Protocol:
        return _TlsConnection(self)

    def begin(self, connection: "_TlsConnection") -> None:
        if len(self._handshakes) >= self.limits.at_once_max:
            oldest = next(iter(self._handshakes))
            self.end(oldest)
            oldest.abort()
        self._handshakes[connection] = None

    def end(self, connection: "_TlsConnection") -> None:
        self._handshakes.pop(connection, None)


class _TlsConnection(asyncio.Protocol):
    """What the socket's transport talks to."""

    below: asyncio.Transport
    _deadline: asyncio.TimerHandle

    def __init__(self, port: TlsPort) -> None:
        self._port = port
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = port.tls.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._protocol: asyncio.Protocol | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.below = transport
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._port.limits.seconds_max, self.abort)
        self._port.begin(self)

    def abort(self) -> None:
        self.below.abort()

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if self._protocol is None and not self.below.is_closing():
            self._shake_hands()
        if self._protocol is not None:
            self._read(self._protocol)

    def _shake_hands(self) -> None:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except ssl.SSLError as fault:
            log.debug("handshake_failed", error=str(fault))
            self._send()  # which says why, in a word of TLS
            self.below.close()
            return
        self._send()
        self._end_handshake()
        self._protocol = self._port.make_protocol()
        self._protocol.connection_made(_TlsTransport(self, self._port.tls))

    def _end_handshake(self) -> None:
        self._deadline.cancel()
        self._port.end(self)

    def _read(self, protocol: asyncio.Protocol) -> None:
        try:
            while not self._paused and not self.below.is_closing():
                piece = self.tls.read(READ_BYTES)
                if not piece:
                    self._end_of_input(protocol)
                    return
                protocol.data_received(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._end_of_input(protocol)
            return
        except ssl.SSLError as fault:
            log.debug("tls_broken", error=str(fault))
            self.abort()
            return
        self._send()

    def _end_of_input(self, protocol: asyncio.Protocol) -> None:
        """TLS has no half that stays open."""
        protocol.eof_received()
        self.close()

    def _send(self) -> None:
        if self._outgoing.pending and not self.below.is_closing():
            self.below.write(self._outgoing.read())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.below.is_closing():
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self.tls.write(rest) :]
        except ssl.SSLError as fault:
            log.debug("tls_broken", error=str(fault))
            self.abort()
            return
        self._send()

    def close(self) -> None:
        if self.below.is_closing():
            return
        with suppress(ssl.SSLError):  # the client's own end of it is not waited for
            self.tls.unwrap()
        self._send()
        self.below.close()

    def pause(self) -> None:
        self._paused = True
        self.below.pause_reading()

    def resume(self) -> None:
        self._paused = False
        self.below.resume_reading()
        asyncio.get_running_loop().call_soon(self._read_on)  # what was decrypted or came before

    def _read_on(self) -> None:
        if self._protocol is not None:
            self._read(self._protocol)

    def eof_received(self) -> bool | None:
        return None if self._protocol is None else self._protocol.eof_received()

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_handshake()
        if self._protocol is not None:
            self._protocol.connection_lost(exc)


class _TlsTransport(asyncio.Transport):
    """What the protocol talks to."""

    def __init__(self, connection: _TlsConnection, context: ssl.SSLContext) -> None:
        super().__init__({"sslcontext": context, "ssl_object": connection.tls})
        self._connection = connection
        self._below = connection.below

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = super().get_extra_info(name)
        return self._below.get_extra_info(name, default) if found is None else found

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.write(data)

    def close(self) -> None:
        self._connection.close()

    def abort(self) -> None:
        self._connection.abort()

    def is_closing(self) -> bool:
        return self._below.is_closing()

    def pause_reading(self) -> None:
        self._connection.pause()

    def resume_reading(self) -> None:
        self._connection.resume()

    def is_reading(self) -> bool:
        return self._below.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def can_write_eof(self) -> bool:
        return False

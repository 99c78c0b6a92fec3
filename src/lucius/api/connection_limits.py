"""What a connection may cost before its request is known: time, bytes, and a place among the others.

In: bytes from any client. Out: requests for the application, or the end of the connection. A client that
sends its head or its body too slowly or does not read its answer, a head that is too large, and a connection
on which nothing ever comes are cut off here; most of these the application would not even see. Connections
are looked at now and then, because a timer for each request would cost more than most requests.

What a connection holds (a body that is not read yet, an answer that is not taken yet) counts in the memory
budget of the server. Where all places are taken, the address that has most of them gives one up for another.

What belongs to one request is never read as the next: the rest of a body whose request is answered already is
thrown away to its last byte, and where it cannot be known where the next request begins the connection ends.
"""

import asyncio
import ipaddress
import resource
import socket
import struct
from collections import Counter, deque
from functools import partial
from itertools import islice
from typing import Any

import httptools
import msgspec
import structlog
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lucius.api.memory import BYTES_MAX, SCOPE_KEY, UNCOUNTED_BYTES, ConnectionMemory, MemoryBudget
from lucius.api.problems import problem
from lucius.core.refusal import Code, Refused
from lucius.telemetry import Metrics

log = structlog.get_logger("lucius.api")

# What the system keeps of an answer that is on its way to one client: a listener's connections take it over.
# Left alone it grows to megabytes, of which the system reports in thirds: a slow reader would look for long
# like one that takes nothing.
SEND_BUFFER_BYTES = 256 * 1024
FILES_KEPT_FREE = 128  # for the ledger, the log, connections to others
FILES_WANTED_MAX = 16_384
CONNECTIONS_MIN = 32  # with fewer, a few workers that wait for work keep every other client out
HOST_LENGTH = len(b"host")
PIPELINED_MAX = 128  # requests of one connection that wait for the answer to an earlier one
PIPELINED_BYTES = 4_096  # what a request that waits takes beside its body
LOOKS_PER_HEAD_TIME = 8
LOOK_SECONDS_MAX = 1.0
# Of a body that is discarded, what is beyond this is read slowly: so many connections at a time, so often.
DISCARDED_BYTES_MAX = 256 * 1024
DISCARDING_AT_ONCE = 8
DISCARDING_PAUSE_SECONDS = 0.005
# So many are answered after their request that there is no place; more are answered at once and closed.
REFUSED_MAX = 64
VICTIMS_SEEN_MAX = 64
NETWORK_BITS = 64  # of IPv6: a client that has one address of such a network has all of them
RETRY_AFTER_SECONDS = 5

_NO_LINGER = struct.pack("ii", 1, 0)
_NO_PLACE = Refused(
    Code.SYSTEM_SATURATED,
    "this process has as many connections as it may; use those you have for more calls, or come back later",
    retry_after_seconds=RETRY_AFTER_SECONDS,
)
STOOD_STILL_SECONDS = 1.0  # a look that comes so late: the process did not run
BACKLOG_SECONDS = 0.1


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`body_seconds_max`: when the application gives a body up. The connection is cut `body_grace_seconds`
    later, so that the answer gets out. `unread_seconds_max`: how long a client may take nothing of an answer;
    however little it takes, the time begins anew."""

    head_seconds_max: float = 10.0
    head_bytes_max: int = 64 * 1024
    body_seconds_max: float = 30.0
    body_grace_seconds: float = 5.0
    unread_seconds_max: float = 60.0
    keep_alive_seconds: int = 15
    connections_max: int = 12_000
    memory_bytes_max: int = BYTES_MAX


def server_config(
    app: Any, limits: ConnectionLimits, *, metrics: Metrics | None = None, **more: Any
) -> uvicorn.Config:
    """How the server is run wherever it is run. `metrics`: where it counts what its connections cost."""
    watch = _Connections(limits, _connections_max(limits.connections_max))
    if metrics is not None:
        watch.add_to(metrics)
    return uvicorn.Config(
        app,
        http=_protocol(watch),
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the address behind a proxy is not used
        server_header=False,
        timeout_keep_alive=limits.keep_alive_seconds,
        # uvicorn's own limit would refuse every client, those that have a place included: see `_Connections`.
        limit_concurrency=None,
        **more,
    )


def open_files_fault() -> str | None:
    """Why so few files may be open that hardly any client could be served; None if there are enough."""
    files, needed = _open_files_max(), FILES_KEPT_FREE + CONNECTIONS_MIN
    if files is None or files >= needed:
        return None
    return (
        f"This process may have {files} files open at most, and serving needs {needed}: {FILES_KEPT_FREE} "
        f"for the ledger, the log and connections to others, {CONNECTIONS_MIN} for clients. Raise the limit, "
        "with `ulimit -n 1024` for instance; one that was set as a hard limit only root can raise."
    )


def _open_files_max() -> int | None:
    """The system's limit, raised as far as is wanted and allowed; None: there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = min(FILES_WANTED_MAX, hard) if hard != resource.RLIM_INFINITY else FILES_WANTED_MAX
    if soft != resource.RLIM_INFINITY and soft < goal:
        resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
        soft = goal
    return None if soft == resource.RLIM_INFINITY else soft


def _connections_max(wanted: int) -> int:
    """As many as are wanted, or as the system's limit on open files leaves room for."""
    files = _open_files_max()
    return wanted if files is None else max(1, min(wanted, files - FILES_KEPT_FREE))


def _protocol(watch: "_Connections") -> type[asyncio.Protocol]:
    class Watched(_WatchedProtocol):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.watch = watch

    return Watched


async def _no_place(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of a connection for which there is no place."""
    response = problem(_NO_PLACE)
    response.headers["connection"] = "close"
    await response(scope, receive, send)


def _answer_at_once(refused: Refused) -> bytes:
    response = problem(refused)
    head = [b"%b: %b\r\n" % pair for pair in response.raw_headers]
    return b"".join(
        (b"HTTP/1.1 503 Service Unavailable\r\n", *head, b"connection: close\r\n\r\n", response.body)
    )


def address_of(client: tuple[str, int] | None) -> str:
    """Whose connection this is, as far as an address tells."""
    if client is None:
        return ""
    host = client[0]
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, NETWORK_BITS), strict=False))


class _Connections:
    """All connections of a server, looked at while there are any."""

    def __init__(self, limits: ConnectionLimits, connections_max: int) -> None:
        self.limits = limits
        self.memory = MemoryBudget(limits.memory_bytes_max)
        self.connections: set[_WatchedProtocol] = set()
        self.cuts: Counter[str] = Counter()
        self._connections_max = connections_max
        # Of each address those that have a place, the oldest first.
        self._places: dict[str, dict[_WatchedProtocol, None]] = {}
        self._places_taken = 0
        self._no_place_at_once = _answer_at_once(_NO_PLACE)
        self._discarding: deque[_WatchedProtocol] = deque()
        self._look_seconds = min(LOOK_SECONDS_MAX, limits.head_seconds_max / LOOKS_PER_HEAD_TIME)
        self._looking = False
        self._look_at = 0.0

    def add_to(self, metrics: Metrics) -> None:
        metrics.follow(
            "http_connections_cut",
            "Connections that were ended by the server, by reason",
            ("reason",),
            lambda: [((reason,), count) for reason, count in self.cuts.items()],
        )
        metrics.follow_now("http_connections", "Open connections", (), lambda: [((), len(self.connections))])
        metrics.follow_now(
            "http_memory_bytes",
            "What requests and answers under way hold of the memory that is meant for them",
            (),
            lambda: [((), self.memory.bytes_held)],
        )

    def add(self, connection: "_WatchedProtocol") -> None:
        self.connections.add(connection)
        self._place(connection)
        if not self._looking:
            self._looking = True
            self._look_later(connection.loop)

    def remove(self, connection: "_WatchedProtocol") -> None:
        self.connections.discard(connection)
        self._give_up(connection)

    def _give_up(self, connection: "_WatchedProtocol") -> None:
        own = self._places.get(connection.address)
        if own is not None and connection in own:
            del own[connection]
            self._places_taken -= 1
            if not own:
                del self._places[connection.address]

    def _place(self, connection: "_WatchedProtocol") -> None:
        own = self._places.get(connection.address)
        if self._places_taken >= self._connections_max and not self._make_place(len(own or ())):
            self.cuts["connections"] += 1
            if len(self.connections) - self._places_taken > REFUSED_MAX:
                connection.transport.write(self._no_place_at_once)
                connection.transport.close()
            else:
                connection.app = _no_place
            return
        if own is None:
            own = self._places[connection.address] = {}
        own[connection] = None
        self._places_taken += 1

    def _make_place(self, own_count: int) -> bool:
        """Whether the address with the most connections gave one up: one that rests, or else the oldest."""
        places = max(self._places.values(), key=len)
        if len(places) <= own_count + 1:
            return False
        seen = list(islice(places, VICTIMS_SEEN_MAX))
        victim = next((connection for connection in seen if connection.rests), seen[0])
        self._give_up(victim)
        if victim.rests:
            self.cuts["connections"] += 1
            victim.transport.close()
        else:
            victim.cut("connections")
        return True

    def discard_later(self, connection: "_WatchedProtocol") -> None:
        """Its turn to send more of what is not read comes behind the others'."""
        connection.flow.pause_reading()
        self._discarding.append(connection)
        if len(self._discarding) == 1:
            connection.loop.call_later(DISCARDING_PAUSE_SECONDS, self._discard, connection.loop)

    def _discard(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(DISCARDING_AT_ONCE, len(self._discarding))):
            connection = self._discarding.popleft()
            if not connection.transport.is_closing():
                connection.flow.resume_reading()
        if self._discarding:
            loop.call_later(DISCARDING_PAUSE_SECONDS, self._discard, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        stood_still = now - self._look_at > STOOD_STILL_SECONDS
        for connection in tuple(self.connections):
            if stood_still:
                connection.begin_anew(now)
            else:
                connection.look(now)
        self._looking = bool(self.connections)
        if self._looking:
            self._look_later(loop)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._look_at = loop.time() + self._look_seconds
        loop.call_later(self._look_seconds, self._look, loop)


async def _answered(cycle: Any, app: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """An application that fails has a problem document for an answer, and the connection is as good as
    before: what belongs to a request is read to its last byte in any case. A framework raises its fault again
    once it has answered; the server would then hang up without having said so, and take the next request with
    it."""
    try:
        await app(scope, receive, send)
    except Exception as fault:
        if cycle.response_started and not cycle.response_complete:
            raise  # only the end of the connection shows the client that this is not all
        if cycle.response_complete:
            log.debug("fault_after_answer", path=scope["path"], error=type(fault).__name__)
            return
        log.exception("request_failed", path=scope["path"])
        refused = Refused(Code.INTERNAL, "an unexpected fault; the log has it")
        await problem(refused)(scope, receive, send)


class _WholeAnswers:
    """A transport that holds an answer's head back for its body, which nearly always follows at once: one
    packet and one call of the system instead of two."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self.bytes_written = 0

    def write(self, data: bytes) -> None:
        head = self._head
        if head is not None:
            self._head = None
            self._write(head + data)
        elif data.startswith(b"HTTP/"):
            self._head = data
            self._loop.call_soon(self._send_head)
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        self.bytes_written += len(data)
        self._transport.write(data)

    def close(self) -> None:
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        head, self._head = self._head, None
        if head is not None:
            self._write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _WatchedProtocol(HttpToolsProtocol):
    """A connection. `_since` is when it began to owe us something: a head, or the rest of a body.

    The base class is internal to uvicorn. What is overridden or read here (`cycle`, `flow`, `pipeline`,
    `parser`, `expect_100_continue`, `_start_asgi_task`, `send_400_response`, the callbacks of the parser) may
    change in any release: so pyproject.toml pins uvicorn to the minor version that the connection tests ran
    with."""

    watch: _Connections
    address = ""
    _since: float | None = None
    _in_head = True
    _head_bytes = 0
    _hosts = 0
    _unread_since: float | None = None
    _bytes_taken = 0  # by the client, when that was last more than before
    _pipelined_bytes = 0  # of bodies whose requests wait
    _discarded_bytes = 0  # of a body that came after its answer
    _unsent_bytes = 0  # of an answer, at its most
    _ended = False  # a request, within the read that is looked at
    _unreadable = False  # what comes now cannot be read; what came before is still answered
    _trailing = False  # after the head of a chunk, of which the last has no body but fields behind it
    _stays = True  # once the body comes that the client asked leave for

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = transport
        self._out = _WholeAnswers(transport, self.loop)
        super().connection_made(self._out)  # type: ignore[arg-type]
        transport.set_write_buffer_limits(high=UNCOUNTED_BYTES)
        self._since = self.loop.time()
        self.address = address_of(self.client)
        self.memory = ConnectionMemory(
            self.watch.memory, self.address, self._cut_for_memory, self._count_memory
        )
        self.watch.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.watch.remove(self)
        super().connection_lost(exc)
        self.memory.on_wire(0)

    @property
    def rests(self) -> bool:
        """Between two requests, or before the first."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        if self._unreadable:
            return
        self._unset_keepalive_if_required()
        self._ended, trailing = False, self._trailing
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._since is None and (self.cycle is None or self.cycle.response_complete):
            self._since = self.loop.time()  # empty lines between two requests: the next one has begun
        # Of a read in which a request ended it is not known how much belongs to the next one's head.
        in_head = self._in_head and self._since is not None and not self._ended
        if in_head or (trailing and self._trailing):
            self._head_bytes += len(data)
            if self._head_bytes > self.watch.limits.head_bytes_max and not self.transport.is_closing():
                self._refuse(b"431 Request Header Fields Too Large", "head")
            elif self._head_bytes > UNCOUNTED_BYTES:
                self._count_memory()

    def _feed(self, data: bytes) -> None:
        """No other protocol is spoken here, so a request for one is ignored. The parser would take what
        follows such a head for that protocol, be it a body or the next request: it reads the head again,
        without that request, and then the rest."""
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as found:
                rest = rest[found.args[0] :]
                method, version = self.parser.get_method(), self.parser.get_http_version().encode()
                if method == b"CONNECT":
                    raise httptools.HttpParserError from None
                head = [b"%b %b HTTP/%b\r\n" % (method, self.url, version)]
                head += [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(b"".join((*head, b"\r\n")))
            else:
                return

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[SCOPE_KEY] = self.memory  # type: ignore[typeddict-unknown-key]
        self._since, self._in_head, self._head_bytes = self.loop.time(), True, 0
        self._hosts = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # what comes behind a body is no part of the head that the request was judged by
            if len(name) == HOST_LENGTH and name.lower() == b"host":
                self._hosts += 1
            super().on_header(name, value)

    def on_chunk_header(self) -> None:
        self._trailing, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if len(self.pipeline) >= PIPELINED_MAX:
            raise httptools.HttpParserError("too many requests at a time")
        if self._hosts > 1:
            # A proxy in front may have judged by the other one (RFC 9112, 3.2).
            raise httptools.HttpParserError("more than one host")
        super().on_headers_complete()
        self._since, self._in_head, self._discarded_bytes = self.loop.time(), False, 0
        if self.expect_100_continue:
            # A client that is answered before it began to send its body may never send it: what comes next
            # could be that body or another request.
            self._stays, self.cycle.keep_alive = self.cycle.keep_alive, False
        if self.pipeline:
            self._count_memory()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        super()._start_asgi_task(cycle, partial(_answered, cycle, app))

    def on_body(self, body: bytes) -> None:
        self._trailing = False
        self._body_comes()
        super().on_body(body)
        if self.cycle.response_complete:
            self._discarded_bytes += len(body)
            if self._discarded_bytes > DISCARDED_BYTES_MAX and not self.flow.read_paused:
                self.watch.discard_later(self)
        elif self.pipeline:
            self._pipelined_bytes += len(body)
            self._count_memory()
        elif len(self.cycle.body) > UNCOUNTED_BYTES:
            self._count_memory()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._body_comes()
        self._trailing = False
        self._since, self._in_head, self._head_bytes = None, True, 0
        self._ended = True
        super().on_message_complete()

    def _body_comes(self) -> None:
        if self.expect_100_continue and not self.cycle.response_started:
            self.cycle.keep_alive = self._stays

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.memory.wire_bytes:
            self._count_memory()

    def shutdown(self) -> None:
        self._stays = False
        super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Only where the answer to what cannot be read is the next that the client waits for."""
        if self._in_head and self.cycle is not None and not self.cycle.response_complete:
            self._unreadable, self._since = True, None
            self.cycle.keep_alive = False
        elif not self._in_head and self.pipeline:
            self.transport.abort()
        elif not self._in_head and self.cycle.response_started:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._count_memory()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._count_memory()

    def _count_memory(self) -> None:
        """An answer counts in full until nearly all of it is taken: until then all of it is there."""
        unsent = 0
        if self.flow.write_paused:
            unsent = max(self._socket.get_write_buffer_size(), self._unsent_bytes)
        self._unsent_bytes = unsent
        if not self.pipeline:
            self._pipelined_bytes = 0
        waiting = self._pipelined_bytes + len(self.pipeline) * PIPELINED_BYTES
        if self.cycle is not None and not self.pipeline:
            waiting = len(self.cycle.body)
        waiting += self._head_bytes
        self.memory.on_wire(unsent + (waiting if waiting > UNCOUNTED_BYTES else 0))

    def _cut_for_memory(self) -> None:
        self.cut("memory")

    def cut(self, reason: str) -> None:
        """At once, with what the system still keeps for this client: it would keep that for minutes."""
        self.watch.cuts[reason] += 1
        connected = self._socket.get_extra_info("socket")
        if connected is not None and not self._socket.is_closing():
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._socket.abort()

    def timeout_keep_alive_handler(self) -> None:
        """Timers go before sockets: where a process stood still, the next request may have come long ago."""
        close = super().timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(BACKLOG_SECONDS, close)

    def begin_anew(self, now: float) -> None:
        """This process stood still: what is missing may have come, and be read in a moment."""
        self._since = None if self._since is None else now
        self._unread_since = None if self._unread_since is None else now

    def look(self, now: float) -> None:
        limits = self.watch.limits
        if self._takes_nothing(now):
            self.cut("unread")
            return
        if self.memory.wire_bytes:
            self._count_memory()
        if self._since is None or self.transport.is_closing():
            return
        if self.flow.read_paused:
            # It is we who do not read: what is missing cannot be held against the client.
            self._since = now
            return
        body_seconds_max = limits.body_seconds_max + limits.body_grace_seconds
        allowed = limits.head_seconds_max if self._in_head else body_seconds_max
        if now - self._since >= allowed:
            self._refuse(b"408 Request Timeout", "head" if self._in_head else "body")

    def _takes_nothing(self, now: float) -> bool:
        """Whether the client has taken no byte of what is there for it, for longer than it may."""
        unsent = self._socket.get_write_buffer_size()
        if not unsent:
            self._unread_since = None
            return False
        taken = self._out.bytes_written - unsent
        if self._unread_since is None or taken > self._bytes_taken:
            self._unread_since, self._bytes_taken = now, taken
        return now - self._unread_since >= self.watch.limits.unread_seconds_max

    def _refuse(self, status: bytes, reason: str) -> None:
        """Says why, if an answer to this request can still be sent; then it is over."""
        if self._in_head and self._head_bytes == 0:
            self.transport.close()
            return
        self.watch.cuts[reason] += 1
        if self._in_head and self.rests:
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()
        else:
            self.transport.abort()

"""What a connection may cost before its request is known: time, bytes, and a place among the others.

In: bytes from anybody. Out: requests for the application, or the end of the connection. A client that sends
its head or its body too slowly or does not read its answer, a head that is too large, and a connection on
which nothing ever comes are cut off here; of most of these the application would not even hear. Connections
are looked at now and then, because a timer for each request would cost more than most requests.

What belongs to one request is never read as the next: the rest of a body whose request is answered already is
thrown away to its last byte, and where nobody can know where the next request begins the connection ends.
"""

import asyncio
import resource
from typing import Any

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

FILES_KEPT_FREE = 128  # for the ledger, the log, connections to others
FILES_WANTED_MAX = 16_384
CONNECTIONS_MIN = 32  # with fewer, a few workers that wait for work keep everybody else out
PIPELINED_MAX = 128  # requests of one connection that wait for the answer to an earlier one
LOOKS_PER_HEAD_TIME = 8
LOOK_SECONDS_MAX = 1.0
STOOD_STILL_SECONDS = 1.0  # a look that comes so late: the process did not run
BACKLOG_SECONDS = 0.1


class WireLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`body_seconds_max`: when the application gives a body up. The connection is cut `body_grace_seconds`
    later, so that the answer gets out."""

    head_seconds_max: float = 10.0
    head_bytes_max: int = 64 * 1024
    body_seconds_max: float = 30.0
    body_grace_seconds: float = 5.0
    unread_seconds_max: float = 60.0
    keep_alive_seconds: int = 15
    connections_max: int = 12_000


def server_config(app: Any, limits: WireLimits, **more: Any) -> uvicorn.Config:
    """How the server is run wherever it is run."""
    return uvicorn.Config(
        app,
        http=_protocol(limits),
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # nobody here asks who is behind a proxy
        server_header=False,
        timeout_keep_alive=limits.keep_alive_seconds,
        limit_concurrency=_connections_max(limits.connections_max),
        **more,
    )


def open_files_fault() -> str | None:
    """Why so few files may be open that hardly anybody could be served; None if there is room."""
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


def _protocol(limits: WireLimits) -> type[asyncio.Protocol]:
    watch = _Watch(limits)

    class Watched(_WatchedProtocol):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.watch = watch

    return Watched


class _Watch:
    """All connections of a server, looked at while there are any."""

    def __init__(self, limits: WireLimits) -> None:
        self.limits = limits
        self.connections: set[_WatchedProtocol] = set()
        self._look_seconds = min(LOOK_SECONDS_MAX, limits.head_seconds_max / LOOKS_PER_HEAD_TIME)
        self._looking = False
        self._look_at = 0.0

    def add(self, connection: "_WatchedProtocol") -> None:
        self.connections.add(connection)
        if not self._looking:
            self._looking = True
            self._look_later(connection.loop)

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


class _WholeAnswers:
    """A transport that holds an answer's head back for its body, which nearly always follows at once: one
    packet and one call of the system instead of two."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        head = self._head
        if head is not None:
            self._head = None
            self._transport.write(head + data)
        elif data.startswith(b"HTTP/"):
            self._head = data
            self._loop.call_soon(self._send_head)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        head, self._head = self._head, None
        if head is not None:
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _WatchedProtocol(HttpToolsProtocol):
    """A connection. `_since` is when it began to owe us something: a head, or the rest of a body."""

    watch: _Watch
    _since: float | None = None
    _in_head = True
    _head_bytes = 0
    _unread_since: float | None = None
    _ended = False  # a request, within the read that is looked at
    _deaf = False  # what comes now cannot be read; what came before is still answered
    _trailing = False  # after the head of a chunk, of which the last has no body but fields behind it
    _stays = True  # once the body comes that the client asked leave for

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_WholeAnswers(transport, self.loop))  # type: ignore[arg-type]
        self._since = self.loop.time()
        self.watch.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.watch.connections.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
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
        # Of a read in which a request ended nobody knows how much belongs to the next one's head.
        in_head = self._in_head and self._since is not None and not self._ended
        if in_head or (trailing and self._trailing):
            self._head_bytes += len(data)
            if self._head_bytes > self.watch.limits.head_bytes_max and not self.transport.is_closing():
                self._refuse(b"431 Request Header Fields Too Large")

    def _feed(self, data: bytes) -> None:
        """Nobody here speaks another protocol, so a wish for one is passed over. The parser would take what
        follows such a head for that protocol, be it a body or the next request: it reads the head again,
        without the wish, and then the rest."""
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
        self._since, self._in_head, self._head_bytes = self.loop.time(), True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # what comes behind a body is no part of the head that the request was judged by
            super().on_header(name, value)

    def on_chunk_header(self) -> None:
        self._trailing, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if len(self.pipeline) >= PIPELINED_MAX:
            raise httptools.HttpParserError("too many requests at a time")
        super().on_headers_complete()
        self._since, self._in_head = self.loop.time(), False
        if self.expect_100_continue:
            # Whoever is answered before it began to send its body may never send it: what comes next could
            # be that body or another request.
            self._stays, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_body(self, body: bytes) -> None:
        self._trailing = False
        self._body_comes()
        super().on_body(body)

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

    def shutdown(self) -> None:
        self._stays = False
        super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Only where the answer to what cannot be read is the next that the client waits for."""
        if self._in_head and self.cycle is not None and not self.cycle.response_complete:
            self._deaf, self._since = True, None
            self.cycle.keep_alive = False
        elif not self._in_head and self.pipeline:
            self.transport.abort()
        elif not self._in_head and self.cycle.response_started:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        self._unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = None
        super().resume_writing()

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
        if self._unread_since is not None and now - self._unread_since >= limits.unread_seconds_max:
            self.transport.abort()
            return
        if self._since is None or self.transport.is_closing():
            return
        if self.flow.read_paused:
            # It is we who do not read: what is missing cannot be held against the client.
            self._since = now
            return
        body_seconds_max = limits.body_seconds_max + limits.body_grace_seconds
        allowed = limits.head_seconds_max if self._in_head else body_seconds_max
        if now - self._since >= allowed:
            self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        """Says why, if an answer to this request can still be sent; then it is over."""
        if self._in_head and self._head_bytes == 0:
            self.transport.close()
        elif self._in_head and (self.cycle is None or self.cycle.response_complete):
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()
        else:
            self.transport.abort()

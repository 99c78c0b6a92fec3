"""How a process serves until it is told to stop: an address of its own, a server, two signals.

In: a host and a port, an application. Out: an exit code. Signals are handled here and nowhere else, so that
one place decides how a process ends.
"""

import asyncio
import ipaddress
import os
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import structlog
import uvicorn
from starlette.types import ASGIApp

from lucius.api.connection_limits import SEND_BUFFER_BYTES, ConnectionLimits, open_files_fault, server_config
from lucius.api.tls_connections import HandshakeLimits, TlsPort
from lucius.cli.context import Output
from lucius.ledger.api_keys import ApiKeyStore
from lucius.ledger.store import StoreError
from lucius.settings import Settings
from lucius.settings.names import misspelt
from lucius.telemetry import Metrics, configure_logging

log = structlog.get_logger("lucius.cli")

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
DRAIN_SECONDS = 10
BACKLOG_MAX = 2_048


class QuietServer(uvicorn.Server):
    """uvicorn (pinned in pyproject.toml) without its own signal handlers. `up` is set once it has begun to
    serve, or failed to."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        tls: ssl.SSLContext | None = None,
        handshakes: HandshakeLimits | None = None,
    ) -> None:
        """With `tls` it serves sockets that are given to it, and no others."""
        super().__init__(config)
        self.up = asyncio.Event()
        self._tls = tls
        self._handshakes = handshakes or HandshakeLimits()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            if self._tls is None:
                await super().startup(sockets)
            else:
                await super().startup([])
                await self._listen_with_tls(sockets or [], self._tls)
        finally:
            self.up.set()

    async def _listen_with_tls(self, sockets: list[socket.socket], tls: ssl.SSLContext) -> None:
        config = self.config

        def make_protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        port = TlsPort(tls, self._handshakes, make_protocol)
        loop = asyncio.get_running_loop()
        for listener in sockets:
            self.servers.append(await loop.create_server(port, sock=listener, backlog=config.backlog))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(
    app: ASGIApp, settings: Settings, metrics: Metrics | None = None, *, tls: ssl.SSLContext | None = None
) -> QuietServer:
    """`metrics`: where it reports what its connections cost. `tls` None: it speaks plain HTTP."""
    limits = ConnectionLimits(
        head_seconds_max=settings.head_timeout_ms / 1000,
        body_seconds_max=settings.access.body_seconds_max,
        unread_seconds_max=settings.unread_timeout_ms / 1000,
        connections_max=settings.connections_max,
        memory_bytes_max=settings.http_memory_bytes_max,
    )
    return QuietServer(
        server_config(
            app,
            limits,
            metrics=metrics,
            log_level="warning",
            loop="uvloop",
            timeout_graceful_shutdown=DRAIN_SECONDS,
            backlog=BACKLOG_MAX,
        ),
        tls=tls,
        handshakes=HandshakeLimits.beside(limits.connections_max, limits.head_seconds_max),
    )


def bind(host: str, port: int) -> socket.socket:
    """Before anything else: the address is part of every directive, and port 0 is known only once bound."""
    family, kind, protocol, _, address = min(
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM),
        key=lambda found: found[0] is not socket.AF_INET,
    )
    listener = socket.socket(family, kind, protocol)
    try:
        # A process that was killed leaves connections behind that would bar the address for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # of its connections too
        listener.bind(address)
        # Now, not later: of two that start at once, the second fails here.
        listener.listen(BACKLOG_MAX)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(host: str, listener: socket.socket, *, tls: bool = False) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{name}:{listener.getsockname()[1]}"


def serving_fault(settings: Settings, host: str) -> str | None:
    """Why this process cannot serve at this address; None if it can."""
    return open_address_fault(settings, host) or open_files_fault()


def open_address_fault(settings: Settings, host: str) -> str | None:
    """Why this address may not be listened on; None if it may."""
    if settings.auth_required or is_loopback(host):
        return None
    return (
        f"{host} is not a loopback address, and every caller would be let in without credentials. "
        "Set LUCIUS_AUTH=required, or bind to 127.0.0.1."
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def stop_signals() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def serve_until(
    stop: asyncio.Event,
    server: QuietServer,
    listener: socket.socket,
    *,
    on_up: Callable[[], Awaitable[None]],
    let_go: Callable[[], None],
) -> int:
    """Serves until told to stop, or until the server ends by itself. `let_go` is called before calls under
    way are waited for."""
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await server.up.wait()
    await on_up()
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    say("Stopping: finishing what is under way.")
    server.should_exit = True
    let_go()
    await serving
    stopping.cancel()
    return 0 if stop.is_set() else EXIT_FAILED


async def run_until(
    stop: asyncio.Event,
    app: ASGIApp,
    settings: Settings,
    listener: socket.socket | None,
    *,
    on_up: Callable[[], Awaitable[None]],
    let_go: Callable[[], None],
    metrics: Metrics | None = None,
    tls: ssl.SSLContext | None,
) -> int:
    """Runs until told to stop, and serves meanwhile if there is an address to serve at."""
    if listener is not None:
        server = make_server(app, settings, metrics, tls=tls)
        return await serve_until(stop, server, listener, on_up=on_up, let_go=let_go)
    await on_up()
    await stop.wait()
    say("Stopping: finishing what is under way.")
    let_go()
    return 0


def announce(part: str, url: str | None) -> None:
    """For the process that started it: one line that says that it is up, and where."""
    Output(as_json=True).json(msgspec.json.encode({"part": part, "pid": os.getpid(), "url": url}))


def begin_logging(settings: Settings, level: str | None, *, quiet_terminal: bool = False) -> None:
    """`quiet_terminal`: unless told otherwise, people at a terminal see only what they should look after. The
    first line of the log names the variables that look like a typing error."""
    terminal = sys.stderr.isatty()
    usual = "warning" if terminal and quiet_terminal else "info"
    plain = logs_are_plain(settings)
    configure_logging(level or settings.log_level or usual, plain=plain)
    for name, meant in misspelt(os.environ).items():
        text = f"{name} is set, and nothing reads it: was {meant} meant?"
        if plain:
            say(f"warning: {text}")
        else:
            log.warning("variable_unknown", name=name, meant=meant, hint=text)


def logs_are_plain(settings: Settings) -> bool:
    """Whether lines are for people."""
    return sys.stderr.isatty() if settings.log_plain is None else settings.log_plain


def refuse(message: str) -> int:
    say(message)
    return EXIT_USAGE


def fail(message: str) -> int:
    say(message)
    return EXIT_FAILED


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


async def gate_lines(data: Path, host: str, settings: Settings, keys: ApiKeyStore) -> list[str]:
    """Who may come in, and what is still missing for it."""
    if not settings.auth_required:
        return ["open to this machine only: every local caller may do everything (LUCIUS_AUTH=open)"]
    issuer = "" if settings.oidc is None else f" or a token of {settings.oidc.issuer}"
    lines = [f"authentication is required: an API key{issuer} in every call"]
    try:
        without_keys = not any(key.revoked_at_ms is None for key in await keys.all())
    except StoreError:
        without_keys = False
    if without_keys and settings.oidc is None:
        # `admin` alone looks at no job.
        roles = " ".join(f"--role {role}" for role in ("admin", "read", "submit", "control"))
        command = f"lucius keys create NAME --tenant '*' {roles} --data {data}"
        lines.append(f"there is no key yet; make the first one with: {command}")
    if settings.public_url is None and is_wildcard(host):
        lines.append("services elsewhere cannot answer to this address: set LUCIUS_PUBLIC_URL")
    return lines

"""`lucius dev`: everything in one process, on this machine."""

import asyncio
import ipaddress
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvicorn
import uvloop

from lucius import __version__
from lucius.api.app import make_app
from lucius.assembly import Embedded, open_embedded
from lucius.cli.desk import DEFAULT_URL
from lucius.cli.folder import claim_folder
from lucius.cli.options import DevOptions
from lucius.cli.wire_limits import WireLimits, server_config
from lucius.ledger.jobs import LayoutName
from lucius.ledger.keys import KeyLedger
from lucius.ledger.store import StoreError
from lucius.services import REFERENCE_SERVICES
from lucius.services.sample import sample_document
from lucius.settings import BadSetting, Settings, read_settings
from lucius.telemetry import configure_logging

EXIT_FAILED = 1
EXIT_USAGE = 2
DRAIN_SECONDS = 10
BACKLOG_MAX = 2_048


class QuietServer(uvicorn.Server):
    """uvicorn without its own signal handlers: one place decides how the process ends. `up` is set once it
    has begun to serve, or failed to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_dev(options: DevOptions) -> int:
    try:
        settings = read_settings(os.environ)
    except BadSetting as fault:
        return _refuse(str(fault))
    if not settings.auth_required and not is_loopback(options.host):
        return _refuse(
            f"{options.host} is not a loopback address, and nobody would be asked who they are. "
            "Set LUCIUS_AUTH=required, or bind to 127.0.0.1."
        )
    if options.protocols is not None and not options.protocols.is_dir():
        return _refuse(f"--protocols {options.protocols}: there is no such folder")
    plain = sys.stderr.isatty() if settings.log_plain is None else settings.log_plain
    configure_logging(options.log_level or settings.log_level, plain=plain)
    return uvloop.run(_dev(options, settings))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _dev(options: DevOptions, settings: Settings) -> int:
    try:
        listener = _bind(options.host, options.port)
    except OSError as fault:
        _say(f"Cannot listen on {options.host}, port {options.port}: {fault.strerror}. Try another --port.")
        return EXIT_FAILED
    with listener:
        try:
            claim = claim_folder(options.data, options.storage)
        except OSError as fault:
            _say(f"Cannot open the ledger in {options.data}: {fault}")
            return EXIT_FAILED
        if isinstance(claim, str):
            _say(claim)
            return EXIT_FAILED
        with claim:
            return await _open_and_serve(options, settings, listener)


def _bind(host: str, port: int) -> socket.socket:
    """Before anything else: the address is part of every directive, and port 0 is known only once bound."""
    family, kind, protocol, _, address = min(
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM),
        key=lambda found: found[0] is not socket.AF_INET,
    )
    listener = socket.socket(family, kind, protocol)
    try:
        # A process that was killed leaves connections behind that would bar the address for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Now, not later: of two that start at once, the second is told here that it is late.
        listener.listen(BACKLOG_MAX)
    except OSError:
        listener.close()
        raise
    return listener


async def _open_and_serve(options: DevOptions, settings: Settings, listener: socket.socket) -> int:
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = settings.public_url or f"http://{host}:{listener.getsockname()[1]}"
    try:
        lucius = await open_embedded(
            settings,
            layout=LayoutName(options.storage),
            data=options.data,
            base_url=url,
            protocols=options.protocols,
        )
    except (StoreError, OSError) as fault:
        _say(f"Cannot open the ledger in {options.data}: {fault}")
        return EXIT_FAILED
    config = server_config(
        make_app(lucius.house),
        WireLimits(
            head_seconds_max=settings.head_timeout_ms / 1000, body_seconds_max=settings.door.body_seconds_max
        ),
        host=options.host,
        port=options.port,
        log_level="warning",
        loop="uvloop",
        timeout_graceful_shutdown=DRAIN_SECONDS,
        backlog=BACKLOG_MAX,
    )
    server = QuietServer(config)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await lucius.start({name: REFERENCE_SERVICES[name] for name in options.services})
    except StoreError as fault:
        await lucius.stop()
        _say(f"Cannot use the ledger in {options.data}: {fault}")
        return EXIT_FAILED
    return await _serve(options, settings, lucius, server, listener, stop, url)


async def _serve(
    options: DevOptions,
    settings: Settings,
    lucius: Embedded,
    server: QuietServer,
    listener: socket.socket,
    stop: asyncio.Event,
    url: str,
) -> int:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await server.up.wait()
    services = ", ".join(options.services) or "none"
    _say(f"Lucius {__version__} is up: {url} (API docs at {url}/docs)")
    _say(f"  data {options.data}, storage {options.storage}, services {services}")
    for line in await gate_lines(options, settings, lucius.house.keys):
        _say(f"  {line}")
    wanted = options.sample and bool(options.services)
    if wanted and settings.auth_required and not os.environ.get("LUCIUS_API_KEY"):
        _say("No sample document is run, because LUCIUS_API_KEY holds no key to submit it with.")
        wanted = False
    sample = asyncio.create_task(_sample(options, url)) if wanted else None
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if sample is not None:
        sample.cancel()
    _say("Stopping: finishing what is under way.")
    server.should_exit = True
    lucius.let_go()
    await serving
    await lucius.stop()
    stopping.cancel()
    return 0 if stop.is_set() else EXIT_FAILED


async def gate_lines(options: DevOptions, settings: Settings, keys: KeyLedger) -> list[str]:
    """Who may come in, and what is still missing for it."""
    if not settings.auth_required:
        return ["open to this machine only: whoever can reach it may do everything (LUCIUS_AUTH=open)"]
    issuer = "" if settings.oidc is None else f" or a token of {settings.oidc.issuer}"
    lines = [f"authentication is required: an API key{issuer} in every call"]
    try:
        without_keys = not any(key.revoked_at_ms is None for key in await keys.all())
    except StoreError:
        without_keys = False
    if without_keys and settings.oidc is None:
        command = f"lucius keys create NAME --tenant '*' --role admin --data {options.data}"
        lines.append(f"there is no key yet; make the first one with: {command}")
    if settings.public_url is None and _is_wildcard(options.host):
        lines.append("services elsewhere cannot answer to this address: set LUCIUS_PUBLIC_URL")
    return lines


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


async def _sample(options: DevOptions, url: str) -> None:
    """Runs a small document through all steps, as any client would: with `lucius run`."""
    folder = options.data.resolve() / "sample"
    folder.mkdir(exist_ok=True)
    document, output = folder / "sample.pdf", folder / "answer.json"
    document.write_bytes(sample_document())
    envelope = {
        "tenant_id": "sample",
        "request_type": "OCR_EMBEDDING_SIS",
        "input_ref": {"uri": document.as_uri()},
        "output_ref": {"uri": output.as_uri()},
        "payload": {"sis": {"prompt": "When was the lighthouse lit for the first time?"}},
        "schema_version": "1",
        "idempotency_key": f"sample-{os.getpid()}-{document.stat().st_mtime_ns}",
    }
    _say("Running a sample document through OCR → EMBEDDING → SIS:")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "lucius.cli.main",
        "run",
        "-",
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, "LUCIUS_URL": url},
    )
    try:
        await process.communicate(msgspec.json.encode(envelope))
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode == 0 and output.exists():
        answers = msgspec.json.decode(output.read_bytes())["answers"]
        for answer in answers:
            _say(f"  {answer['prompt']} {answer['answer']}")
        _say(f"Done. Stays up until Ctrl-C; in another terminal try: {_client(url)} jobs list")
    else:
        _say(f"The sample did not succeed; `{_client(url)} jobs events JOB_ID` tells why.")


def _client(url: str) -> str:
    """How to call the client from the folder in which this process was started."""
    called, found = Path(sys.argv[0]), shutil.which("lucius")
    on_path = found is not None and Path(found).resolve() == called.resolve()
    program = str(called) if called.name == "lucius" and not on_path else "lucius"
    return program if url == DEFAULT_URL else f"LUCIUS_URL={url} {program}"


def _refuse(message: str) -> int:
    _say(message)
    return EXIT_USAGE


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()

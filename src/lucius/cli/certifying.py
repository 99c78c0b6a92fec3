"""What `lucius certify` runs: the orchestrator, played against one platform service.

In: which service, how it is reached, how it is started, samples. Out: a certificate. Opens what the rules
need: an address, a bus, a folder, a process.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from lucius import __version__
from lucius.assembly import NATS, SERVICE_BUS, NoBus, address_fault, open_bus, own_nats
from lucius.assembly.clock_and_ids import new_lease_id, now_ms
from lucius.assembly.own_servers.nats import nats_env
from lucius.certify.bus_side import BusSide
from lucius.certify.http_side import HttpSide
from lucius.certify.load import LoadLevel, LoadReport, load
from lucius.certify.process import ServiceProcess
from lucius.certify.run import Report, certify
from lucius.certify.samples import read_samples, samples_for
from lucius.certify.testbed import CertifySubject, ServiceTestbed
from lucius.certify.transcript import Transcript
from lucius.certify.values import Carrier, Certificate, CertifyTimeouts
from lucius.cli.lab import LabMissing, lab_offers
from lucius.cli.serving import bind, make_server, url_of
from lucius.settings import Settings
from lucius.settings.table import ServiceBus

LOOPBACK: Final = "127.0.0.1"
END_SECONDS_MAX = 5.0
FILE_ROOTS: Final = "LUCIUS_REF_FILE_ROOTS"

Say = Callable[[str], None]


class CertifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`bus` None: over HTTP. `folder` None: a temporary one. `only` empty: every rule."""

    service: str
    step_type: str
    bus: str | None = None
    port: int = 0
    start: tuple[str, ...] = ()
    sample: Path | None = None
    folder: Path | None = None
    timeouts: CertifyTimeouts = CertifyTimeouts()
    only: tuple[str, ...] = ()


class ServiceNotReached(Exception):
    """The service never came. The text says what was seen of it."""


async def run_certify(
    options: CertifyOptions, settings: Settings, *, say: Say, report: Report
) -> Certificate:
    """Raises `ServiceNotReached`, `NoBus`, `BadSample`, and `OSError` where something cannot be opened or
    started."""
    async with _arrived(options, settings, say) as testbed:
        return await certify(testbed, lucius=__version__, now_ms=now_ms, only=options.only, report=report)


async def run_load(
    options: CertifyOptions,
    settings: Settings,
    *,
    directives: int,
    levels: Sequence[int],
    say: Say,
    report: Callable[[LoadLevel], None],
) -> LoadReport:
    """Raises the same."""
    async with _arrived(options, settings, say) as testbed:
        return await load(testbed, directives=directives, levels=levels, report=report)


@asynccontextmanager
async def _arrived(options: CertifyOptions, settings: Settings, say: Say) -> AsyncIterator[ServiceTestbed]:
    """A stage on which the service is there."""
    async with AsyncExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lucius-")))
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        testbed = await _set_up(stack, options, settings, folder, say)
        await testbed.begin()
        fault = await testbed.arrive(options.timeouts.start_seconds)
        if fault is not None:
            raise ServiceNotReached(fault)
        yield testbed


async def _set_up(
    stack: AsyncExitStack,
    options: CertifyOptions,
    settings: Settings,
    folder: Path,
    say: Say,
) -> ServiceTestbed:
    transcript = Transcript(asyncio.get_running_loop().time)
    http = HttpSide(transcript, options.service)
    base_url = await stack.enter_async_context(_serving(http, settings, options.port))
    samples = read_samples(options.sample) if options.sample else samples_for(options.step_type, folder)
    env = {**os.environ, "LUCIUS_URL": base_url, FILE_ROOTS: str(folder)}
    bus = None
    if options.bus is not None:
        settings, env = await _reach_bus(stack, options, settings, env, folder)
        opened = await open_bus(options.bus, settings)
        if opened is None:
            raise NoBus(address_fault(options.bus, settings) or f"{options.bus} is no bus for processes.")
        stack.push_async_callback(opened.close)
        bus = BusSide(opened, transcript, options.service)
        await bus.open()
        stack.push_async_callback(bus.close)
    process = None
    if options.start:
        command = [word.replace("{url}", base_url).replace("{data}", str(folder)) for word in options.start]
        process = ServiceProcess(command, env=env, log=folder / "service.log")
        stack.push_async_callback(_end, process)
    else:
        say(f"Start the service {options.service} with {FILE_ROOTS}={folder} LUCIUS_URL={base_url}")
    asked = CertifySubject(
        service=options.service,
        step_type=options.step_type,
        carrier=Carrier.HTTP if bus is None else Carrier.BUS,
        samples=samples,
        timeouts=options.timeouts,
        base_url=base_url,
        folder=folder,
    )
    polled = http if bus is None else None
    return ServiceTestbed(
        asked, transcript, bus or http, polled=polled, process=process, now_ms=now_ms, new_id=new_lease_id
    )


async def _reach_bus(
    stack: AsyncExitStack, options: CertifyOptions, settings: Settings, env: dict[str, str], folder: Path
) -> tuple[Settings, dict[str, str]]:
    """Settings and an environment that lead to the bus: one of our own where no address names one. Raises
    `NoBus`."""
    if options.bus == NATS and not settings.nats.servers:
        settings = await stack.enter_async_context(own_nats(settings, folder))
        return settings, nats_env(settings, env)
    # A service that is started by hand needs an address that its owner knows.
    if options.bus == SERVICE_BUS and not settings.service_bus.wanted and options.start:
        try:
            emulator = lab_offers("servicebus-emulator")
        except LabMissing as fault:
            text = f"{address_fault(SERVICE_BUS, settings)} Without one an emulator would do: {fault}."
            raise NoBus(text) from None
        settings = await stack.enter_async_context(emulator(settings))
        return settings, {**env, ServiceBus.connection.name: settings.service_bus.connection_string or ""}
    return settings, env


@asynccontextmanager
async def _serving(http: HttpSide, settings: Settings, port: int) -> AsyncIterator[str]:
    with bind(LOOPBACK, port) as listener:
        server = make_server(http.app(), settings)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await server.up.wait()
        try:
            yield url_of(LOOPBACK, listener)
        finally:
            await http.close()
            server.should_exit = True
            await asyncio.wait({serving}, timeout=END_SECONDS_MAX)


async def _end(process: ServiceProcess) -> None:
    process.ask_to_stop()
    await process.ended(END_SECONDS_MAX if process.running else 0.0)
    await process.kill()

"""`lucius dev`: everything in one process, on this machine."""

import asyncio
import os
import shutil
import signal
import socket
import sys
import webbrowser
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import structlog
import uvloop

from lucius import __version__
from lucius.api.app import make_app
from lucius.api.dependencies import ApiDependencies
from lucius.assembly import (
    MEMORY,
    NATS,
    SERVICE_BUS_EMULATOR,
    Embedded,
    NoBus,
    bus_place,
    open_bus,
    open_embedded,
    own_nats,
    unbrought_fault,
)
from lucius.assembly.choices import (
    DEFAULT,
    STORE_OPTION,
    Choice,
    RunsOn,
    bus_choice,
    choose_bus,
    registry_choice,
    store_choice,
)
from lucius.assembly.own_servers.nats import own_worker_line
from lucius.assembly.stores import MEMORY_STORAGE, not_opened, store_place
from lucius.assembly.workflow_engine import temporal_jobs_left
from lucius.bus.port import Bus
from lucius.cli.context import DEFAULT_URL
from lucius.cli.folder import claim_folders
from lucius.cli.lab import LabMissing, lab_offers
from lucius.cli.options import AZURE_LOCAL, DEV_BUSES, DevOptions
from lucius.cli.serving import (
    announce,
    begin_logging,
    bind,
    fail,
    gate_lines,
    make_server,
    refuse,
    say,
    serve_until,
    serving_fault,
    stop_signals,
    url_of,
)
from lucius.cli.starting import Start, read_start, report_start, with_storage
from lucius.cli.tls_ports import Port, port_tls
from lucius.console import ConsoleApp
from lucius.core.states import Engine
from lucius.guard import own_environment, own_python
from lucius.ledger.store import StoreError, StoreUnavailable
from lucius.services import BadServiceSetting, reference_services, work_processes
from lucius.services.sample import sample_document
from lucius.settings import BadSetting, Settings, StoreKind
from lucius.settings.declaration import Process
from lucius.settings.services import read_service_settings
from lucius.settings.table import Temporal
from lucius.workspace.own_files import SAMPLES

log = structlog.get_logger("lucius.dev")

PROFILE = "--profile"
DEV_PROCESSES = frozenset(Process) - {Process.ADMINISTRATION}
"""`lucius dev` is all of them in one process group."""
ALREADY_TOLD_SECONDS = 0.5
FAREWELL_SECONDS = 2.0
ANSWER = "answer.json"
"""What the sample leaves behind once it succeeded."""


def run_dev(options: DevOptions) -> int:
    try:
        start = read_start(options.data, options.store)
        reference_services(read_service_settings(os.environ))
        start, runs_on = _choose(options, start)
    except (BadSetting, BadServiceSetting) as fault:
        return refuse(str(fault))
    settings = start.settings
    options = with_storage(msgspec.structs.replace(options, bus=runs_on.bus.name), settings)
    if (fault_text := serving_fault(settings, options.host)) is not None:
        return refuse(fault_text)
    if options.protocols is not None and not options.protocols.is_dir():
        return refuse(f"--protocols {options.protocols}: there is no such folder")
    if options.profile == AZURE_LOCAL and options.storage == MEMORY_STORAGE:
        return refuse("--profile azure-local keeps the ledger in tables: --storage ledger or table.")
    if (fault_text := _lab_fault(options)) is not None:
        return refuse(fault_text)
    if runs_on.engine.name == Engine.TEMPORAL.value:
        return _run_temporal(options, start, runs_on)
    if (fault_text := unbrought_fault(options.bus, settings)) is not None:
        return refuse(fault_text)
    begin_logging(settings, options.log_level, quiet_terminal=True)
    report_start(start, DEV_PROCESSES, runs_on)
    return uvloop.run(_dev(options, settings))


def _choose(options: DevOptions, start: Start) -> tuple[Start, RunsOn]:
    """What the options and variables ask for; a profile counts as an option. Raises `BadSetting`."""
    settings, sources = start.settings, start.sources
    engine = Choice(name=Engine.OUTBOX.value, origin=DEFAULT)
    if options.engine is not None:
        engine = Choice(name=options.engine, origin="--engine")
    elif settings.temporal.enabled is not None:
        kind = Engine.TEMPORAL if settings.temporal.enabled else Engine.OUTBOX
        engine = Choice(name=kind.value, origin=sources.origin(Temporal.enabled))
    local = options.profile == AZURE_LOCAL
    if local and options.store and settings.store is not StoreKind.AZURE_TABLES:
        raise BadSetting(f"--profile azure-local keeps the ledger in tables: leave {STORE_OPTION} away")
    if local:
        settings = msgspec.structs.replace(settings, store_url=None)
    store = store_choice(options.store, sources, settings, options.data)
    if local and not settings.table_account.wanted:
        store = Choice(name=StoreKind.AZURE_TABLES.value, place="an emulator of its own", origin=PROFILE)
    usual = NATS if engine.name == Engine.TEMPORAL.value else MEMORY
    if local and not options.bus:
        bus = bus_choice(SERVICE_BUS_EMULATOR, PROFILE, settings)
    else:
        bus = choose_bus(options.bus, sources, settings, offered=DEV_BUSES, usual=usual)
    registry = registry_choice(options.protocols, sources, settings)
    return (
        msgspec.structs.replace(start, settings=settings),
        RunsOn(store=store, bus=bus, engine=engine, registry=registry),
    )


def _lab_fault(options: DevOptions) -> str | None:
    """Why the emulators that the options ask for cannot be had."""
    wanted = {AZURE_LOCAL: options.profile, SERVICE_BUS_EMULATOR: options.bus}
    try:
        for name, asked in wanted.items():
            if name == asked:
                lab_offers(name)
    except LabMissing as missing:
        return str(missing)
    return None


def _run_temporal(options: DevOptions, start: Start, runs_on: RunsOn) -> int:
    try:
        from lucius.cli.dev_temporal import run_dev_temporal
    except ModuleNotFoundError as fault:
        if (fault.name or "").partition(".")[0] != "temporalio":
            raise
        return fail("The temporal engine needs the package temporalio: install lucius[temporal].")
    return run_dev_temporal(options, start, runs_on)


async def _dev(options: DevOptions, settings: Settings) -> int:
    try:
        listener = bind(options.host, options.port)
    except OSError as fault:
        return fail(
            f"Cannot listen on {options.host}, port {options.port}: {fault.strerror}. Try another --port."
        )
    with listener:
        try:
            claim = claim_folders(settings, options.data, options.storage)
        except OSError as fault:
            return fail(f"Cannot open the ledger in {options.data}: {fault}")
        if isinstance(claim, str):
            return fail(claim)
        with claim:
            return await _with_bus(options, settings, listener)


async def _with_bus(options: DevOptions, settings: Settings, listener: socket.socket) -> int:
    async with AsyncExitStack() as stack:
        try:
            if options.profile == AZURE_LOCAL:
                settings = await stack.enter_async_context(lab_offers("azure-local")(settings, options.data))
            if options.bus == NATS and not settings.nats.servers:
                settings = await stack.enter_async_context(own_nats(settings, options.data))
            if options.bus == SERVICE_BUS_EMULATOR:
                settings = await stack.enter_async_context(lab_offers("servicebus-emulator")(settings))
            bus = await open_bus(options.bus, settings)
        except (NoBus, StoreUnavailable) as fault:
            return fail(str(fault))
        return await _open_and_serve(options, settings, listener, bus)


async def _open_and_serve(
    options: DevOptions, settings: Settings, listener: socket.socket, bus: Bus | None
) -> int:
    url = settings.public_url or url_of(options.host, listener, tls=settings.tls.served)
    try:
        lucius = await open_embedded(
            settings,
            storage=options.storage,
            data=options.data,
            base_url=url,
            protocols=options.protocols,
            bus=bus,
        )
    except (StoreError, OSError) as fault:
        if bus is not None:
            await bus.close()
        return fail(not_opened(settings, options.data, fault))
    stop = stop_signals()
    try:
        offered = reference_services(read_service_settings(os.environ))
        await lucius.start({name: offered[name] for name in options.services})
    except StoreError as fault:
        await lucius.stop()
        return fail(f"Cannot use the ledger in {store_place(settings, options.data)}: {fault}")
    sample: list[asyncio.Task[None]] = []
    # The first document need not wait for a process that works on it.
    warming = asyncio.to_thread(work_processes().warm_up) if options.services else asyncio.sleep(0)
    beginning = asyncio.create_task(warming)

    async def on_up() -> None:
        await _introduce(options, settings, lucius, url)
        await open_if_asked(options, url)
        if sample_wanted(options, settings):
            sample.append(asyncio.create_task(run_sample(options, url)))

    def let_go() -> None:
        for running in sample:
            running.cancel()
        lucius.let_go()

    deps = lucius.deployment
    app = ConsoleApp(make_app(deps), deps.installation.login_issuer)
    tls = port_tls(settings.tls, Port.PUBLIC)
    server = make_server(app, settings, lucius.metrics, tls=tls)
    code = await serve_until(stop, server, listener, on_up=on_up, let_go=let_go)
    await lucius.stop()
    await asyncio.wait({beginning})
    return code


async def _introduce(options: DevOptions, settings: Settings, lucius: Embedded, url: str) -> None:
    services = ", ".join(options.services) or "none"
    say(f"Lucius {__version__} is up: {url} (console, and API docs at {url}/docs)")
    say(f"  data {options.data}, storage {options.storage}, services {services}")
    for line in cloud_lines(settings):
        say(f"  {line}")
    if options.storage == MEMORY_STORAGE:
        say("  jobs are kept in memory: they end with this process")
    if (place := bus_place(options.bus, settings)) is not None:
        say(f"  bus {place}")
    if settings.nats.own:
        say(f"  {own_worker_line(settings, options.data)}")
    for line in await gate_lines(options.data, options.host, settings, lucius.deployment.keys):
        say(f"  {line}")
    await warn_of_other_engine(lucius.deployment)
    if options.as_json:
        announce("dev", url)


async def warn_of_other_engine(deployment: ApiDependencies) -> None:
    """Jobs of an engine that no process runs would wait in silence."""
    if not deployment.alone:
        return
    try:
        left = await temporal_jobs_left(deployment.ledger)
    except StoreError:
        return  # readiness reports it
    if left.jobs:
        say(f"  {left.words}")
        log.warning("temporal_jobs_wait", jobs=left.jobs, more=left.more)


def cloud_lines(settings: Settings) -> list[str]:
    """What is kept elsewhere, and where; without keys."""
    places = []
    if settings.store is StoreKind.AZURE_TABLES:
        places.append(f"ledger in tables at {settings.table_account.place}")
    elif settings.store_url is not None and settings.store is not StoreKind.MEMORY:
        places.append(f"ledger in {settings.store.value} at {settings.store_url.place}")
    if settings.app_configuration.wanted:
        places.append(f"configuration at {settings.app_configuration.place}")
    if settings.workspace_root is not None:
        blobs = "" if settings.blob_account is None else f", blobs at {settings.blob_account.endpoint}"
        places.append(f"artifacts below {settings.workspace_root}{blobs}")
    return places


async def open_if_asked(options: DevOptions, url: str) -> None:
    if options.opens and not await asyncio.to_thread(webbrowser.open, url):
        say("There is no browser here: open that address in one.")


def sample_wanted(options: DevOptions, settings: Settings) -> bool:
    wanted = bool(options.services) and options.sample is not False
    if wanted and options.sample is None and (options.data / SAMPLES / ANSWER).exists():
        say("A sample document ran in this folder before; --sample runs it again.")
        return False
    if wanted and settings.auth_required and not os.environ.get("LUCIUS_API_KEY"):
        say("No sample document is run, because LUCIUS_API_KEY holds no key to submit it with.")
        return False
    return wanted


async def run_sample(options: DevOptions, url: str) -> None:
    """Runs a small document through all steps, as any client would: with `lucius run`."""
    folder = options.data.resolve() / SAMPLES
    folder.mkdir(exist_ok=True)
    document, output = folder / "sample.pdf", folder / ANSWER
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
    say("Running a sample document through OCR → EMBEDDING → SIS:")
    process = await asyncio.create_subprocess_exec(
        *own_python("-m", "lucius.cli.main", "run", "-"),
        stdin=asyncio.subprocess.PIPE,
        env={**own_environment(), "LUCIUS_URL": url},
    )
    try:
        await process.communicate(msgspec.json.encode(envelope))
    except asyncio.CancelledError:
        await _put_down(process)
        raise
    if process.returncode == 0 and output.exists():
        answers = msgspec.json.decode(output.read_bytes())["answers"]
        for answer in answers:
            say(f"  {answer['prompt']} {answer['answer']}")
        say(f"Done. Stays up until Ctrl-C; in another terminal try: {_client(url)} jobs list")
    else:
        say(f"The sample did not succeed; `{_client(url)} jobs events JOB_ID` says why.")


async def _put_down(process: asyncio.subprocess.Process) -> None:
    """It may be drawing, and shows the cursor again once interrupted, which a terminal may have done."""
    for seconds in (ALREADY_TOLD_SECONDS, FAREWELL_SECONDS):
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
    process.kill()
    await process.wait()


def _client(url: str) -> str:
    """How to call the client from the folder in which this process was started."""
    called, found = Path(sys.argv[0]), shutil.which("lucius")
    on_path = found is not None and Path(found).resolve() == called.resolve()
    program = str(called) if called.name == "lucius" and not on_path else "lucius"
    return program if url == DEFAULT_URL else f"LUCIUS_URL={url} {program}"

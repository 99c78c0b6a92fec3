"""The parts of Lifebook as processes: the API, a worker, or everything for this machine."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, Final

import msgspec
import uvicorn

from lucius.cli.context import Output
from lucius.cli.serving import QuietServer, bind, is_loopback, stop_signals, url_of
from lucius.lifebook.api import Services, make_app
from lucius.lifebook.build import Lifebook, load_workflows, now_ms
from lucius.lifebook.codec import item_of, plain
from lucius.lifebook.job import FIELDS, LifebookJob
from lucius.lifebook.keys import read_keys
from lucius.lifebook.local import LocalAws, sdk_variables
from lucius.lifebook.process import POLL_SECONDS, LifebookProcess
from lucius.lifebook.provision import provision
from lucius.lifebook.refusals import RunRefused
from lucius.lifebook.runs import RunRequest
from lucius.lifebook.settings import BadVariable, LifebookSettings, read_settings
from lucius.telemetry import configure_logging

SAMPLE_MODULE: Final = "lucius.lifebook.sample"
SAMPLE_WORKSPACE: Final = "demo"
SAMPLE_CREDITS: Final = Decimal(1_000)
SAMPLE_SECONDS_MAX: Final = 120
LOOK_SECONDS: Final = 0.1
DRAIN_SECONDS: Final = 10


def run_part(part: str, log_level: str, out: Output, options: dict[str, Any]) -> int:
    if log_level not in ("debug", "info", "warning", "error"):
        raise BadVariable("--log-level must be debug, info, warning or error.")
    configure_logging(log_level, plain=sys.stderr.isatty())
    match part:
        case "worker":
            return asyncio.run(_worker(out, options))
        case "api":
            return asyncio.run(_api(out, options))
        case _:
            return asyncio.run(_dev(out, options))


def _settings(workflows: str | None, **defaults: str) -> LifebookSettings:
    env = {**defaults, **os.environ}
    if workflows is not None:
        env["LIFEBOOK_WORKFLOWS"] = workflows
    return read_settings(env)


def _up(out: Output, part: str, url: str | None, as_json: bool) -> None:
    if as_json:
        Output(as_json=True).json(msgspec.json.encode({"part": part, "pid": os.getpid(), "url": url}))
    else:
        out.say(f"lifebook {part} is up{'' if url is None else f' at {url}'}")


def _process(
    lifebook: Lifebook, *, concurrency: int | None, sweep: bool, poll_seconds: int = POLL_SECONDS
) -> LifebookProcess:
    settings = lifebook.settings
    return LifebookProcess(
        worker=lifebook.worker(),
        queue=lifebook.queue,
        sweeper=lifebook.sweeper if sweep else None,
        concurrency=concurrency or settings.concurrency,
        sweep_seconds=settings.sweep_interval_ms / 1000,
        poll_seconds=poll_seconds,
    )


async def _worker(out: Output, options: dict[str, Any]) -> int:
    settings = _settings(options["workflows"])
    if not settings.workflows:
        raise BadVariable(
            "Name the modules with --workflows or LIFEBOOK_WORKFLOWS: a worker needs workflows."
        )
    lifebook = Lifebook(settings, workflows=load_workflows(settings.workflows))
    process = _process(lifebook, concurrency=options["concurrency"], sweep=options["sweep"])
    stop = stop_signals()
    working = asyncio.create_task(process.run())
    _up(out, "worker", None, options["as_json"])
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    process.stop()
    await working
    stopping.cancel()
    lifebook.close()
    return 0


def _services(lifebook: Lifebook) -> Services:
    return Services(
        runs=lifebook.runs,
        table=lifebook.writer.table,
        queue=lifebook.queue,
        workflows=lifebook.workflows,
        now_ms=now_ms,
        keys=read_keys(lifebook.settings.api_keys_file),
        webhook_secret=lifebook.settings.webhook_secret,
    )


@asynccontextmanager
async def _serving(lifebook: Lifebook, host: str, port: int) -> AsyncIterator[str]:
    """The API at an address, until the block is left."""
    services = _services(lifebook)
    try:
        listener = bind(host, port)
    except OSError as fault:
        raise BadVariable(
            f"{host}:{port} cannot be listened on: {fault.strerror}. Take another --port."
        ) from None
    config = uvicorn.Config(
        make_app(services),
        log_level="warning",
        timeout_graceful_shutdown=DRAIN_SECONDS,
        h11_max_incomplete_event_size=64 * 1024,
    )
    server = QuietServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.up.wait()
    try:
        yield url_of(host, listener)
    finally:
        server.should_exit = True
        await serving


async def _api(out: Output, options: dict[str, Any]) -> int:
    settings = _settings(options["workflows"])
    if settings.api_keys_file is None and not is_loopback(options["host"]):
        raise BadVariable(
            f"{options['host']} is not a loopback address, and callers would not be asked who they are. "
            "Name a file of keys in LIFEBOOK_API_KEYS, or bind to 127.0.0.1."
        )
    lifebook = Lifebook(settings, workflows=load_workflows(settings.workflows))
    stop = stop_signals()
    async with _serving(lifebook, options["host"], options["port"]) as url:
        _up(out, "api", url, options["as_json"])
        await stop.wait()
    lifebook.close()
    return 0


async def _dev(out: Output, options: dict[str, Any]) -> int:
    """Local stand-ins are started unless the environment leads the SDK somewhere already."""
    local = None
    if not os.environ.get("AWS_ENDPOINT_URL_DYNAMODB"):
        local = LocalAws(env=dict(os.environ))
        await asyncio.to_thread(local.start)
        os.environ.update(sdk_variables(local.url))
    try:
        return await _dev_on(out, options)
    finally:
        if local is not None:
            await asyncio.to_thread(local.stop)


async def _dev_on(out: Output, options: dict[str, Any]) -> int:
    settings = _settings(options["workflows"], LIFEBOOK_CREDITS="table", LIFEBOOK_SWEEP_INTERVAL="5s")
    modules = (*settings.workflows, SAMPLE_MODULE)
    lifebook = Lifebook(settings, workflows=load_workflows(modules))
    await provision(lifebook.aws, settings)
    if (await lifebook.balances.balance(SAMPLE_WORKSPACE)).available < SAMPLE_CREDITS:
        await lifebook.balances.grant(SAMPLE_WORKSPACE, SAMPLE_CREDITS)
    stop = stop_signals()
    process = _process(lifebook, concurrency=None, sweep=True, poll_seconds=1)
    working = asyncio.create_task(process.run())
    code = 0
    async with _serving(lifebook, "127.0.0.1", options["port"]) as url:
        _print_places(out, url, settings)
        if options["sample"]:
            code = await _run_sample(out, lifebook)
        if not options["once"]:
            out.say("Ctrl-C ends it.")
            await stop.wait()
    process.stop()
    await working
    lifebook.close()
    return code


def _print_places(out: Output, url: str, settings: LifebookSettings) -> None:
    out.say(f"API        {url}")
    out.say(f"DynamoDB   {os.environ['AWS_ENDPOINT_URL_DYNAMODB']}  table {settings.table}")
    out.say(f"SQS        {os.environ.get('AWS_ENDPOINT_URL_SQS', 'AWS')}  queue {settings.queue}")
    out.say("In another terminal:")
    out.say(f"  export LIFEBOOK_URL={url}")
    out.say('  lucius lifebook run sample --input \'{"text": "one two three"}\'')


async def _run_sample(out: Output, lifebook: Lifebook) -> int:
    submitted = await lifebook.runs.submit(
        RunRequest(workspace_id=SAMPLE_WORKSPACE, user_id="dev", workflow_id="sample")
    )
    if isinstance(submitted, RunRefused):
        out.say(f"error: {submitted.code}: {submitted.message}")
        return 1
    out.say(f"\nA sample run: {submitted.job.job_id}")
    job = await _watched(out, lifebook, submitted.job)
    if job is None:
        out.say("error: The sample run did not end in time; see the log with --log-level info.")
        return 1
    _print_item(out, job)
    return 0 if job.status == "completed" else 3


async def _watched(out: Output, lifebook: Lifebook, job: LifebookJob) -> LifebookJob | None:
    known = lifebook.workflows.get(job.workflow_id)
    names = [] if known is None else [step.name for step in known.steps]
    seen: tuple[str, int] | None = None
    for _ in range(round(SAMPLE_SECONDS_MAX / LOOK_SECONDS)):
        now = await lifebook.writer.get(job.job_id)
        if now is None:
            return None
        if (now.status, now.step_cursor) != seen:
            seen = (now.status, now.step_cursor)
            done = "█" * now.step_cursor + "░" * (now.steps_total - now.step_cursor)
            at = names[now.step_cursor] if now.step_cursor < len(names) else "all done"
            out.say(f"  {done}  {now.status:<9}  {at}")
        if now.terminal and now.settled_at is not None:
            return now
        await asyncio.sleep(LOOK_SECONDS)
    return None


def _print_item(out: Output, job: LifebookJob) -> None:
    """The item as the contract has it, field by field."""
    item, shown = item_of(job), plain(job)
    out.say("")
    for field in FIELDS:
        if field.of_contract:
            stored = item.get(field.name)
            kind = "" if stored is None else next(iter(stored))
            value = "–" if stored is None else str(next(iter(stored.values())))
            out.data(f"{field.name:<20} {kind:<2} {value}")
    out.data(f"{'results':<23} {json.dumps(shown['results'], ensure_ascii=False)}")

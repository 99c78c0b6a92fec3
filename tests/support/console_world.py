"""An installation as the documentation shows the console: an hour of jobs, and three things to look after.

`python -m tests.support.console_world FOLDER` plays the hour, in a few seconds, and serves the installation
as it is then, its clock standing still. The first line that it writes is JSON: the address, and some jobs.
"""

import asyncio
import heapq
import itertools
import json
import os
import random
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2
from tests.support.still_clock import clock

from lucius.api.app import make_app
from lucius.assembly import Embedded, open_embedded
from lucius.cli.serving import QuietServer, make_server
from lucius.console import ConsoleApp
from lucius.services.sample import sample_document
from lucius.settings import read_settings
from lucius.telemetry import configure_logging

Json = Any
Action = Callable[[], Awaitable[None]]

HOUR_MS = 3_600_000
TENANTS = ("acme", "northwind", "contoso", "globex", "umbrella-health", "stark-legal", "wayne-archive")
FULL = "initech"
LIMIT = 24
TYPES = {
    "OCR": ("ocr",),
    "EMBEDDING": ("embedding",),
    "SIS": ("sis",),
    "OCR_EMBEDDING": ("ocr", "embedding"),
    "OCR_EMBEDDING_SIS": ("ocr", "embedding", "sis"),
    "TRANSLATION": ("translate",),
}
SHARES = (30, 14, 12, 16, 28)
# How long a service works, in seconds: half take less.
WORK = {"ocr": 3.2, "embedding": 0.9, "sis": 7.5, "translate": 4.0}
WORKERS = {
    "ocr": ("ocr-worker/2.4.1 (pod ocr-7c9)", "ocr-worker/2.4.1 (pod ocr-x2k)"),
    "embedding": ("embedder/1.9.0",),
    "sis": ("sis-gpu/0.8.2",),
}
ERRORS = {
    "ocr": ("UNREADABLE_DOCUMENT", "page 3 is damaged: its cross-reference table points beyond the end"),
    "embedding": ("MODEL_UNAVAILABLE", "the model server answered 503 for 30 s"),
    "sis": ("CONTEXT_TOO_LONG", "the prompt and the passages have 38,120 tokens; the model takes 32,768"),
}
KEYS = (
    ("intake-portal", ["submit", "read"], ["acme", "northwind"]),
    ("ocr-workers", ["work"], ["*"]),
    ("on-call", ["read", "control", "admin"], ["*"]),
)
SCHEDULES: tuple[tuple[str, dict[str, str], str, str], ...] = (
    ("invoices-of-the-night", {"cron": "0 3 * * MON-FRI", "timezone": "Europe/Zurich"}, "acme", "OCR"),
    ("mailroom", {"every": "15m"}, "contoso", "OCR_EMBEDDING"),
    ("weekly-archive", {"cron": "30 4 * * SUN", "timezone": "Europe/London"}, "wayne-archive", "EMBEDDING"),
)
TRANSLATION = """
protocol_id: translation_v2
request_types: [TRANSLATION]
steps:
  - step_type: TRANSLATE
    service: translate
    max_attempts: 5
    ack_timeout: 30m
    lease: 10m
    payload_schema:
      type: object
      required: [target_language]
      properties:
        target_language:
          type: string
          description: The language to translate into, such as `de`.
          examples: [de]
        formal: {type: boolean, default: true}
"""


class World:
    def __init__(self, lucius: Embedded, http: httpx2.AsyncClient) -> None:
        self.lucius = lucius
        self._http = http
        self._chance = random.Random(7)
        self._numbers = itertools.count(1)
        self._due: list[tuple[int, int, Action]] = []
        self._taken: dict[str, Json] = {}
        self._job_types: dict[str, str] = {}
        self._next_ms = clock.now_ms

    # -- time

    def at(self, ms: int, action: Action) -> None:
        heapq.heappush(self._due, (ms, next(self._numbers), action))

    async def until(self, ms: int) -> None:
        """Does all that falls due until then, and writes figures every five seconds as a process does."""
        while self._due and self._due[0][0] <= ms:
            at_ms, _, action = heapq.heappop(self._due)
            await self._go_to(at_ms)
            await action()
        await self._go_to(ms)

    async def _go_to(self, ms: int) -> None:
        while self._next_ms <= ms:
            clock.go_to(self._next_ms)
            self._next_ms += 5_000
            await self.lucius.activity_rows.write()
            await self.lucius.sweeper.sweep()
        clock.go_to(ms)

    # -- calls

    async def post(self, path: str, document: Json = None, *, expected: int = 0, **headers: str) -> Json:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self._http.post(path, json=document, headers=named)
        said = f"{path}: {answer.status_code} {answer.text}"
        assert answer.status_code in (expected, 200, 201, 202), said
        return answer.json()

    async def submit(self, tenant: str, request_type: str, **more: Json) -> str:
        number = next(self._numbers)
        asked: Json = {"prompt": "Which obligations does the supplier have, and until when?"}
        payloads: dict[str, Json] = {
            "SIS": asked,
            "OCR_EMBEDDING_SIS": {"ocr": {"language": "en", "dpi": 300}, "sis": asked},
            "OCR": {"language": "en", "dpi": 300},
            "TRANSLATION": {"target_language": "de"},
        }
        document = {
            "schema_version": "1",
            "tenant_id": tenant,
            "request_type": request_type,
            "input_ref": {"uri": f"s3://{tenant}-inbox/2026/11/{number:06d}.pdf"},
            "output_ref": {"uri": f"s3://{tenant}-results/2026/11/{number:06d}.json"},
            "doc_id": f"contract-{2000 + number}",
            "payload": payloads.get(request_type, {}),
            **more,
        }
        accepted = await self.post("/v1/orchestrate", document)
        job_id = str(accepted["jobId"])
        self._job_types[job_id] = request_type
        return job_id

    async def directive(self, job_id: str, service: str) -> Json:
        """This job's next directive; those of others that come along are kept."""
        if job_id not in self._taken and service in WORKERS:
            client = self._chance.choice(WORKERS[service])
            found = await self.post(
                "/v1/directives:lease", {"service": service, "max": 100}, user_agent=client
            )
            self._taken |= {each["jobId"]: each for each in found["directives"]}
        return self._taken.pop(job_id, None)

    async def reply(self, directive: Json, kind: str, *, accepted: int = 200, **more: Json) -> None:
        names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
        message = {name: directive[name] for name in names}
        message |= {"type": kind, "timestamp": "2026-11-19T09:00:00Z", **more}
        token = f"Bearer {directive['callback_token']}"
        await self.post(f"/v1/callbacks/{kind.lower()}", message, expected=accepted, authorization=token)

    # -- jobs

    def plan_job(self, at_ms: int, tenant: str, request_type: str, *, fails: float = 0.0) -> None:
        async def begin() -> None:
            job_id = await self.submit(tenant, request_type)
            await self._begin_step(job_id, 0, fails)

        self.at(at_ms, begin)

    async def _begin_step(self, job_id: str, step: int, fails: float) -> None:
        services = TYPES[self._job_types[job_id]]
        service = services[step]
        directive = await self.directive(job_id, service)
        if directive is None:
            return
        chance, now_ms = self._chance, clock.now_ms
        work_ms = int(1000 * WORK[service] * chance.lognormvariate(0, 0.45))

        async def ack() -> None:
            await self.reply(directive, "ACK")

        async def result() -> None:
            if chance.random() < (fails if step == len(services) - 1 else 0):
                code, message = ERRORS[service]
                await self.reply(
                    directive, "RESULT", status="FAILED_FINAL", error={"code": code, "message": message}
                )
                return
            await self.reply(directive, "RESULT", status="SUCCEEDED")
            if step + 1 < len(services):
                await self._begin_step(job_id, step + 1, fails)

        ack_ms = now_ms + int(60 + 200 * chance.random())
        self.at(ack_ms, ack)
        self.at(ack_ms + work_ms, result)

    def plan_hour(self, begins_ms: int, ends_ms: int) -> None:
        """Ever more jobs, a lull, and a quarter of an hour in which prompts are too long."""
        at_ms = float(begins_ms)
        while at_ms < ends_ms:
            part = (at_ms - begins_ms) / (ends_ms - begins_ms)
            lull = 0.35 if 0.42 < part < 0.5 else 1.0
            busy = (0.55 + 0.45 * part) * lull
            at_ms += self._chance.gammavariate(3, 1_250 / busy)
            (kind,) = self._chance.choices(tuple(TYPES)[:5], SHARES)
            long_prompts = 0.68 < part < 0.86
            fails = (0.85 if long_prompts else 0.03) if kind == "SIS" else 0.02
            (tenant,) = self._chance.choices(TENANTS, (9, 6, 5, 4, 3, 2, 1))
            self.plan_job(int(at_ms), tenant, kind, fails=fails)

    async def retried_job(self) -> str:
        """A job whose second step was tried again, and whose third is at work now."""
        job_id = await self.submit(
            "acme", "OCR_EMBEDDING_SIS", doc_id="contract-2291-rev-c", correlation_id="case-77141"
        )
        await self._step(job_id, "ocr", ack_ms=140, work_ms=4_300)
        directive = await self._taken_by(job_id, "embedding")
        await self._pass(210)
        await self.reply(directive, "ACK")
        await self._pass(2_600)
        await self.reply(
            directive,
            "RESULT",
            status="FAILED_RETRY",
            error={"code": "MODEL_BUSY", "message": "all 4 slots of the model are taken"},
        )
        while (await self.step(job_id, 1))["state"] == "FAILED_RETRY":
            await self._pass(250)
            await self.lucius.sweeper.sweep()
        await self._step(job_id, "embedding", ack_ms=190, work_ms=1_700)
        directive = await self._taken_by(job_id, "sis")
        await self._pass(260)
        await self.reply(directive, "ACK")
        for percent, note in ((20, "passages chosen"), (60, "12 of 20 passages read")):
            await self._pass(3_800)
            await self.reply(directive, "PROGRESS", progress=percent, note=note)
        return job_id

    async def finished_job(self, data: Path) -> str:
        """A job whose document and results lie in the workspace."""
        document = data / "sample" / "sample.pdf"
        document.parent.mkdir(parents=True, exist_ok=True)
        document.write_bytes(sample_document())
        job_id = await self.submit(
            "acme", "OCR", doc_id="letter-of-1871", input_ref={"uri": document.resolve().as_uri()}
        )
        directive = await self._taken_by(job_id, "ocr")
        await self._pass(120)
        await self.reply(directive, "ACK")
        await self._pass(2_900)
        folder = Path(unquote(urlsplit(directive["workspace_ref"]["uri"]).path)) / "ocr" / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "output.txt").write_text("Dear Sir,\n\nI enclose the account of the voyage, as agreed.\n")
        (folder / "pages.json").write_text('{"pages": [{"number": 1, "words": 9, "confidence": 0.97}]}')
        result = (folder / "output.txt").resolve().as_uri()
        await self.reply(directive, "RESULT", status="SUCCEEDED", result_ref={"uri": result})
        return job_id

    async def late_job(self) -> str:
        """A job that failed because its workers were too slow; one answered after its time."""
        job_id = await self.submit("contoso", "EMBEDDING", doc_id="minutes-of-the-board")
        first = await self._taken_by(job_id, "embedding")
        while (await self.job(job_id))["state"] != "FAILED_FINAL":
            await self._pass(1_000)
            await self.lucius.sweeper.sweep()
            await self.directive(job_id, "embedding")
        await self.reply(first, "RESULT", status="SUCCEEDED", accepted=409)
        return job_id

    async def administer(self) -> None:
        """Keys and schedules."""
        for name, roles, tenants in KEYS:
            await self.post(
                "/v1/admin/keys",
                {
                    "name": name,
                    "roles": roles,
                    "tenants": tenants,
                    "services": ["*"] if "work" in roles else [],
                },
            )
        for schedule_id, clock_words, tenant, kind in SCHEDULES:
            command = {
                "schema_version": "1",
                "tenant_id": tenant,
                "request_type": kind,
                "input_ref": {"uri": f"s3://{tenant}-inbox/all.pdf"},
                "output_ref": {"uri": f"s3://{tenant}-results/all.json"},
                "payload": {},
            }
            await self.post(
                "/v1/schedules",
                {"schedule_id": schedule_id, "command": command, "overlap": "skip", **clock_words},
            )
        await self.post("/v1/schedules/weekly-archive:pause")
        made = await self.post("/v1/schedules/invoices-of-the-night:run")
        await self._step(made["jobId"], "ocr", ack_ms=130, work_ms=3_100)

    async def _step(self, job_id: str, service: str, *, ack_ms: int, work_ms: int) -> None:
        directive = await self._taken_by(job_id, service)
        await self._pass(ack_ms)
        await self.reply(directive, "ACK")
        await self._pass(work_ms)
        await self.reply(directive, "RESULT", status="SUCCEEDED")

    async def _taken_by(self, job_id: str, service: str) -> Json:
        directive = await self.directive(job_id, service)
        assert directive is not None, f"{job_id} has no directive for {service}"
        return directive

    async def _pass(self, ms: int) -> None:
        await self.until(clock.now_ms + ms)

    async def job(self, job_id: str) -> Json:
        return (await self._http.get(f"/v1/jobs/{job_id}")).json()

    async def step(self, job_id: str, number: int) -> Json:
        return (await self.job(job_id))["steps"][number]


async def play(world: World, data: Path) -> dict[str, str]:
    """The hour; returns the jobs that have a picture of their own."""
    late = await world.late_job()
    begins_ms = clock.now_ms
    ends_ms = begins_ms + HOUR_MS
    world.plan_hour(begins_ms, ends_ms)
    for number in range(LIMIT):
        world.plan_job(ends_ms - 20_000 * (number + 9), FULL, "TRANSLATION")
    await world.until(ends_ms)
    await world.until(ends_ms + 20_000)
    await world.administer()
    finished = await world.finished_job(data)
    retried = await world.retried_job()
    await world.lucius.activity_rows.write()
    return {"late": late, "finished": finished, "retried": retried}


async def known(url: str) -> None:
    """Until the process has counted what waits and what failed, which it does a slice at a time."""
    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        while True:
            now = (await http.get("/v1/overview", params={"window": "6h"})).json()
            if now["outbox"]["pending"] == LIMIT and now["dlq"] == now["totals"]["failed"]:
                return
            await asyncio.sleep(0.1)


async def serve(folder: Path) -> None:
    configure_logging("error", plain=True)
    data = folder / "data"
    protocols = folder / "protocols"
    protocols.mkdir(parents=True)
    (protocols / "translation.yaml").write_text(TRANSLATION)
    tenants = folder / "tenants.yaml"
    tenants.write_text(f"tenants: {{{FULL}: {{inflight_max: {LIMIT}}}}}")
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    settings = read_settings(
        {
            **os.environ,
            "LUCIUS_TENANTS_FILE": str(tenants),
            "LUCIUS_TRACE_LINK": "https://traces.example/{trace_id}",
        }
    )
    lucius = await open_embedded(settings, storage="ledger", data=data, base_url=url, protocols=protocols)
    await lucius.start({})
    app = make_app(lucius.deployment, ConsoleApp)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=url, timeout=60) as http:
        jobs = await play(World(lucius, http), data)
    server: QuietServer = make_server(app, settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.up.wait()
    await known(url)
    print(json.dumps({"url": url, "jobs": jobs}), flush=True)
    await serving


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(Path(sys.argv[1])))

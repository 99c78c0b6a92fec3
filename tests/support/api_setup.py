"""A client's and a platform service's side of the HTTP contract, and the real house behind it.

`Caller` speaks plain HTTP through whatever client it is given; `callers` opens deployments over SQLite,
or over PostgreSQL where LUCIUS_TEST_STORE=postgresql.
"""

import asyncio
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conformance.postgres_setup import borrow_database, give_back_database
from tests.support.payloads import payload_of

from lucius.api.app import make_app
from lucius.assembly import Embedded, open_embedded
from lucius.settings import read_settings

Json = Any
DEADLINE_SECONDS = 15.0

# One step that forgives nothing: the times are as short as a noisy machine allows.
QUICK = """
protocol_id: quick_v1
request_types: [QUICK]
steps:
  - step_type: QUICK
    service: quick
    max_attempts: 3
    ack_timeout: 700ms
    lease: 1s
    backoff: {publish: [0], ack: [0, 100ms], result: [0, 100ms]}
"""

PROBLEM_MEMBERS = {"type", "title", "status", "code", "detail"}

_numbers = itertools.count(1)


def envelope(**changes: Json) -> dict[str, Json]:
    """A command like no other before it, with some members changed; `...` leaves one out."""
    number = next(_numbers)
    document: dict[str, Json] = {
        "tenant_id": "acme",
        "request_type": "OCR",
        "input_ref": {"uri": f"s3://in/{number}.pdf"},
        "output_ref": {"uri": f"s3://out/{number}.json"},
        "payload": payload_of(changes.get("request_type")),
        "schema_version": "1",
    }
    document.update(changes)
    return {name: value for name, value in document.items() if value is not ...}


def reply_to(directive: Json, kind: str, **more: Json) -> dict[str, Json]:
    message = {name: directive[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
    message |= {"type": kind, "timestamp": "2026-01-02T03:04:05Z"}
    if kind == "RESULT":
        message["status"] = "SUCCEEDED"
    return message | more


def check_problem(response: httpx2.Response, status: int, code: str) -> dict[str, Json]:
    """It is an RFC 9457 document that says this; returned for what else it says."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Json] = response.json()
    assert document.keys() >= PROBLEM_MEMBERS
    assert (document["status"], document["code"]) == (status, code)
    for error in document.get("errors", []):
        assert error.keys() == {"pointer", "message"}
    return document


def pointers(document: Mapping[str, Json]) -> set[str]:
    return {error["pointer"] for error in document.get("errors", [])}


async def until(look: Callable[[], Awaitable[Any]], *, seconds: float = DEADLINE_SECONDS) -> Any:
    """Looks again until there is something to see, and returns that."""
    deadline = time.monotonic() + seconds
    while not (seen := await look()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {look}"
        await asyncio.sleep(0.02)
    return seen


class Caller:
    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.http = client
        self._leased: dict[tuple[str, str], Json] = {}

    async def post(self, path: str, document: Json = None, **headers: str) -> httpx2.Response:
        content = b"" if document is None else json.dumps(document).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(path, content=content, headers=named)

    async def submit(self, **changes: Json) -> str:
        response = await self.post("/v1/orchestrate", envelope(**changes))
        assert response.status_code == 202, response.text
        return str(response.json()["jobId"])

    async def job(self, job_id: str, *, wait: float = 0) -> dict[str, Json]:
        response = await self.http.get(f"/v1/jobs/{job_id}", params={"wait": wait})
        assert response.status_code == 200, response.text
        document: dict[str, Json] = response.json()
        return document

    async def state(self, job_id: str) -> str:
        return str((await self.job(job_id))["state"])

    async def step_states(self, job_id: str) -> list[str]:
        return [step["state"] for step in (await self.job(job_id))["steps"]]

    async def reach(self, job_id: str, *states: str) -> dict[str, Json]:
        """The job, once it is in one of these states."""

        async def look() -> dict[str, Json] | None:
            job = await self.job(job_id)
            return job if job["state"] in states else None

        found: dict[str, Json] = await until(look)
        return found

    async def events(self, job_id: str) -> list[dict[str, Json]]:
        response = await self.http.get(f"/v1/jobs/{job_id}/events")
        assert response.status_code == 200, response.text
        events: list[dict[str, Json]] = response.json()["items"]
        return events

    async def event_types(self, job_id: str) -> list[str]:
        return [event["type"] for event in await self.events(job_id)]

    async def control(self, job_id: str, verb: str) -> httpx2.Response:
        return await self.post(f"/v1/jobs/{job_id}:{verb}")

    async def lease(self, service: str, *, most: int = 100, wait: float = 0) -> list[dict[str, Json]]:
        body = {"service": service, "max": most, "wait_seconds": wait}
        response = await self.post("/v1/directives:lease", body)
        assert response.status_code == 200, response.text
        directives: list[dict[str, Json]] = response.json()["directives"]
        return directives

    async def directive(self, job_id: str, service: str) -> dict[str, Json]:
        """This job's next directive; those of others that come along are kept for whoever asks."""

        async def look() -> Json:
            if (job_id, service) not in self._leased:
                for found in await self.lease(service, wait=1):
                    self._leased[(found["jobId"], service)] = found
            return self._leased.pop((job_id, service), None)

        found: dict[str, Json] = await until(look)
        return found

    async def say(self, directive: Json, kind: str, **more: Json) -> httpx2.Response:
        return await self.send(directive["callback_token"], kind, reply_to(directive, kind, **more))

    async def send(self, token: str, kind: str, message: Json) -> httpx2.Response:
        path = f"/v1/callbacks/{kind.lower()}"
        return await self.post(path, message, authorization=f"Bearer {token}")

    async def reply(self, directive: Json, kind: str, **more: Json) -> dict[str, Json]:
        """What a reply that is accepted is answered."""
        response = await self.say(directive, kind, **more)
        assert response.status_code == 200, response.text
        answer: dict[str, Json] = response.json()
        return answer

    async def finish(self, job_id: str, service: str, **more: Json) -> dict[str, Json]:
        """Works one step off and returns its directive."""
        directive = await self.directive(job_id, service)
        assert await self.reply(directive, "RESULT", **more) == {"outcome": "applied", "stop": False}
        return directive


class Deployment(Caller):
    """A client of a deployment of this process."""

    def __init__(self, lucius: Embedded, client: httpx2.AsyncClient) -> None:
        super().__init__(client)
        self.lucius = lucius


class Callers:
    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack

    async def open(
        self,
        env: Mapping[str, str] | None = None,
        *,
        protocols: Mapping[str, str] | None = None,
        layout: str = "ledger",
        alone: bool = False,
    ) -> Deployment:
        """`alone`: over a file whatever LUCIUS_TEST_STORE says, as `lucius dev` on a folder."""
        folder = self._folder / f"house-{next(_numbers)}"
        for name, text in (protocols or {}).items():
            (folder / "protocols").mkdir(parents=True, exist_ok=True)
            (folder / "protocols" / name).write_text(text)
        lucius = await open_embedded(
            read_settings({**({} if alone else await self._store()), **(env or {})}),
            storage=layout,
            data=folder / "data",
            base_url="http://house",
            protocols=folder / "protocols" if protocols else None,
        )
        self._stack.push_async_callback(lucius.stop)
        await lucius.start({})
        transport = httpx2.ASGITransport(make_app(lucius.deployment), raise_app_exceptions=False)
        client = httpx2.AsyncClient(transport=transport, base_url="http://house", timeout=60)
        return Deployment(lucius, await self._stack.enter_async_context(client))

    async def _store(self) -> dict[str, str]:
        """A ledger in a file, or where LUCIUS_TEST_STORE says so in a database that nothing else uses."""
        if os.environ.get("LUCIUS_TEST_STORE") != "postgresql":
            return {}
        url = await borrow_database()
        self._stack.callback(give_back_database, url)
        return {"LUCIUS_STORE": url}


@pytest.fixture
async def callers(tmp_path: Path) -> AsyncIterator[Callers]:
    async with AsyncExitStack() as stack:
        yield Callers(tmp_path, stack)


@pytest.fixture
async def deployment(callers: Callers) -> Deployment:
    return await callers.open()


@pytest.fixture
async def quick_deployment(callers: Callers) -> Deployment:
    return await callers.open(protocols={"quick.yaml": QUICK})

"""Clients under chaos: each sends a command until it is answered, and waits for its job to end.

In: the addresses of the API, a seed. Out: which job each command became, and how it ended. A client that
gets no answer says the same again, perhaps at another address, as clients do.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx2

TENANTS = 20
SENT_TWICE_SHARE = 0.15
CANCELLED_SHARE = 0.05
PAUSE_SECONDS = 0.25
WAIT_SECONDS = 10
CONNECT_SECONDS_MAX = 2.0
WORK_SECONDS_MAX = 0.05
TERMINAL = frozenset({"SUCCEEDED", "FAILED_FINAL", "CANCELLED"})
AGAIN = frozenset({429, 503})


class WrongAnswer(Exception):
    """An answer that no client should ever get."""


class Load:
    def __init__(
        self,
        urls: Callable[[], list[str]],
        effects: Path,
        tag: str,
        chance: Random,
        *,
        sent_twice_share: float = SENT_TWICE_SHARE,
        api_key: str | None = None,
    ) -> None:
        """`urls`: where the API is, as far as is known now."""
        self._urls = urls
        self._effects = str(effects)
        self._tag = tag
        self._chance = chance
        self._sent_twice_share = sent_twice_share
        self._client = httpx2.AsyncClient(
            # An address that is cut off takes no connection, and says nothing.
            timeout=httpx2.Timeout(WAIT_SECONDS + 10, connect=CONNECT_SECONDS_MAX),
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        )
        self._commands = 0
        self._enough = asyncio.Event()
        self.ended: dict[str, str] = {}
        """Jobs that ended, each with its state."""
        self.repeats = 0
        self.refused: Counter[int] = Counter()
        """Answers that said to come back later, each with when."""
        self.sent_twice = 0
        self._news = asyncio.Event()

    def enough(self) -> None:
        """No new commands; those that were begun are seen through."""
        self._enough.set()

    async def progress(self, jobs: int, *, seconds_max: float) -> None:
        """Returns once so many more jobs have ended, or after a while in any case."""
        goal = len(self.ended) + jobs
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while len(self.ended) < goal:
                    self._news.clear()
                    await self._news.wait()

    async def run(self, clients: int) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(clients):
                    group.create_task(self._be_a_client())
        finally:
            await self._client.aclose()

    async def _be_a_client(self) -> None:
        while not self._enough.is_set():
            command = self.command()
            ids = [await self._submit(command)]
            if self._chance.random() < self._sent_twice_share:
                self.sent_twice += 1
                ids.append(await self._submit(command))
            if len(set(ids)) != 1:
                raise WrongAnswer(f"one command became the jobs {ids}")
            if self._chance.random() < CANCELLED_SHARE:
                await self._ask("POST", f"/v1/jobs/{ids[0]}:cancel", (202, 409))
            self.ended[ids[0]] = await self.wait_for(ids[0])
            self._news.set()

    def command(self) -> dict[str, Any]:
        """Another than all before."""
        number = self._commands
        self._commands += 1
        seconds = round(self._chance.random() * WORK_SECONDS_MAX, 3)
        work = {"effects": self._effects, "seconds": seconds}
        return {
            "tenant_id": f"tenant-{number % TENANTS}",
            "request_type": "CHAOS",
            "input_ref": {"uri": f"s3://chaos/in/{number}"},
            "output_ref": {"uri": f"s3://chaos/out/{number}"},
            "payload": {"a": work, "b": work},
            "schema_version": "1",
            "idempotency_key": f"{self._tag}-{number}",
        }

    async def _submit(self, command: dict[str, Any]) -> str:
        answer = await self._ask("POST", "/v1/orchestrate", (202,), json=command)
        return str(answer["jobId"])

    async def wait_for(self, job_id: str) -> str:
        state = ""
        while state not in TERMINAL:
            job = await self._ask("GET", f"/v1/jobs/{job_id}?wait={WAIT_SECONDS}", (200,))
            state = str(job["state"])
        return state

    async def _ask(self, method: str, path: str, expected: tuple[int, ...], **more: Any) -> dict[str, Any]:
        while True:
            urls = self._urls()
            try:
                answer = await self._client.request(method, self._chance.choice(urls) + path, **more)
            except httpx2.TransportError:
                self.repeats += 1
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if answer.status_code in AGAIN:
                if int(answer.headers.get("retry-after", 0)) < 1:
                    raise WrongAnswer(f"{method} {path}: {answer.status_code} without a time to come back")
                self.refused[answer.status_code] += 1
                self.repeats += 1
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if answer.status_code not in expected:
                raise WrongAnswer(
                    f"{method} {path} was answered with {answer.status_code}: {answer.text[:500]}"
                )
            document: dict[str, Any] = answer.json()
            return document

"""Documents and schemas made to do harm, all at once, against `lucius dev` as it starts by itself: the server
answers, its memory is bounded, each of these jobs ends once and for all, and others notice little."""

import asyncio
import statistics
import struct
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.test_json_schema import branching
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller
from tests.support.services_setup import unfolding_pdf

ANSWER_SECONDS_MAX = 0.1
MEMORY_BYTES_MAX = 600_000_000
SLOWER_MAX = 2.0
LONE_JOBS = 20
LONE_JOB_PAUSE_SECONDS = 0.1
JOB_SECONDS_MAX = 120
LIGHTHOUSE = (
    b"The lighthouse at Harrow Point was lit for the first time in March 1871. The tower is 41 metres high."
)

pytestmark = pytest.mark.xdist_group("heavy")


def black_png(side: int) -> bytes:
    """A picture of `side` x `side` black pixels, of which each row is packed in a few bytes."""
    packing = zlib.compressobj(1)
    row = bytes(1 + side)
    packed = b"".join(packing.compress(row) for _ in range(side)) + packing.flush()
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


class Memory:
    """Of a process and all that it started, each page counted once."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.most_bytes = 0

    def look(self) -> None:
        self.most_bytes = max(self.most_bytes, sum(_bytes(pid) for pid in _family(self._pid)))


def _family(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        with suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _bytes(pid: int) -> int:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return 0


class Server:
    """Watched from outside while it works."""

    def __init__(self, lucius: "Lucius", caller: "Caller") -> None:
        self.caller = caller
        self.memory = Memory(lucius.pid)
        self.slowest_seconds = 0.0
        self._folder = lucius.data / "documents"
        self._folder.mkdir()

    async def lay_down(self, name: str, document: bytes) -> None:
        await asyncio.to_thread((self._folder / name).write_bytes, document)

    async def submit(self, tenant: str, name: str, kind: str, **payload: Any) -> str:
        return await self.caller.submit(
            tenant_id=tenant,
            request_type=kind,
            input_ref={"uri": (self._folder / name).as_uri()},
            output_ref={"uri": (self._folder / f"{name}.out").as_uri()},
            payload=payload,
            idempotency_key=f"{name}-{time.monotonic_ns()}",
        )

    async def lone_job_seconds(self) -> float:
        begun = time.perf_counter()
        sis = {"prompt": "How high is the tower?"}
        job_id = await self.submit("bystander", "letter", "OCR_EMBEDDING_SIS", sis=sis)
        job = await self.caller.job(job_id, wait=60)
        assert job["state"] == "SUCCEEDED"
        return time.perf_counter() - begun

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watching = [asyncio.create_task(self._poll()), asyncio.create_task(self._weigh())]
        try:
            yield
        finally:
            for each in watching:
                each.cancel()
            await asyncio.wait(watching)
        for each in watching:
            if not each.cancelled():
                each.result()

    async def _poll(self) -> None:
        while True:
            begun = time.perf_counter()
            answer = await self.caller.http.get("/livez")
            assert answer.status_code == 200
            self.slowest_seconds = max(self.slowest_seconds, time.perf_counter() - begun)
            await asyncio.sleep(0.02)

    async def _weigh(self) -> None:
        while True:
            await asyncio.to_thread(self.memory.look)
            await asyncio.sleep(0.2)


async def test_documents_made_to_do_harm_harm_nothing_but_their_own_jobs(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]", record_property: Callable[[str, object], None]
) -> None:
    lucius = launch("--services", "ocr,embedding,sis")
    server = Server(lucius, caller_at(lucius))
    documents = {
        "letter": LIGHTHOUSE,
        "png": await asyncio.to_thread(black_png, 30_000),
        "pdf": unfolding_pdf(self_referring=True),
        "text": b"A line of a very long text.\n" * 2_240_000,
    }
    for name, document in documents.items():
        await server.lay_down(name, document)
    await server.lone_job_seconds()
    async with server.watched():  # both times: to be watched costs something, too
        alone = statistics.median([await server.lone_job_seconds() for _ in range(LONE_JOBS)])
        schema = {"prompt": "Which?", "output_schema": branching(7, 8)}
        jobs = {
            "schema": await server.submit("attacker", "letter", "SIS", **schema),
            "picture": await server.submit("attacker", "png", "OCR"),
            "pdf": await server.submit("attacker", "pdf", "OCR"),
            "text": await server.submit("attacker", "text", "OCR_EMBEDDING_SIS", sis={"prompt": "Which?"}),
        }
        ending = [asyncio.create_task(_ended(server, job_id)) for job_id in jobs.values()]
        took = [await server.lone_job_seconds() for _ in range(LONE_JOBS)]
        while not all(each.done() for each in ending):
            await asyncio.sleep(LONE_JOB_PAUSE_SECONDS)
            took.append(await server.lone_job_seconds())
        beside = statistics.median(took)
        ended = {name: each.result() for name, each in zip(jobs, ending, strict=True)}
    record_property("slowest_livez_seconds", server.slowest_seconds)
    record_property("most_memory_bytes", server.memory.most_bytes)
    record_property("others_slower", beside / alone)
    assert {job["state"] for job in ended.values()} == {"FAILED_FINAL"}
    assert {job["attempts_total"] for job in ended.values()} == {1}
    codes = {name: job["error_code"] for name, job in ended.items()}
    assert codes.pop("pdf") in ("WORK_TIME_EXCEEDED", "WORK_OUT_OF_MEMORY", "WORK_PROCESS_DIED")
    assert codes == {
        "schema": "OUTPUT_SCHEMA_TOO_COMPLEX",
        "picture": "DOCUMENT_TOO_LARGE",
        "text": "DOCUMENT_TOO_LARGE",
    }
    assert server.slowest_seconds < ANSWER_SECONDS_MAX
    assert server.memory.most_bytes < MEMORY_BYTES_MAX
    assert beside < SLOWER_MAX * alone


async def _ended(server: Server, job_id: str) -> dict[str, Any]:
    until = time.monotonic() + JOB_SECONDS_MAX
    while True:
        job = await server.caller.job(job_id, wait=30)
        if job["state"] == "FAILED_FINAL" or time.monotonic() > until:
            return job

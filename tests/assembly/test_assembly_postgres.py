"""Several processes on one PostgreSQL: what one commits, the others hear of at once."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import msgspec
import pytest
from tests.assembly.test_assembly import COMMAND, embedded
from tests.conformance.postgres_setup import new_database, open_store, postgres, run_in

from lucius.api import job_waits, streams
from lucius.api.app import make_app
from lucius.assembly import Embedded, Part
from lucius.assembly.embedded import RECOUNT_RESTS
from lucius.contracts.envelope import parse_envelope
from lucius.core.inputs import Cancel
from lucius.core.model import JobRecord
from lucius.core.refusal import Refused
from lucius.engines.notifications import Notification, _notes
from lucius.jobs.admission import InFlightLimits
from lucius.jobs.submit import Submitted
from lucius.ledger.memory import MemoryStore
from lucius.ledger.postgres import notes
from lucius.ledger.postgres.connection import Connection, PostgresAddress
from lucius.settings import read_settings

pytestmark = pytest.mark.xdist_group("postgres")

NEVER_SECONDS = 600.0
SOON_SECONDS = 10.0

Begin = Callable[[Part], Awaitable[Embedded]]


@pytest.fixture
async def url() -> str:
    return await new_database()


@pytest.fixture
async def begin(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Begin]:
    """Processes whose regular look is far away: only a notification sets them going."""
    for module in (job_waits, streams):
        monkeypatch.setattr(module, "LOOK_EVERY_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr(job_waits, "LOOK_FIRST_SECONDS", NEVER_SECONDS)
    rare = msgspec.structs.replace(read_settings({}), look_every_ms=int(NEVER_SECONDS * 1000))
    begun: list[Embedded] = []

    async def begin_one(part: Part) -> Embedded:
        lucius = embedded(await open_store(url), tmp_path, shared=True, part=part, settings=rare)
        await lucius.start({})
        begun.append(lucius)
        return lucius

    yield begin_one
    await asyncio.gather(*(lucius.stop() for lucius in begun))


async def submitted(lucius: Embedded, number: int = 1) -> str:
    command = parse_envelope({**COMMAND, "idempotency_key": f"command-{number}"})
    assert not isinstance(command, Refused)
    answer = await lucius.deployment.submitter.submit(command)
    assert isinstance(answer, Submitted)
    return answer.job_id


async def leased(lucius: Embedded) -> list[dict[str, Any]]:
    found = await lucius.deployment.dispatcher.lease("ocr", directives_max=1, wait_ms=30_000)
    assert isinstance(found, list)
    return found


async def test_a_worker_that_polls_another_replica_gets_the_job_at_once(begin: Begin) -> None:
    one, other = await begin(Part.API), await begin(Part.API)
    await leased_after(one, other, 0)  # the first plans each statement
    seconds = [await leased_after(one, other, number) for number in range(1, 21)]
    print(f"commit to the worker at another replica: p50 {median(seconds) * 1000:.1f} ms")
    assert median(seconds) < 0.5  # a busy machine


async def leased_after(one: Embedded, other: Embedded, number: int) -> float:
    polling = asyncio.create_task(leased(other))
    await asyncio.sleep(0.02)
    job_id = await submitted(one, number)
    committed = time.perf_counter()
    async with asyncio.timeout(SOON_SECONDS):
        (directive,) = await polling
    assert directive["jobId"] == job_id
    return time.perf_counter() - committed


async def test_an_end_is_heard_by_a_call_that_waits_at_another_replica(begin: Begin) -> None:
    one, other = await begin(Part.API), await begin(Part.API)
    job_id = await submitted(one)
    waiting = asyncio.create_task(other.deployment.waiting.job(job_id, 60_000))
    await asyncio.sleep(0.05)
    await one.deployment.inputs.apply(job_id, Cancel())
    async with asyncio.timeout(SOON_SECONDS):
        record = await waiting
    assert isinstance(record, JobRecord)
    assert record.job.terminal


async def test_events_reach_a_stream_at_another_replica(begin: Begin) -> None:
    one, other = await begin(Part.API), await begin(Part.API)
    job_id = await submitted(one)
    wake = other.streams.enter(job_id)
    assert await leased(one)
    async with asyncio.timeout(SOON_SECONDS):
        await wake.wait()
    other.streams.leave(job_id, wake)


async def test_a_deadline_that_is_near_is_heard_by_the_reconciler(begin: Begin) -> None:
    api, reconciler = await begin(Part.API), await begin(Part.RECONCILER)
    await asyncio.sleep(0.1)  # its first look is over
    swept = asyncio.Event()
    sweep = reconciler.sweeper.sweep

    async def note() -> int:
        met = await sweep()
        if met:
            swept.set()
        return met

    reconciler.sweeper.sweep = note  # type: ignore[method-assign]
    job_id = await submitted(api)
    loaded = await api.kernel.ledger.load(job_id, fresh=True)
    assert loaded is not None
    lane, at_ms = loaded.record.job.lane, api.deployment.now_ms() + 200
    row = api.kernel.ledger.planner.due_put(loaded.record.job, at_ms, at_ms)
    await api.kernel.ledger.store.commit([row])
    near = msgspec.structs.replace(loaded.record.job, due_at_ms=at_ms)
    assert api.notifications is not None
    api.notifications.watch(loaded.record, msgspec.structs.replace(loaded.record, job=near), ())
    async with asyncio.timeout(SOON_SECONDS):
        await swept.wait()
    assert lane in reconciler._lanes()


async def test_a_connection_that_breaks_is_opened_again_and_costs_no_job(
    begin: Begin, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "PAUSE_SECONDS", 0.05)
    one, other = await begin(Part.API), await begin(Part.API)
    await leased_after(one, other, 0)
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ 'LISTEN|pg_notify'"
    await run_in(url, f"{ended} AND pid <> pg_backend_pid() AND datname = current_database()")
    job_id = await submitted(one, 1)
    assert [directive["jobId"] for directive in await leased(other)] == [job_id]
    await asyncio.sleep(1.0)
    await leased_after(one, other, 2)


# Counted by the database itself at the end of each transaction that adds a slot, while the locks of its
# counts are held: looks from outside would miss what is between them.
COUNTED_AT_COMMIT = """
CREATE TABLE public.in_flight (slots bigint);
CREATE FUNCTION public.note_in_flight() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.in_flight SELECT count(*) FROM lucius_store.lucius_inflight;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER note_in_flight AFTER INSERT ON lucius_store.lucius_inflight
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.note_in_flight();
"""


async def test_a_limit_holds_over_all_replicas(url: str, tmp_path: Path) -> None:
    """Fifty clients race for the 100 places of a tenant at three replicas, and give them up again."""
    limits = InFlightLimits(tenant_max=100)
    settings = msgspec.structs.replace(read_settings({}), limits=limits)
    replicas = [
        embedded(await open_store(url), tmp_path, shared=True, part=Part.API, settings=settings)
        for _ in range(3)
    ]
    for replica in replicas:
        await replica.start({})
    await run_in(url, COUNTED_AT_COMMIT)
    codes: Counter[str] = Counter()

    async def client(number: int) -> None:
        for turn in range(6):
            replica = replicas[(number + turn) % 3]
            command = parse_envelope({**COMMAND, "idempotency_key": f"{number}-{turn}"})
            assert not isinstance(command, Refused)
            answer = await replica.deployment.submitter.submit(command)
            codes[answer.code.value if isinstance(answer, Refused) else "accepted"] += 1
            if isinstance(answer, Submitted) and turn % 2:
                await replicas[number % 3].deployment.inputs.apply(answer.job_id, Cancel())

    await asyncio.gather(*(client(number) for number in range(50)))
    connection = await Connection.open(PostgresAddress(url=url), plans=False)
    ((most, times),) = await connection.fetch("SELECT max(slots), count(*) FROM public.in_flight")
    await connection.close()
    print(f"at most {most} in flight, of {times} looks; {dict(codes)}")
    assert most == 100
    assert times == codes["accepted"] >= 100
    assert set(codes) == {"accepted", "TENANT_LIMIT"}
    for replica in replicas:
        await replica.stop()


async def test_what_is_in_flight_is_read_again_the_less_often_the_more_it_is(
    begin: Begin, tmp_path: Path
) -> None:
    """The database keeps the limits: what a process knows of other processes' jobs may be older there."""
    assert (await begin(Part.API))._recount_rests() == RECOUNT_RESTS
    alone = embedded(MemoryStore(), tmp_path, part=Part.API)
    assert alone._recount_rests() == 0


async def test_calls_are_refused_for_now_while_the_database_is_away(url: str, tmp_path: Path) -> None:
    store = await open_store(url, patience_seconds_max=0.3)
    lucius = embedded(store, tmp_path, shared=True, part=Part.API)
    await lucius.start({})
    server, transport = postgres(), httpx2.ASGITransport(app=make_app(lucius.deployment))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        before = await client.post("/v1/orchestrate", json=COMMAND)
        assert before.status_code == 202
        await asyncio.to_thread(server.stop)
        try:
            command = {**COMMAND, "idempotency_key": "meanwhile"}
            for answer in (
                await client.post("/v1/orchestrate", json=command),
                await client.get(f"/v1/jobs/{before.json()['jobId']}"),
                await client.post("/v1/directives:lease", json={"service": "ocr", "max": 1}),
            ):
                assert answer.status_code == 503, answer.text
                assert int(answer.headers["retry-after"]) > 0
            assert (await client.get("/readyz")).status_code == 503
        finally:
            await asyncio.to_thread(server.start)
        again = await client.post("/v1/orchestrate", json=command)
        assert again.status_code == 202
        leased = await client.post("/v1/directives:lease", json={"service": "ocr", "max": 5})
        jobs = {directive["jobId"] for directive in leased.json()["directives"]}
        assert jobs == {before.json()["jobId"], again.json()["jobId"]}
    await lucius.stop()


async def test_copies_of_a_command_take_one_slot(url: str, tmp_path: Path) -> None:
    """Reads of the key take a while here, so that all copies would find it free."""
    settings = msgspec.structs.replace(read_settings({}), limits=InFlightLimits(tenant_max=1))
    lucius = embedded(await open_store(url), tmp_path, shared=True, part=Part.API, settings=settings)
    await lucius.start({})
    assert len(set(await asyncio.gather(*(submitted(lucius) for _ in range(10))))) == 1
    await lucius.stop()


def test_a_note_is_as_many_as_its_channel_needs() -> None:
    named = Notification(
        places=[("ocr", lane) for lane in range(16)],
        due=[(1, 5)],
        jobs=[f"job_{n:026d}" for n in range(700)],
        asked=["x" * 900],
    )
    sent = [msgspec.json.decode(note, type=Notification) for note in _notes(named, 800)]
    assert [place for note in sent for place in note.places] == named.places
    assert [job for note in sent for job in note.jobs] == named.jobs
    assert [row for note in sent for row in note.due] == named.due
    assert not any(note.asked for note in sent)  # fits into none, and the regular look finds it
    assert all(len(note) <= 800 for note in _notes(named, 800))
    assert len(list(_notes(named, 100_000))) == 1

"""The shapes that trouble around a job gives to its workflow: full lanes, dead invokers, unknown words."""

import asyncio
import dataclasses
from typing import Any

import msgspec
from tests.replay.shape import SHORT_MS, first, in_order, shape
from tests.replay.temporal_house import House

from lucius.contracts.internal import InternalAnswer, StepSignal, Verdict
from lucius.core.states import JobState, StepState
from lucius.engines.temporal.client import StartOptions
from lucius.engines.temporal.workflow import JOB_NOT_FOUND
from lucius.lab.temporal_book import Book, Patience
from lucius.lab.temporal_desk import Desk, succeed


@shape
async def window_full(house: House) -> Book:
    def full(desk: Desk, book: Book, call: str) -> InternalAnswer | int | None:
        return book.answer(Verdict.WAIT, again_in_ms=SHORT_MS) if len(desk.calls) <= 2 else None

    house.desk.interfere = full
    book = await house.begin()
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt"] * 3
    return book


@shape
async def history_grows(house: House) -> Book:
    """A job that waits for long goes on in a new run, and the runs together are one workflow."""

    def full(desk: Desk, book: Book, call: str) -> InternalAnswer | int | None:
        return book.answer(Verdict.WAIT, again_in_ms=1) if len(desk.calls) <= 12 else None

    house.desk.interfere = full
    book = await house.begin(options=StartOptions(history_events_max=30))
    began = (await house.handle(book).describe()).run_id
    assert await house.end(book) == JobState.SUCCEEDED
    ended = await house.handle(book).describe()
    assert ended.run_id != began
    assert ended.history_length < 60
    return book


@shape
async def bus_away(house: House) -> Book:
    """The attempt is begun but its directive could not leave: the same attempt is published later."""

    def no_bus(desk: Desk, book: Book, call: str) -> InternalAnswer | int | None:
        if call == "attempt":
            book.step_state, book.attempt_no, book.lease_id = StepState.INITIATED, 1, "lease"
            book.put_off(desk.now_ms() + SHORT_MS)
            return book.answer(Verdict.GO)
        return None

    house.desk.interfere = no_bus
    book = await house.begin()
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt", "publish"]
    return book


@shape
async def invoker_away(house: House) -> Book:
    """A local call is made once; the server's retries go on until the invoker answers."""

    def away(desk: Desk, book: Book, call: str) -> InternalAnswer | int | None:
        return 503 if len(desk.calls) <= 3 else None

    house.desk.interfere = away
    book = await house.begin()
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt"] * 4
    return book


@shape
async def ended_while_the_invoker_was_away(house: House) -> Book:
    """A workflow that cannot ask still hears: it ends with its job."""
    asked = asyncio.Event()

    def away(desk: Desk, book: Book, call: str) -> InternalAnswer | int | None:
        if len(desk.calls) > 1:  # by the server's retries
            asked.set()
        return 503

    house.desk.interfere = away
    book = await house.begin()
    await asked.wait()
    await house.desk.control(book, "cancel")
    assert await house.end(book) == JobState.CANCELLED
    return book


@shape
async def job_unknown(house: House) -> Book:
    book = house.desk.create(f"job_{house.name}", Patience(steps=1))
    house.desk.forget(book)
    await house.start(book)
    assert await house.end(book) == JOB_NOT_FOUND
    return book


@shape
async def words_of_tomorrow(house: House) -> Book:
    """States that this worker does not know make it wait for news, not fall over."""

    async def newer_words(desk: Desk, book: Book) -> None:
        strange = {"version": book.version + 1, "job_state": "HIBERNATING", "stepId": book.step_id}
        told = {"jobId": book.job_id, "position": {**strange, "step_state": "DREAMING", "moon": 3}}
        await house.handle(book).signal("step_ack", told)
        view = await house.handle(book).query("position")
        assert view["position"]["step_state"] == "DREAMING"
        book.version += 2
        await desk.result(book, StepState.SUCCEEDED)

    house.desk.script = newer_words
    book = await house.begin()
    assert await house.end(book) == JobState.SUCCEEDED
    return book


@shape
async def signals_by_hand(house: House) -> Book:
    """Whatever an operator types, it is heard without harm."""

    async def meddled_with(desk: Desk, book: Book) -> None:
        for name in ("step_ack", "step_result", "pause", "resume", "cancel"):
            await house.handle(book).signal(name)
            await house.handle(book).signal(name, "junk")
            await house.handle(book).signal(name, args=[{"position": {"version": 99, "job_state": "X"}}, 2])
        await succeed(desk, book)

    house.desk.script = first(meddled_with)
    book = await house.begin(patience=Patience(steps=2))
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt", "attempt"]
    return book


def copied(book: Book) -> dict[str, Any]:
    return dataclasses.asdict(book) | {"patience": book.patience}


@shape
async def ledger_put_back(house: House) -> Book:
    """The ledger is an older copy of itself: its answer counts, though the workflow knew more."""
    return await _put_back(house, gone_on=False)


@shape
async def ledger_put_back_and_gone_on(house: House) -> Book:
    """It has as many commits as before by now, and others."""
    return await _put_back(house, gone_on=True)


async def _put_back(house: House, *, gone_on: bool) -> Book:
    copies: list[dict[str, Any]] = []

    async def put_back(desk: Desk, book: Book) -> None:
        if not copies:
            copies.append(copied(book))
            await in_order(desk, book)
        elif len(copies) == 1:
            copies.append({})
            vars(book).update(copies[0] | ({"version": book.version} if gone_on else {}))
        else:
            await succeed(desk, book)

    house.desk.script = put_back
    book = await house.begin(patience=Patience(steps=2, ack_timeout_ms=SHORT_MS))
    assert await house.end(book) == JobState.SUCCEEDED
    assert book.trail == [
        "step_01/1 begun",
        "step_01/1 published",
        "step_01/1 ACK_TIMEOUT",
        "step_01/2 begun",
        "step_01/2 published",
        "step_01/2 acked",
        "step_01/2 succeeded",
        "step_02/1 begun",
        "step_02/1 published",
        "step_02/1 acked",
        "step_02/1 succeeded",
    ]
    return book


@shape
async def ledger_put_back_unasked(house: House) -> Book:
    """A workflow that waits for news alone, and asks nothing, is told by the alarm of its job."""
    return await _put_back_unasked(house, gone_on=False)


@shape
async def ledger_put_back_unasked_and_gone_on(house: House) -> Book:
    return await _put_back_unasked(house, gone_on=True)


async def _put_back_unasked(house: House, *, gone_on: bool) -> Book:
    paused = asyncio.Event()

    async def paused_and_put_back(desk: Desk, book: Book) -> None:
        copy = copied(book)
        await desk.control(book, "pause")
        await desk.result(book, StepState.SUCCEEDED)
        vars(book).update(copy | ({"version": book.version} if gone_on else {}))
        paused.set()

    house.desk.script = first(paused_and_put_back)
    book = await house.begin(patience=Patience(steps=2, ack_timeout_ms=SHORT_MS))
    await paused.wait()
    stale = StepSignal(jobId=book.job_id, position=book.position())
    await house.desk.tell(book, "resume", stale)
    assert (await house.handle(book).query("position"))["position"]["job_state"] == JobState.PAUSED
    await house.desk.tell(book, "resume", msgspec.structs.replace(stale, alarm=True))
    assert await house.end(book) == JobState.SUCCEEDED
    assert book.trail[:3] == ["step_01/1 begun", "step_01/1 published", "step_01/1 ACK_TIMEOUT"]
    return book

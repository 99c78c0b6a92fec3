"""The shapes that trouble around a job gives to its workflow: full lanes, dead invokers, unknown words."""

import asyncio

from tests.replay.shape import SHORT_MS, shape
from tests.replay.temporal_house import House

from lucius.contracts.internal import InternalAnswer, Verdict
from lucius.core.states import JobState, StepState
from lucius.engines.temporal.client import StartOptions
from lucius.engines.temporal.workflow import JOB_NOT_FOUND
from lucius.lab.temporal_book import Book, Patience
from lucius.lab.temporal_desk import Desk


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

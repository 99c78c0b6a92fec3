"""The shapes that a job gives to its workflow: how it goes, and what its user wishes."""

import asyncio

from tests.replay.shape import LONG_MS, SHORT_MS, first, give_up, in_order, shape, silence
from tests.replay.temporal_house import LABELS, House

from lucius.contracts.internal import AttemptAsk, InternalAnswer, Verdict
from lucius.core.states import JobState, StepState
from lucius.engines.temporal.client import StartOptions
from lucius.engines.temporal.workflow import JOB_FAILED
from lucius.lab.temporal_book import Book, Patience
from lucius.lab.temporal_desk import Desk
from lucius.progress.workflows import Started


@shape
async def success(house: House) -> Book:
    house.desk.script = in_order
    book = await house.begin(patience=Patience(steps=3))
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt"] * 3
    assert [line for line in book.trail if line.startswith("step_03")] == [
        "step_03/1 begun",
        "step_03/1 published",
        "step_03/1 acked",
        "step_03/1 succeeded",
    ]
    return book


@shape
async def success_by_activities(house: House) -> Book:
    book = await house.begin(patience=Patience(steps=2), options=StartOptions(local_calls=False))
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt"] * 2
    return book


@shape
async def success_with_labels(house: House) -> Book:
    house.desk.script = in_order
    book = await house.begin(labels=LABELS)
    assert await house.end(book) == JobState.SUCCEEDED
    return book


@shape
async def retry(house: House) -> Book:
    house.desk.script = first(give_up)
    book = await house.begin(patience=Patience(steps=2, backoff_ms=SHORT_MS))
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt"] * 3
    assert "step_01/2 succeeded" in book.trail
    return book


@shape
async def retries_exhausted(house: House) -> Book:
    house.desk.script = give_up
    book = await house.begin(patience=Patience(steps=2, attempts_max=2))
    assert await house.end(book) == JOB_FAILED
    assert house.desk.calls == ["attempt"] * 2
    return book


@shape
async def final_failure(house: House) -> Book:
    async def fail(desk: Desk, book: Book) -> None:
        await desk.result(book, StepState.FAILED_FINAL)

    house.desk.script = fail
    book = await house.begin(patience=Patience(steps=3))
    assert await house.end(book) == JOB_FAILED
    assert house.desk.calls == ["attempt"]
    return book


@shape
async def ack_timeout(house: House) -> Book:
    house.desk.script = first(silence)
    book = await house.begin(patience=Patience(steps=1, ack_timeout_ms=SHORT_MS))
    assert await house.end(book) == JobState.SUCCEEDED
    assert "step_01/1 ACK_TIMEOUT" in book.trail
    assert "step_01/2 succeeded" in book.trail
    return book


@shape
async def lease_expiry(house: House) -> Book:
    async def acknowledge(desk: Desk, book: Book) -> None:
        await desk.ack(book)

    house.desk.script = first(acknowledge)
    book = await house.begin(patience=Patience(steps=1, lease_ms=SHORT_MS))
    assert await house.end(book) == JobState.SUCCEEDED
    assert "step_01/1 LEASE_EXPIRED" in book.trail
    return book


@shape
async def ack_untold(house: House) -> Book:
    """Without `step_ack` signals a deadline is found to have moved when it is asked about."""
    asked = asyncio.Event()

    def notice(desk: Desk, book: Book, call: str) -> InternalAnswer | int | None:
        if call == "expire":
            asked.set()
        return None

    async def slowly(desk: Desk, book: Book) -> None:
        await desk.ack(book, told=False)
        await asked.wait()
        await desk.result(book, StepState.SUCCEEDED)

    house.desk.interfere, house.desk.script = notice, slowly
    book = await house.begin(patience=Patience(steps=1, ack_timeout_ms=SHORT_MS))
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt", "expire"]
    assert "step_01/1 succeeded" in book.trail
    return book


@shape
async def clocks_differ(house: House) -> Book:
    """The ledger's clock is behind: the deadline has not come for it, and the workflow asks again."""

    def not_yet(desk: Desk, book: Book, call: str) -> InternalAnswer | int | None:
        if call == "expire" and desk.calls.count("expire") == 1:
            return book.answer(Verdict.MOVED)
        return None

    house.desk.interfere, house.desk.script = not_yet, first(silence)
    book = await house.begin(patience=Patience(steps=1, ack_timeout_ms=SHORT_MS))
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt", "expire", "expire", "attempt"]
    return book


@shape
async def pause_and_resume(house: House) -> Book:
    paused = asyncio.Event()

    async def paused_meanwhile(desk: Desk, book: Book) -> None:
        await desk.control(book, "pause")
        await desk.result(book, StepState.SUCCEEDED)
        paused.set()

    house.desk.script = first(paused_meanwhile)
    book = await house.begin(patience=Patience(steps=2))
    await paused.wait()
    view = await house.handle(book).query("position")
    assert view["position"]["job_state"] == JobState.PAUSED
    assert view["next"] is None
    assert house.desk.calls == ["attempt"]
    await house.desk.control(book, "resume")
    assert await house.end(book) == JobState.SUCCEEDED
    return book


@shape
async def held(house: House) -> Book:
    """The pause is in the ledger before the workflow asks, and nobody told it."""
    asked = asyncio.Event()

    def pause_first(desk: Desk, book: Book, call: str) -> InternalAnswer | int | None:
        if not asked.is_set():
            book.pause()
            asked.set()
        return None

    house.desk.interfere = pause_first
    book = await house.begin()
    await asked.wait()
    await house.desk.control(book, "resume")
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt", "attempt"]
    return book


@shape
async def cancel_under_way(house: House) -> Book:
    async def cancelled_meanwhile(desk: Desk, book: Book) -> None:
        await desk.control(book, "cancel")
        assert book.job_state is JobState.CANCELLING
        await desk.result(book, StepState.FAILED_RETRY)

    house.desk.script = cancelled_meanwhile
    book = await house.begin(patience=Patience(steps=2))
    assert await house.end(book) == JobState.CANCELLED
    assert house.desk.calls == ["attempt"]
    return book


@shape
async def cancel_between_attempts(house: House) -> Book:
    """A workflow that rests for a minute hears the cancel at once."""
    failed = asyncio.Event()

    async def fail_once(desk: Desk, book: Book) -> None:
        await desk.result(book, StepState.FAILED_RETRY)
        failed.set()

    house.desk.script = fail_once
    book = await house.begin(patience=Patience(steps=1, backoff_ms=LONG_MS))
    await failed.wait()
    await house.desk.control(book, "cancel")
    assert await house.end(book) == JobState.CANCELLED
    assert house.desk.calls == ["attempt"]
    return book


@shape
async def late_and_double_signals(house: House) -> Book:
    """Old news, the same news twice, and nonsense change nothing."""

    async def chatter(desk: Desk, book: Book) -> None:
        handle = house.handle(book)
        before = {"position": {"version": 0, "job_state": "SUCCEEDED"}}
        await handle.signal("step_result", {"jobId": book.job_id, **before})
        await handle.signal("step_ack", {"position": "nowhere"})
        await handle.signal("step_result", "not even an object")
        await desk.ack(book)
        await desk.signal(book, "step_ack")
        await desk.result(book, StepState.SUCCEEDED)
        await desk.signal(book, "step_result")

    house.desk.script = first(chatter)
    book = await house.begin(patience=Patience(steps=2))
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt"] * 2
    return book


@shape
async def begun_in_the_middle(house: House) -> Book:
    """The workflow starts with what was true at creation, and the job is long past that."""
    book = house.desk.create(f"job_{house.name}", Patience(steps=3))
    at_creation = book.position()
    book.index, book.version = 1, 9
    assert await house.start(book, position=at_creation) is Started.STARTED
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt"] * 3
    assert not [line for line in book.trail if line.startswith("step_01")]
    return book


async def _orphaned(house: House) -> Book:
    """A job whose workflow was killed while its first step of two was under way."""
    handed_out = asyncio.Event()

    async def take(desk: Desk, book: Book) -> None:
        await desk.ack(book)
        handed_out.set()

    house.desk.script = first(take)
    book = await house.begin(patience=Patience(steps=2))
    await handed_out.wait()
    await house.handle(book).terminate("to be repaired")
    return book


@shape
async def repaired(house: House) -> Book:
    """A workflow that was killed while a step was under way: another takes over where the job stands."""
    book = await _orphaned(house)
    assert await house.start(book) is Started.STARTED
    assert await house.start(book) is Started.RUNNING
    await house.desk.result(book, StepState.SUCCEEDED)
    assert await house.end(book) == JobState.SUCCEEDED
    assert await house.start(book) is Started.RUNNING
    assert house.desk.calls == ["attempt"] * 3, "the second workflow asks first for what is under way"
    return book


@shape
async def repaired_unheard(house: House) -> Book:
    """The RESULT was told to a workflow that is no more, and the next one knows of an older position."""
    book = await _orphaned(house)
    position = book.position()
    book.result(StepState.SUCCEEDED, house.desk.now_ms())
    assert await house.start(book, position=position) is Started.STARTED
    assert await house.end(book) == JobState.SUCCEEDED
    assert book.trail.count("step_01/1 succeeded") == 1
    return book


@shape
async def told_by_answers(house: House) -> Book:
    """Every step was done by the time that its question was answered: nothing is signalled."""

    def done_at_once(desk: Desk, book: Book, call: str) -> InternalAnswer | None:
        ask = AttemptAsk(jobId=book.job_id, stepId=book.step_id, attempt_no=1, lease_id=f"L-{book.step_id}")
        assert book.attempt(ask).verdict is Verdict.GO
        assert book.publish(ask, desk.now_ms()).verdict is Verdict.GO
        book.result(StepState.SUCCEEDED, desk.now_ms())
        return book.answer(Verdict.MOVED)

    house.desk.interfere = done_at_once
    book = await house.begin(patience=Patience(steps=3))
    assert await house.end(book) == JobState.SUCCEEDED
    assert house.desk.calls == ["attempt"] * 3
    return book

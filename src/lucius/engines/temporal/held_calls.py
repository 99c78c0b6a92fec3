"""Questions that stay open a little: a workflow that began an attempt may hear its RESULT as the answer.

A signal costs the Temporal server an event, a workflow task and their writes. A workflow whose question is
still open needs none: it is answered with where the job stands by then. That is as safe as a signal. A
workflow that gets no answer asks again, for as long as it takes, and hears what the ledger knows.

For that an answer must go to whom the job has now. So only the call that begins an attempt is held back; it
is let go when its connection closes, and when another call asks about the job, here or in another process.

A question is held back only where it is worth it: for a moment, not too many at a time, and not for services
that have kept several askers waiting in vain. It is held back only where other processes say that they have
moved a job (`moved`): a reply may be theirs.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import msgspec

from lucius.core.due import deadline_of
from lucius.core.model import JobRecord
from lucius.core.states import STEP_ACTIVE
from lucius.ledger.job_ledger import JobLedger

Gone = Callable[[], Awaitable[None]]
"""Returns when the caller no longer waits."""


class HeldCallLimits(msgspec.Struct, frozen=True, kw_only=True):
    wait_ms: int = 2_000
    answer_ms: int = 4_000  # publishing included: within the caller's timeout
    held_max: int = 64  # at a time; each holds a connection, and one of its worker's tasks
    in_vain_max: int = 3  # askers in a row who heard of no end; then no call waits for that service
    rest_ms: int = 10_000  # for so long
    remembered_max: int = 1_000  # jobs whose workflows were answered not long ago


class HeldCall:
    """One open question. Whatever is told about its job from now on is its answer."""

    def __init__(self) -> None:
        self.asked_at = asyncio.get_running_loop().time()
        self.answer: JobRecord | None = None
        self.version = 0  # of the job, as the answer tells of it
        self.given_up = False
        self.news = asyncio.Event()


class HeldCalls:
    def __init__(self, ledger: JobLedger, limits: HeldCallLimits, *, now_ms: Callable[[], int]) -> None:
        self.notified = False
        """Whether other processes tell when they have moved a job or were asked about it. If not, nothing is
        held back."""
        self._ledger = ledger
        self._limits = limits
        self._now_ms = now_ms
        self._open: dict[str, HeldCall] = {}  # the newest of each job
        self._answered: dict[str, int] = {}  # by job: the version that its workflow was answered with
        self._in_vain: dict[str, int] = {}
        self._rests_until_ms: dict[str, int] = {}
        self.held = 0

    @asynccontextmanager
    async def ask(self, job_id: str, gone: Gone | None) -> AsyncIterator[HeldCall]:
        """The question of the call that has just begun an attempt of this job. It is open within this
        context."""
        question = HeldCall()
        if not self.notified:
            yield question
            return
        self.give_up(job_id)
        self._open[job_id] = question
        leaving = None if gone is None else asyncio.create_task(self._leave(job_id, question, gone))
        try:
            yield question
            if not question.given_up:
                self._remember(job_id, question.version)
        finally:
            self._close(job_id, question)
            if leaving is not None:
                leaving.cancel()

    def give_up(self, job_id: str) -> None:
        """Another call asks about this job: if a question is open, its workflow does not wait for it."""
        if (question := self._open.pop(job_id, None)) is not None:
            question.given_up = True
            question.news.set()

    async def _leave(self, job_id: str, question: HeldCall, gone: Gone) -> None:
        await gone()
        self._close(job_id, question)
        question.given_up = True
        question.news.set()

    def _close(self, job_id: str, question: HeldCall) -> None:
        if self._open.get(job_id) is question:
            del self._open[job_id]

    def answer(self, record: JobRecord) -> bool:
        """Answers the open question about this job, unless its workflow was answered with this already.
        False: it has to hear of it in another way."""
        question = self._open.pop(record.job.job_id, None)
        if question is None:
            return self._answered.get(record.job.job_id, 0) >= record.job.version
        question.answer = record
        question.news.set()
        return True

    def moved(self, job_id: str) -> None:
        """Another process has moved this job, perhaps."""
        if (question := self._open.get(job_id)) is not None:
            question.news.set()

    def asked(self, job_id: str) -> None:
        """Another process was asked about this job."""
        self.give_up(job_id)

    async def hold(self, question: HeldCall, record: JobRecord) -> JobRecord:
        """The job once its attempt is over, or something else is told, or it is not worth waiting for."""
        outbox = record.outbox
        if outbox is None or not self._worth(record, outbox.service):
            return record
        self.held += 1
        try:
            newest = await self._over(question, record)
        finally:
            self.held -= 1
        self._learn(outbox.service, in_vain=_goes_on(record, newest))
        return newest

    async def _over(self, question: HeldCall, record: JobRecord) -> JobRecord:
        clock = asyncio.get_running_loop().time
        until, newest = question.asked_at + self._limits.answer_ms / 1000, record
        while question.answer is None and _goes_on(record, newest):
            until = min(until, clock() + self._patience_ms(newest) / 1000)
            if question.given_up or (left := until - clock()) <= 0:
                return newest
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await question.news.wait()
            question.news.clear()
            if question.answer is None:
                newest = await self._look(record)
        return question.answer or newest

    def _remember(self, job_id: str, version: int) -> None:
        self._answered.pop(job_id, None)  # to be the newest
        self._answered[job_id] = version
        if len(self._answered) > self._limits.remembered_max:
            del self._answered[next(iter(self._answered))]

    def _worth(self, record: JobRecord, service: str) -> bool:
        return (
            self.notified
            and self.held < self._limits.held_max
            and self._rests_until_ms.get(service, 0) <= self._now_ms()
            and self._patience_ms(record) > 0
        )

    def _patience_ms(self, record: JobRecord) -> int:
        """Never past the attempt's own time, which its workflow has to see to."""
        deadline = deadline_of(record)
        left_ms = self._limits.wait_ms if deadline is None else deadline.at_ms - self._now_ms()
        return min(self._limits.wait_ms, left_ms)

    async def _look(self, record: JobRecord) -> JobRecord:
        loaded = await self._ledger.load(record.job.job_id, fresh=True)
        return record if loaded is None else loaded.record

    def _learn(self, service: str, *, in_vain: bool) -> None:
        times = self._in_vain[service] = self._in_vain.get(service, 0) + 1 if in_vain else 0
        if times >= self._limits.in_vain_max:
            self._in_vain[service] = 0
            self._rests_until_ms[service] = self._now_ms() + self._limits.rest_ms


def _goes_on(before: JobRecord, after: JobRecord) -> bool:
    """Whether the attempt is still under way."""
    step, now = before.current, after.current
    return (
        step is not None
        and now is not None
        and not after.job.terminal
        and now.state in STEP_ACTIVE
        and (now.step_id, now.attempt_no) == (step.step_id, step.attempt_no)
    )

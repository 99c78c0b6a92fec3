"""The dead-letter queue as operators see it: what is in it, and how all of it is brought back.

In: the queue, the table, the runs. Out: dead letters, each with what the record of its job says. A dead job
comes back by a redrive of its own, which sends a message of its own; what else is there, such as messages
that no worker could read, goes back into the queue as it is.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec
import structlog

from lucius.lifebook.job import LifebookJob
from lucius.lifebook.message import UnreadableBody, parse_body
from lucius.lifebook.queue import DEAD_WAIT_SECONDS, RECEIVE_MESSAGES_MAX, JobDelivery, JobQueue, ReturnedDead
from lucius.lifebook.refusals import RunRefused
from lucius.lifebook.runs import Runs
from lucius.lifebook.states import Status
from lucius.lifebook.table import JobTable

log = structlog.get_logger("lucius.lifebook")

LISTED_MAX: Final = 100
RELEASED_AT_ONCE: Final = 16
REDRIVEN_MAX: Final = 500
LOOK_VISIBILITY_MS: Final = 2_000
REDRIVE_VISIBILITY_MS: Final = 30_000

Sees = Callable[[str], bool]


class JobDeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    delivery: JobDelivery
    job_id: str | None
    """None: the body is no message."""
    job: LifebookJob | None


class RefusedRedrive(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    refusal: RunRefused


class Redriven(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the dead-letter queue."""

    redriven: tuple[str, ...]
    """The jobs that have new attempts."""
    refused: tuple[RefusedRedrive, ...]
    returned: ReturnedDead
    """The messages of no dead job, back in the queue."""


async def each_dead(
    queue: JobQueue, *, messages_max: int, visibility_ms: int, brief: bool = False
) -> AsyncIterator[JobDelivery]:
    """What is in the dead-letter queue, each message once. Looking takes nothing out: it is hidden until it
    is released, or for so long at most. `brief`: it is enough to find the rest another time, and more
    important that nothing is hidden for long."""
    seen: set[str] = set()
    while len(seen) < messages_max:
        found = await queue.receive_dead(
            messages_max=RECEIVE_MESSAGES_MAX,
            visibility_ms=visibility_ms,
            wait_seconds=0 if brief and seen else DEAD_WAIT_SECONDS,
        )
        new = [delivery for delivery in found if delivery.message_id not in seen]
        if not new:
            return
        for delivery in new:
            seen.add(delivery.message_id)
            yield delivery


async def released(queue: JobQueue, deliveries: list[JobDelivery]) -> None:
    """Lets others see at once what was only looked at: operators, sweepers, and the alarm, which counts what
    is visible."""
    for start in range(0, len(deliveries), RELEASED_AT_ONCE):
        some = deliveries[start : start + RELEASED_AT_ONCE]
        done = await asyncio.gather(*(queue.release_dead(each) for each in some), return_exceptions=True)
        if faults := [each for each in done if isinstance(each, BaseException)]:
            # They are visible again by themselves, a little later.
            log.warning("dead_letters_not_released", messages=len(faults), fault=type(faults[0]).__name__)


class DeadLetters:
    def __init__(self, *, queue: JobQueue, table: JobTable, runs: Runs, now_ms: Callable[[], int]) -> None:
        self._queue = queue
        self._table = table
        self._runs = runs
        self._now_ms = now_ms

    async def listed(self, sees: Sees | None) -> list[JobDeadLetter]:
        """Those whose workspace the caller sees; None: all of them, also those of no job."""
        found, looked_at = [], []
        async for delivery in each_dead(
            self._queue, messages_max=LISTED_MAX, visibility_ms=LOOK_VISIBILITY_MS
        ):
            looked_at.append(delivery)
            letter = await self._letter(delivery)
            if _is_seen(letter, sees):
                found.append(letter)
        await released(self._queue, looked_at)
        return found

    async def redrive(self, sees: Sees | None) -> Redriven:
        """Brings back every dead job that the caller sees; a caller of all workspaces also returns what else
        is there. May be repeated: at most so many messages are looked at in one call."""
        redriven: list[str] = []
        refused: list[RefusedRedrive] = []
        left: list[JobDelivery] = []
        dead = each_dead(self._queue, messages_max=REDRIVEN_MAX, visibility_ms=REDRIVE_VISIBILITY_MS)
        # All of them first: a job that dies again at once must not be brought back again and again.
        for delivery in [each async for each in dead]:
            letter = await self._letter(delivery)
            if letter.job is None or letter.job.status is not Status.DEAD or not _is_seen(letter, sees):
                left.append(delivery)
                continue
            done = await self._runs.redrive(letter.job.job_id)
            if isinstance(done, RunRefused):
                refused.append(RefusedRedrive(job_id=letter.job.job_id, refusal=done))
                left.append(delivery)
                continue
            redriven.append(letter.job.job_id)
            await self._queue.delete_dead(delivery)
        await released(self._queue, left)
        returned = ReturnedDead()
        if left and sees is None:
            returned = await self._queue.return_dead(messages_max=REDRIVEN_MAX)
        log.info("dead_letters_redriven", jobs=len(redriven), refused=len(refused), task=returned.task)
        return Redriven(redriven=tuple(redriven), refused=tuple(refused), returned=returned)

    async def _letter(self, delivery: JobDelivery) -> JobDeadLetter:
        message = parse_body(delivery.body)
        if isinstance(message, UnreadableBody):
            return JobDeadLetter(delivery=delivery, job_id=None, job=None)
        job = await self._table.get(message.job_id, now_ms=self._now_ms())
        if job is not None and job.workspace_id != message.workspace_id:
            job = None
        return JobDeadLetter(delivery=delivery, job_id=message.job_id, job=job)


def _is_seen(letter: JobDeadLetter, sees: Sees | None) -> bool:
    return sees is None or (letter.job is not None and sees(letter.job.workspace_id))

"""Tells the world that a job has ended: one signed POST to the URL its command named.

In: rows that are due. Out: each delivered, moved to its next try, or among the dead letters. A row is claimed
before its webhook is sent and settled afterwards: a crash in between sends it again under the same id, and
never leaves it unsent. Knows nothing of how a webhook is carried (`webhook_courier`).

The work is shared out by host: a host that hangs keeps at most `WORKERS_PER_HOST_MAX` of the
`SENDING_MAX` places, and what waits for it is passed over in favour of what waits for others.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import structlog

from lucius.contracts.times import rfc3339
from lucius.contracts.views import job_view
from lucius.core.due import AHEAD_MS, ran_ahead
from lucius.core.model import Event, Job, JobRecord
from lucius.engines.lane_leases import all_lanes
from lucius.engines.webhooks.sender import DeliveryOutcome, SendResult, WebhookSender
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.store import Conflict, StoreError
from lucius.ledger.webhooks import (
    WebhookDead,
    WebhookDue,
    WebhookHeld,
    WebhookRows,
    WebhookState,
    webhook_url,
)

BACKOFF_MS = (5_000, 30_000, 120_000, 600_000, 3_600_000, 21_600_000, 43_200_000)
SENDING_MAX = 16
WORKERS_PER_HOST_MAX = 4
WAITING_PER_HOST_MAX = 32
HELD_MAX = 512
ROWS_MAX = 64
PAGES_PER_LOOK_MAX = 16
# Longer than any delivery takes; after that the row of a process that died is met again.
CLAIM_MS = 60_000
FAR_EVERY_MS = 600_000
FAR_ROWS_MAX = 256
# Commits come in swarms: a look for each would cost more than it finds.
REST_SECONDS = 0.02

log = structlog.get_logger("lucius.webhooks")


class _Host:
    def __init__(self) -> None:
        self.waiting: deque[WebhookDue] = deque()
        self.workers = 0


class WebhookDelivery:
    def __init__(
        self,
        ledger: JobLedger,
        webhook_sender: WebhookSender,
        *,
        now_ms: Callable[[], int],
        look_every_ms: int,
        backoff_ms: Sequence[int] = BACKOFF_MS,
        lanes: Callable[[], frozenset[int]] = all_lanes,
    ) -> None:
        self._lanes = lanes
        self._ledger = ledger
        self._rows = WebhookRows(ledger.store, ledger.tables, ledger.quarantine)
        self._webhook_sender = webhook_sender
        self._now_ms = now_ms
        self._look_every_ms = look_every_ms
        self._backoff_ms = backoff_ms
        self._wake = asyncio.Event()
        self._places = asyncio.Semaphore(SENDING_MAX)
        self._hosts: dict[str, _Host] = {}
        self._held: set[str] = set()
        self._passed_over = False
        self._from: dict[int, str] = {}
        self._far_at_ms: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.outcomes: Counter[str] = Counter()

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        if after.job.callback_urls is not None and after.job.terminal:
            self._wake.set()

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                try:
                    await self.look()
                except StoreError as fault:
                    log.warning("webhook_look_failed", error=str(fault))
                await asyncio.sleep(REST_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._look_every_ms / 1000):
                        await self._wake.wait()
        finally:
            # What is under way is claimed: it is sent again after a while, by the process that is there then.
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._webhook_sender.close()

    async def settle(self) -> None:
        """Waits until everything that was taken up is done."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def look(self) -> None:
        """Takes up what is due now and there is room for."""
        self._passed_over = False
        until_ms = self._now_ms()
        for lane in sorted(self._lanes()):
            await self._look_at(lane, until_ms)

    async def _look_at(self, lane: int, until_ms: int) -> None:
        """A bounded walk over a lane, that goes on next time where it stopped: a host with very many rows
        never hides another's for good."""
        start = self._from.pop(lane, "")
        for _ in range(PAGES_PER_LOOK_MAX):
            entries = await self._rows.due(lane, until_ms, ROWS_MAX, start=start)
            for entry in entries:
                self._take_up(entry)
            if len(entries) < ROWS_MAX:
                await self._look_far(lane, until_ms)
                return
            start = f"{entries[-1].key}\x00"
        self._from[lane] = start

    async def _look_far(self, lane: int, now_ms: int) -> None:
        """Now and again, takes up what waits for a time that a clock that ran ahead has named."""
        if now_ms < self._far_at_ms.get(lane, 0):
            return
        self._far_at_ms[lane] = now_ms + FAR_EVERY_MS
        for entry in await self._rows.far(lane, now_ms + AHEAD_MS, FAR_ROWS_MAX):
            held = await self._rows.held(lane, entry.job_id)
            # The first try is due when the job ends, and each later one is at most a backoff after the last.
            if held is None or ran_ahead(held.state.updated_at_ms, now_ms):
                self._far_at_ms[lane] = now_ms  # there may be more behind those there is room for
                self._take_up(entry)

    def _take_up(self, entry: WebhookDue) -> None:
        if entry.job_id in self._held:
            return
        host = self._hosts.get(entry.host)
        if len(self._held) >= HELD_MAX or (host and len(host.waiting) >= WAITING_PER_HOST_MAX):
            self._passed_over = True
            return
        if host is None:
            host = self._hosts[entry.host] = _Host()
        self._held.add(entry.job_id)
        host.waiting.append(entry)
        if host.workers < WORKERS_PER_HOST_MAX:
            host.workers += 1
            task = asyncio.create_task(self._work(entry.host, host))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, name: str, host: _Host) -> None:
        try:
            while host.waiting:
                async with self._places:
                    if not host.waiting:
                        return
                    entry = host.waiting.popleft()
                    try:
                        await self._meet(entry)
                    finally:
                        self._held.discard(entry.job_id)
        finally:
            host.workers -= 1
            if host.workers == 0 and not host.waiting:
                self._hosts.pop(name, None)
            if self._passed_over:
                self._wake.set()

    async def _meet(self, entry: WebhookDue) -> None:
        try:
            await self._deliver(entry)
        except Conflict:
            log.debug("webhook_taken_by_another", jobId=entry.job_id)
        except StoreError as fault:
            log.warning("webhook_waits_for_ledger", jobId=entry.job_id, error=str(fault))
        except Exception:
            # One that cannot be sent must not stop the others.
            log.exception("webhook_fault", jobId=entry.job_id)

    async def _deliver(self, entry: WebhookDue) -> None:
        held = await self._rows.held(entry.lane, entry.job_id)
        if held is not None and held.state.next_at_ms != entry.at_ms:
            await self._rows.drop(entry)
            return
        loaded = await self._ledger.load(entry.job_id, fresh=True)
        if loaded is None:
            # Forgotten meanwhile: there is no job left to tell about.
            removals = await self._rows.removals(entry.lane, entry.job_id, entry.at_ms)
            await self._ledger.write_each(removals)
            return
        job, now_ms = loaded.record.job, self._now_ms()
        held = await self._rows.claim(entry, held, now_ms, now_ms + CLAIM_MS)
        sent = await self._webhook_sender.send(
            webhook_url(job) or "",
            webhook_id=webhook_id(job),
            body=webhook_body(loaded.record),
            now_ms=now_ms,
        )
        await self._note(job, held, sent)

    async def _note(self, job: Job, held: WebhookHeld, sent: SendResult) -> None:
        now_ms, tries = self._now_ms(), held.state.attempts + 1
        words = log.bind(
            jobId=job.job_id, tenant_id=job.tenant_norm, correlation_id=job.correlation_id, tries=tries
        )
        problem = sent.problem or ""
        if sent.outcome is DeliveryOutcome.DELIVERED:
            await self._rows.delivered(job.lane, job.job_id, held, now_ms)
            words.info("webhook_delivered")
            self.outcomes["delivered"] += 1
        elif sent.outcome is DeliveryOutcome.FAILED and tries <= len(self._backoff_ms):
            next_at_ms = now_ms + self._backoff_ms[tries - 1]
            await self._rows.retry(job.lane, job.job_id, held, problem, now_ms, next_at_ms)
            words.info("webhook_failed", problem=problem, next_at=rfc3339(next_at_ms))
            self.outcomes["failed"] += 1
        else:
            await self._rows.bury(job, held, problem, now_ms)
            words.warning("webhook_dead", problem=problem)
            self.outcomes["dead"] += 1

    # For operators

    async def dead(self, after: str, limit: int) -> list[tuple[str, WebhookDead]]:
        """Dead letters, the newest first, each with the place to go on after."""
        return await self._rows.dead(after, limit)

    async def redeliver(self, job: Job) -> WebhookState:
        """Begins anew, with all its tries and the same id."""
        state = await self._rows.redeliver(job, self._now_ms())
        self._wake.set()
        return state


def webhook_id(job: Job) -> str:
    """The same at every try: receivers know by it what they have seen."""
    return f"msg_{job.job_id}"


def webhook_body(record: JobRecord) -> bytes:
    """The job as readers see it, but for the payloads: those may hold what the receiver is not to know."""
    view = job_view(record)
    view["steps"] = [{k: v for k, v in step.items() if k != "payload"} for step in view["steps"]]
    at_ms = record.job.completed_at_ms or record.job.updated_at_ms
    return msgspec.json.encode({"type": "job.completed", "timestamp": rfc3339(at_ms), "data": view})

"""The worker as a process, for containers and laptops: receives, works, sweeps, until it is told to stop."""

import asyncio
from typing import Final

import structlog

from lucius.lifebook.queue import RECEIVE_MESSAGES_MAX, JobDelivery, JobQueue
from lucius.lifebook.sweeper import LifebookSweeper
from lucius.lifebook.worker import Worker

log = structlog.get_logger("lucius.lifebook")

POLL_SECONDS: Final = 5
FAULT_PAUSE_SECONDS: Final = 2.0


class LifebookProcess:
    def __init__(
        self,
        *,
        worker: Worker,
        queue: JobQueue,
        sweeper: LifebookSweeper | None,
        concurrency: int,
        sweep_seconds: float,
        poll_seconds: int = POLL_SECONDS,
    ) -> None:
        self._worker = worker
        self._queue = queue
        self._sweeper = sweeper
        self._room = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._sweep_seconds = sweep_seconds
        self._poll_seconds = poll_seconds
        self._working: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until `stop`; steps that run then may end, and their jobs are given back."""
        duties = [asyncio.create_task(self._receive())]
        if self._sweeper is not None:
            duties.append(asyncio.create_task(self._sweep(self._sweeper)))
        await self._stopping.wait()
        self._worker.stopping = True
        await asyncio.gather(*duties)
        while self._working:
            await asyncio.wait(self._working)

    def stop(self) -> None:
        self._stopping.set()

    async def _receive(self) -> None:
        while not self._stopping.is_set():
            await self._room.acquire()
            self._room.release()
            free = min(self._concurrency - len(self._working), RECEIVE_MESSAGES_MAX)
            try:
                found = await self._until_stopped(free)
            except Exception as fault:
                log.warning("receive_failed", fault=type(fault).__name__, why=str(fault)[:200])
                await asyncio.sleep(FAULT_PAUSE_SECONDS)
                continue
            for delivery in found:
                await self._room.acquire()
                task = asyncio.create_task(self._handle(delivery))
                self._working.add(task)
                task.add_done_callback(self._working.discard)

    async def _until_stopped(self, free: int) -> list[JobDelivery]:
        """One long poll. What it brings after the stop is put back at once, so that it need not wait."""
        found = await self._queue.receive(
            messages_max=max(free, 1),
            wait_seconds=self._poll_seconds,
            visibility_ms=self._worker.visibility_ms,
        )
        if self._stopping.is_set():
            for delivery in found:
                await self._queue.set_visibility(delivery, 0)
            return []
        return found

    async def _handle(self, delivery: JobDelivery) -> None:
        try:
            outcome = await self._worker.handle(delivery)
            await self._worker.settle(delivery, outcome)
        except Exception as fault:
            # The message comes again when its visibility is over; what was written stays.
            log.exception("delivery_failed", fault=type(fault).__name__, why=str(fault)[:200])
        finally:
            self._room.release()

    async def _sweep(self, sweeper: LifebookSweeper) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(self._sweep_seconds):
                    await self._stopping.wait()
            except TimeoutError:
                pass
            else:
                return
            try:
                swept = await sweeper.sweep()
            except Exception as fault:
                log.warning("sweep_failed", fault=type(fault).__name__, why=str(fault)[:200])
            else:
                log.debug("swept", enqueued=swept.enqueued, lost=swept.lost, from_dlq=swept.from_dlq)

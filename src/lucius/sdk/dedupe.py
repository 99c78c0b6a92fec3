"""The latest attempt of each step that came to this process.

In: directives as they come. Out: whether one was overtaken: attempts of a step are numbered in the order in
which they begin, and each begins after the one before was given up. So an older one no longer counts.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from lucius.sdk.directive import Directive, Json, Key
from lucius.sdk.errors import kind_and_place
from lucius.sdk.ports import Dedupe, DirectiveSeen, Log, ResultStore, UndeliveredResult

STEPS_MAX = 10_000


class NewestAttempts:
    def __init__(self, *, steps_max: int = STEPS_MAX) -> None:
        self._steps_max = steps_max
        self._attempts: OrderedDict[tuple[str, str], int] = OrderedDict()

    def note(self, directive: Directive) -> int:
        """The latest attempt that was known before; 0 if none was."""
        step, attempt_no = (directive.job_id, directive.step_id), directive.attempt_no
        known = self._attempts.get(step, 0)
        if attempt_no > known:
            self._attempts[step] = attempt_no
            self._attempts.move_to_end(step)
            if len(self._attempts) > self._steps_max:
                self._attempts.popitem(last=False)
        return known


UNDELIVERED_MAX = 1_000  # looked up at a time

Deliver = Callable[[Directive, dict[str, Json]], Awaitable[bool]]


class UndeliveredResults:
    def __init__(
        self, service: str, dedupe: Dedupe, deliver: Deliver, log: Log, *, pause_seconds: float
    ) -> None:
        """`pause_seconds`: how long after one was not delivered it is tried again."""
        self._service = service
        self._dedupe = dedupe
        self._deliver = deliver
        self._log = log
        self._pause_seconds = pause_seconds
        self._more = asyncio.Event()
        self.under_way: set[Key] = set()
        """Those that are being delivered, here or by the directive's own task."""

    def one_more(self) -> None:
        self._more.set()

    async def run(self) -> None:
        """One after the other, and those that failed before last: they may fail again."""
        failed: set[Key] = set()
        self._more.set()  # what a killed process left counts as undelivered a little later
        while True:
            undelivered = await self._undelivered()
            failed &= {one.directive.key for one in undelivered}
            for one in sorted(undelivered, key=lambda one: one.directive.key in failed):
                if one.directive.key in self.under_way:
                    continue
                if not await self._deliver(one.directive, one.result):
                    failed.add(one.directive.key)
                    break
            else:
                if len(undelivered) < UNDELIVERED_MAX:
                    await self._more.wait()
            self._more.clear()
            await asyncio.sleep(self._pause_seconds)

    async def _undelivered(self) -> list[UndeliveredResult]:
        try:
            undelivered = await self._dedupe.undelivered(UNDELIVERED_MAX)
        except Exception as fault:
            self._log.warning("owed_unknown", service=self._service, reason=kind_and_place(fault))
            self._more.set()
            return []
        if undelivered:
            self._log.info("results_owed", service=self._service, results=len(undelivered))
        return undelivered


RESULTS_MAX = 10_000
# Longer than a directive can come again: an attempt lasts at most its `max_duration`, by default a
# day.
KEEP_SECONDS = 2 * 86_400.0
# The process that kept a RESULT is about to send it: only a RESULT that was kept for longer was left behind.
# Else two processes that share a result store would both send it. Shorter than the pause after which a runner
# looks again.
UNDELIVERED_AFTER_SECONDS = 20.0
# More is removed than is added, so what is older than it should be becomes less.
SWEEP_EVERY_RESULTS = 16
SWEEP_ENTRIES_MAX = 32


class _ReplyTo(msgspec.Struct, frozen=True, kw_only=True):
    """What lies beside a RESULT until it is delivered."""

    directive: Directive
    kept_at_ms: int


_decode_result = msgspec.json.Decoder(dict[str, Json]).decode
_decode_reply_to = msgspec.json.Decoder(_ReplyTo).decode
_encode = msgspec.json.encode


class MemoryDedupe:
    """Its memory ends with the process; the orchestrator's check of attempt and lease covers what is lost."""

    def __init__(self, *, results_max: int = RESULTS_MAX) -> None:
        self._results_max = results_max
        self._running: set[Key] = set()
        self._results: OrderedDict[Key, dict[str, Json]] = OrderedDict()
        self._undelivered: dict[Key, UndeliveredResult] = {}

    async def begin(self, key: Key) -> DirectiveSeen | dict[str, Json]:
        if key in self._running:
            return DirectiveSeen.RUNNING
        result = self._results.get(key)
        if result is not None:
            self._results.move_to_end(key)
            return result
        self._running.add(key)
        return DirectiveSeen.NEW

    async def finish(self, directive: Directive, result: dict[str, Json]) -> dict[str, Json]:
        key = directive.key
        self.note(key, result)
        self._undelivered[key] = UndeliveredResult(directive=directive.reply_to(), result=result)
        while len(self._undelivered) > self._results_max:
            del self._undelivered[next(iter(self._undelivered))]
        return result

    async def forget(self, key: Key) -> None:
        self._running.discard(key)

    async def delivered(self, key: Key) -> None:
        self._undelivered.pop(key, None)

    async def undelivered(self, undelivered_max: int) -> list[UndeliveredResult]:
        return [
            undelivered
            for undelivered, _ in zip(self._undelivered.values(), range(undelivered_max), strict=False)
        ]

    def note(self, key: Key, result: dict[str, Json]) -> None:
        """It ended so, here or elsewhere."""
        self._running.discard(key)
        self._results[key] = result
        while len(self._results) > self._results_max:
            self._results.popitem(last=False)


class DurableDedupe:
    """Remembers across restarts. What the result store cannot take is remembered as `MemoryDedupe` does."""

    def __init__(
        self,
        result_store: ResultStore,
        *,
        now_ms: Callable[[], int],
        keep_seconds: float = KEEP_SECONDS,
        undelivered_after_seconds: float = UNDELIVERED_AFTER_SECONDS,
    ) -> None:
        self._result_store = result_store
        self._now_ms = now_ms
        self._keep_ms = round(keep_seconds * 1000)
        self._undelivered_after_ms = round(undelivered_after_seconds * 1000)
        self._memory = MemoryDedupe()
        self._kept = 0

    async def begin(self, key: Key) -> DirectiveSeen | dict[str, Json]:
        known = await self._memory.begin(key)
        if known is not DirectiveSeen.NEW:
            return known
        found = await self._result_store.find(key)
        if found is None:
            return DirectiveSeen.NEW
        result = _decode_result(found)
        self._memory.note(key, result)
        return result

    async def finish(self, directive: Directive, result: dict[str, Json]) -> dict[str, Json]:
        key, at_ms = directive.key, self._now_ms()
        await self._memory.finish(directive, result)
        reply_to = _encode(_ReplyTo(directive=directive.reply_to(), kept_at_ms=at_ms))
        kept = _decode_result(await self._result_store.keep(key, _encode(result), reply_to, at_ms=at_ms))
        await self._memory.delivered(key)  # from here on the result store keeps it
        self._memory.note(key, kept)
        self._kept += 1
        if self._kept % SWEEP_EVERY_RESULTS == 1:
            with suppress(Exception):  # the next one does it then; what was kept is kept
                await self._result_store.sweep(before_ms=at_ms - self._keep_ms, entries_max=SWEEP_ENTRIES_MAX)
        return kept

    async def forget(self, key: Key) -> None:
        await self._memory.forget(key)

    async def delivered(self, key: Key) -> None:
        await self._memory.delivered(key)
        await self._result_store.settle(key)

    async def undelivered(self, undelivered_max: int) -> list[UndeliveredResult]:
        before_ms = self._now_ms() - self._undelivered_after_ms
        found = [
            (_decode_reply_to(one), result)
            for one, result in await self._result_store.undelivered(undelivered_max)
        ]
        kept = [
            UndeliveredResult(directive=one.directive, result=_decode_result(result))
            for one, result in found
            if one.kept_at_ms <= before_ms
        ]
        return kept + await self._memory.undelivered(undelivered_max - len(kept))

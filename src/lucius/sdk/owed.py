"""RESULTs that were kept and not delivered, by this process or one before it: they are sent again.

In: the memory that knows them, a way to deliver one. Out: deliveries, in the background: leased work goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable

from lucius.sdk.directive import Directive, Json, Key
from lucius.sdk.errors import kind_and_place
from lucius.sdk.ports import Dedupe, Log, Owed

OWED_MAX = 1_000  # looked up at a time

Deliver = Callable[[Directive, dict[str, Json]], Awaitable[bool]]


class OwedResults:
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
        self._more.set()  # a process that was killed a moment ago left what counts as owed a little later
        while True:
            owed = await self._owed()
            failed &= {one.directive.key for one in owed}
            for one in sorted(owed, key=lambda one: one.directive.key in failed):
                if one.directive.key in self.under_way:
                    continue
                if not await self._deliver(one.directive, one.result):
                    failed.add(one.directive.key)
                    break
            else:
                if len(owed) < OWED_MAX:
                    await self._more.wait()
            self._more.clear()
            await asyncio.sleep(self._pause_seconds)

    async def _owed(self) -> list[Owed]:
        try:
            owed = await self._dedupe.owed(OWED_MAX)
        except Exception as fault:
            self._log.warning("owed_unknown", service=self._service, reason=kind_and_place(fault))
            self._more.set()
            return []
        if owed:
            self._log.info("results_owed", service=self._service, results=len(owed))
        return owed

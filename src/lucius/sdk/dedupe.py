"""The memory of a service process: what runs, and how the last directives ended.

`MemoryDedupe` forgets with the process. `KeptDedupe` lays every RESULT on a shelf (a file, a table, objects)
before it is sent, so that a directive which comes again after a restart is answered and not run again, and a
RESULT that was not delivered is sent by the next process.

That an attempt *runs* is remembered in the process alone. A mark on the shelf would outlive a process that
was killed, and its attempt, should the directive come again, would wait for a RESULT that nobody makes; with
an owner and an expiry it would still wait for the expiry, which no one can choose well for work of any
length. Nor is it needed: of two processes only one is handed a directive (it settles the message, or leases
it), and where both work on one attempt all the same, artifacts are created and never replaced, the RESULT
that is kept first is the one that both send, and the orchestrator counts one.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

import msgspec

from lucius.sdk.directive import Directive, Json, Key
from lucius.sdk.ports import Mark, Owed, Shelf

RESULTS_MAX = 10_000
# Longer than a directive can come again: an attempt lasts at most its `max_duration`, a day unless told
# otherwise.
KEEP_SECONDS = 2 * 86_400.0
# Whoever kept a RESULT is about to send it: only one that lies there longer was left behind. Else two
# processes that share a shelf would both send it. Shorter than the pause after which a runner looks again.
OWED_AFTER_SECONDS = 20.0
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
    """Forgets with the process; the orchestrator's check of attempt and lease covers what is forgotten."""

    def __init__(self, *, results_max: int = RESULTS_MAX) -> None:
        self._results_max = results_max
        self._running: set[Key] = set()
        self._results: OrderedDict[Key, dict[str, Json]] = OrderedDict()
        self._owed: dict[Key, Owed] = {}

    async def begin(self, key: Key) -> Mark | dict[str, Json]:
        if key in self._running:
            return Mark.RUNNING
        result = self._results.get(key)
        if result is not None:
            self._results.move_to_end(key)
            return result
        self._running.add(key)
        return Mark.NEW

    async def finish(self, directive: Directive, result: dict[str, Json]) -> dict[str, Json]:
        key = directive.key
        self.note(key, result)
        self._owed[key] = Owed(directive=directive.reply_to(), result=result)
        while len(self._owed) > self._results_max:
            del self._owed[next(iter(self._owed))]
        return result

    async def forget(self, key: Key) -> None:
        self._running.discard(key)

    async def delivered(self, key: Key) -> None:
        self._owed.pop(key, None)

    async def owed(self, owed_max: int) -> list[Owed]:
        return [owed for owed, _ in zip(self._owed.values(), range(owed_max), strict=False)]

    def note(self, key: Key, result: dict[str, Json]) -> None:
        """It ended so, here or elsewhere."""
        self._running.discard(key)
        self._results[key] = result
        while len(self._results) > self._results_max:
            self._results.popitem(last=False)


class KeptDedupe:
    """Remembers across restarts. What the shelf cannot take is remembered like `MemoryDedupe` does."""

    def __init__(
        self,
        shelf: Shelf,
        *,
        now_ms: Callable[[], int],
        keep_seconds: float = KEEP_SECONDS,
        owed_after_seconds: float = OWED_AFTER_SECONDS,
    ) -> None:
        self._shelf = shelf
        self._now_ms = now_ms
        self._keep_ms = round(keep_seconds * 1000)
        self._owed_after_ms = round(owed_after_seconds * 1000)
        self._memory = MemoryDedupe()
        self._kept = 0

    async def begin(self, key: Key) -> Mark | dict[str, Json]:
        known = await self._memory.begin(key)
        if known is not Mark.NEW:
            return known
        found = await self._shelf.find(key)
        if found is None:
            return Mark.NEW
        result = _decode_result(found)
        self._memory.note(key, result)
        return result

    async def finish(self, directive: Directive, result: dict[str, Json]) -> dict[str, Json]:
        key, at_ms = directive.key, self._now_ms()
        await self._memory.finish(directive, result)
        reply_to = _encode(_ReplyTo(directive=directive.reply_to(), kept_at_ms=at_ms))
        kept = _decode_result(await self._shelf.keep(key, _encode(result), reply_to, at_ms=at_ms))
        await self._memory.delivered(key)  # from here on the shelf owes it
        self._memory.note(key, kept)
        self._kept += 1
        if self._kept % SWEEP_EVERY_RESULTS == 1:
            with suppress(Exception):  # the next one does it then; what was kept is kept
                await self._shelf.sweep(before_ms=at_ms - self._keep_ms, entries_max=SWEEP_ENTRIES_MAX)
        return kept

    async def forget(self, key: Key) -> None:
        await self._memory.forget(key)

    async def delivered(self, key: Key) -> None:
        await self._memory.delivered(key)
        await self._shelf.settle(key)

    async def owed(self, owed_max: int) -> list[Owed]:
        before_ms = self._now_ms() - self._owed_after_ms
        found = [(_decode_reply_to(one), result) for one, result in await self._shelf.owed(owed_max)]
        kept = [
            Owed(directive=one.directive, result=_decode_result(result))
            for one, result in found
            if one.kept_at_ms <= before_ms
        ]
        return kept + await self._memory.owed(owed_max - len(kept))

"""The memory of a service process: what runs, and the last results, oldest forgotten first."""

from collections import OrderedDict

from lucius.sdk.directive import Json, Key
from lucius.sdk.ports import Mark

RESULTS_MAX = 10_000


class MemoryDedupe:
    """Forgets with the process; the orchestrator's check of attempt and lease covers what is forgotten."""

    def __init__(self, *, results_max: int = RESULTS_MAX) -> None:
        self._results_max = results_max
        self._running: set[Key] = set()
        self._results: OrderedDict[Key, dict[str, Json]] = OrderedDict()

    async def begin(self, key: Key) -> Mark | dict[str, Json]:
        if key in self._running:
            return Mark.RUNNING
        result = self._results.get(key)
        if result is not None:
            self._results.move_to_end(key)
            return result
        self._running.add(key)
        return Mark.NEW

    async def finish(self, key: Key, result: dict[str, Json]) -> None:
        self._running.discard(key)
        self._results[key] = result
        while len(self._results) > self._results_max:
            self._results.popitem(last=False)

    async def forget(self, key: Key) -> None:
        self._running.discard(key)

"""RESULTs as objects: for services whose only lasting place is a bucket, a container or a shared folder.

In: bytes under a key. Out: the same after a restart, and for every process that is given the same root.

    <root>/results/<day>/<name>.json     RESULTs by the day on which they were kept; created, never replaced
    <root>/owed/<name>.json              a RESULT that is not delivered yet, and where it goes

What is undelivered is written first: should the process end between the two, its RESULT is sent and not lost.
By day because a store of objects lists by name alone: what is old is found without looking at the rest. A
look asks for as many days as are kept, all at once.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from lucius.sdk.directive import Key
from lucius.sdk.result_stores.entry import name_of, pack_undelivered, unpack_undelivered

DAY_MS = 86_400_000
DAYS = 3  # an entry of two days ago may be found on three calendar days


class Objects(Protocol):
    """Faults as in the sdk's `Workspace`. `below`: names of objects (`a/b.json`), none of them twice."""

    async def read(self, uri: str) -> bytes: ...

    async def write_new(self, uri: str, data: bytes) -> None: ...

    async def write(self, uri: str, data: bytes) -> None: ...

    async def remove(self, uris: Sequence[str]) -> None: ...

    async def below(self, uri: str, names_max: int) -> list[str]: ...

    async def folders(self, uri: str) -> list[str]: ...


class ObjectResultStore:
    def __init__(self, objects: Objects, root_uri: str, *, now_ms: Callable[[], int]) -> None:
        self._objects = objects
        self._root = root_uri.rstrip("/")
        self._now_ms = now_ms

    async def find(self, key: Key) -> bytes | None:
        name, today = _name(key), self._now_ms() // DAY_MS
        days = (today - back for back in range(DAYS))
        found = await asyncio.gather(*(self._read(self._result_uri(day, name)) for day in days))
        return next((result for result in found if result is not None), None)

    async def keep(self, key: Key, result: bytes, reply_to: bytes, *, at_ms: int) -> bytes:
        name = _name(key)
        await self._objects.write(self._undelivered_uri(name), pack_undelivered(reply_to, result))
        uri = self._result_uri(at_ms // DAY_MS, name)
        try:
            await self._objects.write_new(uri, result)
        except FileExistsError:
            # The first RESULT counts, and stays undelivered until a process has delivered it.
            kept = await self._objects.read(uri)
            await self._objects.write(self._undelivered_uri(name), pack_undelivered(reply_to, kept))
            return kept
        return result

    async def settle(self, key: Key) -> None:
        await self._objects.remove([self._undelivered_uri(_name(key))])

    async def undelivered(self, undelivered_max: int) -> list[tuple[bytes, bytes]]:
        names = await self._objects.below(f"{self._root}/owed", undelivered_max)
        read = await asyncio.gather(*(self._read(f"{self._root}/owed/{name}") for name in names))
        return [unpack_undelivered(body) for body in read if body is not None]

    async def sweep(self, *, before_ms: int, entries_max: int) -> None:
        oldest = f"{before_ms // DAY_MS:06d}"
        for day in sorted(await self._objects.folders(f"{self._root}/results")):
            if day >= oldest:
                return
            folder = f"{self._root}/results/{day}"
            names = await self._objects.below(folder, entries_max)
            undelivered = [f"{self._root}/owed/{name}" for name in names]
            await self._objects.remove([*(f"{folder}/{name}" for name in names), *undelivered])
            entries_max -= len(names)
            if entries_max <= 0:
                return

    async def close(self) -> None:
        """Nothing is held open."""

    def _result_uri(self, day: int, name: str) -> str:
        return f"{self._root}/results/{day:06d}/{name}"

    def _undelivered_uri(self, name: str) -> str:
        return f"{self._root}/owed/{name}"

    async def _read(self, uri: str) -> bytes | None:
        try:
            return await self._objects.read(uri)
        except FileNotFoundError:
            return None


def _name(key: Key) -> str:
    return f"{name_of(key)}.json"

"""One commit on Azure Tables, until its outcome is known or its time is up.

In: the ops of a commit that was checked. Out: their ETags, or the port's own errors.

**Nothing was written** is what Azure says of a conflict, and of a store that is busy; such a commit is sent
again as it is. **Unknown** is what a broken connection, a timeout or a fault inside Azure leaves behind. Then
the rows are read: each carries the trail of its writes (see `azure_tables_entity`), and since a commit is all
or nothing, one row with our id shows that all of it was written. If none has it, the commit is sent again.
The first copy may still be under way, and that is no harm as long as one op is conditional: whichever copy
comes second meets a conflict and leaves nothing, and a conflict after an unknown outcome is again settled by
reading:

- our id is in a trail: we wrote it, and other writers may have come after;
- the trail goes from the version we meant to change past us, or back to another writer's insertion: the
  conflict is real;
- it does not reach that far: the outcome stays unknown, and `StoreError` says so.

**Removals leave no trail.** If a commit of removals only has an unknown outcome and all its rows are gone,
it is a success: perhaps another writer removed the same version at that moment, and for that reason a removal
must not be used as a claim. A row that is there in another version is a conflict, and was one or came
later.

**PUT and DISCARD alone** ask for no condition, so the copy that comes second has its effect, too. It is
sent only if the first cannot be seen, and says the same; but it may replace what another writer wrote in
between. The port keeps these verbs for rows that are guarded by another or can be rebuilt.

DISCARD of a row that is not there fails a whole transaction in Azure. The op is then left out and the rest
is sent again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from lucius.ledger.azure_tables.entity import (
    TEXT_CHARACTERS_MAX,
    check_request,
    etag_of,
    next_trail,
    op_id,
    tag_of,
    trail_in,
    wire_bytes,
    written,
)
from lucius.ledger.azure_tables.names import key_to_azure
from lucius.ledger.azure_tables.wire import (
    Found,
    NoTable,
    TableWire,
    Trouble,
    WireBusy,
    WireConflict,
    WireDone,
    WireLost,
    WireOp,
    WireRefused,
)
from lucius.ledger.store import COMMIT_BYTES_MAX, Conflict, Op, StoreError, StoreUnavailable, Verb

PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
DOUBLINGS_MAX: Final = 16
# Well formed, and older than anything: what is no ETag of ours is for Azure to refuse, in the order of ops.
NEVER_ETAG: Final = "W/\"datetime'1601-01-01T00%3A00%3A00.0000000Z'\""
# How long the columns for people may be: as Azure takes them, shorter for a large commit, or not at all.
TEXTS_MAX: Final = (TEXT_CHARACTERS_MAX, 64, 0)
_REMOVALS = (Verb.DELETE, Verb.DISCARD)


class RetryBudget:
    """How long to try, and how long to pause in between: twice as long each time, and not all at once."""

    def __init__(self, seconds_max: float, chance: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds_max
        # Half of each pause depends on the process, so that writers which met a busy store together part.
        self._lane_leases = 0.5 + (sum(chance.encode()) * 37 % 64) / 128
        self._doublings = 0

    async def pause(self) -> bool:
        """False if the time is up."""
        seconds = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2**self._doublings) * self._lane_leases
        self._doublings = min(self._doublings + 1, DOUBLINGS_MAX)
        if self._loop.time() + seconds >= self._until:
            return False
        await asyncio.sleep(seconds)
        return True


class _SentOp(msgspec.Struct, frozen=True, kw_only=True):
    """An op, the id of its write, and what goes over the wire for it."""

    index: int
    op: Op
    write_id: str
    wire: WireOp


class Commit:
    def __init__(
        self, wire: TableWire, table: str, ops: Sequence[Op], *, write_id: str, seconds_max: float
    ) -> None:
        """Raises `ValueError` for what Azure could never take. `table` is Azure's name."""
        self._wire = wire
        self._table = table
        self._partition = key_to_azure(ops[0].partition)
        self._parts = self._sent(ops, write_id)
        self._left = list(self._parts)
        self._retry_budget = RetryBudget(seconds_max, write_id)
        self._unknown = False
        self._perhaps_overtaken = False

    async def run(self) -> list[str]:
        while self._left:
            answer = await self._wire.send(self._table, [part.wire for part in self._left])
            if isinstance(answer, WireDone):
                done = zip(self._left, answer.etags, strict=True)
                return self._etags({part.index: etag for part, etag in done})
            if isinstance(answer, WireConflict):
                part = self._left[answer.index]
                if answer.missing and part.op.verb is Verb.DISCARD:
                    del self._left[answer.index]
                    continue
                return await self._clashed(part)
            if isinstance(answer, NoTable):
                trouble = await self._wire.create_table(self._table)
                if trouble is None:
                    continue
                answer = (
                    trouble
                    if isinstance(trouble, WireRefused)
                    else WireBusy("the table could not be created")
                )
            if isinstance(answer, WireLost):
                self._unknown = True
                etags = await self._landed()
                if etags is not None:
                    return etags
            if isinstance(answer, WireRefused) or not await self._retry_budget.pause():
                self._give_up(answer)
        return [""] * len(self._parts)

    def _sent(self, ops: Sequence[Op], write_id: str) -> list[_SentOp]:
        """The ops as they are sent. Columns for people never make a commit too large: they are cut for it."""
        for texts_max in TEXTS_MAX:
            parts = [self._part(index, op, op_id(write_id, index), texts_max) for index, op in enumerate(ops)]
            bytes_total = sum(wire_bytes(part.wire.entity) for part in parts)
            if bytes_total <= COMMIT_BYTES_MAX:
                break
        check_request(bytes_total)
        return parts

    def _part(self, index: int, op: Op, write_id: str, texts_max: int) -> _SentOp:
        entity: dict[str, Any] = {"PartitionKey": self._partition, "RowKey": key_to_azure(op.key)}
        if op.verb not in _REMOVALS:
            entity |= written(op, next_trail(op, write_id), texts_max)
        tag = tag_of(op.etag)
        wire = WireOp(verb=op.verb, entity=entity, etag=NEVER_ETAG if tag is None else tag.azure)
        return _SentOp(index=index, op=op, write_id=write_id, wire=wire)

    def _etags(self, azure: Mapping[int, str]) -> list[str]:
        return [
            ""
            if part.op.verb in _REMOVALS
            else etag_of(next_trail(part.op, part.write_id), azure[part.index])
            for part in self._parts
        ]

    async def _clashed(self, part: _SentOp) -> list[str]:
        """Another writer was faster, unless it was this one."""
        if self._unknown:
            etags = await self._landed()
            if etags is not None:
                return etags
            if self._perhaps_overtaken:
                place = f"{part.op.table}/{part.op.partition}/{part.op.key}"
                raise StoreError(
                    f"{part.op.verb.value} {place}: the answer was lost, and the row has changed too often"
                    " since to find out whether it was written"
                )
        raise Conflict(part.index, part.op)

    async def _landed(self) -> list[str] | None:
        """Reads the rows. Their ETags if the commit took effect, as far as can be seen."""
        found = [await self._read(part) for part in self._parts]
        self._perhaps_overtaken = False
        azure: dict[int, str] = {}
        landed = all(part.op.verb in _REMOVALS for part in self._parts) and not any(found)
        for part, row in zip(self._parts, found, strict=True):
            if part.op.verb in _REMOVALS:
                continue
            # A row that was written again since has an ETag we never saw; ours matches nothing any more.
            azure[part.index] = NEVER_ETAG
            if row is None:
                continue
            entity, etag = row
            trail = trail_in(entity)
            if part.write_id in trail.ids:
                landed = True
                if trail.ids[0] == part.write_id:
                    azure[part.index] = etag
            elif not _passes_by(part.op, trail.ids, trail.whole):
                self._perhaps_overtaken = True
        return self._etags(azure) if landed else None

    async def _read(self, part: _SentOp) -> Found | None:
        entity = part.wire.entity
        while True:
            found = await self._wire.get(self._table, entity["PartitionKey"], entity["RowKey"])
            if found is None or isinstance(found, tuple):
                return found
            if isinstance(found, NoTable):
                return None
            if isinstance(found, WireRefused) or not await self._retry_budget.pause():
                self._give_up(found)

    def _give_up(self, trouble: Trouble) -> NoReturn:
        reason = getattr(trouble, "reason", "there is no such table")
        if self._unknown:
            raise StoreError(f"the answer to a commit was lost, and what became of it is not known: {reason}")
        raise StoreUnavailable(reason)


def _passes_by(op: Op, ids: Sequence[str], whole: bool) -> bool:
    """Whether a trail without our id proves that we did not write there."""
    if op.verb is Verb.PUT:
        return True  # it has no condition to be judged by
    tag = tag_of(op.etag)
    if op.verb is Verb.INSERT or tag is None:
        return whole or op.verb is not Verb.INSERT
    return bool(tag.trail.ids) and tag.trail.ids[0] in ids

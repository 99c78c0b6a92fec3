"""The rows of webhooks: which are to be sent and when, how far each got, and which no receiver accepted.

In: jobs that ended, the outcome of each try. Out: what is due, and the dead letters. Knows nothing of HTTP.

All rows of a lane's webhooks lie in one partition, so every move is one atomic commit on every store:
`AT#{time}#{job}` is due at that time, `JOB#{job}` says how far the job's webhook got, `DEAD#{time}#{job}` is
a dead letter, the newest first. `JOB#` is the truth and guards the rest by its ETag: an `AT#` row that it
does not name is left over, from closing writes that were repeated, and means nothing.
"""

from collections.abc import Callable
from enum import StrEnum
from heapq import merge
from urllib.parse import urlsplit

import msgspec

from lucius.core.model import Job
from lucius.core.routing import LANES
from lucius.ledger.names import MS_MAX, Tables, lane_partition, newest_first_key, split_time_key, time_key
from lucius.ledger.quarantine import Quarantine, read_page
from lucius.ledger.rows import RowDecoder, encode
from lucius.ledger.store import (
    Conflict,
    Op,
    Row,
    TableStore,
    Unreadable,
    discard,
    insert,
    put,
    replace,
)

KIND = "completed"
REDELIVER_TRIES_MAX = 20

_AT = "AT#"
_DEAD = "DEAD#"
_JOB = "JOB#"


class WebhookPhase(StrEnum):
    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    DEAD = "DEAD"


class WebhookState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`next_at_ms` names the one `AT#` row that counts; `attempts` are the tries whose outcome is known."""

    phase: WebhookPhase
    host: str
    updated_at_ms: int
    attempts: int = 0
    next_at_ms: int | None = None
    last_problem: str | None = None


class WebhookHeld(msgspec.Struct, frozen=True, kw_only=True):
    state: WebhookState
    etag: str


class WebhookDue(msgspec.Struct, frozen=True, kw_only=True):
    lane: int
    at_ms: int
    job_id: str
    host: str

    @property
    def key(self) -> str:
        return _at_key(self.at_ms, self.job_id)


class WebhookDead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    job_id: str
    tenant_norm: str
    url: str
    attempts: int
    dead_at_ms: int
    last_problem: str | None = None


class _DueBody(msgspec.Struct, frozen=True, kw_only=True):
    host: str


_due = RowDecoder(_DueBody)
_state = RowDecoder(WebhookState)
_dead = RowDecoder(WebhookDead)


def row_decoder(key: str) -> Callable[[Row], object] | None:
    """What reads the row of this key."""
    for prefix, decoder in ((_AT, _due), (_JOB, _state), (_DEAD, _dead)):
        if key.startswith(prefix):
            return decoder
    return None


def webhook_url(job: Job) -> str | None:
    """The address that gets the job's end, if there is one."""
    return (job.callback_urls or {}).get(KIND)


def webhook_host(url: str) -> str:
    """Only to share the work out by host; what may be called is decided elsewhere."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def first_try(tables: Tables, job: Job) -> list[Op]:
    """What a job's end writes: one row, at a place that is the same however often it is written."""
    url = webhook_url(job)
    if url is None:
        return []
    return [_due_put(tables, job.lane, _ended_at_ms(job), job.job_id, webhook_host(url))]


class WebhookRows:
    def __init__(self, store: TableStore, tables: Tables, quarantine: Quarantine | None = None) -> None:
        self._store = store
        self._quarantine = quarantine or Quarantine()
        self._t = tables

    async def due(self, lane: int, until_ms: int, limit: int, *, start: str = "") -> list[WebhookDue]:
        """Rows that are due by `until_ms`, the oldest first."""
        return await read_page(
            self._store,
            self._quarantine,
            self._t.webhooks,
            lane_partition(lane),
            lambda row: _due_entry(lane, row),
            start=start or _AT,
            end=f"{_AT}{until_ms + 1:014d}",
            limit=limit,
        )

    async def far(self, lane: int, from_ms: int, limit: int) -> list[WebhookDue]:
        """Rows that are due later than `from_ms`, the next ones first."""
        start, end = f"{_AT}{from_ms + 1:014d}", f"{_AT}{MS_MAX:014d}"
        rows = await self._store.query(
            self._t.webhooks, lane_partition(lane), start=start, end=end, limit=limit
        )
        return [_due_entry(lane, row) for row in rows]

    async def held(self, lane: int, job_id: str) -> WebhookHeld | None:
        """Raises `Unreadable`."""
        partition = lane_partition(lane)
        row = await self._store.get(self._t.webhooks, partition, f"{_JOB}{job_id}")
        if row is None:
            return None
        try:
            return WebhookHeld(state=_state.at(self._t.webhooks, partition, row), etag=row.etag)
        except Unreadable as fault:
            if fault.place is not None:
                self._quarantine.note(fault.place, fault)
            raise

    async def claim(
        self, entry: WebhookDue, held: WebhookHeld | None, now_ms: int, until_ms: int
    ) -> WebhookHeld:
        """Moves the row ahead while it is being sent, so that no other sender takes it and it is due again
        after a crash; raises `Conflict` if another sender was faster."""
        state = WebhookState(
            phase=WebhookPhase.PENDING,
            host=entry.host,
            updated_at_ms=now_ms,
            attempts=0 if held is None else held.state.attempts,
            next_at_ms=until_ms,
            last_problem=None if held is None else held.state.last_problem,
        )
        return await self._move(entry.lane, entry.job_id, entry.at_ms, held, state)

    async def delivered(self, lane: int, job_id: str, held: WebhookHeld, now_ms: int) -> None:
        state = WebhookState(
            phase=WebhookPhase.DELIVERED,
            host=held.state.host,
            updated_at_ms=now_ms,
            attempts=held.state.attempts + 1,
        )
        await self._move(lane, job_id, held.state.next_at_ms, held, state)

    async def retry(
        self, lane: int, job_id: str, held: WebhookHeld, problem: str, now_ms: int, next_at_ms: int
    ) -> None:
        state = WebhookState(
            phase=WebhookPhase.PENDING,
            host=held.state.host,
            updated_at_ms=now_ms,
            attempts=held.state.attempts + 1,
            next_at_ms=next_at_ms,
            last_problem=problem,
        )
        await self._move(lane, job_id, held.state.next_at_ms, held, state)

    async def bury(self, job: Job, held: WebhookHeld, problem: str, now_ms: int) -> None:
        """Gives up: from now on it is a dead letter."""
        state = WebhookState(
            phase=WebhookPhase.DEAD,
            host=held.state.host,
            updated_at_ms=now_ms,
            attempts=held.state.attempts + 1,
            last_problem=problem,
        )
        await self._move(job.lane, job.job_id, held.state.next_at_ms, held, state, self._dead_put(job, state))

    async def redeliver(self, job: Job, now_ms: int) -> WebhookState:
        """Sends it once more from the beginning, whatever became of it so far."""
        state = WebhookState(
            phase=WebhookPhase.PENDING,
            host=webhook_host(webhook_url(job) or ""),
            updated_at_ms=now_ms,
            next_at_ms=now_ms,
        )
        for attempt in range(REDELIVER_TRIES_MAX):
            held = await self.held(job.lane, job.job_id)
            was_at_ms = _ended_at_ms(job) if held is None else held.state.next_at_ms
            gone = [] if held is None else self._dead_discards(job.lane, job.job_id, held.state)
            try:
                await self._move(job.lane, job.job_id, was_at_ms, held, state, *gone)
            except Conflict:
                if attempt == REDELIVER_TRIES_MAX - 1:
                    raise
            else:
                break
        return state

    async def dead(self, after: str, limit: int) -> list[tuple[str, WebhookDead]]:
        """Dead letters of all lanes, the newest first, each with the place to go on after."""
        start = f"{_DEAD}{after}\x00" if after else _DEAD
        pages = [
            await read_page(
                self._store,
                self._quarantine,
                self._t.webhooks,
                lane_partition(lane),
                lambda row: (row.key.removeprefix(_DEAD), _dead(row)),
                start=start,
                end=f"{_DEAD}~",
                limit=limit,
            )
            for lane in range(LANES)
        ]
        return list(merge(*pages, key=lambda found: found[0]))[:limit]

    async def drop(self, entry: WebhookDue) -> None:
        """Removes a row that no job names."""
        await self._store.commit([discard(self._t.webhooks, lane_partition(entry.lane), entry.key)])

    async def is_pending(self, lane: int, job_id: str, ended_at_ms: int) -> bool:
        """Whether it is still to be sent, for the first time or again."""
        held = await self.held(lane, job_id)
        if held is not None:
            return held.state.phase is WebhookPhase.PENDING
        first = _at_key(ended_at_ms, job_id)
        return await self._store.get(self._t.webhooks, lane_partition(lane), first) is not None

    async def removals(self, lane: int, job_id: str, ended_at_ms: int) -> list[Op]:
        """Removes whatever there is of a job's webhook; nothing, for a job that had none."""
        partition = lane_partition(lane)
        held = await self.held(lane, job_id)
        first = _at_key(ended_at_ms, job_id)
        if held is None and await self._store.get(self._t.webhooks, partition, first) is None:
            return []
        keys, ops = {first}, []
        if held is not None:
            ops += self._dead_discards(lane, job_id, held.state)
            if held.state.next_at_ms is not None:
                keys.add(_at_key(held.state.next_at_ms, job_id))
            keys.add(f"{_JOB}{job_id}")
        return ops + [discard(self._t.webhooks, partition, key) for key in sorted(keys)]

    def _dead_discards(self, lane: int, job_id: str, state: WebhookState) -> list[Op]:
        if state.phase is not WebhookPhase.DEAD:
            return []
        key = f"{_DEAD}{newest_first_key(state.updated_at_ms, job_id)}"
        return [discard(self._t.webhooks, lane_partition(lane), key)]

    def again(self, job: Job, state: WebhookState) -> list[Op]:
        """Writes the rows of a webhook anew that got as far as this in another ledger."""
        partition = lane_partition(job.lane)
        ops = [put(self._t.webhooks, partition, f"{_JOB}{job.job_id}", encode(state))]
        if state.next_at_ms is not None:
            ops.append(_due_put(self._t, job.lane, state.next_at_ms, job.job_id, state.host))
        if state.phase is WebhookPhase.DEAD:
            ops.append(self._dead_put(job, state))
        return ops

    def _dead_put(self, job: Job, state: WebhookState) -> Op:
        letter = WebhookDead(
            job_id=job.job_id,
            tenant_norm=job.tenant_norm,
            url=webhook_url(job) or "",
            attempts=state.attempts,
            dead_at_ms=state.updated_at_ms,
            last_problem=state.last_problem,
        )
        key = f"{_DEAD}{newest_first_key(state.updated_at_ms, job.job_id)}"
        return put(self._t.webhooks, lane_partition(job.lane), key, encode(letter))

    async def _move(
        self,
        lane: int,
        job_id: str,
        was_at_ms: int | None,
        held: WebhookHeld | None,
        state: WebhookState,
        *more: Op,
    ) -> WebhookHeld:
        partition, key, body = lane_partition(lane), f"{_JOB}{job_id}", encode(state)
        ops = [
            insert(self._t.webhooks, partition, key, body)
            if held is None
            else replace(self._t.webhooks, partition, key, body, held.etag)
        ]
        if was_at_ms is not None and was_at_ms != state.next_at_ms:
            ops.append(discard(self._t.webhooks, partition, _at_key(was_at_ms, job_id)))
        if state.next_at_ms is not None:
            ops.append(_due_put(self._t, lane, state.next_at_ms, job_id, state.host))
        etags = await self._store.commit([*ops, *more])
        return WebhookHeld(state=state, etag=etags[0])


def _ended_at_ms(job: Job) -> int:
    return job.completed_at_ms or job.updated_at_ms


def _at_key(at_ms: int, job_id: str) -> str:
    return f"{_AT}{time_key(at_ms, job_id)}"


def _due_put(tables: Tables, lane: int, at_ms: int, job_id: str, host: str) -> Op:
    return put(tables.webhooks, lane_partition(lane), _at_key(at_ms, job_id), encode(_DueBody(host=host)))


def _due_entry(lane: int, row: Row) -> WebhookDue:
    due = _due(row)
    at_ms, job_id = split_time_key(row.key.removeprefix(_AT))
    return WebhookDue(lane=lane, at_ms=at_ms, job_id=job_id, host=due.host)

"""Removes a terminal job. Each step may be repeated; the row that remembers to do it goes last."""

from contextlib import suppress

import msgspec

from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.names import (
    dlq_left_partition,
    lane_partition,
    newest_first_key,
    split_time_key,
    tenant_bucket,
    time_key,
)
from lucius.ledger.rows import decode_idempotency, decode_retention, encode
from lucius.ledger.store import Conflict, Unreadable, delete, discard, replace
from lucius.ledger.webhooks import WebhookRows


class JobDeletion:
    def __init__(self, ledger: JobLedger) -> None:
        self._ledger = ledger
        self._store = ledger.store
        self._t = ledger.tables
        self._webhooks = WebhookRows(ledger.store, ledger.tables, ledger.quarantine)

    async def ended(
        self, lane: int, until_ms: int, limit: int, after: tuple[int, str] | None = None
    ) -> list[tuple[int, str]]:
        """Jobs that ended by `until_ms`, the oldest first; those that come `after` this one."""
        start = "" if after is None else f"{time_key(*after)}\x00"
        end = f"{max(0, until_ms) + 1:014d}"
        partition = lane_partition(lane)
        rows = await self._store.query(self._t.retention, partition, start=start, end=end, limit=limit)
        return [split_time_key(row.key) for row in rows]

    async def forget(self, lane: int, ended_at_ms: int, job_id: str) -> bool:
        """Whether it is gone: a job whose end is still to be sent to its webhook stays until it was sent or
        given up, and so does one that cannot be read, to be looked into."""
        try:
            return await self._forget(lane, ended_at_ms, job_id)
        except Unreadable as fault:
            if fault.place is not None:
                self._ledger.quarantine.note(fault.place, fault)
            return False

    async def _forget(self, lane: int, ended_at_ms: int, job_id: str) -> bool:
        partition, key = lane_partition(lane), time_key(ended_at_ms, job_id)
        row = await self._store.get(self._t.retention, partition, key)
        if row is None:
            return True
        if await self._webhooks.is_pending(lane, job_id, ended_at_ms):
            return False
        if self._ledger.quarantine.holds_job(job_id):
            return False
        kept = decode_retention.at(self._t.retention, partition, row)
        bucket = tenant_bucket(kept.tenant_norm, kept.created_at_ms)
        await self._forget_key(kept.tenant_norm, kept.idempotency_hash, job_id)
        while ops := await self._ledger.layout.removals(self._store, job_id, bucket):
            await self._store.commit(ops)
        projections = self._ledger.projections
        while projections is not None and (ops := await projections.removals(job_id, bucket)):
            await self._store.commit(ops)
        self._ledger.forget(job_id)
        await self._ledger.write_each(
            [
                discard(self._t.dlq, partition, newest_first_key(ended_at_ms, job_id)),
                discard(self._t.dlq, dlq_left_partition(lane), job_id),
                *await self._webhooks.removals(lane, job_id, ended_at_ms),
                *self._ledger.planner.list_discards(
                    job_id,
                    kept.tenant_norm,
                    lane,
                    kept.created_at_ms,
                    ended=kept.ended,
                    names=kept.names,
                ),
            ]
        )
        # A process that found an old due row may have repeated the closing writes meanwhile, and put back
        # what was just removed: then the reminder row is of that process, and the next pass removes it all
        # again.
        with suppress(Conflict):
            await self._store.commit([delete(self._t.retention, partition, key, row.etag)])
        return True

    async def _forget_key(self, tenant_norm: str, key: str, job_id: str) -> None:
        row = await self._store.get(self._t.idempotency, tenant_norm, key)
        if row is None:
            return
        place = (self._t.idempotency, tenant_norm, key)
        held = decode_idempotency.at(self._t.idempotency, tenant_norm, row)
        with suppress(Conflict):  # a rerun is taking the key over just now
            if held.job_id == job_id:
                await self._store.commit([delete(*place, row.etag)])
            elif job_id in held.adoptions.values():  # a later rerun took the key over, and still speaks of it
                others = {what: who for what, who in held.adoptions.items() if who != job_id}
                left = encode(msgspec.structs.replace(held, adoptions=others))
                await self._store.commit([replace(*place, left, row.etag)])

"""Idempotency keys: who holds one, and how a new job claims it."""

from collections.abc import Mapping

import msgspec

from lucius.core.model import Job
from lucius.ledger.rows import IdempotencyRow


class KeyClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The idempotency row that a new job wants. `etag`: it replaces one that has served its time.

    `adopts`: the late success that the job begins with, where a client that asks for that again is to find
    the job. `adoptions`: what the row that is replaced knows of others.
    """

    partition: str
    key: str
    etag: str | None = None
    adopts: str | None = None
    adoptions: Mapping[str, str] = {}

    def row_for(self, job: Job) -> IdempotencyRow:
        own = {} if self.adopts is None else {self.adopts: job.job_id}
        return IdempotencyRow(
            job_id=job.job_id,
            fingerprint=job.fingerprint,
            created_at_ms=job.created_at_ms,
            adoptions={**self.adoptions, **own},
        )


class KeyHolder(msgspec.Struct, frozen=True, kw_only=True):
    row: IdempotencyRow
    etag: str


class KeyTaken(Exception):
    """Another job holds the idempotency key."""

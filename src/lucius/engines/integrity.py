"""Looks for damage before a caller meets it: the whole store at the start and once a day, and the rows in
quarantine each minute, which may be well again.

In: the ledger, and how its store is checked, where it can be. Out: findings in the quarantine, which
readiness and the metrics tell of. Changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.row_check import check_row
from lucius.ledger.store import Row, StoreError

REVIEW_EVERY_SECONDS = 60.0
CHECK_EVERY_SECONDS = 86_400.0
FINDINGS_KEPT_MAX = 100

CheckStore = Callable[[], Awaitable[Sequence[str]]]

log = structlog.get_logger("lucius.integrity")


class IntegrityDuty:
    def __init__(self, ledger: JobLedger, check_store: CheckStore | None) -> None:
        """`check_store`: what is wrong with all of it; None: the store looks after itself."""
        self._ledger = ledger
        self._check_store = check_store

    async def run(self) -> None:
        until_check = 0.0
        while True:
            if until_check <= 0:
                until_check = CHECK_EVERY_SECONDS
                await self.check()
            await asyncio.sleep(REVIEW_EVERY_SECONDS)
            until_check -= REVIEW_EVERY_SECONDS
            await self.review()

    async def check(self) -> None:
        if self._check_store is None:
            return
        try:
            findings = await self._check_store()
        except StoreError as fault:
            log.warning("store_not_checked", error=str(fault))
            return
        for finding in findings[:FINDINGS_KEPT_MAX]:
            log.error("store_damaged", finding=finding)
        if not findings:
            log.info("store_is_sound")
        self._ledger.quarantine.findings = tuple(findings[:FINDINGS_KEPT_MAX])

    async def review(self) -> None:
        await self._ledger.quarantine.review(self._ledger.store, self._problem)

    def _problem(self, table: str, partition: str, row: Row) -> str | None:
        return check_row(self._ledger.tables, table, partition, row)

"""Whether a tenant may submit more, by what its jobs have used.

In: the sums of what services reported, read again every few seconds, and what this process heard since. Out:
a refusal, for tenants that have a budget. A budget is looked at when a command comes: jobs that are open then
run to their end, so a tenant may use somewhat more than it. Tenants without one cost nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from lucius.core.budgets import Budget, BudgetPeriod, BudgetState, span_of, states_of
from lucius.core.model import Event, JobRecord
from lucius.core.refusal import Code, Refused
from lucius.core.usage import added
from lucius.ledger.usage import UsageSums

READ_EVERY_MS: Final = 5_000
TENANTS_KEPT_MAX: Final = 10_000


class _Known(msgspec.Struct, kw_only=True):
    """What a tenant has used of a period, as of the last look and since then."""

    first_day: str
    read_at_ms: int
    used: dict[str, int | float]


class Budgets:
    def __init__(
        self,
        sums: UsageSums,
        budgets: Callable[[], Mapping[str, tuple[Budget, ...]]],
        *,
        now_ms: Callable[[], int],
    ) -> None:
        """`budgets`: by tenant, asked for each command, so that they may change."""
        self._sums = sums
        self._budgets = budgets
        self._now_ms = now_ms
        self._known: dict[tuple[str, BudgetPeriod], _Known] = {}

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        """What is reported here counts at once."""
        if before is None or after.job.usage is before.job.usage:
            return
        for period in BudgetPeriod:
            known = self._known.get((after.job.tenant_norm, period))
            for event in events if known is not None else ():
                assert known is not None
                known.used = added(known.used, event.data.get("usage", {}))

    async def states(self, tenant_norm: str) -> list[BudgetState]:
        """How far each budget of the tenant is used."""
        budgets, now_ms = self._budgets().get(tenant_norm, ()), self._now_ms()
        if not budgets:
            return []
        periods = dict.fromkeys(each.period for each in budgets)
        used = {period: await self._used(tenant_norm, period, now_ms) for period in periods}
        return states_of(budgets, used, now_ms)

    def known(self) -> list[tuple[str, BudgetState]]:
        """By tenant, as far as commands have asked."""
        now_ms, budgets = self._now_ms(), self._budgets()
        tenants = dict.fromkeys(tenant for tenant, _ in self._known)
        found: list[tuple[str, BudgetState]] = []
        for tenant in tenants:
            used = {
                period: known.used
                for period in BudgetPeriod
                if (known := self._known.get((tenant, period))) is not None
                and known.first_day == span_of(period, now_ms).first_day
            }
            found += [(tenant, state) for state in states_of(budgets.get(tenant, ()), used, now_ms)]
        return found

    async def refusal(self, tenant_norm: str) -> Refused | None:
        """Why a command would not be taken now; None if it would."""
        spent = [state for state in await self.states(tenant_norm) if state.exceeded]
        if not spent:
            return None
        last = max(spent, key=lambda state: state.ends_ms)
        budget = last.budget
        return Refused(
            Code.BUDGET_EXCEEDED,
            f"the tenant has used {last.used:g} {budget.name} this {budget.period.value}, "
            f"and may use {budget.most:g}",
            retry_after_seconds=max(1, (last.ends_ms - self._now_ms()) // 1000 + 1),
        )

    async def _used(self, tenant_norm: str, period: BudgetPeriod, now_ms: int) -> dict[str, int | float]:
        span, place = span_of(period, now_ms), (tenant_norm, period)
        known = self._known.get(place)
        fresh = known is not None and 0 <= now_ms - known.read_at_ms < READ_EVERY_MS
        if known is not None and fresh and known.first_day == span.first_day:
            return known.used
        used: dict[str, int | float] = {}
        for daily in await self._sums.read(tenant_norm, span.first_day, span.last_day):
            used = added(used, daily.sum.usage)
        if place not in self._known and len(self._known) >= TENANTS_KEPT_MAX:
            self._known.clear()
        self._known[place] = _Known(first_day=span.first_day, read_at_ms=now_ms, used=used)
        return used

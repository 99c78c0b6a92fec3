"""Budgets: how much of what services report a tenant may use in a day or a month.

In: a document with a number for each name and period. Out: budgets, or every problem in plain words. Days and
months are UTC.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from lucius.core.model import Json
from lucius.core.usage import Usage, is_usage_name, number_problem

BUDGETS_MAX: Final = 32


class BudgetPeriod(StrEnum):
    DAY = "day"
    MONTH = "month"


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Once `used` has reached `most`, no more commands are taken in this period."""

    name: str
    period: BudgetPeriod
    most: float


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    """`ends_ms`: when the period is over."""

    budget: Budget
    used: float
    ends_ms: int

    @property
    def exceeded(self) -> bool:
        return self.used >= self.budget.most


class PeriodSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Days as they stand in keys, such as 20260127."""

    first_day: str
    last_day: str
    ends_ms: int


def span_of(period: BudgetPeriod, now_ms: int) -> PeriodSpan:
    """The period that lasts now."""
    today = datetime.fromtimestamp(now_ms / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first, after = today, today + timedelta(days=1)
    if period is BudgetPeriod.MONTH:
        first = today.replace(day=1)
        after = (first + timedelta(days=32)).replace(day=1)
    last = after - timedelta(days=1)
    ends_ms = int(after.timestamp() * 1000)
    return PeriodSpan(first_day=f"{first:%Y%m%d}", last_day=f"{last:%Y%m%d}", ends_ms=ends_ms)


def states_of(
    budgets: tuple[Budget, ...], used: Mapping[BudgetPeriod, Usage], now_ms: int
) -> list[BudgetState]:
    return [
        BudgetState(
            budget=each,
            used=used.get(each.period, {}).get(each.name, 0),
            ends_ms=span_of(each.period, now_ms).ends_ms,
        )
        for each in budgets
    ]


def parse_budgets(doc: Json) -> tuple[Budget, ...] | list[str]:
    """From `{"day": {"pages": 1000}, "month": {"usd": 50}}`; else what is wrong with it, by pointer."""
    if not isinstance(doc, dict):
        return ["/budget: must be an object of periods, each with named numbers"]
    found: list[Budget] = []
    problems: list[str] = []
    for period, numbers in doc.items():
        if period not in set(BudgetPeriod):
            problems.append(f"/budget/{period}: is not a period; known are day and month")
            continue
        if not isinstance(numbers, dict):
            problems.append(f"/budget/{period}: must be an object of named numbers")
            continue
        for name, most in numbers.items():
            problem = number_problem(most)
            if not is_usage_name(str(name)):
                problem = "is no name of something that services report"
            if problem is not None:
                problems.append(f"/budget/{period}/{name}: {problem}")
            else:
                found.append(Budget(name=str(name), period=BudgetPeriod(period), most=most))
    if len(found) > BUDGETS_MAX:
        problems.append(f"/budget: must not have more than {BUDGETS_MAX} numbers")
    return problems or tuple(found)

"""Budgets: periods, and documents that say them."""

from datetime import UTC, datetime

from lucius.core.budgets import Budget, BudgetPeriod, parse_budgets, span_of, states_of


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def test_periods_are_days_and_months_in_utc() -> None:
    day = span_of(BudgetPeriod.DAY, at("2026-12-31T23:59:59"))
    assert (day.first_day, day.last_day, day.ends_ms) == ("20261231", "20261231", at("2027-01-01T00:00:00"))
    month = span_of(BudgetPeriod.MONTH, at("2028-02-10T12:00:00"))
    assert (month.first_day, month.last_day, month.ends_ms) == (
        "20280201",
        "20280229",
        at("2028-03-01T00:00:00"),
    )


def test_a_budget_is_used_up_when_its_number_is_reached() -> None:
    budgets = (
        Budget(name="pages", period=BudgetPeriod.DAY, most=10),
        Budget(name="usd", period=BudgetPeriod.MONTH, most=2.5),
    )
    used: dict[BudgetPeriod, dict[str, int | float]] = {
        BudgetPeriod.DAY: {"pages": 10, "usd": 99},
        BudgetPeriod.MONTH: {"usd": 2.4},
    }
    assert [state.exceeded for state in states_of(budgets, used, at("2026-01-01T00:00:00"))] == [True, False]
    nothing = states_of((Budget(name="pages", period=BudgetPeriod.DAY, most=0),), {}, 0)
    assert nothing[0].exceeded, "a budget of nothing lets nothing in"


def test_documents() -> None:
    assert parse_budgets({"day": {"pages": 10}, "month": {"usd": 2.5}}) == (
        Budget(name="pages", period=BudgetPeriod.DAY, most=10),
        Budget(name="usd", period=BudgetPeriod.MONTH, most=2.5),
    )
    assert parse_budgets({}) == ()
    wrong = parse_budgets({"week": {}, "day": {"pages": -1, "a b": 1, "x": "1"}, "month": 5})
    assert [text.partition(":")[0] for text in wrong if isinstance(text, str)] == [
        "/budget/week",
        "/budget/day/pages",
        "/budget/day/a b",
        "/budget/day/x",
        "/budget/month",
    ]
    assert parse_budgets([]) == ["/budget: must be an object of periods, each with named numbers"]
    many = parse_budgets({"day": {f"n{number}": 1 for number in range(33)}})
    assert many == ["/budget: must not have more than 32 numbers"]

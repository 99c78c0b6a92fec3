"""`GET /v1/usage`: what services reported, by tenant, day and service.

In: the sums that are kept as results come in. Out: a line for each tenant, day and service, and all together.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from lucius.api.fleet import figure_scope
from lucius.api.parameters import refuse, stray
from lucius.api.problems import answer
from lucius.api.routing import Call, Result
from lucius.contracts.times import rfc3339
from lucius.core.model import Json
from lucius.core.refusal import Refused
from lucius.core.usage import added

DAYS_MAX: Final = 400
TENANTS_MAX: Final = 200
LINES_MAX: Final = 5_000


class _Days(msgspec.Struct, frozen=True):
    """As they stand in keys: 20260127."""

    first: str
    last: str


async def get_usage(call: Call) -> Result:
    refused, scope = stray(call.request, "tenant_id", "from", "to"), figure_scope(call)
    days = _days(call)
    for each in (refused, scope, days):
        if isinstance(each, Refused):
            return each
    assert isinstance(days, _Days) and not isinstance(scope, Refused)
    deps = call.deps
    names = sorted(scope.names if scope.names is not None else await deps.fleet.tenants.all())
    items: list[dict[str, Json]] = []
    totals: dict[str, int | float] = {}
    for tenant in names[:TENANTS_MAX]:
        for daily in await deps.usage.read(tenant, days.first, days.last):
            totals = added(totals, daily.sum.usage)
            items.append(
                {
                    "tenant_id": tenant,
                    "day": _shown(daily.day),
                    "service": daily.service,
                    "results": daily.sum.results,
                    "usage": daily.sum.usage,
                }
            )
    return answer(
        {
            "items": items[:LINES_MAX],
            "more": len(items) > LINES_MAX or len(names) > TENANTS_MAX,
            "totals": totals,
            "from": _shown(days.first),
            "to": _shown(days.last),
            "as_of": rfc3339(deps.now_ms()),
        }
    )


def _days(call: Call) -> _Days | Refused:
    """This month unless it is said."""
    today = datetime.fromtimestamp(call.deps.now_ms() / 1000, UTC)
    given = call.request.query_params
    days: dict[str, datetime] = {}
    for name, usual in (("from", today.replace(day=1)), ("to", today)):
        text = given.get(name)
        try:
            days[name] = usual if text is None else datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
        except ValueError:
            return refuse(name, "must be a day, such as 2026-01-27")
    if "from" not in given and days["to"] < days["from"]:
        days["from"] = days["to"].replace(day=1)
    if not days["from"].date() <= days["to"].date() <= (days["from"] + timedelta(days=DAYS_MAX)).date():
        return refuse("to", f"must not be before `from`, nor more than {DAYS_MAX} days after it")
    return _Days(*(days[name].strftime("%Y%m%d") for name in ("from", "to")))


def _shown(day: str) -> str:
    return f"{day[:4]}-{day[4:6]}-{day[6:]}"

"""What services may have: most attempts at once, most in a time, and when to leave them alone.

In: a document with the one member `services`. Out: limits by service (`*` stands for those that are not
named), or every problem in plain words.
"""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final

from lucius.contracts.pointers import below
from lucius.contracts.schemas import SERVICE_PATTERN
from lucius.core.durations import parse_duration_ms
from lucius.core.flow import BreakerRule, Rate, ServiceLimits
from lucius.core.model import Json

SERVICES: Final = "services"
ALL_SERVICES: Final = "*"
SERVICES_MAX: Final = 1_000
CONCURRENCY_MAX: Final = 1_000
TOKENS_MAX: Final = 1_000_000
FAILURES_MAX: Final = 10_000
PROBE_EVERY_MS: Final = 10_000
PROBE_EVERY_MS_MIN: Final = 100
FAILURES: Final = 5

_NAME: Final = re.compile(SERVICE_PATTERN)
_RATE: Final = re.compile(r"(\d{1,7})/(s|min)")
_UNITS_MS: Final = {"s": 1_000, "min": 60_000}
_SHARED: Final = ("concurrency", "rate", "burst")
_MEMBERS: Final = (*_SHARED, "per_tenant", "breaker")
_BREAKER_MEMBERS: Final = ("failures", "probe_every")

LimitsByService = Mapping[str, ServiceLimits]
_Problem = Callable[[str, str], None]


def parse_services(doc: Json) -> dict[str, ServiceLimits] | tuple[str, ...]:
    """The limits, or the problems of the document."""
    services = doc.get(SERVICES) if isinstance(doc, dict) else None
    if not isinstance(doc, dict) or not isinstance(services, dict) or len(doc) > 1:
        return (f"the document must be an object with the one member {SERVICES}, an object by service",)
    if len(services) > SERVICES_MAX:
        return (f"/{SERVICES}: must not name more than {SERVICES_MAX} services",)
    found: list[str] = []
    limits: dict[str, ServiceLimits] = {}
    for name, each in services.items():
        at = below(f"/{SERVICES}", name)
        if name != ALL_SERVICES and not _NAME.fullmatch(name):
            found.append(f"{at}: must be {ALL_SERVICES} or of the form {_NAME.pattern}")
        parsed = parse_service(each)
        if isinstance(parsed, tuple):
            found += [f"{at}{text}" if text.startswith("/") else f"{at}: {text}" for text in parsed]
        else:
            limits[name] = parsed
    return tuple(found) or limits


def parse_service(doc: Json) -> ServiceLimits | tuple[str, ...]:
    """What one service may have, or the problems."""
    if not isinstance(doc, dict):
        return (f"must be an object with {', '.join(_MEMBERS)}",)
    found: list[str] = []

    def problem(pointer: str, message: str) -> None:
        found.append(f"{pointer}: {message}")

    _refuse_unknown(doc, _MEMBERS, "", problem)
    tenant = _object(doc, "per_tenant", problem)
    _refuse_unknown(tenant, _SHARED, "/per_tenant", problem)
    limits = ServiceLimits(
        concurrency=_whole(doc, "concurrency", CONCURRENCY_MAX, "", problem),
        rate=_rate(doc, "", problem),
        tenant_concurrency=_whole(tenant, "concurrency", CONCURRENCY_MAX, "/per_tenant", problem),
        tenant_rate=_rate(tenant, "/per_tenant", problem),
        breaker=_breaker(doc, problem),
    )
    return tuple(found) or limits


def _refuse_unknown(doc: Mapping[str, Json], known: tuple[str, ...], at: str, problem: _Problem) -> None:
    for name in sorted(doc.keys() - set(known)):
        close = get_close_matches(name, known, n=1, cutoff=0.6)
        meant = f"; was {close[0]} meant?" if close else ""
        problem(below(at, name), f"is not known here; known are {', '.join(known)}{meant}")


def _object(doc: Mapping[str, Json], name: str, problem: _Problem) -> dict[str, Json]:
    value = doc.get(name)
    if value is None or isinstance(value, dict):
        return value or {}
    problem(f"/{name}", "must be an object")
    return {}


def _whole(
    doc: Mapping[str, Json], name: str, most: int, at: str, problem: _Problem, usual: int | None = None
) -> int | None:
    value = doc.get(name)
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        problem(f"{at}/{name}", f"must be a whole number from 1 to {most}")
        return usual
    return value


def _rate(doc: Mapping[str, Json], at: str, problem: _Problem) -> Rate | None:
    value, burst = doc.get("rate"), _whole(doc, "burst", TOKENS_MAX, at, problem)
    if value is None:
        if burst is not None:
            problem(f"{at}/burst", "goes with a rate")
        return None
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    tokens = int(match[1]) if match else 0
    if match is None or not 1 <= tokens <= TOKENS_MAX:
        problem(f"{at}/rate", f"must be such as 100/s or 600/min, of 1 to {TOKENS_MAX}")
        return None
    per_ms = _UNITS_MS[match[2]]
    # What a tenth of a second brings, so that nothing leaves in heaps unless it is wanted.
    return Rate(tokens=tokens, per_ms=per_ms, burst=burst or max(1, tokens * 100 // per_ms))


def _breaker(doc: Mapping[str, Json], problem: _Problem) -> BreakerRule | None:
    value = doc.get("breaker")
    if value is None or value is False:
        return None
    rule = {} if value is True else value
    if not isinstance(rule, dict):
        problem("/breaker", f"must be true, false or an object with {', '.join(_BREAKER_MEMBERS)}")
        return None
    _refuse_unknown(rule, _BREAKER_MEMBERS, "/breaker", problem)
    failures = _whole(rule, "failures", FAILURES_MAX, "/breaker", problem, FAILURES)
    probe_every_ms = PROBE_EVERY_MS
    if "probe_every" in rule:
        span_ms = parse_duration_ms(rule["probe_every"])
        if span_ms is None or span_ms < PROBE_EVERY_MS_MIN:
            problem("/breaker/probe_every", "must be a span of at least 100ms, such as 10s or 1m")
        else:
            probe_every_ms = span_ms
    return BreakerRule(failures_max=failures or FAILURES, probe_every_ms=probe_every_ms)

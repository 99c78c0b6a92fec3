"""Liveness, readiness and metrics, also for processes that serve nothing else.

In: checks by name, metrics if there are any. Out: three small answers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lucius.api.problems import answer, problem
from lucius.core.refusal import Code, Refused

CHECK_SECONDS_MAX = 3.0

log = structlog.get_logger("lucius.health")


class Degraded(str):
    """A finding that stops nothing: it is reported, and the process stays ready."""


Checks = Mapping[str, Callable[[], Awaitable[str | None]]]


class MetricsSource(Protocol):
    def text(self, accept: str, *, tenants: bool) -> tuple[bytes, str]: ...


def alive() -> Response:
    return answer({"status": "ok"})


async def ready(checks: Checks) -> Response:
    """One line a dependency; 503 if one of them is not well. What is only degraded is reported with 200."""
    faults = await asyncio.gather(*(_checked(name, check) for name, check in checks.items()))
    results = dict(zip(checks, faults, strict=True))
    well = all(fault is None or isinstance(fault, Degraded) for fault in results.values())
    status = "failing" if not well else "ok" if not any(results.values()) else "degraded"
    return answer(
        {"status": status, "checks": {name: _line(fault) for name, fault in results.items()}},
        status=200 if well else 503,
    )


def _line(fault: str | None) -> str:
    if fault is None:
        return "ok"
    return f"degraded: {fault}" if isinstance(fault, Degraded) else fault


def make_health_app(checks: Checks, metrics: MetricsSource | None) -> ASGIApp:
    """Serves nothing else, and asks no caller for a credential: so the metrics do not name tenants."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        response = await respond(Request(scope, receive))
        await response(scope, receive, send)

    async def respond(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return problem(Refused(Code.METHOD_NOT_ALLOWED, "this address does not take that method"))
        match request.scope["path"]:  # `request.url` fails on a query that is not UTF-8
            case "/livez":
                return alive()
            case "/readyz":
                return await ready(checks)
            case "/metrics" if metrics is not None:
                text, media_type = metrics.text(request.headers.get("accept", ""), tenants=False)
                return Response(text, media_type=media_type)
        return problem(Refused(Code.NOT_FOUND, "only /livez, /readyz and /metrics are here"))

    return app


async def _checked(name: str, check: Callable[[], Awaitable[str | None]]) -> str | None:
    """A check that hangs or breaks is a finding too, and must not keep the others from being reported."""
    try:
        return await asyncio.wait_for(check(), CHECK_SECONDS_MAX)
    except TimeoutError:
        return f"no answer within {CHECK_SECONDS_MAX:g} s"
    except Exception:
        log.exception("check_failed", check=name)
        return "the check itself failed; the log has it"

"""Liveness, readiness and metrics, also for processes that serve nothing else.

In: checks by name, metrics if there are any. Out: three small answers, and an ASGI application of them that
needs no web framework.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol

import msgspec
import structlog

CHECK_SECONDS_MAX = 3.0
JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"

log = structlog.get_logger("lucius.health")


class Degraded(str):
    """A finding that stops nothing: it is reported, and the process stays ready."""


Checks = Mapping[str, Callable[[], Awaitable[str | None]]]
AsgiMessage = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]
HealthApp = Callable[[AsgiMessage, AsgiReceive, AsgiSend], Awaitable[None]]


class MetricsSource(Protocol):
    def text(self, accept: str, *, tenants: bool) -> tuple[bytes, str]: ...


class Readiness(msgspec.Struct, frozen=True):
    """`checks`: one line a dependency. What is only degraded leaves the process ready."""

    status: str
    checks: dict[str, str]

    @property
    def well(self) -> bool:
        return self.status != "failing"


async def readiness(checks: Checks) -> Readiness:
    faults = await asyncio.gather(*(_checked(name, check) for name, check in checks.items()))
    results = dict(zip(checks, faults, strict=True))
    well = all(fault is None or isinstance(fault, Degraded) for fault in results.values())
    status = "failing" if not well else "ok" if not any(results.values()) else "degraded"
    return Readiness(status, {name: _line(fault) for name, fault in results.items()})


def make_health_app(checks: Checks, metrics: MetricsSource | None) -> HealthApp:
    """Serves nothing else, and asks no caller for a credential: so the metrics do not name tenants."""

    async def app(scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            return
        status, media_type, body = await respond(scope)
        headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def respond(scope: AsgiMessage) -> tuple[int, str, bytes]:
        if scope["method"] not in ("GET", "HEAD"):
            return _problem(405, "METHOD_NOT_ALLOWED", "this address does not take that method")
        match scope["path"]:
            case "/livez":
                return 200, JSON_TYPE, msgspec.json.encode({"status": "ok"})
            case "/readyz":
                found = await readiness(checks)
                return 200 if found.well else 503, JSON_TYPE, msgspec.json.encode(found)
            case "/metrics" if metrics is not None:
                accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
                body, media_type = metrics.text(accept, tenants=False)
                return 200, media_type, body
        return _problem(404, "NOT_FOUND", "only /livez, /readyz and /metrics are here")

    return app


def _problem(status: int, code: str, detail: str) -> tuple[int, str, bytes]:
    kind = code.lower().replace("_", "-")
    document = {"type": f"urn:lucius:problem:{kind}", "title": detail, "status": status, "code": code}
    return status, PROBLEM_TYPE, msgspec.json.encode(document | {"detail": detail})


def _line(fault: str | None) -> str:
    if fault is None:
        return "ok"
    return f"degraded: {fault}" if isinstance(fault, Degraded) else fault


async def _checked(name: str, check: Callable[[], Awaitable[str | None]]) -> str | None:
    """A check that hangs or breaks is a finding too, and must not keep the others from being reported."""
    try:
        return await asyncio.wait_for(check(), CHECK_SECONDS_MAX)
    except TimeoutError:
        return f"no answer within {CHECK_SECONDS_MAX:g} s"
    except Exception:
        log.exception("check_failed", check=name)
        return "the check itself failed; the log has it"

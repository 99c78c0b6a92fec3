"""Liveness and readiness as answers of the API and of the invoker."""

from starlette.responses import Response

from lucius.api.problems import answer
from lucius.telemetry.health import Checks, readiness


def alive() -> Response:
    return answer({"status": "ok"})


async def ready(checks: Checks) -> Response:
    found = await readiness(checks)
    return answer({"status": found.status, "checks": found.checks}, status=200 if found.well else 503)

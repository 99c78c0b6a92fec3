"""`GET /metrics`, and the counting of commands by what their senders were answered.

In: a scrape; the answers to commands. Out: Prometheus text (or OpenMetrics, if that is asked for); counts.
Knows the house only. A scrape reads memory, never the ledger.
"""

from collections.abc import Awaitable, Callable

import msgspec
from fastapi import APIRouter, Request, Response

from lucius.api.dependencies import ApiDependencies
from lucius.api.gate import Principal
from lucius.contracts.keys import Role
from lucius.core.refusal import Code
from lucius.ledger.store import StoreError
from lucius.telemetry import Metrics

COMMAND_ROUTES = frozenset({"/v1/orchestrate", "/v1/commands", "/v1/orchestrate:batch"})
ACCEPTED = ("accepted",)
DUPLICATE = ("duplicate",)
_REPLAYED = b"idempotent-replayed"

Endpoint = Callable[[Request], Awaitable[Response]]


class _Told(msgspec.Struct):
    """What an answer or one item of a batch says of a command."""

    code: str = ""
    duplicate: bool = False
    items: list["_Told"] = []


_told = msgspec.json.Decoder(_Told)


def routes(deps: ApiDependencies) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics", operation_id="metrics")
    async def metrics(request: Request) -> Response:
        # Open to all; but which tenants there are is only for those who may see all of them.
        caller = await deps.gate.admit(request, Role.READ)
        sees_all = isinstance(caller, Principal) and caller.tenants is None
        text, media_type = deps.watching.metrics.text(request.headers.get("accept", ""), tenants=sees_all)
        return Response(text, media_type=media_type)

    return router


def counted(path: str, endpoint: Endpoint, metrics: Metrics) -> Endpoint:
    """The same endpoint; if it takes commands, their outcomes are counted as their senders see them."""
    if path not in COMMAND_ROUTES:
        return endpoint
    tally = metrics.commands

    async def counting(request: Request) -> Response:
        try:
            response = await endpoint(request)
        except StoreError:
            tally.add((Code.SYSTEM_SATURATED.value,))
            raise
        except Exception:
            tally.add((Code.INTERNAL.value,))
            raise
        if response.status_code == 202:
            replayed = any(name == _REPLAYED for name, _ in response.raw_headers)
            tally.add(DUPLICATE if replayed else ACCEPTED)
        else:
            told = _told.decode(bytes(response.body))
            for one in told.items if response.status_code == 200 else (told,):
                tally.add((one.code,) if one.code else DUPLICATE if one.duplicate else ACCEPTED)
        return response

    return counting

"""For authors of platform services.

In: directives. Out: an ACK for each, heartbeats, and one RESULT.
A service is a name and an async function; the runner does the rest: leases work, leaves out what was done
before, acknowledges, keeps the lease alive, turns exceptions into failures, and drains before it ends.

    @service("ocr")
    async def ocr(task: Task) -> dict[str, Any]:
        document = await task.read(task.input_uri)
        await task.progress(50, "half way")
        return {"uri": await task.write_artifact("output.txt", document)}

`runner` drives a service over a transport (`http_transport`, or `bus_transport` with `bus_lanes` and
`lane_watch`); `heartbeat` keeps leases alive, `dedupe` and `result_stores` remember what was done. `task` and
`directive` are what a handler gets, `errors` and `payloads` turn its faults into failures; `health` answers
probes, `chaos` makes faults on purpose.

Knows nothing of the ledger, of engines, or of the web framework behind the API.
"""

from lucius.sdk.dedupe import DurableDedupe, MemoryDedupe
from lucius.sdk.directive import Directive, Upstream, parse_directive
from lucius.sdk.errors import Final, Retryable, Stopped
from lucius.sdk.http_transport import HttpTransport
from lucius.sdk.ports import (
    Dedupe,
    DeliveryFailed,
    DirectiveSeen,
    ReplyAnswer,
    ResultStore,
    Transport,
    UndeliveredResult,
    Workspace,
)
from lucius.sdk.result_stores.sqlite import SqliteResultStore
from lucius.sdk.runner import Runner, RunnerStatus
from lucius.sdk.task import Handler, Service, Task, service

__all__ = [
    "Dedupe",
    "DeliveryFailed",
    "Directive",
    "DirectiveSeen",
    "DurableDedupe",
    "Final",
    "Handler",
    "HttpTransport",
    "MemoryDedupe",
    "ReplyAnswer",
    "ResultStore",
    "Retryable",
    "Runner",
    "RunnerStatus",
    "Service",
    "SqliteResultStore",
    "Stopped",
    "Task",
    "Transport",
    "UndeliveredResult",
    "Upstream",
    "Workspace",
    "parse_directive",
    "service",
]

"""An external HTTP worker that takes its time: some attempts at once, each as long as it is told."""

import asyncio
import sys
from typing import Any

import uvloop

from lucius_lab.bench.wire import LoadConnection

SERVICE = "unserved"
STAMP = "2026-01-01T00:00:00Z"


async def attempts(port: int, work_seconds: float) -> None:
    """One after another, until the server goes away."""
    wire = LoadConnection("127.0.0.1", port)
    while True:
        wish = {"service": SERVICE, "max": 1, "wait_seconds": 20}
        _, leased = await wire.post("/v1/directives:lease", wish)
        for directive in leased["directives"]:
            await _answer(wire, directive, work_seconds)


async def _answer(wire: LoadConnection, directive: dict[str, Any], work_seconds: float) -> None:
    head = {name: directive[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
    token = directive["callback_token"]
    await wire.post("/v1/callbacks/ack", {"type": "ACK", "timestamp": STAMP, **head}, bearer=token)
    await asyncio.sleep(work_seconds)
    result = {"type": "RESULT", "status": "SUCCEEDED", "timestamp": STAMP, **head}
    result["output_ref"] = directive["input_ref"]
    await wire.post("/v1/callbacks/result", result, bearer=token)


async def work(port: int, at_a_time: int, work_ms: int) -> None:
    await asyncio.gather(*(attempts(port, work_ms / 1000) for _ in range(at_a_time)))


if __name__ == "__main__":
    uvloop.run(work(*(int(argument) for argument in sys.argv[1:4])))

"""Whether a service lives and whether it is ready, for load balancers and Kubernetes.

In: a runner, a workspace, a check of the service's own. Out: checks by name, and `/livez`, `/readyz` and
`/metrics` at an address.

    checks = service_checks(ocr, runner, workspace, "s3://artifacts")
    async with serving_health(checks, port=8081):
        await runner.run()
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final
from urllib.parse import quote

import uvicorn

from lucius.sdk.ports import Workspace
from lucius.sdk.runner import Runner
from lucius.sdk.task import Service
from lucius.telemetry.health import Checks, MetricsSource, make_health_app

# Beside the folders of systems in the workspace; a service's name below it.
PROBE: Final = "_ready"
LOOPBACK: Final = "127.0.0.1"
END_SECONDS_MAX: Final = 2
CONNECTIONS_MAX: Final = 64


def service_checks(service: Service, runner: Runner, workspace: Workspace, root: str) -> Checks:
    """The way to the work, the place for artifacts, and what the service asks for. `root`: the URI below
    which an object is written and read to try the workspace."""
    probe = f"{root.rstrip('/')}/{PROBE}/{quote(service.name, safe='')}"

    async def check_leases() -> str | None:
        failures = runner.status().lease_failures
        return f"the last {failures} leases failed" if failures else None

    async def check_workspace() -> str | None:
        try:
            await workspace.write(probe, b"{}")
            await workspace.read(probe)
        except (OSError, ValueError) as fault:
            return str(fault)
        return None

    checks = {"orchestrator": check_leases, "workspace": check_workspace}
    return checks if service.ready is None else {**checks, "service": service.ready}


@asynccontextmanager
async def serving_health(
    checks: Checks, *, host: str = LOOPBACK, port: int, metrics: MetricsSource | None = None
) -> AsyncIterator[int]:
    """Serves as long as the block runs. Gives the port, which differs where 0 was asked for. Raises `OSError`
    where the address cannot be listened on. No credential is asked for: let only probes reach it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        server = _Server(
            uvicorn.Config(
                make_health_app(checks, metrics),
                log_level="warning",
                lifespan="off",
                access_log=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=END_SECONDS_MAX,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await asyncio.wait({serving})


class _Server(uvicorn.Server):
    """Signals are the service's own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

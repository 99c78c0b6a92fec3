"""The server that `lucius bench` measures: the embedded deployment, with services that do no work, so that
the orchestration is what takes the time. Ledger, fsync, HTTP and commits are the product's own."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import uvloop

from lucius.api.app import make_app
from lucius.api.connection_limits import ConnectionLimits, server_config
from lucius.assembly import open_embedded
from lucius.cli.serving import QuietServer
from lucius.engines.outbox import fair_share
from lucius.ledger import names
from lucius.sdk import Handler, Task
from lucius.settings import read_settings
from lucius.telemetry import configure_logging

# `arrival`: lanes are not shared between tenants, as it was before decision 110: what was begun first leaves
# first. For figures of before and after.
ORDER = "LUCIUS_LAB_ORDER"


def order_by_arrival() -> None:
    """All tenants are one group of the dispatch index."""
    for module in (names, fair_share):
        setattr(module, "tenant_group", lambda tenant_norm: "t00000000")  # noqa: B010 (it is a function)


async def echo(task: Task) -> dict[str, str]:
    return {"uri": task.input_uri}


async def _serve(port: int, data: Path, protocols: Path, services: str) -> None:
    lucius = await open_embedded(
        read_settings(
            {name: value for name, value in os.environ.items() if "AUTH" not in name and name != ORDER}
        ),
        storage="ledger",
        data=data,
        base_url=f"http://127.0.0.1:{port}",
        protocols=protocols,
    )
    server = QuietServer(
        server_config(make_app(lucius.deployment), ConnectionLimits(), port=port, loop="none")
    )
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, lambda: setattr(server, "should_exit", True)
    )
    handlers: dict[str, Handler] = {name: echo for name in services.split(",") if name}
    await lucius.start(handlers)
    await server.serve()
    await lucius.stop()


def main(arguments: list[str]) -> None:
    port, data, protocols, services = arguments
    configure_logging("error", plain=False)
    if os.environ.get(ORDER) == "arrival":
        order_by_arrival()
    uvloop.run(_serve(int(port), Path(data), Path(protocols), services))


if __name__ == "__main__":
    main(sys.argv[1:])

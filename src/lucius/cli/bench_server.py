"""The server that `lucius bench` measures: the embedded deployment, with services that do no work, so that
the orchestration is what takes the time. Ledger, fsync, HTTP and commits are the product's own."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import uvicorn
import uvloop

from lucius.api.app import make_app
from lucius.assembly import open_embedded
from lucius.cli.dev import QuietServer
from lucius.ledger.jobs import LayoutName
from lucius.sdk import Handler, Task
from lucius.settings import read_settings
from lucius.telemetry import configure_logging


async def _echo(task: Task) -> dict[str, str]:
    return {"uri": task.input_uri}


async def _serve(port: int, data: Path, protocols: Path, services: str) -> None:
    lucius = await open_embedded(
        read_settings(os.environ),
        layout=LayoutName.LEDGER,
        data=data,
        base_url=f"http://127.0.0.1:{port}",
        protocols=protocols,
    )
    config = uvicorn.Config(
        make_app(lucius.house),
        port=port,
        log_level="warning",
        access_log=False,
        loop="none",
        http="httptools",
    )
    server = QuietServer(config)
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, lambda: setattr(server, "should_exit", True)
    )
    handlers: dict[str, Handler] = {name: _echo for name in services.split(",") if name}
    await lucius.start(handlers)
    await server.serve()
    await lucius.stop()


def main(arguments: list[str]) -> None:
    port, data, protocols, services = arguments
    configure_logging("error", plain=False)
    uvloop.run(_serve(int(port), Path(data), Path(protocols), services))


if __name__ == "__main__":
    main(sys.argv[1:])

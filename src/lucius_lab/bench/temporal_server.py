"""The orchestrator that `lucius bench` measures on the temporal engine, with services that do no work. Its
invoker and worker are started beside it, as the product's own commands."""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from lucius.assembly import NATS, Part
from lucius.cli.options import PartOptions
from lucius.cli.serving import bind, make_server, serve_until, stop_signals
from lucius.cli.temporal_parts import open_temporal_part, orchestrator_app
from lucius.sdk import Handler
from lucius.settings import read_settings
from lucius.telemetry import configure_logging
from lucius_lab.bench.server import echo

HOST = "127.0.0.1"


async def _serve(port: int, data: Path, services: str) -> int:
    settings = read_settings({name: value for name, value in os.environ.items() if "AUTH" not in name})
    handlers: dict[str, Handler] = {name: echo for name in services.split(",") if name}
    options = PartOptions(host=HOST, port=port, data=data, bus=NATS, storage="ledger")
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(bind(HOST, port))
        lucius = await open_temporal_part(
            stack, Part.ORCHESTRATOR, options, settings, base_url=f"http://{HOST}:{port}", services=handlers
        )
        if isinstance(lucius, int):
            return lucius
        server = make_server(await orchestrator_app(stack, settings, lucius.deployment), settings)
        return await serve_until(
            stop_signals(), server, listener, on_up=lambda: asyncio.sleep(0), let_go=lucius.let_go
        )


def main(arguments: list[str]) -> int:
    port, data, services = arguments
    configure_logging("error", plain=False)
    return uvloop.run(_serve(int(port), Path(data), services))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

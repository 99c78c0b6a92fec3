"""A small reader of server-sent events, and a real server on a loopback port to read from."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import uvicorn

from lucius.api.app import make_app
from lucius.assembly import Embedded

SSE = {"accept": "text/event-stream"}


class Said(msgspec.Struct, kw_only=True):
    """One event as it came."""

    id: str
    event: str
    data: dict[str, Any]


async def said(response: httpx2.Response, *, comments: list[str] | None = None) -> AsyncIterator[Said]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line.startswith(":"):
            if comments is not None:
                comments.append(line)
        elif line:
            name, _, value = line.partition(": ")
            assert name not in fields
            fields[name] = value
        else:
            if "data" in fields:
                yield Said(id=fields["id"], event=fields["event"], data=json.loads(fields["data"]))
            fields = {}


@asynccontextmanager
async def served(lucius: Embedded) -> AsyncIterator[str]:
    """The deployment behind a real socket: the URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2_048)
    config = uvicorn.Config(
        make_app(lucius.deployment), log_level="warning", access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        lucius.let_go()
        server.should_exit = True
        async with asyncio.timeout(20):
            await serving
        listener.close()

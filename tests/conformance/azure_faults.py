"""A proxy before Azurite that answers for it, or breaks the connection, before or after passing a call on.

In: a way to choose what happens to each call. Out: a connection string, and what was passed on.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum

import aiohttp
from aiohttp import web
from yarl import URL

from lucius.bus.nats.server import free_port
from lucius_lab.emulators.azurite import HOST, connection_string


class Fault(Enum):
    BUSY = "busy"  # refused by the store: 503 ServerBusy
    DROPPED_BEFORE = "dropped-before"
    DROPPED_AFTER = "dropped-after"
    TIMED_OUT_BEFORE = "timed-out-before"  # 500 OperationTimedOut, which may mean either
    TIMED_OUT_AFTER = "timed-out-after"
    GATEWAY_BEFORE = "gateway-before"  # a 503 that the store itself never gave
    GATEWAY_AFTER = "gateway-after"
    LATE = "late"  # the connection breaks, and the call is passed on when `release` is called


BEFORE = (Fault.BUSY, Fault.DROPPED_BEFORE, Fault.TIMED_OUT_BEFORE, Fault.GATEWAY_BEFORE)
AFTER = (Fault.DROPPED_AFTER, Fault.TIMED_OUT_AFTER, Fault.GATEWAY_AFTER)
_CODES = {
    Fault.BUSY: (503, "ServerBusy"),
    Fault.TIMED_OUT_BEFORE: (500, "OperationTimedOut"),
    Fault.TIMED_OUT_AFTER: (500, "OperationTimedOut"),
    Fault.GATEWAY_BEFORE: (503, ""),
    Fault.GATEWAY_AFTER: (503, ""),
}


class Call:
    def __init__(self, method: str, url: URL, headers: dict[str, str], body: bytes) -> None:
        self.method, self.url, self.headers, self.body = method, url, headers, body

    @property
    def writes(self) -> bool:
        """Rows; a table that is created is none."""
        return self.method != "GET" and not self.url.path.endswith("/Tables")


Choose = Callable[[Call], Fault | None]


class FaultProxy:
    def __init__(self, target_port: int, session: aiohttp.ClientSession) -> None:
        self.port = free_port()
        self.passed: list[Call] = []
        self.choose: Choose = lambda _: None
        # Awaited after a fault has happened, and before the client gets to know of it.
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.rows_per_page: int | None = None
        # Awaited before each page of a query is asked for.
        self.before_pages: Callable[[], Awaitable[object]] | None = None
        self._target_port = target_port
        self._session = session
        self._held: list[Call] = []

    @property
    def connection_string(self) -> str:
        return connection_string(self.port)

    @property
    def writes(self) -> int:
        return sum(call.writes for call in self.passed)

    def once(self, *faults: Fault) -> None:
        """These happen to the next writes, one each."""
        left = list(faults)
        self.choose = lambda call: left.pop(0) if left and call.writes else None

    async def release(self) -> list[int]:
        """Passes on what was held. The status of each answer."""
        held, self._held = self._held, []
        return [(await self._pass_on(call)).status for call in held]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        url = URL(f"http://{HOST}:{self._target_port}{request.raw_path}", encoded=True)
        call = Call(request.method, url, dict(request.headers), await request.content.read())
        fault = self.choose(call)
        if fault is None:
            return await self._pass_on(call)
        if fault is Fault.LATE:
            self._held.append(call)
        elif fault in AFTER:
            await self._pass_on(call)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        if fault in _CODES:
            return _refusal(*_CODES[fault])
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _pass_on(self, call: Call) -> web.Response:
        self.passed.append(call)
        url = call.url
        if self.before_pages is not None and "$top" in url.query:
            await self.before_pages()
        if self.rows_per_page is not None and "$top" in url.query:
            url = url.update_query({"$top": str(self.rows_per_page)})
        async with self._session.request(
            call.method,
            url,
            headers=call.headers,
            data=call.body or None,
            skip_auto_headers=["Content-Type"],  # it is part of what is signed
        ) as answer:
            body = await answer.read()
            dropped = ("transfer-encoding", "content-length", "connection", "keep-alive")
            headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in dropped]
            return web.Response(status=answer.status, body=body, headers=headers)


def _refusal(status: int, code: str) -> web.Response:
    if not code:
        return web.Response(
            status=status, text="<html>upstream connect error</html>", content_type="text/html"
        )
    text = f'{{"odata.error":{{"code":"{code}","message":{{"lang":"en-US","value":"as asked"}}}}}}'
    return web.Response(
        status=status, text=text, content_type="application/json", headers={"x-ms-error-code": code}
    )


@asynccontextmanager
async def fault_proxy(target_port: int) -> AsyncIterator[FaultProxy]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        proxy = FaultProxy(target_port, session)
        server = web.Server(proxy.handle)
        runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, HOST, proxy.port)
        await site.start()
        try:
            yield proxy
        finally:
            await runner.cleanup()
            await asyncio.sleep(0)

"""A proxy before a server that breaks a connection at a call with a mark in it.

In: a port, and what happens next to a call whose bytes hold the mark. Out: a port to connect to instead.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum

HOST = "127.0.0.1"
CHUNK_BYTES_MAX = 1 << 20


class Cut(Enum):
    BEFORE = "before"  # the server never sees the call
    AFTER = "after"  # the server answers, and the answer is lost
    LATE = "late"  # the connection breaks, and the server sees the call when `release` is called


class CutProxy:
    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.mark = b""
        self.cuts: list[Cut] = []
        # Awaited after a connection was broken.
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.silent = False  # takes what comes and passes nothing on, as a network that is cut
        self._target_port = target_port
        self._held: list[tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()

    async def release(self) -> None:
        """Passes on what was held, and waits for the answer."""
        held, self._held = self._held, []
        for data, reader, writer in held:
            writer.write(data)
            with suppress(OSError):
                await reader.read(CHUNK_BYTES_MAX)
            writer.close()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(HOST, self._target_port)
        self._writers |= {writer, to_writer}
        self._clients.add(writer)
        kept = asyncio.Event()
        back = asyncio.create_task(self._pass_back(to_reader, writer, kept))
        try:
            await self._pass_on(reader, to_reader, to_writer, kept, back)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            back.cancel()
            self._end(writer)
            if not any(held is to_writer for _, _, held in self._held):
                self._end(to_writer)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        to_reader: asyncio.StreamReader,
        to_writer: asyncio.StreamWriter,
        kept: asyncio.Event,
        back: asyncio.Task[None],
    ) -> None:
        while data := await reader.read(CHUNK_BYTES_MAX):
            if self.silent:
                continue
            cut = self.cuts.pop(0) if self.cuts and self.mark in data else None
            if cut is None:
                to_writer.write(data)
                continue
            if cut is Cut.AFTER:
                kept.set()
                to_writer.write(data)
                await back
            elif cut is Cut.LATE:
                back.cancel()
                with suppress(asyncio.CancelledError):
                    await back
                self._held.append((data, to_reader, to_writer))
            if self.meanwhile is not None:
                meanwhile, self.meanwhile = self.meanwhile, None
                await meanwhile()
            return

    async def _pass_back(
        self, to_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await to_reader.read(CHUNK_BYTES_MAX):
                if kept.is_set():
                    return
                if not self.silent:
                    writer.write(data)
        self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        self._clients.discard(writer)
        writer.transport.abort()

    def say(self, data: bytes) -> None:
        """To every client, as if the server said it."""
        for writer in self._clients:
            writer.write(data)

    def break_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()


@asynccontextmanager
async def cut_proxy(target_port: int) -> AsyncIterator[CutProxy]:
    proxy = CutProxy(target_port)
    server = await asyncio.start_server(proxy.handle, HOST, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.break_all()
        await asyncio.sleep(0.05)

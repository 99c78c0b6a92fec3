"""A real browser, driven through its own debugging protocol: pages as somebody at a screen has them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05
PROGRAM = "chromium"
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--remote-debugging-port=0", "about:blank"),
)
# A name that somebody else gives out, and has lead to this machine.
REBOUND = "rebound.example"


class Page:
    """One tab. `faults`: what the browser complained of, but for answers that are no success."""

    def __init__(self, wire: aiohttp.ClientWebSocketResponse) -> None:
        self.faults: list[str] = []
        self._wire = wire
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def listen(self) -> None:
        async for message in self._wire:
            told = json.loads(message.data)
            if "id" in told:
                self._waiting.pop(told["id"]).set_result(told)
            elif told["method"] == "Runtime.exceptionThrown":
                self.faults.append(json.dumps(told["params"]))
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["source"] != "network":
                self.faults.append(told["params"]["entry"]["text"])

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._waiting[number] = answered = asyncio.get_running_loop().create_future()
        await self._wire.send_json({"id": number, "method": method, "params": parameters})
        answer = await asyncio.wait_for(answered, SECONDS_MAX)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def go(self, url: str) -> None:
        await self.ask("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """What this comes to on the page; None while there is no such thing."""
        answer = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value") if "exceptionDetails" not in answer else None

    async def until(self, expression: str) -> Any:
        deadline = asyncio.get_running_loop().time() + SECONDS_MAX
        while not (found := await self.value(expression)):
            if asyncio.get_running_loop().time() > deadline:
                text = await self.value("document.body.innerText")
                raise AssertionError(f"never: {expression}; the page says: {text}")
            await asyncio.sleep(LOOK_SECONDS)
        return found

    async def sees(self, words: str) -> None:
        await self.until(f"document.body.innerText.includes({json.dumps(words)})")

    async def press(self, words: str) -> None:
        """The button with these words, once it is there."""
        button = (
            f"[...document.querySelectorAll('button')].find((each) => each.innerText === {json.dumps(words)})"
        )
        await self.until(f"!!{button}")
        await self.value(f"{button}.click()")


@asynccontextmanager
async def browser(folder: Path, *options: str) -> AsyncIterator[Page]:
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, f"--user-data-dir={folder}", *options, *OPTIONS), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        port = await _port(folder / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            tabs = await (await session.get(f"http://127.0.0.1:{port}/json/list")).json()
            address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as wire:
                page = Page(wire)
                listening = asyncio.create_task(page.listen())
                for domain in ("Page", "Runtime", "Log"):
                    await page.ask(f"{domain}.enable")
                yield page
                listening.cancel()
                with suppress(asyncio.CancelledError):
                    await listening
    finally:
        process.kill()
        await process.wait()


async def _port(file: Path) -> int:
    deadline = asyncio.get_running_loop().time() + SECONDS_MAX
    while not (file.exists() and "\n" in file.read_text()):
        assert asyncio.get_running_loop().time() < deadline, "the browser did not start"
        await asyncio.sleep(LOOK_SECONDS)
    return int(file.read_text().splitlines()[0])

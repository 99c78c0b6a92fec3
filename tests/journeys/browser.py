"""A real browser, driven through its own debugging protocol: pages as a person at a screen has them.

One process serves many tests; each has a profile of its own, as a private window has, and one tab in it.
"""

import asyncio
import base64
import json
import subprocess
import time
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
    *("--hide-scrollbars", "--remote-debugging-port=0", "about:blank"),
)
# A name of an attacker's domain, which resolves to this machine.
REBOUND = "rebound.example"
FRAME = "new Promise((drawn) => { requestAnimationFrame(drawn); setTimeout(drawn, 100); })"
# What the browser answers where a page was asked that another has taken the place of meanwhile.
NAVIGATED = ("Inspected target navigated or closed", "Execution context was destroyed.")
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}


class Navigated(Exception):
    """The page that was asked is no longer there."""


class Page:
    """One tab. `faults`: what the browser complained of, but for answers that are no success."""

    def __init__(self, wire: aiohttp.ClientWebSocketResponse) -> None:
        self.faults: list[str] = []
        self.requests: list[str] = []
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
            elif told["method"] == "Network.requestWillBeSent":
                self.requests.append(told["params"]["request"]["url"])

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._waiting[number] = answered = asyncio.get_running_loop().create_future()
        await self._wire.send_json({"id": number, "method": method, "params": parameters})
        answer = await asyncio.wait_for(answered, SECONDS_MAX)
        if "error" in answer and answer["error"]["message"] in NAVIGATED:
            raise Navigated
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def go(self, url: str) -> None:
        await self.ask("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """What this comes to on the page; None while there is no such thing."""
        answer = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value") if "exceptionDetails" not in answer else None

    async def settled(self, expression: str) -> Any:
        """The same of a promise."""
        answer = await self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        deadline = asyncio.get_running_loop().time() + SECONDS_MAX
        while not (found := await self._value_now(expression)):
            if asyncio.get_running_loop().time() > deadline:
                text = await self.value("document.body.innerText")
                raise AssertionError(f"never: {expression}; the page says: {text}; faults: {self.faults}")
            await asyncio.sleep(LOOK_SECONDS)
        return found

    async def _value_now(self, expression: str) -> Any:
        try:
            return await self.value(expression)
        except Navigated:  # the page that was asked is gone, and the next one is not there yet
            return None

    async def sees(self, words: str) -> None:
        await self.until(f"document.body.innerText.includes({json.dumps(words)})")

    async def press(self, words: str, within: str = "document") -> None:
        """The button or link with these words, or this label, once it is there: a click of the mouse at its
        middle."""
        found = (
            f"[...{within}.querySelectorAll('button, a, summary')].find((each) => each.checkVisibility() && "
            f"(each.innerText.trim() === {json.dumps(words)} || each.ariaLabel === {json.dumps(words)}))"
        )
        await self.click(found)

    async def click(self, found: str) -> None:
        """What this expression finds, once nothing covers it."""
        spot = (
            f"((node) => {{ if (!node) return null; node.scrollIntoView({{block: 'center'}}); "
            "const box = node.getBoundingClientRect(); "
            "const [x, y] = [box.x + box.width / 2, box.y + box.height / 2]; "
            "const at = document.elementFromPoint(x, y); "
            f"return at && node.contains(at) ? {{x, y}} : null; }})({found})"
        )
        at, before = await self.until(spot), None
        while at != before:  # what is drawn above it may still push it away
            await self.settled(FRAME)
            at, before = await self.until(spot), at
        for kind in ("mousePressed", "mouseReleased"):
            await self.ask("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    async def type(self, text: str) -> None:
        """Into what has the focus."""
        await self.ask("Input.insertText", text=text)

    async def key(self, key: str) -> None:
        code, text = KEYS[key] if key in KEYS else (ord(key.upper()), key)
        event = {"key": key, "windowsVirtualKeyCode": code}
        await self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        await self.ask("Input.dispatchKeyEvent", type="keyUp", **event)

    async def fill(self, label: str, text: str) -> None:
        """The field with this label."""
        field = (
            "[...document.querySelectorAll('input, textarea, select')].find((each) => "
            "(each.ariaLabel ?? each.labels?.[0]?.innerText.trim().split('\\n')[0].replace(/ required$/, ''))"
            f" === {json.dumps(label)} && each.checkVisibility())"
        )
        await self.until(f"!!{field}")
        await self.value(
            f"((field) => {{ field.focus(); field.value = {json.dumps(text)}; "
            "field.dispatchEvent(new Event('input', {bubbles: true})); "
            f"field.dispatchEvent(new Event('change', {{bubbles: true}})); }})({field})"
        )

    async def size(self, width: int, height: int = 900) -> None:
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def scheme(self, theme: str) -> None:
        """What the system prefers."""
        await self.ask(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}]
        )

    async def picture(self) -> bytes:
        taken = await self.ask("Page.captureScreenshot", format="png")
        return base64.b64decode(taken["data"])


class Browser:
    """The process."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._port_file = folder / "DevToolsActivePort"
        self._process = subprocess.Popen(
            (PROGRAM, f"--user-data-dir={folder}", *options, *OPTIONS), stderr=subprocess.DEVNULL
        )

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _address(self) -> str:
        deadline = time.monotonic() + SECONDS_MAX
        while not (self._port_file.exists() and "\n" in self._port_file.read_text()):
            assert time.monotonic() < deadline, "the browser did not start"
            time.sleep(LOOK_SECONDS)
        port, path = self._port_file.read_text().splitlines()[:2]
        return f"ws://127.0.0.1:{port}{path}"

    @asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        address = self._address()
        base = address.rpartition("/devtools/")[0]
        async with aiohttp.ClientSession() as session, _joined(session, address) as whole:
            context = (await whole.ask("Target.createBrowserContext"))["browserContextId"]
            target = await whole.ask("Target.createTarget", url="about:blank", browserContextId=context)
            async with _joined(session, f"{base}/devtools/page/{target['targetId']}") as page:
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await page.ask(f"{domain}.enable")
                yield page
            await whole.ask("Target.disposeBrowserContext", browserContextId=context)


@asynccontextmanager
async def _joined(session: aiohttp.ClientSession, address: str) -> AsyncIterator[Page]:
    async with session.ws_connect(address, max_msg_size=0) as wire:
        page = Page(wire)
        listening = asyncio.create_task(page.listen())
        try:
            yield page
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening


@asynccontextmanager
async def browser(folder: Path, *options: str) -> AsyncIterator[Page]:
    """A page of a process of its own, with these options."""
    process = Browser(folder, *options)
    try:
        async with process.page() as page:
            yield page
    finally:
        process.stop()

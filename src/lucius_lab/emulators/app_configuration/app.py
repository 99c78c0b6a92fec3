"""An emulator of Azure App Configuration, for tests and for trying things out on one machine.

In: HTTP on loopback, from Microsoft's unmodified library. Out: the answers that it needs: key-values by
key, or in pages by key and label filter; ETags and their conditions; feature flags, which are key-values.
Signatures are checked. It speaks the library's protocol and is not Azure: there are no snapshots, revisions,
locks, replicas or quotas, a token is compared and not understood, and nothing is kept.

    python -m lucius_lab.emulators.app_configuration.app --port 8483 --load settings.json
"""

import argparse
import asyncio
import base64
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote

import msgspec
import uvicorn

from lucius_lab.emulators.app_configuration.signature import SCHEME, Signatures
from lucius_lab.emulators.app_configuration.values import (
    BadFilter,
    KeyValue,
    KeyValueBody,
    KeyValuePage,
    KeyValues,
)

HOST: Final = "127.0.0.1"
BODY_BYTES_MAX: Final = 64 * 1024
KEY_ID: Final = "emulator"
# Publicly known, as it is with other emulators: it protects nothing.
SECRET: Final = base64.b64encode(b"lucius-app-configuration-emulator").decode()

_KV: Final = "application/vnd.microsoft.appconfig.kv+json; charset=utf-8"
_KV_SET: Final = "application/vnd.microsoft.appconfig.kvset+json; charset=utf-8"
_PROBLEM: Final = "application/problem+json; charset=utf-8"
FEATURE_PREFIX: Final = ".appconfig.featureflag/"
FEATURE_TYPE: Final = "application/vnd.microsoft.appconfig.ff+json;charset=utf-8"
REFERENCE_TYPE: Final = "application/vnd.microsoft.appconfig.keyvaultref+json;charset=utf-8"


class SeenRequest(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    """Decoded."""
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    def one(self, name: str) -> str | None:
        values = self.query.get(name)
        return values[0] if values else None


class PlannedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    headers: dict[str, str] = {}
    body: bytes = b""


class AppConfigurationEmulator:
    """An ASGI application. Tests may also write to `values` directly, and make every request fail."""

    def __init__(
        self,
        *,
        now_seconds: Callable[[], float],
        secret: str = SECRET,
        token: str | None = None,
        page_items_max: int = 100,
    ) -> None:
        """`token`: taken in place of a signature, from any client."""
        self.values = KeyValues(page_items_max=page_items_max)
        self.failing_with: int | None = None
        self.requests: list[tuple[str, str, int]] = []
        self._now_seconds = now_seconds
        self._signatures = Signatures(KEY_ID, secret)
        self._bearer = None if token is None else f"Bearer {token}"

    def put(self, key: str, value: str, *, label: str | None = None, content_type: str | None = None) -> None:
        now = formatdate(self._now_seconds(), usegmt=True)
        self.values.put(key, label, KeyValueBody(value=value, content_type=content_type), now=now)

    def put_feature(self, name: str, *, enabled: bool, label: str | None = None, **more: Any) -> None:
        flag = {"id": name, "enabled": enabled, "conditions": {"client_filters": []}, **more}
        text = msgspec.json.encode(flag).decode()
        self.put(f"{FEATURE_PREFIX}{name}", text, label=label, content_type=FEATURE_TYPE)

    def put_secret(self, key: str, uri: str, *, label: str | None = None) -> None:
        text = msgspec.json.encode({"uri": uri}).decode()
        self.put(key, text, label=label, content_type=REFERENCE_TYPE)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            event = await receive()
            body += event.get("body", b"")[: BODY_BYTES_MAX + 1]
            more = event.get("more_body", False)
        raw_path, query = scope["raw_path"].decode(), scope["query_string"].decode()
        asked = SeenRequest(
            method=scope["method"],
            path=unquote(raw_path),
            query=parse_qs(query, keep_blank_values=True),
            headers={name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]},
            body=body,
        )
        response = self._guarded(asked, f"{raw_path}?{query}" if query else raw_path)
        if len(self.requests) < 10_000:
            self.requests.append((asked.method, asked.path, response.status))
        headers = {
            "content-length": str(len(response.body)),
            "sync-token": "zero=MA==;sn=1",
            **response.headers,
        }
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": response.status, "headers": raw})
        await send({"type": "http.response.body", "body": response.body})

    def _guarded(self, asked: SeenRequest, target: str) -> PlannedAnswer:
        if self.failing_with is not None:
            return _problem(self.failing_with, "the emulator was told to fail")
        if len(asked.body) > BODY_BYTES_MAX:
            return _problem(413, f"a body has at most {BODY_BYTES_MAX} bytes")
        fault = self._signatures.fault(asked.method, target, asked.headers, asked.body, self._now_seconds())
        if fault is not None and (self._bearer is None or asked.headers.get("authorization") != self._bearer):
            response = f'{SCHEME} error="invalid_token" error_description="{fault}"'
            return _problem(401, fault, {"www-authenticate": response})
        try:
            return self._routed(asked)
        except BadFilter as error:
            return _problem(400, str(error))
        except msgspec.MsgspecError:
            return _problem(400, "the body is not a key-value")

    def _routed(self, asked: SeenRequest) -> PlannedAnswer:
        if "api-version" not in asked.query:
            return _problem(400, "api-version is required")
        key = asked.path.removeprefix("/kv/")
        match asked.method:
            case "GET" if asked.path == "/kv":
                return self._listed(asked)
            case "GET" | "HEAD" if key != asked.path and key:
                return self._got(asked, key)
            case "PUT" if key != asked.path and key:
                return self._written(asked, key)
            case "DELETE" if key != asked.path and key:
                return self._deleted(asked, key)
        return _problem(404, "the emulator has nothing here")

    def _listed(self, asked: SeenRequest) -> PlannedAnswer:
        page = self.values.page(
            asked.one("key"), asked.one("label"), asked.query.get("tags", []), asked.one("after")
        )
        headers = {"etag": f'"{page.etag}"', "content-type": _KV_SET}
        following = _next_link(asked, page)
        if following is not None:
            headers["link"] = f'<{following}>; rel="next"'
        if _names(asked.headers.get("if-none-match"), page.etag):
            return PlannedAnswer(status=304, headers=headers)
        document: dict[str, Any] = {"items": page.items, "etag": page.etag}
        if following is not None:
            document["@nextLink"] = following
        return PlannedAnswer(status=200, headers=headers, body=msgspec.json.encode(document))

    def _got(self, asked: SeenRequest, key: str) -> PlannedAnswer:
        row = self.values.get(key, asked.one("label"))
        if row is None:
            return _problem(404, "there is no such key-value")
        if _names(asked.headers.get("if-none-match"), row.etag):
            return PlannedAnswer(status=304, headers={"etag": f'"{row.etag}"'})
        return self._refusal(asked, row) or _shown(row)

    def _written(self, asked: SeenRequest, key: str) -> PlannedAnswer:
        label = asked.one("label")
        refusal = self._refusal(asked, self.values.get(key, label))
        if refusal is not None:
            return refusal
        body = msgspec.json.decode(asked.body, type=KeyValueBody)
        return _shown(self.values.put(key, label, body, now=formatdate(self._now_seconds(), usegmt=True)))

    def _deleted(self, asked: SeenRequest, key: str) -> PlannedAnswer:
        label = asked.one("label")
        row = self.values.get(key, label)
        refusal = self._refusal(asked, row)
        if refusal is not None:
            return refusal
        self.values.delete(key, label)
        return PlannedAnswer(status=204) if row is None else _shown(row)

    @staticmethod
    def _refusal(asked: SeenRequest, row: KeyValue | None) -> PlannedAnswer | None:
        """Where a condition of the request does not hold."""
        must, must_not = asked.headers.get("if-match"), asked.headers.get("if-none-match")
        etag = None if row is None else row.etag
        held = (must is None or _names(must, etag)) and not _names(must_not, etag)
        return None if held else _problem(412, "the condition does not hold")


def _names(header: str | None, etag: str | None) -> bool:
    """Whether an If-Match or If-None-Match header means this version."""
    if header is None or etag is None:
        return False
    return any(part.strip() in ("*", f'"{etag}"', etag) for part in header.split(","))


def _next_link(asked: SeenRequest, page: KeyValuePage) -> str | None:
    if page.after is None:
        return None
    kept = [(name, value) for name, values in asked.query.items() for value in values if name != "after"]
    parts = [f"{quote(name)}={quote(value, safe='')}" for name, value in (*kept, ("after", page.after))]
    return f"/kv?{'&'.join(parts)}"


def _shown(row: KeyValue) -> PlannedAnswer:
    headers = {"etag": f'"{row.etag}"', "content-type": _KV, "last-modified": row.last_modified}
    return PlannedAnswer(status=200, headers=headers, body=msgspec.json.encode(row))


def _problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> PlannedAnswer:
    body = msgspec.json.encode({"title": detail, "status": status, "detail": detail})
    return PlannedAnswer(status=status, headers={"content-type": _PROBLEM, **(headers or {})}, body=body)


class _StoredEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Of a file of key-values to begin with: a list of these."""

    key: str
    value: str
    label: str | None = None
    content_type: str | None = None


def load_file(emulator: AppConfigurationEmulator, file: Path) -> int:
    """How many were taken in."""
    entries = msgspec.json.decode(file.read_bytes(), type=list[_StoredEntry])
    for entry in entries:
        emulator.put(entry.key, entry.value, label=entry.label, content_type=entry.content_type)
    return len(entries)


def connection_string(port: int, secret: str = SECRET) -> str:
    """`secret`: in base64, what the emulator was made with."""
    return f"Endpoint=http://{HOST}:{port};Id={KEY_ID};Secret={secret}"


class _EmulatorServer(uvicorn.Server):
    """One that leaves the signals to the process it is served in."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(
    emulator: AppConfigurationEmulator, *, port: int = 0, certificate: Path | None = None
) -> AsyncIterator[int]:
    """Serves in this process; the port it listens on. `certificate`: with its key, for TLS."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()  # from here on no client is refused, though the first answers come a moment later
        config = uvicorn.Config(
            emulator,
            log_level="error",
            lifespan="off",
            timeout_graceful_shutdown=1,
            ssl_certfile=certificate,
        )
        server = _EmulatorServer(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def _serve(port: int, file: Path | None) -> None:
    emulator = AppConfigurationEmulator(now_seconds=time.time)
    if file is not None:
        load_file(emulator, file)
    async with serving(emulator, port=port) as taken:
        sys.stdout.write(f"{connection_string(taken)}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="An emulator of Azure App Configuration. It is not Azure.")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--load", type=Path, help="a JSON list of {key, value, label?, content_type?}")
    asked = parser.parse_args()
    try:
        asyncio.run(_serve(asked.port, asked.load))
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()

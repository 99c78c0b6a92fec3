"""Serves the files of the page, all of which are here: it needs no network but the one to Lucius."""

import asyncio
from importlib.resources import files
from typing import Final
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lucius.console.guide import Guide, is_of_the_guide

START: Final = "/"
PREFIX: Final = "/console/"
API_PREFIX: Final = "/v1/"
INDEX: Final = "index.html"
TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# Only scripts and styles of its own, no frame around it, and it talks to Lucius alone: whatever a tenant or a
# service wrote into a job cannot become more than text, or a picture.
POLICY: Final = "Content-Security-Policy"
HEADERS: Final = {
    POLICY: "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src {connect}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class ConsoleApp:
    """`login_issuer`: the identity provider at which people log in; the page may talk to its host, too."""

    def __init__(self, app: ASGIApp, login_issuer: str | None = None) -> None:
        self._app = app
        policy = HEADERS[POLICY].format(connect=" ".join(("'self'", *_origins(login_issuer))))
        self._headers = {**HEADERS, POLICY: policy}
        self._guide = Guide()
        static = files(__package__) / "static"
        self._files = {entry.name: entry.read_bytes() for entry in static.iterdir() if entry.is_file()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path", "").startswith(API_PREFIX):  # nearly all calls
            await self._app(scope, receive, send)
            return
        found = self._found(scope) or await self._guide_page(scope)
        if found is None:
            await self._app(scope, receive, send)
        else:
            await found(scope, receive, send)

    async def _guide_page(self, scope: Scope) -> Response | None:
        """A page of the documentation, if that is what was asked for."""
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return None
        if not is_of_the_guide(scope["path"]):
            return None
        found = await asyncio.to_thread(self._guide.answer, scope["path"])
        if found is not None and scope["method"] == "HEAD":
            found.body = b""  # its length stays said
        return found

    def _found(self, scope: Scope) -> Response | None:
        """One of the page's own files, if that is what was asked for."""
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return None
        path: str = scope["path"]
        name = INDEX if path == START else path.removeprefix(PREFIX) if path.startswith(PREFIX) else None
        content = None if name is None else self._files.get(name)
        if name is None or content is None:
            return None
        body = content if scope["method"] == "GET" else b""
        headers = {**self._headers, "Content-Length": str(len(content))}
        return Response(body, media_type=TYPES[name.rpartition(".")[2]], headers=headers)


def _origins(login_issuer: str | None) -> tuple[str, ...]:
    """The host alone: a page calls more than one path of it."""
    if login_issuer is None:
        return ()
    parts = urlsplit(login_issuer)
    host = (parts.hostname or "").encode("idna").decode()
    port = "" if parts.port is None else f":{parts.port}"
    return (f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}",)

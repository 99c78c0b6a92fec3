"""The documentation at `/docs/guide`, from an archive that is made with the package: it needs no network.

In: a path. Out: the file there, or None. Where the archive was not made, as in a clone, one page says how.
"""

import threading
from importlib.resources import as_file, files
from typing import Final
from zipfile import ZipFile

from starlette.responses import RedirectResponse, Response

PREFIX: Final = "/docs/guide"
LLMS: Final = "/llms.txt"
INDEX: Final = "index.html"
ARCHIVE: Final = "guide.zip"
TYPES: Final = {
    "css": "text/css",
    "html": "text/html",
    "ico": "image/x-icon",
    "js": "text/javascript",
    "json": "application/json",
    "md": "text/markdown",
    "png": "image/png",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
    "xml": "application/xml",
}
PLAIN: Final = "text/plain"  # what would do something in a browser is shown instead
# The pages of the generator hold small scripts and styles of their own. They are ours alone: nothing that a
# tenant or a service wrote is ever shown here, and nothing is loaded from another host.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'unsafe-inline'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "max-age=300",
}
MISSING: Final = (
    "<!DOCTYPE html><title>Lucius</title><h1>The documentation is not built here</h1>"
    "<p>In a clone, <code>make guide</code> builds it; the same pages are in the folder <code>docs</code>. "
    'The calls of the API are at <a href="/docs">/docs</a>.'
)


class Guide:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._archive: ZipFile | None = None
        self._names: frozenset[str] | None = None

    def answer(self, path: str) -> Response | None:
        """For the paths of the guide; None where it has nothing. Reads a file: not for the event loop."""
        if path == PREFIX:
            return RedirectResponse(f"{PREFIX}/", status_code=308)
        name = LLMS[1:] if path == LLMS else path.removeprefix(f"{PREFIX}/") or INDEX
        with self._lock:
            names = self._known()
            content = self._archive.read(name) if self._archive is not None and name in names else None
        if content is None:
            if not names and name == INDEX:
                return Response(MISSING, media_type="text/html", headers=HEADERS, status_code=404)
            return None
        return Response(content, media_type=TYPES.get(name.rpartition(".")[2], PLAIN), headers=HEADERS)

    def _known(self) -> frozenset[str]:
        if self._names is None:
            place = files(__package__) / ARCHIVE
            if place.is_file():
                with as_file(place) as path:
                    self._archive = ZipFile(path)
            self._names = frozenset() if self._archive is None else frozenset(self._archive.namelist())
        return self._names


def is_of_the_guide(path: str) -> bool:
    return path in (PREFIX, LLMS) or path.startswith(f"{PREFIX}/")
